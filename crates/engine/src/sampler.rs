//! From a row of logits to the next token.
//!
//! Tokens that a grammar forbids are out first. The steps then and their order are llama.cpp's: logit
//! bias, penalties (repeat, frequency, presence), top-k, top-p, min-p, temperature, draw. So top-p
//! and min-p look at probabilities before the temperature. Nothing sorts the vocabulary: each filter
//! selects the few tokens it keeps.
//!
//! Where the choice is among the few most likely tokens, a compute unit that finds these itself need not
//! give the rest, and the token chosen is the same.

mod candidates;
mod penalties;

use baton_graph::Best;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

use crate::grammar::TokenMask;
use crate::sampling::SamplerConfig;
use crate::{Error, Result};
use candidates::Candidate;
use penalties::Penalties;

/// Most tokens that a compute unit is asked for in the place of all logits.
const MOST_BEST: usize = 64;

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
        if let Some(token) = logits.iter().position(|&logit| is_bad(logit)) {
            check(token as u32, logits[token])?;
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

    /// How many of the most likely tokens are enough to choose the token after those accepted, if there
    /// is no mask; none if all logits are needed.
    pub fn enough(&self) -> Option<usize> {
        let chosen = match (self.config.temperature, self.config.top_k) {
            (0.0, _) => 1,
            (_, 0) => return None,
            (_, k) => k,
        };
        let most = chosen.max(self.config.logprobs.unwrap_or(0));
        (most <= MOST_BEST && !self.adjusts()).then_some(most)
    }

    /// As [`Sampler::sample`] without a mask, by the most likely tokens, of which there must be
    /// [enough](Sampler::enough) if the vocabulary has as many.
    ///
    /// # Errors
    /// As [`Sampler::sample`].
    pub fn sample_best(&mut self, best: &Best) -> Result<Token> {
        let candidate = |&(id, logit): &(u32, f32)| Candidate { id, logit };
        let mut kept: Vec<Candidate> = best.tokens.iter().map(candidate).collect();
        let Some(&first) = kept.first() else { return Err(all_forbidden()) };
        check(first.id, first.logit)?;
        let top = match self.config.logprobs {
            Some(n) => kept[..n.min(kept.len())].to_vec(),
            None => Vec::new(),
        };
        let chosen = match self.config.temperature {
            0.0 => first,
            _ => {
                kept.truncate(self.config.top_k);
                filter(&self.config, &mut kept, first.logit);
                draw(&kept, first.logit, self.config.temperature, &mut self.random)
            }
        };
        let logprob = |c: &Candidate| (f64::from(c.logit) - best.log_sum_exp) as f32;
        Ok(Token {
            id: chosen.id,
            logprob: self.config.logprobs.map(|_| logprob(&chosen)),
            top: top.iter().map(|c| TokenLogprob { id: c.id, logprob: logprob(c) }).collect(),
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

fn is_bad(logit: f32) -> bool {
    logit.is_nan() || logit == f32::INFINITY
}

/// Refuses a logit that is no number.
fn check(token: u32, logit: f32) -> Result<()> {
    match is_bad(logit) {
        true => Err(Error::BadLogits { problem: format!("the logit of token {token} is {logit}") }),
        false => Ok(()),
    }
}

fn all_forbidden() -> Error {
    Error::BadLogits { problem: "every token is forbidden: all logits are minus infinity".into() }
}

fn choose(config: &SamplerConfig, random: &mut ChaCha8Rng, logits: &[f32]) -> Result<u32> {
    let best = candidates::best(logits).ok_or_else(all_forbidden)?;
    if config.temperature == 0.0 {
        return Ok(best.id);
    }
    let mut kept = candidates::top_k(logits, config.top_k);
    if (1..=MOST_BEST).contains(&config.top_k) {
        // The order in which a compute unit gives them, by which a token is drawn.
        kept.sort_unstable_by(Candidate::rank);
    }
    filter(config, &mut kept, best.logit);
    Ok(draw(&kept, best.logit, config.temperature, random).id)
}

/// Leaves out what is too unlikely beside the most likely token, whose logit is `max`.
fn filter(config: &SamplerConfig, kept: &mut Vec<Candidate>, max: f32) {
    if config.top_p < 1.0 {
        candidates::top_p(kept, max, config.top_p);
    }
    if config.min_p > 0.0 {
        candidates::min_p(kept, max, config.min_p);
    }
}

/// One of `kept`, by their probabilities at `temperature`.
fn draw(kept: &[Candidate], max: f32, temperature: f32, random: &mut ChaCha8Rng) -> Candidate {
    let temperature = f64::from(temperature);
    let weight = |c: &Candidate| ((f64::from(c.logit) - f64::from(max)) / temperature).exp();
    let total: f64 = kept.iter().map(weight).sum();
    // 53 random bits fill a double's mantissa.
    let unit = (random.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
    let mut left = unit * total;
    for candidate in kept {
        left -= weight(candidate);
        if left < 0.0 {
            return *candidate;
        }
    }
    // Rounding can leave a crumb; it belongs to the last token that has any weight.
    *kept.iter().rev().find(|c| weight(c) > 0.0).expect("the best token has weight 1")
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
