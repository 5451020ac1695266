//! The `options` of a request: how tokens are chosen, and how the model is loaded.

use baton_engine::Sampling;
use schemars::JsonSchema;
use serde::Deserialize;

use crate::chat::numbers;
use crate::fields::{Ignored, Refused, whole_number};
use crate::text_or::Texts;
use crate::{ApiError, Result};

/// The options of Ollama's requests.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "OllamaOptions")]
pub(super) struct Options {
    /// Start of the random numbers; below zero for one that differs each time.
    #[serde(default, deserialize_with = "whole_number")]
    #[schemars(with = "Option<i64>")]
    seed: Option<i64>,
    /// Most tokens of the answer; below 1 for as many as the context has room for.
    #[serde(default, deserialize_with = "whole_number")]
    #[schemars(with = "Option<i64>")]
    num_predict: Option<i64>,
    /// Tokens of context. A model that has fewer is loaded again; one that has more stays.
    #[serde(default, deserialize_with = "whole_number")]
    #[schemars(with = "Option<i64>")]
    num_ctx: Option<i64>,
    /// Choose among this many of the likeliest tokens; 0 for all.
    #[serde(default, deserialize_with = "whole_number")]
    #[schemars(with = "Option<i64>")]
    top_k: Option<i64>,
    /// So many of the last tokens count as occurred; -1 for all.
    #[serde(default, deserialize_with = "whole_number")]
    #[schemars(with = "Option<i64>")]
    repeat_last_n: Option<i64>,
    /// Randomness: 0 always takes the likeliest token.
    temperature: Option<f32>,
    /// Choose among the likeliest tokens that together have this probability.
    top_p: Option<f32>,
    /// Leave out tokens less likely than this times the likeliest.
    min_p: Option<f32>,
    /// Divide the logits of tokens that occurred by this.
    repeat_penalty: Option<f32>,
    /// Subtract this from the logits of tokens that occurred.
    presence_penalty: Option<f32>,
    /// Subtract this from the logits of tokens for each time they occurred.
    frequency_penalty: Option<f32>,
    /// One text or several that end the answer.
    stop: Option<Texts>,
    /// Only 0 and 1, which change nothing.
    typical_p: Option<f64>,
    /// Only 0 and 1, which change nothing.
    tfs_z: Option<f64>,
    /// Only 0, which is off.
    mirostat: Option<f64>,
    /// Mirostat is off.
    #[serde(default, rename = "mirostat_tau")]
    _mirostat_tau: Ignored,
    /// Mirostat is off.
    #[serde(default, rename = "mirostat_eta")]
    _mirostat_eta: Ignored,
    /// There is nothing to keep: the context is never shifted.
    #[serde(default, rename = "num_keep")]
    _num_keep: Ignored,
    /// The server decides.
    #[serde(default, rename = "num_batch")]
    _num_batch: Ignored,
    /// The server decides.
    #[serde(default, rename = "num_gpu")]
    _num_gpu: Ignored,
    /// The server decides.
    #[serde(default, rename = "main_gpu")]
    _main_gpu: Ignored,
    /// The server's `--threads` decides.
    #[serde(default, rename = "num_thread")]
    _num_thread: Ignored,
    /// Files are mapped.
    #[serde(default, rename = "use_mmap")]
    _use_mmap: Ignored,
    /// Files are mapped.
    #[serde(default, rename = "use_mlock")]
    _use_mlock: Ignored,
    /// The server decides.
    #[serde(default, rename = "numa")]
    _numa: Ignored,
    /// The server decides.
    #[serde(default, rename = "low_vram")]
    _low_vram: Ignored,
    /// The server's `--kv-type` decides.
    #[serde(default, rename = "f16_kv")]
    _f16_kv: Ignored,
    /// Line breaks are tokens like others.
    #[serde(default, rename = "penalize_newline")]
    _penalize_newline: Ignored,
    /// There is no draft model.
    #[serde(default, rename = "draft_num_predict")]
    _draft_num_predict: Ignored,
    #[serde(default, rename = "vocab_only")]
    _vocab_only: Refused,
    /// The model's own is right.
    #[serde(default, rename = "rope_frequency_base")]
    _rope_frequency_base: Refused,
    /// The model's own is right.
    #[serde(default, rename = "rope_frequency_scale")]
    _rope_frequency_scale: Refused,
}

impl Options {
    /// How tokens are chosen.
    ///
    /// # Errors
    /// If an option asks for what there is not.
    pub(super) fn sampling(&self) -> Result<Sampling> {
        let neutral = |name: &str, value: Option<f64>, neutral: &[f64]| match value {
            Some(value) if !neutral.contains(&value) => {
                let param = format!("options.{name}");
                Err(ApiError::unsupported(param, "use temperature, top_k, top_p and min_p"))
            }
            _ => Ok(()),
        };
        neutral("typical_p", self.typical_p, &[0.0, 1.0])?;
        neutral("tfs_z", self.tfs_z, &[0.0, 1.0])?;
        neutral("mirostat", self.mirostat, &[0.0])?;
        let last_n = match self.repeat_last_n.map(i32::try_from) {
            Some(Err(_)) => {
                let param = "options.repeat_last_n";
                return Err(ApiError::invalid(param, format!("{param} is out of range")));
            }
            other => other.and_then(Result::ok),
        };
        Ok(Sampling {
            temperature: self.temperature,
            top_k: numbers::top_k(self.top_k),
            top_p: self.top_p,
            min_p: self.min_p,
            repeat_penalty: self.repeat_penalty,
            repeat_last_n: last_n,
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            seed: numbers::seed(self.seed),
            ..Sampling::default()
        })
    }

    /// Most tokens of the answer.
    pub(super) fn max_tokens(&self) -> Option<usize> {
        numbers::limit(self.num_predict).filter(|&n| n > 0)
    }

    /// Tokens of context that the model must have.
    ///
    /// # Errors
    /// If it is no such number.
    pub(super) fn context(&self) -> Result<Option<usize>> {
        match self.num_ctx {
            None => Ok(None),
            Some(n) => match usize::try_from(n) {
                Ok(n) if n > 0 => Ok(Some(n)),
                _ => Err(ApiError::invalid("options.num_ctx", "num_ctx must be above 0")),
            },
        }
    }

    /// Texts that end the answer.
    pub(super) fn stop(&self) -> Vec<String> {
        self.stop.clone().map(Texts::into_list).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read(value: Value) -> Options {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn options_are_read_as_clients_write_them() {
        let options = read(json!({
            "seed": 7, "num_predict": 12.0, "num_ctx": 4096, "top_k": -1, "temperature": 0.5,
            "stop": ["a", "b"], "num_gpu": 99, "typical_p": 1.0, "mirostat": 0, "min_p": null,
        }));
        let sampling = options.sampling().unwrap();
        assert_eq!((sampling.seed, sampling.top_k), (Some(7), Some(0)));
        assert_eq!((sampling.temperature, sampling.min_p), (Some(0.5), None));
        assert_eq!((options.max_tokens(), options.context().unwrap()), (Some(12), Some(4096)));
        assert_eq!(options.stop(), ["a", "b"]);
        let options = read(json!({ "seed": -1, "num_predict": -1, "stop": "x" }));
        assert_eq!(options.sampling().unwrap().seed, None);
        assert_eq!((options.max_tokens(), options.stop()), (None, vec!["x".to_owned()]));
    }

    #[test]
    fn what_cannot_be_done_is_named() {
        for (value, name) in [
            (json!({ "mirostat": 2 }), "mirostat"),
            (json!({ "typical_p": 0.5 }), "typical_p"),
            (json!({ "repeat_last_n": 1e15 }), "repeat_last_n"),
        ] {
            let error = read(value).sampling().unwrap_err();
            assert_eq!(error.param, Some(format!("options.{name}")));
        }
        assert!(read(json!({ "num_ctx": 0 })).context().is_err());
        for bad in [json!({ "nonsense": 1 }), json!({ "seed": 1.5 }), json!({ "top_k": "many" })] {
            assert!(serde_json::from_value::<Options>(bad.clone()).is_err(), "{bad}");
        }
    }
}
