//! The sampling defaults that a model brings along.

use std::collections::BTreeMap;

use baton_weights::{Metadata, Value};
use serde_json::Value as Json;

use super::Sampling;

impl Sampling {
    /// The defaults in a `generation_config.json`: `temperature`, `top_k`, `top_p`, `min_p` and
    /// `repetition_penalty`; `do_sample: false` means temperature 0. A value that makes no sense is
    /// left out with a warning.
    pub fn from_generation_config(config: &Json) -> Sampling {
        let number = |key: &str| config.get(key).and_then(Json::as_f64).map(|v| v as f32);
        let whole = |key: &str| config.get(key).and_then(Json::as_u64);
        let greedy = config.get("do_sample").and_then(Json::as_bool) == Some(false);
        Sampling {
            temperature: if greedy { Some(0.0) } else { number("temperature") },
            top_k: whole("top_k").and_then(|k| usize::try_from(k).ok()),
            top_p: number("top_p"),
            min_p: number("min_p"),
            repeat_penalty: number("repetition_penalty"),
            ..Sampling::default()
        }
        .without_nonsense("generation_config.json")
    }

    /// The defaults in GGUF metadata, `general.sampling.*`. A value that makes no sense is left out
    /// with a warning.
    pub fn from_gguf(metadata: &Metadata) -> Sampling {
        let get = |key: &str| metadata.get(&format!("general.sampling.{key}"));
        let number = |key: &str| get(key).and_then(Value::as_f64).map(|v| v as f32);
        let whole = |key: &str| get(key).and_then(Value::as_i64);
        Sampling {
            temperature: number("temp"),
            // llama.cpp reads every number below 1 as "all".
            top_k: whole("top_k").map(|k| usize::try_from(k).unwrap_or(0)),
            top_p: number("top_p"),
            min_p: number("min_p"),
            repeat_penalty: number("penalty_repeat"),
            repeat_last_n: whole("penalty_last_n").and_then(|n| i32::try_from(n).ok()),
            ..Sampling::default()
        }
        .without_nonsense("the GGUF metadata")
    }

    /// Defaults by their names, as a catalog of models has them: `temperature`, `top_k`, `top_p`,
    /// `min_p` and `repeat_penalty`. Other names and values that make no sense are left out.
    pub fn from_names(values: &BTreeMap<String, f64>) -> Sampling {
        let number = |name: &str| values.get(name).map(|&value| value as f32);
        Sampling {
            temperature: number("temperature"),
            top_k: number("top_k").map(|k| k as usize),
            top_p: number("top_p"),
            min_p: number("min_p"),
            repeat_penalty: number("repeat_penalty"),
            ..Sampling::default()
        }
        .without_nonsense("the catalog")
    }

    /// Each option by itself, kept if it can be used: a model with one bad default still runs.
    fn without_nonsense(self, source: &str) -> Sampling {
        let none = Sampling::default;
        let each = [
            Sampling { temperature: self.temperature, ..none() },
            Sampling { top_k: self.top_k, ..none() },
            Sampling { top_p: self.top_p, ..none() },
            Sampling { min_p: self.min_p, ..none() },
            Sampling { repeat_penalty: self.repeat_penalty, ..none() },
            Sampling { repeat_last_n: self.repeat_last_n, ..none() },
        ];
        let mut kept = Sampling::default();
        for option in each {
            match option.problem() {
                None => kept = kept.or(&option),
                Some(problem) => tracing::warn!("a default in {source} is ignored: {problem}"),
            }
        }
        kept
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_generation_config_is_read() {
        let config = serde_json::json!({
            "do_sample": true, "temperature": 0.6, "top_k": 20, "top_p": 0.95,
            "repetition_penalty": 1.05, "eos_token_id": [1, 2],
        });
        let expected = Sampling {
            temperature: Some(0.6),
            top_k: Some(20),
            top_p: Some(0.95),
            repeat_penalty: Some(1.05),
            ..Sampling::default()
        };
        assert_eq!(Sampling::from_generation_config(&config), expected);
    }

    #[test]
    fn no_sampling_means_greedy_and_silence_means_nothing() {
        let config = serde_json::json!({ "do_sample": false, "temperature": 0.6 });
        assert_eq!(Sampling::from_generation_config(&config), Sampling::greedy());
        let config = serde_json::json!({ "bos_token_id": 1 });
        assert_eq!(Sampling::from_generation_config(&config), Sampling::default());
    }

    #[test]
    fn nonsense_is_left_out() {
        let config = serde_json::json!({ "temperature": -3, "top_p": 7.0, "top_k": 5 });
        let expected = Sampling { top_k: Some(5), ..Sampling::default() };
        assert_eq!(Sampling::from_generation_config(&config), expected);
    }

    #[test]
    fn names_of_a_catalog_are_read() {
        let values = [("temperature", 0.6), ("top_k", 20.0), ("top_p", 7.0), ("other", 1.0)];
        let values = values.map(|(name, value)| (name.to_owned(), value)).into();
        let expected = Sampling { temperature: Some(0.6), top_k: Some(20), ..Sampling::default() };
        assert_eq!(Sampling::from_names(&values), expected);
    }

    #[test]
    fn gguf_metadata_is_read() {
        let mut metadata = Metadata::new();
        metadata.insert("general.sampling.temp", Value::F32(0.7));
        metadata.insert("general.sampling.top_k", Value::I32(-1));
        metadata.insert("general.sampling.penalty_last_n", Value::I32(32));
        let expected = Sampling {
            temperature: Some(0.7),
            top_k: Some(0),
            repeat_last_n: Some(32),
            ..Sampling::default()
        };
        assert_eq!(Sampling::from_gguf(&metadata), expected);
    }
}
