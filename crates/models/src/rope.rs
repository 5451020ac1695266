//! Rotary position embedding: its scaling rules, and the table of angles each comes down to.
//!
//! Tables are computed once, when the graph is built. Two rules depend on how long a sequence
//! gets: *dynamic* stretches the base by it and *longrope* has one table for short and one for
//! long sequences. Both take the context limit that the graph is built for in place of the current
//! length, so that keys in the cache never change their meaning. Build with a context within the
//! length of pre-training to get the short table.

use std::f64::consts::TAU;
use std::sync::Arc;

/// The rotation of one kind of layer.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeConfig {
    /// Base of the geometric series of angles.
    pub theta: f64,
    /// Features of each head that rotate: even, at most `head_dim`.
    pub rotary_dim: usize,
    /// How the series is changed to reach contexts longer than those of pre-training.
    pub scaling: RopeScaling,
}

/// How angles are scaled.
#[derive(Clone, Debug, PartialEq)]
pub enum RopeScaling {
    /// Not at all.
    None,
    /// All angles divided by a factor.
    Linear {
        /// The factor.
        factor: f64,
    },
    /// NTK-aware: the base grows with the context beyond `trained`.
    Dynamic {
        /// The factor.
        factor: f64,
        /// Context of training, in tokens.
        trained: usize,
    },
    /// Llama 3.1: low frequencies divided by a factor, high ones kept, a ramp between.
    Llama3 {
        /// The factor.
        factor: f64,
        /// Periods per original context below which the factor applies in full.
        low: f64,
        /// Periods per original context above which nothing changes.
        high: f64,
        /// Context of pre-training, in tokens.
        original: usize,
    },
    /// YaRN (arXiv:2309.00071).
    Yarn {
        /// The factor.
        factor: f64,
        /// Context of pre-training, in tokens.
        original: usize,
        /// Periods per original context above which nothing changes.
        beta_fast: f64,
        /// Periods per original context below which the factor applies in full.
        beta_slow: f64,
        /// Whether the ends of the ramp are rounded outwards to whole pairs.
        truncate: bool,
        /// Factor on sine and cosine.
        magnitude: f64,
    },
    /// LongRoPE (arXiv:2402.13753): a factor for each pair.
    LongRope {
        /// Divisors for contexts up to `original`.
        short: Vec<f64>,
        /// Divisors for longer ones.
        long: Vec<f64>,
        /// Context of pre-training, in tokens.
        original: usize,
        /// Factor on sine and cosine.
        magnitude: f64,
    },
    /// A divisor for each pair, as GGUF files hold the Llama 3 rule ready made.
    Divisors(Vec<f64>),
}

/// Angles per position for each pair, and the factor on sine and cosine.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeTable {
    /// One angle for each of the `rotary_dim / 2` pairs.
    pub inv_freq: Arc<[f32]>,
    /// Factor on sine and cosine.
    pub magnitude: f32,
}

impl RopeConfig {
    /// The table for sequences of up to `context` tokens.
    pub fn table(&self, context: usize) -> RopeTable {
        let plain = |theta: f64, i: usize| theta.powf(-2.0 * i as f64 / self.rotary_dim as f64);
        let pairs = self.rotary_dim / 2;
        let divided = |divisors: &[f64]| -> Vec<f64> {
            (0..pairs).map(|i| plain(self.theta, i) / divisors[i]).collect()
        };
        let mut magnitude = 1.0;
        let angles: Vec<f64> = match &self.scaling {
            RopeScaling::None => (0..pairs).map(|i| plain(self.theta, i)).collect(),
            RopeScaling::Linear { factor } => {
                (0..pairs).map(|i| plain(self.theta, i) / factor).collect()
            }
            RopeScaling::Dynamic { factor, trained } => {
                let stretch = context.max(*trained) as f64 / *trained as f64;
                let dim = self.rotary_dim as f64;
                let theta =
                    self.theta * (factor * stretch - (factor - 1.0)).powf(dim / (dim - 2.0));
                (0..pairs).map(|i| plain(theta, i)).collect()
            }
            RopeScaling::Llama3 { factor, low, high, original } => (0..pairs)
                .map(|i| {
                    let angle = plain(self.theta, i);
                    let periods = *original as f64 * angle / TAU;
                    let keep = ((periods - low) / (high - low)).clamp(0.0, 1.0);
                    angle * (keep + (1.0 - keep) / factor)
                })
                .collect(),
            RopeScaling::Yarn {
                factor,
                original,
                beta_fast,
                beta_slow,
                truncate,
                magnitude: m,
            } => {
                magnitude = *m;
                let (low, high) = self.yarn_ramp(*original, *beta_fast, *beta_slow, *truncate);
                (0..pairs)
                    .map(|i| {
                        let scaled = ((i as f64 - low) / (high - low)).clamp(0.0, 1.0);
                        plain(self.theta, i) * (1.0 - scaled + scaled / factor)
                    })
                    .collect()
            }
            RopeScaling::LongRope { short, long, original, magnitude: m } => {
                magnitude = *m;
                divided(if context > *original { long } else { short })
            }
            RopeScaling::Divisors(divisors) => divided(divisors),
        };
        let inv_freq = angles.into_iter().map(|angle| angle as f32).collect();
        RopeTable { inv_freq, magnitude: magnitude as f32 }
    }

    /// Pairs between which YaRN goes from unchanged to fully scaled.
    fn yarn_ramp(&self, original: usize, fast: f64, slow: f64, truncate: bool) -> (f64, f64) {
        let dim = self.rotary_dim as f64;
        let pair =
            |periods: f64| dim * (original as f64 / (periods * TAU)).ln() / (2.0 * self.theta.ln());
        let (mut low, mut high) = (pair(fast), pair(slow));
        if truncate {
            (low, high) = (low.floor(), high.ceil());
        }
        let (low, high) = (low.max(0.0), high.min(dim - 1.0));
        (low, if low == high { high + 0.001 } else { high })
    }

    /// Whether the table depends on the context.
    pub fn depends_on_context(&self) -> bool {
        matches!(self.scaling, RopeScaling::Dynamic { .. } | RopeScaling::LongRope { .. })
    }

    /// What is wrong with the numbers, if anything.
    pub(crate) fn problem(&self, head_dim: usize) -> Option<String> {
        let dim = self.rotary_dim;
        if dim < 2 || !dim.is_multiple_of(2) || dim > head_dim {
            return Some(format!("rotates {dim} features of heads of {head_dim}"));
        }
        // A base of 1 has no series, and YaRN divides by its logarithm.
        if !(self.theta.is_finite() && self.theta > 1.0) {
            return Some(format!("has the base {}", self.theta));
        }
        let positive = |x: f64| x.is_finite() && x > 0.0;
        let fits = match &self.scaling {
            RopeScaling::None => true,
            RopeScaling::Linear { factor } => positive(*factor),
            RopeScaling::Dynamic { factor, trained } => {
                factor.is_finite() && *factor >= 1.0 && *trained > 0 && dim > 2
            }
            RopeScaling::Llama3 { factor, low, high, original } => {
                positive(*factor)
                    && positive(*low)
                    && high.is_finite()
                    && high > low
                    && *original > 0
            }
            RopeScaling::Yarn { factor, original, beta_fast, beta_slow, magnitude, .. } => {
                [factor, beta_fast, beta_slow, magnitude].into_iter().all(|x| positive(*x))
                    && beta_fast >= beta_slow
                    && *original > 0
            }
            RopeScaling::LongRope { short, long, original, magnitude } => {
                let fit = |list: &[f64]| list.len() == dim / 2 && list.iter().all(|x| positive(*x));
                fit(short) && fit(long) && *original > 0 && positive(*magnitude)
            }
            RopeScaling::Divisors(list) => {
                list.len() == dim / 2 && list.iter().all(|x| positive(*x))
            }
        };
        (!fits).then(|| format!("cannot scale {dim} features by {}", self.scaling.described()))
    }
}

impl RopeScaling {
    /// The rule and its numbers, for a message.
    fn described(&self) -> String {
        match self {
            RopeScaling::None => "nothing".to_owned(),
            RopeScaling::Linear { factor } => format!("a factor of {factor}"),
            RopeScaling::Dynamic { factor, trained } => {
                format!("a dynamic factor of {factor} beyond {trained} tokens")
            }
            RopeScaling::Llama3 { factor, low, high, original } => format!(
                "the llama3 rule with a factor of {factor}, frequency factors from {low} to \
                 {high} and {original} original tokens"
            ),
            RopeScaling::Yarn { factor, original, beta_fast, beta_slow, magnitude, .. } => format!(
                "YaRN with a factor of {factor}, betas from {beta_slow} to {beta_fast}, an \
                 attention factor of {magnitude} and {original} original tokens"
            ),
            RopeScaling::LongRope { short, long, original, magnitude } => format!(
                "LongRoPE with {} short and {} long factors, an attention factor of {magnitude} \
                 and {original} original tokens",
                short.len(),
                long.len()
            ),
            RopeScaling::Divisors(list) => format!("a list of {} divisors", list.len()),
        }
    }
}

#[cfg(test)]
mod tests;
