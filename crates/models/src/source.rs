//! The files of a model: a GGUF file, or a checkpoint folder with `config.json` and safetensors.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use baton_weights::gguf::{GgufFile, Value};
use baton_weights::{Checkpoint, DType, Tensor, open_regular};

use crate::arch::Family;
use crate::hyper::Hyper;
use crate::names::{PREFIXES, Slot};
use crate::rope_keys::Factors;
use crate::{Error, Result};

/// Bytes of a model card that are searched for its licence.
const MAX_FRONT_MATTER: u64 = 1 << 16;

/// Where a model's tensors and hyperparameters come from.
#[derive(Debug)]
#[non_exhaustive]
pub enum Source {
    /// A GGUF file, or all parts of a split one.
    Gguf(GgufFile),
    /// A checkpoint in safetensors, MLX's included.
    Checkpoint {
        /// The folder, in which tokenizer files may lie too.
        folder: PathBuf,
        /// The open weights and `config.json`.
        files: Checkpoint,
        /// Before the names of the language model's tensors, such as `model.`.
        prefix: &'static str,
    },
}

/// What a file's header says of a tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorSummary {
    /// Its name in the file.
    pub name: String,
    /// Row-major shape.
    pub shape: Vec<usize>,
    /// Its type, as people call it.
    pub dtype: String,
    /// Bytes in the file.
    pub bytes: usize,
}

impl TensorSummary {
    /// Number of elements.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }
}

impl Source {
    /// Opens what is at `path`.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        if !path.exists() {
            return Err(no_model(path, "there is nothing at this path"));
        }
        if path.is_dir() && !is_checkpoint(path)? {
            return Ok(Source::Gguf(GgufFile::open(only_gguf(path)?)?));
        }
        if path.is_file() && is_gguf(path)? {
            return Ok(Source::Gguf(GgufFile::open(path)?));
        }
        let is_weights = path.extension().is_some_and(|e| e == "safetensors");
        let is_json = path.extension().is_some_and(|e| e == "json");
        let folder = match path.parent() {
            _ if path.is_dir() => path.to_owned(),
            Some(parent) if is_weights || is_json => parent.to_owned(),
            _ => {
                let problem = "is neither GGUF nor safetensors; convert the model to one of them";
                return Err(no_model(path, problem));
            }
        };
        let files = Checkpoint::open(if is_weights { path } else { &folder })?;
        Self::from_checkpoint(folder, files)
    }

    /// A checkpoint whose files are open. `folder` is where they came from.
    ///
    /// # Errors
    /// If it has no `config.json`.
    pub fn from_checkpoint(folder: PathBuf, files: Checkpoint) -> Result<Self> {
        if !files.config().is_object() {
            let problem = "has no config.json beside the weights; download it too";
            return Err(no_model(&folder, problem));
        }
        let has_embedding = |prefix: &&&str| {
            let has = |stem| files.has(&format!("{prefix}{stem}.weight"));
            has("embed_tokens") || has("embeddings.word_embeddings")
        };
        let prefix = PREFIXES.iter().find(has_embedding).copied().unwrap_or(PREFIXES[0]);
        Ok(Source::Checkpoint { folder, files, prefix })
    }

    /// True if there is a tensor of that name.
    pub(crate) fn has(&self, name: &str) -> bool {
        match self {
            Source::Gguf(file) => file.has(name),
            Source::Checkpoint { files, .. } => files.has(name),
        }
    }

    /// The tensor of that name.
    pub(crate) fn tensor(&self, name: &str) -> Result<Tensor> {
        match self {
            Source::Gguf(file) => Ok(file.tensor(name)?),
            Source::Checkpoint { files, .. } => Ok(files.tensor(name)?),
        }
    }

    /// Whether asking for a tensor gives the bytes of the file rather than converts them.
    pub(crate) fn is_mapped(&self, tensor: &TensorSummary) -> bool {
        matches!(self, Source::Gguf(_)) || tensor.dtype != DType::MxFp4.to_string()
    }

    /// Shape of the tensor of that name, if there is one.
    pub(crate) fn shape(&self, name: &str) -> Option<Vec<usize>> {
        match self {
            Source::Gguf(file) => file.info(name).map(|info| info.shape().to_vec()),
            Source::Checkpoint { files, .. } => files.info(name).ok().map(|info| info.shape),
        }
    }

    /// Names under which a slot's tensor may be in the file, likeliest first and never none.
    pub(crate) fn qualified(&self, slot: Slot, stem: &str) -> Vec<String> {
        match self {
            Source::Gguf(_) => vec![stem.to_owned()],
            Source::Checkpoint { .. } if slot == Slot::Output => {
                vec![stem.to_owned(), format!("language_model.{stem}")]
            }
            Source::Checkpoint { prefix, .. } => vec![format!("{prefix}{stem}")],
        }
    }

    /// Names of all tensors, in file order.
    pub(crate) fn names(&self) -> Vec<&str> {
        match self {
            Source::Gguf(file) => file.tensors().iter().map(|t| t.name()).collect(),
            Source::Checkpoint { files, .. } => files.names().collect(),
        }
    }

    /// What the names of tensors begin with that belong to layers.
    pub(crate) fn layer_stems(&self) -> Vec<String> {
        match self {
            Source::Gguf(_) => vec!["blk.".into()],
            Source::Checkpoint { prefix, .. } => {
                ["layers.", "encoder.layer"].map(|start| format!("{prefix}{start}")).to_vec()
            }
        }
    }

    /// Writes those of some tensors that the files have, with all metadata where it is in the same file,
    /// as a file of the source's own form.
    ///
    /// # Errors
    /// If a tensor is missing, or writing fails.
    pub fn write_some<W: Write>(&self, names: &[&str], out: W) -> Result<W> {
        Ok(match self {
            Source::Gguf(file) => file.write_some(names, out)?,
            Source::Checkpoint { files, .. } => files.write_some(names, out)?,
        })
    }

    /// What the headers say of every tensor, in file order.
    ///
    /// # Errors
    /// If the parts of a quantized tensor do not fit together.
    pub fn tensors(&self) -> Result<Vec<TensorSummary>> {
        match self {
            Source::Gguf(file) => Ok(file
                .tensors()
                .iter()
                .map(|t| TensorSummary {
                    name: t.name().to_owned(),
                    shape: t.shape().to_vec(),
                    dtype: t.kind().to_string(),
                    bytes: t.stored_bytes(),
                })
                .collect()),
            Source::Checkpoint { files, .. } => files
                .names()
                .map(|name| {
                    let info = files.info(name)?;
                    let dtype = match info.dtype {
                        Ok(dtype) => dtype.to_string(),
                        Err(other) => other,
                    };
                    let (name, bytes) = (name.to_owned(), info.stored_bytes);
                    Ok(TensorSummary { name, shape: info.shape, dtype, bytes })
                })
                .collect(),
        }
    }

    /// The divisors of rotation angles that GGUF files keep in tensors.
    pub(crate) fn rope_factors(&self) -> Result<Factors> {
        if !matches!(self, Source::Gguf(_)) {
            return Ok(Factors::default());
        }
        let read = |name: &str| -> Result<Option<Vec<f64>>> {
            if !self.has(name) {
                return Ok(None);
            }
            let tensor = self.tensor(name)?;
            // One for each pair of a head; more is no table of factors.
            if tensor.dtype() != DType::F32 || tensor.elements() > 4096 {
                let problem = "holds no factors of a rotary embedding".to_owned();
                return Err(baton_weights::Error::Tensor { name: name.to_owned(), problem }.into());
            }
            Ok(Some(tensor.to_f32().into_iter().map(f64::from).collect()))
        };
        Ok(Factors {
            always: read("rope_freqs.weight")?,
            short: read("rope_factors_short.weight")?,
            long: read("rope_factors_long.weight")?,
        })
    }

    /// What the files call the architecture, and what it is here.
    pub(crate) fn architecture(&self) -> Result<(String, &'static Family)> {
        match self {
            Source::Gguf(file) => {
                let name = file.metadata().str("general.architecture")?;
                Ok((name.to_owned(), Family::of_gguf(name)?))
            }
            Source::Checkpoint { folder, files, .. } => {
                let Some(name) = files.config()["model_type"].as_str() else {
                    let problem = "has no \"model_type\", which names the architecture";
                    return Err(no_model(&folder.join("config.json"), problem));
                };
                Ok((name.to_owned(), Family::of_model_type(name)?))
            }
        }
    }

    /// The hyperparameters.
    pub(crate) fn hyperparameters<'a>(&'a self, name: &'a str, family: &Family) -> Hyper<'a> {
        match self {
            Source::Gguf(file) => Hyper::gguf(file.metadata(), name, family.defaults),
            Source::Checkpoint { files, .. } => {
                // A multimodal model has its language model's config inside its own.
                let config = files.config();
                let text = config.get("text_config").filter(|inner| inner.is_object());
                Hyper::json(text.unwrap_or(config), name, family.defaults)
            }
        }
    }

    /// The model's name, or else that of its file or folder.
    pub(crate) fn name(&self) -> String {
        match self {
            Source::Gguf(file) => match file.metadata().get("general.name").and_then(Value::as_str)
            {
                Some(name) => name.to_owned(),
                None => stem(file.paths().next().unwrap_or(Path::new(""))),
            },
            Source::Checkpoint { folder, .. } => {
                stem(&folder.canonicalize().unwrap_or_else(|_| folder.clone()))
            }
        }
    }

    /// The model's licence, if it is stated.
    pub(crate) fn licence(&self) -> Option<String> {
        match self {
            Source::Gguf(file) => {
                file.metadata().get("general.license").and_then(Value::as_str).map(str::to_owned)
            }
            Source::Checkpoint { folder, .. } => {
                let card = open_regular(&folder.join("README.md")).ok()?;
                let mut bytes = Vec::new();
                card.take(MAX_FRONT_MATTER).read_to_end(&mut bytes).ok()?;
                card_licence(&String::from_utf8_lossy(&bytes))
            }
        }
    }
}

/// The licence in the YAML block at the head of a model card.
fn card_licence(card: &str) -> Option<String> {
    let mut lines = card.lines();
    if lines.next()?.trim() != "---" {
        return None;
    }
    let block = lines.take_while(|line| line.trim() != "---");
    let mut values = block.filter_map(|line| line.strip_prefix("license:"));
    let value = values.next()?.trim().trim_matches(['"', '\'']);
    (!value.is_empty()).then(|| value.to_owned())
}

/// True for a folder with `config.json`, unless what lies beside it is GGUF.
fn is_checkpoint(folder: &Path) -> Result<bool> {
    let has = |extension: &str| -> Result<bool> {
        Ok(file_names(folder)?.iter().any(|name| name.ends_with(extension)))
    };
    Ok(folder.join("config.json").exists() && (has(".safetensors")? || !has(".gguf")?))
}

fn file_names(folder: &Path) -> Result<Vec<String>> {
    let io = |source| baton_weights::Error::Io { path: folder.into(), source };
    let entries = std::fs::read_dir(folder).map_err(io)?;
    let name = |entry: std::io::Result<std::fs::DirEntry>| {
        Ok(entry.map_err(io)?.file_name().to_string_lossy().into_owned())
    };
    entries.map(name).collect()
}

/// The one GGUF file, or the first part of the one split file, in a folder.
pub(crate) fn only_gguf(folder: &Path) -> Result<PathBuf> {
    let is_model = |name: &String| {
        let later_part = name.contains("-of-") && !name.contains("-00001-of-");
        // A multimodal model's other half.
        let projector = name.contains("mmproj");
        name.ends_with(".gguf") && !later_part && !projector
    };
    let names = file_names(folder)?.into_iter().filter(is_model);
    let mut found: Vec<PathBuf> = names.map(|name| folder.join(name)).collect();
    found.sort();
    match found.len() {
        0 => Err(no_model(folder, "has neither config.json nor a GGUF file")),
        1 => Ok(found.swap_remove(0)),
        _ => {
            let names: Vec<String> = found.iter().map(|path| path.display().to_string()).collect();
            let problem = format!("has several GGUF files, name one: {}", names.join(", "));
            Err(no_model(folder, problem))
        }
    }
}

fn is_gguf(path: &Path) -> Result<bool> {
    let io = |source| baton_weights::Error::Io { path: path.into(), source };
    let mut magic = [0; 4];
    let mut file = open_regular(path).map_err(io)?;
    match file.read_exact(&mut magic) {
        Ok(()) => Ok(&magic == b"GGUF"),
        Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(io(error).into()),
    }
}

fn stem(path: &Path) -> String {
    let stem = if path.is_dir() { path.file_name() } else { path.file_stem() };
    stem.unwrap_or_default().to_string_lossy().into_owned()
}

pub(crate) fn no_model(path: &Path, problem: impl Into<String>) -> Error {
    Error::NoModel { path: path.into(), problem: problem.into() }
}
