//! A model of which a folder holds a few tensors only: the others are known by name, type and shape.
//!
//! Such a folder has packages that compute with the others, in a form of their own. Beside them lies
//! what their caller needs: hyperparameters, tokenizer, and the tensors that tokens are looked up in. The
//! model's graph can then be built as that of the whole model is, and has the same fingerprint.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};

use baton_graph::{from_hex, hex};
use baton_weights::open_regular;
use serde_json::{Value, json};

use crate::source::TensorSummary;
use crate::{Error, Model, Result};

/// The file that says what a folder of packages holds.
pub const PACKAGES_FILE: &str = "baton.json";
/// The file with the outline of the model that a folder of packages was made of.
pub const OUTLINE_FILE: &str = "outline.json";

/// The layout of packages that have an outline, as descriptions name it.
const OWN_LAYOUT: &str = "baton";

/// What the file with the tensors of such a folder is called, but for its ending.
const EMBEDDINGS: &str = "embeddings";

/// No outline is longer: the largest models have some ten thousand tensors.
const MAX_BYTES: u64 = 32 << 20;

/// What is known of a model whose tensors are elsewhere.
#[derive(Clone, Debug)]
pub(crate) struct Outline {
    /// Where it lies.
    pub(crate) folder: PathBuf,
    pub(crate) name: String,
    pub(crate) licence: Option<String>,
    pub(crate) fingerprint: [u8; 32],
    pub(crate) tensors: Vec<TensorSummary>,
    by_name: BTreeMap<String, usize>,
}

/// A model as the text of an [`OUTLINE_FILE`].
pub(crate) fn write(model: &Model) -> String {
    let tensor = |t: &TensorSummary| json!([t.name, t.dtype, t.shape, t.bytes]);
    let tensors: Vec<Value> = model.tensors().iter().map(tensor).collect();
    let outline = json!({
        "name": model.name(),
        "licence": model.licence(),
        "fingerprint": hex(&model.fingerprint()),
        "tensors": tensors,
    });
    format!("{outline:#}\n")
}

/// The layout that a description of packages names, if it is another than our own.
fn foreign_layout(file: &Path) -> Option<String> {
    let mut text = Vec::new();
    open_regular(file).ok()?.take(MAX_BYTES).read_to_end(&mut text).ok()?;
    let description: Value = serde_json::from_slice(&text).ok()?;
    let layout = description["layout"].as_str().filter(|&layout| layout != OWN_LAYOUT)?;
    // It is a word, or it is not ours to repeat.
    let is_word =
        layout.len() < 40 && layout.chars().all(|c| c.is_ascii_alphanumeric() || c == '-');
    Some(if is_word { layout } else { "other programs" }.to_owned())
}

impl Outline {
    /// The outline in the folder at `path`, or in that of its embeddings; none if that is no folder of packages.
    ///
    /// # Errors
    /// If it is one that lacks its outline, or that is malformed.
    pub(crate) fn of_folder(path: &Path) -> Result<Option<Outline>> {
        let path = match path.parent() {
            Some(parent) if path.file_stem().is_some_and(|stem| stem == EMBEDDINGS) => parent,
            _ => path,
        };
        if !path.join(PACKAGES_FILE).is_file() {
            return Ok(None);
        }
        let file = path.join(OUTLINE_FILE);
        if !file.is_file() {
            let problem = match foreign_layout(&path.join(PACKAGES_FILE)) {
                Some(layout) => format!(
                    "says that its packages are laid out for {layout}, but what such folders are known by is \
                     not there (meta.yaml, or packages X_chunk1 and X_cache-processor); get the whole folder, or \
                     compile the model again"
                ),
                None => "holds packages without the embeddings that their caller looks tokens up in: \
                         it was compiled with --no-embeddings or by an older version; compile the model \
                         again, or name the model and give this folder as --packages"
                    .to_owned(),
            };
            return Err(Error::NoModel { path: path.to_owned(), problem });
        }
        let malformed = |problem: String| {
            let problem =
                format!("{problem}; get the whole folder anew, or compile the model again");
            baton_weights::Error::Malformed { path: file.clone(), problem }
        };
        let io = |source| baton_weights::Error::Io { path: file.clone(), source };
        let mut bytes = Vec::new();
        open_regular(&file)
            .and_then(|f| f.take(MAX_BYTES + 1).read_to_end(&mut bytes))
            .map_err(io)?;
        if bytes.len() as u64 > MAX_BYTES {
            return Err(malformed(format!("has more than {MAX_BYTES} bytes")).into());
        }
        let value = serde_json::from_slice(&bytes).map_err(|error| malformed(error.to_string()))?;
        Ok(Some(Outline::parse(path, &value).map_err(malformed)?))
    }

    fn parse(folder: &Path, value: &Value) -> std::result::Result<Outline, String> {
        let text = |key: &str| value[key].as_str().map(str::to_owned);
        let fingerprint = text("fingerprint").and_then(|digits| from_hex(&digits));
        let fingerprint = fingerprint.and_then(|bytes| bytes.try_into().ok());
        let mut outline = Outline {
            folder: folder.to_owned(),
            name: text("name").ok_or("has no name")?,
            licence: text("licence"),
            fingerprint: fingerprint.ok_or("has no fingerprint of 32 bytes")?,
            tensors: Vec::new(),
            by_name: BTreeMap::new(),
        };
        for entry in value["tensors"].as_array().ok_or("lists no tensors")? {
            let tensor = tensor(entry).ok_or_else(|| format!("{entry} describes no tensor"))?;
            if outline.by_name.insert(tensor.name.clone(), outline.tensors.len()).is_some() {
                return Err(format!("tensor {:?} occurs twice", tensor.name));
            }
            outline.tensors.push(tensor);
        }
        Ok(outline)
    }

    /// The tensor of that name.
    pub(crate) fn get(&self, name: &str) -> Option<&TensorSummary> {
        self.by_name.get(name).map(|&at| &self.tensors[at])
    }
}

/// `[name, type, shape, bytes]`.
fn tensor(entry: &Value) -> Option<TensorSummary> {
    let [name, dtype, shape, bytes] = &entry.as_array()?[..] else { return None };
    let number = |value: &Value| usize::try_from(value.as_u64()?).ok();
    let shape: Vec<usize> = shape.as_array()?.iter().map(number).collect::<Option<_>>()?;
    shape.iter().try_fold(1usize, |n, &dim| n.checked_mul(dim))?;
    let (name, dtype) = (name.as_str()?.to_owned(), dtype.as_str()?.to_owned());
    Some(TensorSummary { name, shape, dtype, bytes: number(bytes)? })
}
