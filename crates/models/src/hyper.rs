//! Hyperparameters under one set of names, from `config.json` or from GGUF metadata.

use baton_weights::gguf::{Metadata, Value};
use serde_json::Value as Json;

use crate::{Error, Result};

/// Most entries of a list among the hyperparameters; real ones have one entry a layer, or one a
/// pair of rotated features.
const MAX_LIST: usize = 4096;

/// A hyperparameter's name in both forms. GGUF names that do not start with `general.` are under
/// the architecture's prefix. An empty name means that the form does not have it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Key {
    pub(crate) json: &'static str,
    pub(crate) gguf: &'static str,
}

const fn key(json: &'static str, gguf: &'static str) -> Key {
    Key { json, gguf }
}

pub(crate) const VOCAB: Key = key("vocab_size", "vocab_size");
pub(crate) const HIDDEN: Key = key("hidden_size", "embedding_length");
pub(crate) const LAYERS: Key = key("num_hidden_layers", "block_count");
pub(crate) const FFN: Key = key("intermediate_size", "feed_forward_length");
pub(crate) const HEADS: Key = key("num_attention_heads", "attention.head_count");
pub(crate) const KV_HEADS: Key = key("num_key_value_heads", "attention.head_count_kv");
pub(crate) const HEAD_DIM: Key = key("head_dim", "attention.key_length");
pub(crate) const VALUE_DIM: Key = key("", "attention.value_length");
pub(crate) const CONTEXT: Key = key("max_position_embeddings", "context_length");
pub(crate) const NORM_EPS: Key = key("rms_norm_eps", "attention.layer_norm_rms_epsilon");
pub(crate) const LAYER_NORM_EPS: Key = key("layer_norm_eps", "attention.layer_norm_epsilon");
pub(crate) const CAUSAL: Key = key("is_causal", "attention.causal");
pub(crate) const ACTIVATION: Key = key("hidden_act", "");
pub(crate) const TIED: Key = key("tie_word_embeddings", "");
pub(crate) const WINDOW: Key = key("sliding_window", "attention.sliding_window");
pub(crate) const WINDOW_PATTERN: Key =
    key("sliding_window_pattern", "attention.sliding_window_pattern");
pub(crate) const LAYER_TYPES: Key = key("layer_types", "");
pub(crate) const ATTENTION_SCALE: Key = key("", "attention.scale");
pub(crate) const ATTENTION_SOFTCAP: Key = key("attn_logit_softcapping", "attn_logit_softcapping");
pub(crate) const LOGIT_SOFTCAP: Key = key("final_logit_softcapping", "final_logit_softcapping");
pub(crate) const ROPE_THETA: Key = key("rope_theta", "rope.freq_base");
pub(crate) const ROTARY_DIM: Key = key("", "rope.dimension_count");
pub(crate) const EXPERTS: Key = key("num_experts", "expert_count");
pub(crate) const EXPERTS_USED: Key = key("num_experts_per_tok", "expert_used_count");
pub(crate) const EXPERT_FFN: Key = key("moe_intermediate_size", "expert_feed_forward_length");

/// Names of the same things in the configs of GPT-2, which some later models took over.
const OLD_NAMES: &[(&str, &str)] = &[
    (HIDDEN.json, "n_embd"),
    (LAYERS.json, "n_layer"),
    (HEADS.json, "n_head"),
    (FFN.json, "n_inner"),
    (CONTEXT.json, "n_positions"),
    (LAYER_NORM_EPS.json, "layer_norm_epsilon"),
    (ACTIVATION.json, "activation_function"),
    (ROPE_THETA.json, "rotary_emb_base"),
    ("partial_rotary_factor", "rotary_emb_fraction"),
];

/// Values of keys that files of an architecture may leave out.
pub(crate) type Defaults = &'static [(Key, f64)];

/// The hyperparameters of one model, or one object nested in them.
#[derive(Clone, Copy)]
pub(crate) struct Hyper<'a> {
    form: Form<'a>,
    architecture: &'a str,
    defaults: Defaults,
}

#[derive(Clone, Copy)]
enum Form<'a> {
    Json(&'a Json),
    Gguf(&'a Metadata),
}

/// One value, whatever the form it came in.
enum Item {
    Bool(bool),
    Int(i128),
    Float(f64),
    Text(String),
    List(Vec<Item>),
    TooLong,
    Other,
}

impl<'a> Hyper<'a> {
    /// Those of `config.json`; `defaults` are used for what it leaves out.
    pub(crate) fn json(config: &'a Json, architecture: &'a str, defaults: Defaults) -> Self {
        Hyper { form: Form::Json(config), architecture, defaults }
    }

    /// Those of a GGUF file; `defaults` are used for what it leaves out.
    pub(crate) fn gguf(metadata: &'a Metadata, architecture: &'a str, defaults: Defaults) -> Self {
        Hyper { form: Form::Gguf(metadata), architecture, defaults }
    }

    /// The architecture's name in the file.
    pub(crate) fn architecture(&self) -> &str {
        self.architecture
    }

    pub(crate) fn is_gguf(&self) -> bool {
        matches!(self.form, Form::Gguf(_))
    }

    /// A nested object of `config.json`.
    pub(crate) fn object(&self, name: &str) -> Option<Hyper<'a>> {
        match self.form {
            Form::Json(config) => {
                let inner = config.get(name).filter(|v| v.is_object())?;
                Some(Hyper { form: Form::Json(inner), defaults: &[], ..*self })
            }
            Form::Gguf(_) => None,
        }
    }

    pub(crate) fn usize(&self, key: Key) -> Result<usize> {
        self.usize_opt(key)?.ok_or_else(|| self.missing(key))
    }

    pub(crate) fn usize_opt(&self, key: Key) -> Result<Option<usize>> {
        match self.get(key) {
            None => Ok(None),
            Some(Item::Int(n)) => self.whole(key, n).map(Some),
            Some(Item::List(items)) => {
                // GGUF may give a value for each layer; a model whose layers differ is another one.
                let first = match items.first() {
                    Some(Item::Int(n)) => *n,
                    _ => return Err(self.bad(key, "is no whole number")),
                };
                if items.iter().any(|item| !matches!(item, Item::Int(n) if *n == first)) {
                    return Err(self.bad(key, "differs from layer to layer"));
                }
                self.whole(key, first).map(Some)
            }
            Some(_) => Err(self.bad(key, "is no whole number")),
        }
    }

    pub(crate) fn f64(&self, key: Key) -> Result<f64> {
        self.f64_opt(key)?.ok_or_else(|| self.missing(key))
    }

    /// A finite number.
    pub(crate) fn f64_opt(&self, key: Key) -> Result<Option<f64>> {
        let Some(item) = self.get(key) else { return Ok(None) };
        self.number(key, &item).map(Some)
    }

    /// The sliding window, which GGUF states as 0 where there is none.
    pub(crate) fn window(&self) -> Result<Option<usize>> {
        Ok(self.usize_opt(WINDOW)?.filter(|window| *window > 0 || !self.is_gguf()))
    }

    /// A soft cap, which GGUF states as 0 where there is none.
    pub(crate) fn softcap(&self, key: Key) -> Result<Option<f32>> {
        let cap = self.f64_opt(key)?.filter(|cap| *cap != 0.0 || !self.is_gguf());
        Ok(cap.map(|cap| cap as f32))
    }

    pub(crate) fn bool_opt(&self, key: Key) -> Result<Option<bool>> {
        match self.get(key) {
            None => Ok(None),
            Some(Item::Bool(b)) => Ok(Some(b)),
            Some(_) => Err(self.bad(key, "is neither true nor false")),
        }
    }

    pub(crate) fn text_opt(&self, key: Key) -> Result<Option<String>> {
        match self.get(key) {
            None => Ok(None),
            Some(Item::Text(text)) => Ok(Some(text)),
            Some(_) => Err(self.bad(key, "is no text")),
        }
    }

    pub(crate) fn texts_opt(&self, key: Key) -> Result<Option<Vec<String>>> {
        let Some(items) = self.list(key)? else { return Ok(None) };
        let texts = items.into_iter().map(|item| match item {
            Item::Text(text) => Ok(text),
            _ => Err(self.bad(key, "is no list of texts")),
        });
        texts.collect::<Result<_>>().map(Some)
    }

    pub(crate) fn f64s_opt(&self, key: Key) -> Result<Option<Vec<f64>>> {
        let Some(items) = self.list(key)? else { return Ok(None) };
        items.iter().map(|item| self.number(key, item)).collect::<Result<_>>().map(Some)
    }

    /// A list of truth values, as booleans or as 0 and 1; nothing if the key holds no list.
    pub(crate) fn flags_opt(&self, key: Key) -> Result<Option<Vec<bool>>> {
        let items = match self.get(key) {
            Some(Item::List(items)) => items,
            Some(Item::TooLong) => return Err(self.bad(key, "is too long")),
            _ => return Ok(None),
        };
        let flags = items.into_iter().map(|item| match item {
            Item::Bool(flag) => Ok(flag),
            Item::Int(n @ (0 | 1)) => Ok(n == 1),
            _ => Err(self.bad(key, "is no list of truth values")),
        });
        flags.collect::<Result<_>>().map(Some)
    }

    pub(crate) fn missing(&self, key: Key) -> Error {
        let architecture = self.architecture.to_owned();
        Error::MissingKey { place: self.place(), key: self.name(key), architecture }
    }

    pub(crate) fn bad(&self, key: Key, problem: impl Into<String>) -> Error {
        Error::BadKey { place: self.place(), key: self.name(key), problem: problem.into() }
    }

    fn place(&self) -> &'static str {
        match self.form {
            Form::Json(_) => "config.json",
            Form::Gguf(_) => "GGUF metadata",
        }
    }

    fn name(&self, key: Key) -> String {
        match self.form {
            Form::Json(_) => key.json.to_owned(),
            Form::Gguf(_) if key.gguf.starts_with("general.") => key.gguf.to_owned(),
            Form::Gguf(_) => format!("{}.{}", self.architecture, key.gguf),
        }
    }

    /// Whether the file has the key, be it with null.
    pub(crate) fn states(&self, key: Key) -> bool {
        match self.form {
            Form::Json(config) => config.get(key.json).is_some(),
            Form::Gguf(metadata) => metadata.has(&self.name(key)),
        }
    }

    fn get(&self, key: Key) -> Option<Item> {
        let stated = match self.form {
            Form::Json(config) if !key.json.is_empty() => match json_value(config, key.json) {
                // Said to be absent, which no default makes good.
                Some(Json::Null) => return None,
                value => value.map(json_item),
            },
            Form::Gguf(metadata) if !key.gguf.is_empty() => {
                metadata.get(&self.name(key)).map(gguf_item)
            }
            _ => return None,
        };
        stated.or_else(|| self.default(key))
    }

    fn default(&self, key: Key) -> Option<Item> {
        let same = |default: Key| match self.form {
            Form::Json(_) => default.json == key.json,
            Form::Gguf(_) => default.gguf == key.gguf,
        };
        let (_, value) = self.defaults.iter().find(|(default, _)| same(*default))?;
        let whole = value.fract() == 0.0;
        Some(if whole { Item::Int(*value as i128) } else { Item::Float(*value) })
    }

    fn list(&self, key: Key) -> Result<Option<Vec<Item>>> {
        match self.get(key) {
            None => Ok(None),
            Some(Item::List(items)) => Ok(Some(items)),
            Some(Item::TooLong) => Err(self.bad(key, "is too long")),
            Some(_) => Err(self.bad(key, "is no list")),
        }
    }

    fn whole(self, key: Key, n: i128) -> Result<usize> {
        usize::try_from(n).map_err(|_| self.bad(key, format!("cannot be {n}")))
    }

    fn number(self, key: Key, item: &Item) -> Result<f64> {
        match item {
            Item::Int(n) => Ok(*n as f64),
            Item::Float(x) if x.is_finite() => Ok(*x),
            Item::Float(x) => Err(self.bad(key, format!("cannot be {x}"))),
            _ => Err(self.bad(key, "is no number")),
        }
    }
}

/// The value of a key, or else of its old name.
fn json_value<'a>(config: &'a Json, name: &str) -> Option<&'a Json> {
    config.get(name).or_else(|| {
        let (_, old) = OLD_NAMES.iter().find(|(new, _)| *new == name)?;
        config.get(old)
    })
}

fn json_item(value: &Json) -> Item {
    match value {
        Json::Bool(b) => Item::Bool(*b),
        Json::Number(n) => match (n.as_i64(), n.as_u64(), n.as_f64()) {
            (Some(n), ..) => Item::Int(n.into()),
            (_, Some(n), _) => Item::Int(n.into()),
            (.., Some(x)) => Item::Float(x),
            _ => Item::Other,
        },
        Json::String(text) => Item::Text(text.clone()),
        Json::Array(items) if items.len() > MAX_LIST => Item::TooLong,
        Json::Array(items) => Item::List(items.iter().map(json_scalar).collect()),
        Json::Null | Json::Object(_) => Item::Other,
    }
}

/// Lists do not nest in hyperparameters, so neither does reading them.
fn json_scalar(value: &Json) -> Item {
    if value.is_array() { Item::Other } else { json_item(value) }
}

fn gguf_item(value: &Value) -> Item {
    if let Value::U64(n) = value {
        return Item::Int((*n).into());
    }
    if let Some(n) = value.as_i64() {
        return Item::Int(n.into());
    }
    match value {
        Value::F32(x) => Item::Float((*x).into()),
        Value::F64(x) => Item::Float(*x),
        Value::Bool(b) => Item::Bool(*b),
        Value::Str(text) => Item::Text(text.clone()),
        Value::Array(array) if array.len() > MAX_LIST => Item::TooLong,
        Value::Array(array) => {
            let items = (0..array.len()).filter_map(|i| array.get(i));
            Item::List(items.map(|item| gguf_scalar(&item)).collect())
        }
        _ => Item::Other,
    }
}

fn gguf_scalar(value: &Value) -> Item {
    match value {
        Value::Array(_) => Item::Other,
        scalar => gguf_item(scalar),
    }
}
