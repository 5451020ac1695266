//! What a model that a user made from another answers with where a request does not say.

use baton_engine::Sampling;
use baton_hub::Custom;
use serde_json::Value;

use crate::chat::numbers;

/// Settings of a model of the user's own.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Defaults {
    /// Instructions for conversations that have none.
    pub system: Option<String>,
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// Strings that end an answer.
    pub stop: Vec<String>,
    /// Most tokens of an answer.
    pub max_tokens: Option<usize>,
    /// Tokens of context that it is loaded with.
    pub context: Option<usize>,
}

impl Defaults {
    /// Reads what the store keeps; what was written by another Baton and is not known is left out.
    pub(super) fn of(custom: &Custom) -> Self {
        let get = |name: &str| custom.parameters.get(name);
        let number = |name: &str| get(name).and_then(Value::as_f64).map(|value| value as f32);
        let whole = |name: &str| get(name).and_then(Value::as_i64);
        let positive = |name: &str| numbers::limit(whole(name)).filter(|&n| n > 0);
        let stop = match get("stop") {
            Some(Value::String(text)) => vec![text.clone()],
            Some(Value::Array(texts)) => {
                texts.iter().filter_map(Value::as_str).map(str::to_owned).collect()
            }
            _ => Vec::new(),
        };
        Defaults {
            system: custom.system.clone().filter(|text| !text.is_empty()),
            sampling: Sampling {
                temperature: number("temperature"),
                top_k: numbers::top_k(whole("top_k")),
                top_p: number("top_p"),
                min_p: number("min_p"),
                repeat_penalty: number("repeat_penalty"),
                repeat_last_n: whole("repeat_last_n").and_then(|n| i32::try_from(n).ok()),
                presence_penalty: number("presence_penalty"),
                frequency_penalty: number("frequency_penalty"),
                seed: numbers::seed(whole("seed")),
                ..Sampling::default()
            },
            stop,
            max_tokens: positive("num_predict"),
            context: positive("num_ctx"),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn settings_are_read_and_what_is_not_known_is_left_out() {
        let parameters = json!({
            "temperature": 0.5, "top_k": -1, "stop": "x", "num_ctx": 64, "num_predict": -1,
            "seed": 3, "other": [1],
        });
        let parameters = serde_json::from_value(parameters).unwrap();
        let custom = Custom { system: Some(String::new()), parameters, license: None };
        let sampling = Sampling {
            temperature: Some(0.5),
            top_k: Some(0),
            seed: Some(3),
            ..Sampling::default()
        };
        let expected =
            Defaults { sampling, stop: vec!["x".into()], context: Some(64), ..Defaults::default() };
        assert_eq!(Defaults::of(&custom), expected);
    }
}
