//! How tokens are picked: flags of `run`, and parameters that a chat can change.

use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

/// What the user asks for; everything else is the model's own recommendation.
#[derive(Clone, Debug, Default, PartialEq, clap::Args, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[command(next_help_heading = "Sampling (default: what the model recommends)")]
pub struct Sampling {
    /// Randomness: 0 always takes the likeliest token
    #[arg(long = "temp", visible_alias = "temperature", value_name = "T")]
    #[arg(value_parser = temperature, allow_negative_numbers = true)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub temperature: Option<f32>,
    /// Choose among the K likeliest tokens; 0 or less for all
    #[arg(long, value_name = "K", value_parser = top_k, allow_negative_numbers = true)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top_k: Option<usize>,
    /// Choose among the likeliest tokens that together have probability P
    #[arg(long, value_name = "P", value_parser = probability, allow_negative_numbers = true)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top_p: Option<f32>,
    /// Leave out tokens less likely than P times the likeliest
    #[arg(long, value_name = "P", value_parser = probability, allow_negative_numbers = true)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_p: Option<f32>,
    /// Divide the logits of tokens that occurred by X; 1 for no penalty
    #[arg(long, value_name = "X", value_parser = repeat_penalty, allow_negative_numbers = true)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub repeat_penalty: Option<f32>,
    /// Subtract X from the logits of tokens that occurred
    #[arg(long, value_name = "X", value_parser = penalty, allow_negative_numbers = true)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub presence_penalty: Option<f32>,
    /// Subtract X from the logits of tokens for each time they occurred
    #[arg(long, value_name = "X", value_parser = penalty, allow_negative_numbers = true)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub frequency_penalty: Option<f32>,
    /// Make the answer repeatable; -1 for another one each time
    #[arg(long, short = 's', value_name = "N", value_parser = seed, allow_negative_numbers = true)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// End the answer before this text (may be given several times)
    #[arg(long, value_name = "TEXT", value_parser = stop_text)]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub stop: Vec<String>,
    /// Most tokens to write; -1 for as many as fit
    #[arg(long, short = 'n', value_name = "N", value_parser = token_count)]
    #[arg(visible_alias = "max-new-tokens", aliases = ["num-predict", "n-predict", "predict"])]
    #[arg(allow_negative_numbers = true)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<usize>,
}

/// Names that [`Sampling::set`] knows, for messages and completion.
pub const NAMES: [&str; 10] = [
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repeat_penalty",
    "presence_penalty",
    "frequency_penalty",
    "seed",
    "stop",
    "max_tokens",
];

/// Whether [`Sampling::set`] knows a parameter of this name.
pub fn is_name(name: &str) -> bool {
    Sampling::default().set(name, "default").is_ok()
}

/// The seed that stands for a new one each time.
pub const RANDOM_SEED: u64 = u64::MAX;

impl Sampling {
    /// Sets a parameter by its name; `default` as its value forgets what was set.
    ///
    /// # Errors
    /// A message, if there is no such parameter or its value makes no sense.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        fn put<T>(
            place: &mut Option<T>,
            value: &str,
            parse: impl Fn(&str) -> Result<T, String>,
        ) -> Result<(), String> {
            *place = if value == "default" { None } else { Some(parse(value)?) };
            Ok(())
        }
        match name.replace('-', "_").as_str() {
            "temperature" | "temp" => put(&mut self.temperature, value, temperature),
            "top_k" => put(&mut self.top_k, value, top_k),
            "top_p" => put(&mut self.top_p, value, probability),
            "min_p" => put(&mut self.min_p, value, probability),
            "repeat_penalty" => put(&mut self.repeat_penalty, value, repeat_penalty),
            "presence_penalty" => put(&mut self.presence_penalty, value, penalty),
            "frequency_penalty" => put(&mut self.frequency_penalty, value, penalty),
            "seed" => put(&mut self.seed, value, seed),
            "max_tokens" | "max_new_tokens" | "num_predict" => {
                put(&mut self.max_tokens, value, token_count)
            }
            "stop" if value == "default" => {
                self.stop.clear();
                Ok(())
            }
            "stop" => {
                self.stop.push(stop_text(value)?);
                Ok(())
            }
            _ => Err(format!("no parameter is called {name:?}; there are {}", NAMES.join(", "))),
        }
    }

    /// What was set, one line each.
    pub fn lines(&self) -> Vec<String> {
        let value = serde_json::to_value(self).unwrap_or_default();
        let entries = value.as_object().into_iter().flatten();
        let typed = |value: &serde_json::Value| match value.as_u64() {
            Some(u64::MAX) => "-1".to_owned(),
            _ => value.to_string(),
        };
        entries.map(|(name, value)| format!("{name} {}", typed(value))).collect()
    }
}

fn number(text: &str, range: RangeInclusive<f32>, wanted: &str) -> Result<f32, String> {
    let value = text.parse().ok().filter(|value| range.contains(value));
    value.ok_or_else(|| format!("expected {wanted}"))
}

fn temperature(text: &str) -> Result<f32, String> {
    number(text, 0.0..=100.0, "a number from 0 to 100")
}

fn probability(text: &str) -> Result<f32, String> {
    number(text, 0.0..=1.0, "a number from 0 to 1")
}

fn repeat_penalty(text: &str) -> Result<f32, String> {
    number(text, 0.01..=100.0, "a number from 0.01 to 100")
}

fn penalty(text: &str) -> Result<f32, String> {
    number(text, -100.0..=100.0, "a number from -100 to 100")
}

/// Other programs write a number below 0 for all tokens.
fn top_k(text: &str) -> Result<usize, String> {
    let k: i64 = text.parse().map_err(|_| "expected a whole number, 0 or less for all tokens")?;
    Ok(usize::try_from(k).unwrap_or(0))
}

fn seed(text: &str) -> Result<u64, String> {
    match text {
        "-1" => Ok(RANDOM_SEED),
        text => text.parse().map_err(|_| {
            "expected a whole number from 0, or -1 for another answer each time".into()
        }),
    }
}

fn token_count(text: &str) -> Result<usize, String> {
    match text {
        "-1" => Ok(usize::MAX),
        text => {
            text.parse().map_err(|_| "expected a whole number from 0, or -1 for no limit".into())
        }
    }
}

fn stop_text(text: &str) -> Result<String, String> {
    if text.is_empty() { Err("an empty text would stop at once".into()) } else { Ok(text.into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_set_by_name_and_forgotten() {
        let mut sampling = Sampling::default();
        for (name, value) in [
            ("temp", "0.5"),
            ("top_k", "40"),
            ("top-p", "0.9"),
            ("min_p", "0.05"),
            ("repeat_penalty", "1.1"),
            ("presence_penalty", "-0.5"),
            ("frequency_penalty", "0.5"),
            ("seed", "7"),
            ("stop", "\n"),
            ("num_predict", "-1"),
        ] {
            sampling.set(name, value).unwrap();
        }
        assert_eq!(sampling.lines().len(), NAMES.len());
        assert_eq!((sampling.temperature, sampling.max_tokens), (Some(0.5), Some(usize::MAX)));
        NAMES.iter().for_each(|name| sampling.set(name, "default").unwrap());
        assert_eq!(sampling, Sampling::default());
    }

    #[test]
    fn minus_one_is_understood_and_shown_as_it_was_typed() {
        let mut sampling = Sampling::default();
        for name in ["seed", "top_k", "max_tokens"] {
            sampling.set(name, "-1").unwrap();
        }
        assert_eq!(sampling.lines(), ["top_k 0", "seed -1", "max_tokens -1"]);
        assert_eq!((sampling.top_k, sampling.seed), (Some(0), Some(RANDOM_SEED)));
    }

    #[test]
    fn nonsense_is_refused() {
        let mut sampling = Sampling::default();
        for (name, value) in [
            ("temp", "-1"),
            ("seed", "-2"),
            ("top_k", "few"),
            ("temp", "NaN"),
            ("temp", "inf"),
            ("top_p", "1.5"),
            ("repeat_penalty", "0"),
            ("seed", "x"),
            ("stop", ""),
            ("max_tokens", "-2"),
            ("warmth", "1"),
        ] {
            assert!(sampling.set(name, value).is_err(), "{name} {value}");
        }
        assert_eq!(sampling, Sampling::default());
    }
}
