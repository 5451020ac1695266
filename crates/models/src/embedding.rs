//! Embedding models: how the hidden states of a text become one vector.
//!
//! Checkpoints say it in the files that sentence-transformers writes beside the weights
//! (`modules.json`, `1_Pooling/config.json`, `2_Dense/…`), GGUF files in their metadata and tensors.
//! Vectors are always brought to length 1, whether the files ask for it or not, so that both forms of
//! a model give the same.

use std::path::{Component, Path, PathBuf};

use baton_graph::{Graph, Pooling, ValueId};
use baton_weights::{Checkpoint, Tensor, Weights, open_regular};
use serde_json::Value as Json;

use crate::hyper::{Hyper, Key};
use crate::loader::Loader;
use crate::source::Source;
use crate::{Error, Result};

const POOLING: Key = Key { json: "", gguf: "pooling_type" };

/// Most layers behind the pooling; models have two.
const MAX_DENSE: usize = 8;
/// Bytes of a module's JSON file; real ones have a few hundred.
const MAX_JSON: u64 = 1 << 20;
/// What the tensors of the layers behind the pooling are called in GGUF files: by llama.cpp's
/// converter, and by Ollama's.
const GGUF_DENSE: [[&str; 2]; 2] = [["dense_2", "dense_3"], ["dense.0", "dense.1"]];

/// What makes a vector of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EmbeddingConfig {
    /// How the hidden states of its tokens become one.
    pub pooling: Pooling,
    /// Layers behind that, in order.
    pub dense: Vec<DenseConfig>,
    /// Tokens that texts were cut to in training, if the files say so.
    pub max_tokens: Option<usize>,
}

/// One layer behind the pooling.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DenseConfig {
    /// Features of its result.
    pub outputs: usize,
    /// Whether its result goes through the hyperbolic tangent.
    pub tanh: bool,
    /// Where its tensors are: a folder in the checkpoint's, or the stem of their names in GGUF.
    place: String,
}

impl EmbeddingConfig {
    /// Features of a vector, for a model with `hidden` of them.
    pub fn width(&self, hidden: usize) -> usize {
        self.dense.last().map_or(hidden, |dense| dense.outputs)
    }
}

/// Reads what the files say; nothing if they say nothing of vectors.
pub(crate) fn read(h: &Hyper<'_>, source: &Source) -> Result<Option<EmbeddingConfig>> {
    match source {
        Source::Gguf(_) => read_gguf(h, source),
        Source::Checkpoint { folder, .. } => read_modules(folder),
    }
}

fn read_gguf(h: &Hyper<'_>, source: &Source) -> Result<Option<EmbeddingConfig>> {
    let mut dense = Vec::new();
    for place in GGUF_DENSE.into_iter().flatten() {
        if let Some(shape) = source.shape(&format!("{place}.weight")) {
            let outputs = shape.first().copied().unwrap_or(0);
            dense.push(DenseConfig { outputs, tanh: false, place: place.to_owned() });
        }
    }
    let pooling = match h.usize_opt(POOLING)? {
        Some(1) => Pooling::Mean,
        Some(2) => Pooling::First,
        Some(3) => Pooling::Last,
        Some(4) => {
            return Err(Error::Unsupported {
                what: "a model that ranks texts".into(),
                instead: "use one that makes embeddings, and compare those",
            });
        }
        Some(other) if other != 0 => {
            return Err(h.bad(POOLING, format!("is {other}, which is no known kind")));
        }
        _ if !dense.is_empty() => Pooling::Mean,
        _ => return Ok(None),
    };
    Ok(Some(EmbeddingConfig { pooling, dense, max_tokens: None }))
}

fn read_modules(folder: &Path) -> Result<Option<EmbeddingConfig>> {
    let path = folder.join("modules.json");
    let Some(modules) = json(&path)? else { return Ok(None) };
    let Some(modules) = modules.as_array() else {
        return Err(bad(&path, "is no list of modules"));
    };
    let mut config =
        EmbeddingConfig { pooling: Pooling::Mean, dense: Vec::new(), max_tokens: None };
    let mut pooled = false;
    for module in modules {
        // Such as `sentence_transformers.models.Pooling`; the way to it differs between versions.
        let kind = module["type"].as_str().unwrap_or("");
        let kind = kind.rsplit('.').next().unwrap_or("");
        let place = module["path"].as_str().unwrap_or("");
        match kind {
            "Transformer" if !pooled => {
                let limits = json(&folder.join("sentence_bert_config.json"))?;
                let most = limits.as_ref().and_then(|l| l["max_seq_length"].as_u64());
                config.max_tokens = most.and_then(|n| usize::try_from(n).ok()).filter(|&n| n > 0);
            }
            "Pooling" if !pooled => {
                config.pooling = pooling(&inside(folder, place, &path)?.join("config.json"))?;
                pooled = true;
            }
            "Dense" if pooled && config.dense.len() < MAX_DENSE => {
                let inner = inside(folder, place, &path)?;
                config.dense.push(dense(&inner.join("config.json"), place)?);
            }
            "Normalize" if pooled => {}
            _ => {
                return Err(bad(
                    &path,
                    format!(
                        "has the module {kind:?} where none is known; known are Transformer, \
                         Pooling, Dense and Normalize, in this order"
                    ),
                ));
            }
        }
    }
    match pooled {
        true => Ok(Some(config)),
        false => Err(bad(&path, "has no Pooling, so there is no vector for a text")),
    }
}

/// Both spellings: a flag for each mode, or its name.
fn pooling(path: &Path) -> Result<Pooling> {
    let Some(config) = json(path)? else { return Err(bad(path, "is missing")) };
    let of_name = |name: &str| match name {
        "mean" | "mean_tokens" => Some(Pooling::Mean),
        "cls" | "cls_token" => Some(Pooling::First),
        "lasttoken" => Some(Pooling::Last),
        _ => None,
    };
    let unknown = |name: &str| {
        Err(bad(path, format!("pools by {name:?}; known are mean, cls and lasttoken")))
    };
    if let Some(name) = config["pooling_mode"].as_str() {
        return of_name(name).map_or_else(|| unknown(name), Ok);
    }
    let on = |(key, value): (&'_ String, &'_ Json)| -> Option<String> {
        let mode = key.strip_prefix("pooling_mode_")?;
        value.as_bool().unwrap_or(false).then(|| mode.to_owned())
    };
    let modes: Vec<String> = config.as_object().into_iter().flatten().filter_map(on).collect();
    match &modes[..] {
        [mode] => of_name(mode).map_or_else(|| unknown(mode), Ok),
        [] => Err(bad(path, "names no pooling mode")),
        several => unknown(&several.join(" + ")),
    }
}

fn dense(path: &Path, place: &str) -> Result<DenseConfig> {
    let Some(config) = json(path)? else { return Err(bad(path, "is missing")) };
    let outputs = config["out_features"].as_u64().and_then(|n| usize::try_from(n).ok());
    let Some(outputs) = outputs.filter(|n| (1..=1 << 20).contains(n)) else {
        return Err(bad(path, "has no \"out_features\" from 1 to 1048576"));
    };
    // `torch.nn.modules.activation.Tanh` and its like; Tanh is what the library takes by default.
    let activation = config["activation_function"].as_str().unwrap_or("Tanh");
    let tanh = match activation.rsplit('.').next().unwrap_or("") {
        "Identity" => false,
        "Tanh" => true,
        other => {
            return Err(bad(
                path,
                format!("has the activation {other:?}; known are Identity and Tanh"),
            ));
        }
    };
    Ok(DenseConfig { outputs, tanh, place: place.to_owned() })
}

/// The folder that a module names, which must be one within the checkpoint's.
fn inside(folder: &Path, place: &str, named_by: &Path) -> Result<PathBuf> {
    let mut parts = Path::new(place).components();
    match (parts.next(), parts.next()) {
        (Some(Component::Normal(name)), None) => Ok(folder.join(name)),
        _ => Err(bad(named_by, format!("names {place:?}, which is no folder beside it"))),
    }
}

/// A small JSON file, if it is there.
fn json(path: &Path) -> Result<Option<Json>> {
    use std::io::Read;
    let io = |source| baton_weights::Error::Io { path: path.into(), source };
    let file = match open_regular(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        file => file.map_err(io)?,
    };
    let mut bytes = Vec::new();
    file.take(MAX_JSON + 1).read_to_end(&mut bytes).map_err(io)?;
    if bytes.len() as u64 > MAX_JSON {
        return Err(bad(path, "is larger than any such file is"));
    }
    serde_json::from_slice(&bytes)
        .map(Some)
        .map_err(|error| bad(path, format!("is no JSON: {error}")))
}

fn bad(path: &Path, problem: impl Into<String>) -> Error {
    Error::NoModel { path: path.to_owned(), problem: problem.into() }
}

/// Ends a graph whose hidden states are `x`: one vector of length 1 for each text.
pub(crate) fn finish(
    mut loader: Loader<'_>,
    x: ValueId,
    config: &EmbeddingConfig,
) -> Result<(Graph, Weights)> {
    let mut x = loader.graph.pool("pool", x, config.pooling)?;
    for (dense, number) in config.dense.iter().zip(2..) {
        let name = format!("dense_{number}");
        let (weight, bias) = dense_tensors(loader.source(), dense)?;
        let shape = [dense.outputs, loader.graph.ty(x).features()];
        let weight = loader.given(&format!("{name}.weight"), &shape, weight)?;
        let bias = match bias {
            Some(bias) => Some(loader.given(&format!("{name}.bias"), &shape[..1], bias)?),
            None => None,
        };
        x = loader.graph.linear(&name, x, weight, bias)?;
        if dense.tanh {
            x = loader.graph.softcap(&format!("{name}.tanh"), x, 1.0)?;
        }
    }
    let x = loader.graph.normalize("embedding", x)?;
    loader.finish(x)
}

fn dense_tensors(source: &Source, dense: &DenseConfig) -> Result<(Tensor, Option<Tensor>)> {
    match source {
        Source::Gguf(file) => {
            let [weight, bias] = ["weight", "bias"].map(|kind| format!("{}.{kind}", dense.place));
            let bias = if file.has(&bias) { Some(file.tensor(&bias)?) } else { None };
            Ok((file.tensor(&weight)?, bias))
        }
        Source::Checkpoint { folder, .. } => {
            let path = folder.join(&dense.place).join("model.safetensors");
            if !path.is_file() {
                return Err(bad(&path, "is missing; other formats of it are not read"));
            }
            let file = Checkpoint::open(&path)?;
            let has_bias = file.has("linear.bias");
            let bias = if has_bias { Some(file.tensor("linear.bias")?) } else { None };
            Ok((file.tensor("linear.weight")?, bias))
        }
    }
}
