//! What a user, a model and Baton say about sampling, and how the three are merged.

mod model;

use std::collections::BTreeMap;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};

use crate::{Error, Result};

/// Sampling options. What is `None` is left to the model's own defaults, and where the model says
/// nothing to Baton's, which are those of llama.cpp: see [`Sampling::baton_defaults`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sampling {
    /// Divides the logits; 0 picks the most likely token.
    pub temperature: Option<f32>,
    /// Keeps the `top_k` most likely tokens; 0 keeps all.
    pub top_k: Option<usize>,
    /// Keeps the fewest most likely tokens whose probabilities add up to this; 1 keeps all.
    pub top_p: Option<f32>,
    /// Keeps tokens at least this likely compared with the most likely one; 0 keeps all.
    pub min_p: Option<f32>,
    /// Divides positive and multiplies negative logits of tokens seen lately; 1 changes nothing.
    pub repeat_penalty: Option<f32>,
    /// How many of the last tokens, the prompt's included, the three penalties look at; 0 none,
    /// -1 all.
    pub repeat_last_n: Option<i32>,
    /// Subtracted from the logits of tokens seen lately.
    pub presence_penalty: Option<f32>,
    /// Subtracted from the logits of tokens seen lately, once for each time.
    pub frequency_penalty: Option<f32>,
    /// Added to the logits of these tokens before anything else; minus infinity forbids one.
    pub logit_bias: BTreeMap<u32, f32>,
    /// Start of the random numbers. The same seed gives the same answer; without one each answer
    /// has its own, which its [`Summary`](crate::Summary) tells.
    pub seed: Option<u64>,
    /// Report the log-probability of each token, and of this many most likely others.
    pub logprobs: Option<usize>,
}

impl Sampling {
    /// Always the most likely token.
    pub fn greedy() -> Self {
        Sampling { temperature: Some(0.0), ..Sampling::default() }
    }

    /// The values of options that neither user nor model sets: temperature 0.8, top-k 40, top-p
    /// 0.95, min-p 0.05, and no penalties (of 64 tokens, if one is switched on).
    pub fn baton_defaults() -> Self {
        Sampling {
            temperature: Some(0.8),
            top_k: Some(40),
            top_p: Some(0.95),
            min_p: Some(0.05),
            repeat_penalty: Some(1.0),
            repeat_last_n: Some(64),
            presence_penalty: Some(0.0),
            frequency_penalty: Some(0.0),
            ..Sampling::default()
        }
    }

    /// These options, completed by those of `fallback`.
    #[must_use]
    pub fn or(&self, fallback: &Sampling) -> Sampling {
        let mut logit_bias = fallback.logit_bias.clone();
        logit_bias.extend(&self.logit_bias);
        Sampling {
            temperature: self.temperature.or(fallback.temperature),
            top_k: self.top_k.or(fallback.top_k),
            top_p: self.top_p.or(fallback.top_p),
            min_p: self.min_p.or(fallback.min_p),
            repeat_penalty: self.repeat_penalty.or(fallback.repeat_penalty),
            repeat_last_n: self.repeat_last_n.or(fallback.repeat_last_n),
            presence_penalty: self.presence_penalty.or(fallback.presence_penalty),
            frequency_penalty: self.frequency_penalty.or(fallback.frequency_penalty),
            logit_bias,
            seed: self.seed.or(fallback.seed),
            logprobs: self.logprobs.or(fallback.logprobs),
        }
    }

    /// The values to sample by: these, completed by Baton's defaults, and a seed if there is none.
    ///
    /// # Errors
    /// [`Error::Option`] if a value makes no sense.
    pub fn resolve(&self) -> Result<SamplerConfig> {
        if let Some(problem) = self.problem() {
            return Err(problem);
        }
        let all = self.or(&Sampling::baton_defaults());
        let set = "Baton's defaults set every number";
        Ok(SamplerConfig {
            temperature: all.temperature.expect(set),
            top_k: all.top_k.expect(set),
            top_p: all.top_p.expect(set),
            min_p: all.min_p.expect(set),
            repeat_penalty: all.repeat_penalty.expect(set),
            repeat_last_n: usize::try_from(all.repeat_last_n.expect(set)).unwrap_or(usize::MAX),
            presence_penalty: all.presence_penalty.expect(set),
            frequency_penalty: all.frequency_penalty.expect(set),
            logit_bias: all.logit_bias.into_iter().collect(),
            seed: all.seed.unwrap_or_else(random_seed),
            logprobs: all.logprobs,
        })
    }

    /// The first option whose value makes no sense.
    fn problem(&self) -> Option<Error> {
        let number = |name: &'static str, value: Option<f32>, wanted, fits: fn(f32) -> bool| {
            let value = value.filter(|&v| !fits(v))?;
            Some(Error::Option { name, value: value.to_string(), wanted })
        };
        let probability = |v: f32| (0.0..=1.0).contains(&v);
        number("temperature", self.temperature, "a number from 0 on", |v| v >= 0.0 && v.is_finite())
            .or_else(|| number("top_p", self.top_p, "a number from 0 to 1", probability))
            .or_else(|| number("min_p", self.min_p, "a number from 0 to 1", probability))
            .or_else(|| {
                let wanted = "a number above 0";
                let fits = |v: f32| v > 0.0 && v.is_finite();
                number("repeat_penalty", self.repeat_penalty, wanted, fits)
            })
            .or_else(|| {
                let (value, wanted) = (self.presence_penalty, "a finite number");
                number("presence_penalty", value, wanted, f32::is_finite)
            })
            .or_else(|| {
                let (value, wanted) = (self.frequency_penalty, "a finite number");
                number("frequency_penalty", value, wanted, f32::is_finite)
            })
            .or_else(|| {
                let n = self.repeat_last_n.filter(|&n| n < -1)?;
                let wanted = "a number from 0 on, or -1 for all";
                Some(Error::Option { name: "repeat_last_n", value: n.to_string(), wanted })
            })
            .or_else(|| {
                let bad = |v: f32| v.is_nan() || v == f32::INFINITY;
                let (token, bias) = self.logit_bias.iter().find(|(_, bias)| bad(**bias))?;
                let wanted = "a number, or minus infinity to forbid the token";
                let value = format!("{bias} for token {token}");
                Some(Error::Option { name: "logit_bias", value, wanted })
            })
    }
}

/// A seed that differs from call to call; the standard library's hasher is seeded by the system. It
/// has no more bits than a double's mantissa: programs that read JSON round larger numbers.
fn random_seed() -> u64 {
    RandomState::new().build_hasher().finish() >> 11
}

/// Complete and checked sampling options, made by [`Sampling::resolve`]. Fields are those of
/// [`Sampling`].
#[derive(Clone, Debug, PartialEq)]
pub struct SamplerConfig {
    pub(crate) temperature: f32,
    pub(crate) top_k: usize,
    pub(crate) top_p: f32,
    pub(crate) min_p: f32,
    pub(crate) repeat_penalty: f32,
    /// `usize::MAX` for all.
    pub(crate) repeat_last_n: usize,
    pub(crate) presence_penalty: f32,
    pub(crate) frequency_penalty: f32,
    pub(crate) logit_bias: Vec<(u32, f32)>,
    pub(crate) seed: u64,
    pub(crate) logprobs: Option<usize>,
}

impl SamplerConfig {
    /// The seed in use.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Whether any penalty changes anything.
    pub(crate) fn penalizes(&self) -> bool {
        let neutral = self.repeat_penalty == 1.0
            && self.presence_penalty == 0.0
            && self.frequency_penalty == 0.0;
        self.repeat_last_n > 0 && !neutral
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_user_comes_before_the_model_and_the_model_before_baton() {
        let user = Sampling { top_k: Some(7), ..Sampling::default() };
        let model = Sampling { top_k: Some(20), temperature: Some(0.6), ..Sampling::default() };
        let config = user.or(&model).resolve().unwrap();
        assert_eq!((config.top_k, config.temperature, config.top_p), (7, 0.6, 0.95));
    }

    #[test]
    fn values_that_make_no_sense_are_named() {
        let bad = [
            Sampling { temperature: Some(-0.1), ..Sampling::default() },
            Sampling { temperature: Some(f32::NAN), ..Sampling::default() },
            Sampling { top_p: Some(1.5), ..Sampling::default() },
            Sampling { min_p: Some(-1.0), ..Sampling::default() },
            Sampling { repeat_penalty: Some(0.0), ..Sampling::default() },
            Sampling { repeat_last_n: Some(-2), ..Sampling::default() },
            Sampling { presence_penalty: Some(f32::INFINITY), ..Sampling::default() },
            Sampling { frequency_penalty: Some(f32::NAN), ..Sampling::default() },
            Sampling { logit_bias: [(3, f32::NAN)].into(), ..Sampling::default() },
        ];
        let names = [
            "temperature",
            "temperature",
            "top_p",
            "min_p",
            "repeat_penalty",
            "repeat_last_n",
            "presence_penalty",
            "frequency_penalty",
            "logit_bias",
        ];
        for (sampling, name) in bad.iter().zip(names) {
            let error = sampling.resolve().unwrap_err().to_string();
            assert!(error.contains(name), "{error}");
        }
    }

    #[test]
    fn seeds_differ_unless_given() {
        let seed = |sampling: Sampling| sampling.resolve().unwrap().seed();
        assert_ne!(seed(Sampling::default()), seed(Sampling::default()));
        assert_eq!(seed(Sampling { seed: Some(5), ..Sampling::default() }), 5);
    }
}
