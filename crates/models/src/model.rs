//! A model on disk: opened, described, and built into a graph with its weights.

use std::collections::BTreeMap;
use std::path::Path;

use baton_graph::{Graph, Op};
use baton_weights::{Tensor, Weights};
use sha2::{Digest, Sha256};

use crate::arch::Family;
use crate::config::ModelConfig;
use crate::files::Files;
use crate::hyper::{self, Hyper};
use crate::loader::Loader;
use crate::names::Slot;
use crate::outline::Outline;
use crate::packaged::{self, Packaged};
use crate::source::{Source, TensorSummary};
use crate::{Error, Result, decoder, embedding, encoder, outline, rope_keys};

/// Tensors whose bytes go into the fingerprint, and how many bytes of each.
const SAMPLED_TENSORS: usize = 16;
const SAMPLED_BYTES: usize = 256;

/// A model whose files are open. Tensors are mapped, not read, until something computes with them.
#[derive(Debug)]
pub struct Model {
    family: &'static Family,
    config: ModelConfig,
    source: Source,
    name: String,
    licence: Option<String>,
    tensors: Vec<TensorSummary>,
    fingerprint: [u8; 32],
    outline: Option<Outline>,
    packaged: Option<Packaged>,
}

/// What a graph is built for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BuildOptions {
    /// Most tokens that a sequence will hold.
    ///
    /// It decides the rotation of models whose rotation depends on it (dynamic scaling, longrope),
    /// once for all sequences; see [`RopeConfig::table`](crate::RopeConfig::table). It may exceed
    /// the context of training.
    pub context: usize,
}

/// How the tensors of one kind are stored, for people to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quantization {
    /// The kind, such as `attn_q` or `mlp.down_proj`: the name without layer and `.weight`.
    pub kind: String,
    /// The type, such as `Q4_K`.
    pub dtype: String,
    /// How many tensors.
    pub tensors: usize,
    /// Their elements.
    pub elements: usize,
    /// Their bytes in the file.
    pub bytes: usize,
}

impl Model {
    /// Opens a model: a GGUF file (any part of a split one), a checkpoint folder with
    /// `config.json` and safetensors, or a file in such a folder; or a folder of packages that were compiled
    /// of a model, see [`Model::packages`].
    ///
    /// # Errors
    /// If there is no model, a file is corrupt, the architecture is unknown, or the config lacks
    /// something or makes no sense.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let outline = Outline::of_folder(path)?;
        Self::new(Source::open(path)?, outline)
    }

    /// As [`Model::open`] for files that are open already.
    ///
    /// # Errors
    /// As [`Model::open`].
    pub fn from_source(source: Source) -> Result<Self> {
        Self::new(source, None)
    }

    fn new(source: Source, outline: Option<Outline>) -> Result<Self> {
        let (architecture, family) = source.architecture()?;
        let h = source.hyperparameters(&architecture, family);
        let files = Files { source: &source, outline: outline.as_ref() };
        let config = read_config(&h, family, files)?;
        let (name, licence, tensors, fingerprint) = match &outline {
            Some(outline) => {
                let Outline { name, licence, tensors, fingerprint, .. } = outline.clone();
                (name, licence, tensors, fingerprint)
            }
            None => {
                let tensors = source.tensors()?;
                let fingerprint = fingerprint(family, &config, &source, &tensors);
                (source.name(), source.licence(), tensors, fingerprint)
            }
        };
        let packaged = None;
        Ok(Model { family, config, source, name, licence, tensors, fingerprint, outline, packaged })
    }

    /// The model in a folder of packages that name no model: all that is known of it is what they show, and
    /// what lies beside them of its texts.
    ///
    /// # Errors
    /// If there is no tokenizer, or the numbers are none of a model.
    pub fn of_packages(packaged: Packaged) -> Result<Self> {
        let (source, config) = (packaged::source(&packaged.folder)?, packaged.config()?);
        let Packaged { name, licence, fingerprint, .. } = packaged.clone();
        let (family, tensors) = (packaged.family(), packaged.tensors());
        let (outline, packaged) = (None, Some(packaged));
        Ok(Model { family, config, source, name, licence, tensors, fingerprint, outline, packaged })
    }

    /// The folder of packages that compute with the model's tensors, if its files hold but those that
    /// tokens are looked up in. What [`Model::build`] yields then lacks the weights of all others.
    pub fn packages(&self) -> Option<&Path> {
        let outlined = self.outline.as_ref().map(|outline| outline.folder.as_path());
        outlined.or_else(|| self.packaged.as_ref().map(|packaged| packaged.folder.as_path()))
    }

    /// What packages say of themselves, if [they are all that there is](Model::of_packages). Its tensors are
    /// then these packages, and other hyperparameters than the sizes are not known.
    pub fn packaged(&self) -> Option<&Packaged> {
        self.packaged.as_ref()
    }

    /// The text of an [`OUTLINE_FILE`](crate::OUTLINE_FILE), by which a folder that holds some of the
    /// model's tensors stands for it.
    pub fn outline(&self) -> String {
        outline::write(self)
    }

    /// What is known of each tensor, in file order.
    pub fn tensors(&self) -> &[TensorSummary] {
        &self.tensors
    }

    /// The names of the file's tensors that a caller of a part of the model computes with: those that
    /// tokens are looked up in, and those that rotations are made of.
    ///
    /// # Errors
    /// As [`Model::build`].
    pub fn looked_up(&self) -> Result<Vec<String>> {
        let (graph, weights) = self.build(&BuildOptions { context: 1 })?;
        let mut names = Vec::new();
        for node in graph.nodes() {
            if let Op::Embedding { table, .. } = node.op {
                let name = &graph.weights()[table.index()].name;
                names.push(weights.tensor(name)?.name().to_owned());
            }
        }
        let is_factor = |name: &&str| name.starts_with("rope_f");
        let factors = self.tensors.iter().map(|t| t.name.as_str()).filter(is_factor);
        names.extend(factors.map(str::to_owned));
        names.sort_unstable();
        names.dedup();
        Ok(names)
    }

    /// The architecture, as people call it.
    pub fn architecture(&self) -> &'static str {
        self.family.name
    }

    /// Its hyperparameters.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Whether it makes vectors of texts instead of continuing them.
    pub fn is_embedding(&self) -> bool {
        self.config.embedding.is_some()
    }

    /// Its files.
    pub fn source(&self) -> &Source {
        &self.source
    }

    /// Its name, as the file or else the folder has it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its licence, if the files say.
    pub fn licence(&self) -> Option<&str> {
        self.licence.as_deref()
    }

    /// Number of parameters; a tied output matrix counts once.
    pub fn parameters(&self) -> u64 {
        let is_table = |t: &&TensorSummary| !t.name.starts_with("rope_f");
        // A tensor of a type that nobody knows may claim any shape.
        let elements = self.tensors.iter().filter(is_table).map(|t| t.elements() as u64);
        elements.fold(0, u64::saturating_add)
    }

    /// Bytes of all tensors in the files.
    pub fn stored_bytes(&self) -> u64 {
        self.tensors.iter().map(|t| t.bytes as u64).fold(0, u64::saturating_add)
    }

    /// How each kind of tensor is stored, in the order of names.
    pub fn quantization(&self) -> Vec<Quantization> {
        let mut kinds: BTreeMap<(String, String), Quantization> = BTreeMap::new();
        for tensor in &self.tensors {
            let (kind, dtype) = (tensor_kind(&tensor.name), tensor.dtype.clone());
            let entry = kinds.entry((kind.clone(), dtype.clone())).or_insert(Quantization {
                kind,
                dtype,
                tensors: 0,
                elements: 0,
                bytes: 0,
            });
            entry.tensors += 1;
            entry.elements = entry.elements.saturating_add(tensor.elements());
            entry.bytes = entry.bytes.saturating_add(tensor.bytes);
        }
        kinds.into_values().collect()
    }

    /// Identifies the model: a hash of architecture, config, tensor names, types and shapes, and
    /// of some of the tensors' bytes. Equal for the same file wherever it lies.
    pub fn fingerprint(&self) -> [u8; 32] {
        self.fingerprint
    }

    /// The model's graph and the weights it refers to.
    ///
    /// The graph's fingerprint is the model's, unless the rotation of keys depends on the context:
    /// then it depends on the rotation too, since cached keys are rotated.
    ///
    /// # Errors
    /// If a tensor is missing, has the wrong shape or an unsupported type, or if layers have
    /// tensors that this architecture knows nothing of.
    pub fn build(&self, options: &BuildOptions) -> Result<(Graph, Weights)> {
        if options.context == 0 {
            return Err(Error::Unsupported {
                what: "a context of 0 tokens".into(),
                instead: "build for one token at least",
            });
        }
        if let Some(packaged) = &self.packaged {
            return Ok((packaged.graph()?, Weights::new()));
        }
        let files = Files { source: &self.source, outline: self.outline.as_ref() };
        let mut loader = Loader::new(&self.name, files, self.family);
        let mut fingerprint = self.fingerprint;
        if self.config.rope.depends_on_context() {
            let rotation = decoder::rope_bytes(&self.config.rope, options.context);
            fingerprint =
                Sha256::new().chain_update(fingerprint).chain_update(rotation).finalize().into();
        }
        loader.graph.fingerprint(fingerprint);
        if let Some(prepare) = self.family.prepare {
            prepare(&mut loader, &self.config)?;
        }
        match (&self.config.encoder, &self.config.embedding) {
            (Some(encoder), Some(head)) => {
                encoder::build(loader, &self.config, (encoder, head), options.context)
            }
            _ => decoder::build(loader, &self.config, options.context),
        }
    }
}

fn read_config(h: &Hyper<'_>, family: &Family, files: Files<'_>) -> Result<ModelConfig> {
    let source = files.source;
    let names = family.names(source);
    let find = |slot: Slot| {
        let stem = names.stem(slot, 0)?;
        let candidates = source.qualified(slot, &stem);
        candidates.iter().find_map(|stem| files.shape(&format!("{stem}.weight")))
    };
    let vocab = match find(Slot::TokenEmbd).as_deref() {
        Some(&[vocab, _]) => vocab,
        Some(other) => {
            let problem = format!("belongs to an embedding of shape {other:?}, not of a matrix");
            return Err(h.bad(hyper::VOCAB, problem));
        }
        None => {
            let stem = names.stem(Slot::TokenEmbd, 0).unwrap_or_default();
            let name = source.qualified(Slot::TokenEmbd, &stem).swap_remove(0) + ".weight";
            return Err(baton_weights::Error::MissingTensor { name }.into());
        }
    };
    let mut config = ModelConfig::read(h, vocab, find(Slot::Output).is_some())?;
    config.embedding = embedding::read(h, source)?;
    (family.configure)(h, &mut config)?;
    rope_keys::with_factors(h, &mut config, source.rope_factors()?)?;
    config.check()?;
    Ok(config)
}

fn fingerprint(
    family: &Family,
    config: &ModelConfig,
    source: &Source,
    tensors: &[TensorSummary],
) -> [u8; 32] {
    let mut hash = Sha256::new();
    hash.update(format!("{} {config:?}", family.name));
    let mut sorted: Vec<&TensorSummary> = tensors.iter().collect();
    sorted.sort_by(|a, b| a.name.cmp(&b.name));
    for t in &sorted {
        hash.update(format!("{} {} {:?}\n", t.name, t.dtype, t.shape));
    }
    // Spread over the file: models that differ in training differ everywhere.
    let step = sorted.len().div_ceil(SAMPLED_TENSORS).max(1);
    for tensor in sorted.iter().step_by(step).filter(|t| source.is_mapped(t)) {
        if let Ok(tensor) = source.tensor(&tensor.name) {
            hash.update(sample(&tensor));
        }
    }
    hash.finalize().into()
}

fn sample(tensor: &Tensor) -> &[u8] {
    let data = tensor.data();
    let middle = data.len() / 2;
    &data[middle..data.len().min(middle + SAMPLED_BYTES)]
}

/// A tensor's name without the layer's number, prefixes and `.weight`.
fn tensor_kind(name: &str) -> String {
    let parts: Vec<&str> = name.split('.').collect();
    let after_number = parts.iter().position(|part| part.parse::<usize>().is_ok());
    let parts = match after_number {
        Some(at) => &parts[at + 1..],
        None => &parts[..],
    };
    // Experts that are stored apart are one kind.
    let kept = parts.iter().filter(|part| part.parse::<usize>().is_err() && **part != "weight");
    kept.copied().collect::<Vec<_>>().join(".")
}
