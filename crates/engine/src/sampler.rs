//! From a row of logits to the next token.
//!
//! Tokens that a grammar forbids are out first. The steps then and their order are llama.cpp's: logit
//! bias, penalties (repeat, frequency, presence), top-k, top-p, min-p, temperature, draw. So top-p
//! and min-p look at probabilities before the temperature. Nothing sorts the vocabulary: each filter
//! selects the few tokens it keeps.

mod candidates;
mod penalties;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

use crate::grammar::TokenMask;
use crate::sampling::SamplerConfig;
use crate::{Error, Result};
use candidates::Candidate;
use penalties::Penalties;

/// A token that was chosen.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Token {
    /// Its id.
    pub id: u32,
    /// Its log-probability, if [`Sampling::logprobs`](crate::Sampling::logprobs) asked for it: by
    /// the model itself, before bias, penalties, filters and temperature.
    pub logprob: Option<f32>,
    /// The most likely tokens with theirs, best first, as many as were asked for.
    pub top: Vec<TokenLogprob>,
}

/// A token and how likely it was.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TokenLogprob {
    /// The token's id.
    pub id: u32,
    /// Natural logarithm of its probability.
    pub logprob: f32,
}

/// Chooses tokens by one set of options. Same options and logits give the same tokens.
#[derive(Clone, Debug)]
pub struct Sampler {
    config: SamplerConfig,
    penalties: Penalties,
    random: ChaCha8Rng,
    adjusted: Vec<f32>,
}

impl Sampler {
    /// A sampler that has seen no token.
    pub fn new(config: SamplerConfig) -> Self {
        let penalties = Penalties::new(&config);
        let random = ChaCha8Rng::seed_from_u64(config.seed);
        Sampler { config, penalties, random, adjusted: Vec::new() }
    }

    /// Notes a token of the prompt or the answer, for the penalties.
    pub fn accept(&mut self, token: u32) {
        self.penalties.accept(token);
    }

    /// Chooses the token after those accepted, among the `allowed` ones if there is such a mask. It
    /// is not accepted by itself.
    ///
    /// # Errors
    /// [`Error::BadLogits`] if a logit is NaN or plus infinity, or those of all tokens that are
    /// allowed are minus infinity; [`Error::Option`] if a logit bias is for a token outside the
    /// vocabulary.
    pub fn sample(&mut self, logits: &[f32], allowed: Option<&TokenMask>) -> Result<Token> {
        if let Some(token) = logits.iter().position(|l| l.is_nan() || *l == f32::INFINITY) {
            let problem = format!("the logit of token {token} is {}", logits[token]);
            return Err(Error::BadLogits { problem });
        }
        let id = match self.best_as_it_is(logits, allowed) {
            Some(id) => id,
            None if allowed.is_none() && !self.adjusts() => {
                choose(&self.config, &mut self.random, logits)?
            }
            None => {
                self.adjust(logits, allowed)?;
                choose(&self.config, &mut self.random, &self.adjusted)?
            }
        };
        Ok(match self.config.logprobs {
            None => Token { id, ..Token::default() },
            Some(n) => with_logprobs(id, n, logits),
        })
    }

    /// Whether logits are changed before a token is chosen.
    fn adjusts(&self) -> bool {
        !self.config.logit_bias.is_empty() || !self.penalties.is_empty()
    }

    /// The most likely token, if it is what will be chosen whatever else is forbidden.
    fn best_as_it_is(&self, logits: &[f32], allowed: Option<&TokenMask>) -> Option<u32> {
        if self.config.temperature != 0.0 || self.adjusts() {
            return None;
        }
        let best = candidates::best(logits)?.id;
        allowed.is_none_or(|mask| mask.allows(best)).then_some(best)
    }

    /// Puts logits that forbidden tokens, biases and penalties have changed into `adjusted`.
    fn adjust(&mut self, logits: &[f32], allowed: Option<&TokenMask>) -> Result<()> {
        self.adjusted.clear();
        self.adjusted.extend_from_slice(logits);
        for &(token, bias) in &self.config.logit_bias {
            let Some(logit) = self.adjusted.get_mut(token as usize) else {
                let wanted = "tokens of the model's vocabulary";
                return Err(Error::Option { name: "logit_bias", value: token.to_string(), wanted });
            };
            *logit += bias;
        }
        // A forbidden token stays so: neither sums nor products turn minus infinity into a number.
        if let Some(mask) = allowed {
            mask.apply(&mut self.adjusted);
        }
        self.penalties.apply(&mut self.adjusted);
        // Penalties of absurd size reach infinity, between which nothing can be chosen.
        let infinite = self.adjusted.iter_mut().filter(|logit| **logit == f32::INFINITY);
        infinite.for_each(|logit| *logit = f32::MAX);
        Ok(())
    }
}

fn choose(config: &SamplerConfig, random: &mut ChaCha8Rng, logits: &[f32]) -> Result<u32> {
    let best = candidates::best(logits).ok_or_else(|| Error::BadLogits {
        problem: "every token is forbidden: all logits are minus infinity".into(),
    })?;
    if config.temperature == 0.0 {
        return Ok(best.id);
    }
    let mut kept = candidates::top_k(logits, config.top_k);
    if config.top_p < 1.0 {
        candidates::top_p(&mut kept, best.logit, config.top_p);
    }
    if config.min_p > 0.0 {
        candidates::min_p(&mut kept, best.logit, config.min_p);
    }
    Ok(draw(&kept, best.logit, config.temperature, random))
}

/// One of `kept`, by their probabilities at `temperature`.
fn draw(kept: &[Candidate], max: f32, temperature: f32, random: &mut ChaCha8Rng) -> u32 {
    let temperature = f64::from(temperature);
    let weight = |c: &Candidate| ((f64::from(c.logit) - f64::from(max)) / temperature).exp();
    let total: f64 = kept.iter().map(weight).sum();
    // 53 random bits fill a double's mantissa.
    let unit = (random.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
    let mut left = unit * total;
    for candidate in kept {
        left -= weight(candidate);
        if left < 0.0 {
            return candidate.id;
        }
    }
    // Rounding can leave a crumb; it belongs to the last token that has any weight.
    kept.iter().rev().find(|c| weight(c) > 0.0).expect("the best token has weight 1").id
}

fn with_logprobs(id: u32, n: usize, logits: &[f32]) -> Token {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let total: f64 = logits.iter().map(|&l| f64::from(l - max).exp()).sum();
    let logprob = |logit: f32| (f64::from(logit - max) - total.ln()) as f32;
    let top = match n {
        0 => Vec::new(),
        _ => {
            let mut top = candidates::top_k(logits, n);
            top.sort_unstable_by(Candidate::rank);
            top.iter().map(|c| TokenLogprob { id: c.id, logprob: logprob(c.logit) }).collect()
        }
    };
    Token { id, logprob: Some(logprob(logits[id as usize])), top }
}

#[cfg(test)]
mod tests;
