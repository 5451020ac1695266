//! Penalties on tokens seen lately.

use std::collections::{HashMap, VecDeque};

use crate::sampling::SamplerConfig;

/// The last tokens and what they cost.
#[derive(Clone, Debug)]
pub(super) struct Penalties {
    /// Number of tokens looked back; 0 if no penalty is on.
    window: usize,
    repeat: f32,
    frequency: f32,
    presence: f32,
    recent: VecDeque<u32>,
    counts: HashMap<u32, u32>,
}

impl Penalties {
    pub(super) fn new(config: &SamplerConfig) -> Self {
        Penalties {
            window: if config.penalizes() { config.repeat_last_n } else { 0 },
            repeat: config.repeat_penalty,
            frequency: config.frequency_penalty,
            presence: config.presence_penalty,
            recent: VecDeque::new(),
            counts: HashMap::new(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.counts.is_empty()
    }

    pub(super) fn accept(&mut self, token: u32) {
        if self.window == 0 {
            return;
        }
        if self.recent.len() == self.window
            && let Some(oldest) = self.recent.pop_front()
            && let Some(count) = self.counts.get_mut(&oldest)
        {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&oldest);
            }
        }
        self.recent.push_back(token);
        *self.counts.entry(token).or_insert(0) += 1;
    }

    pub(super) fn apply(&self, logits: &mut [f32]) {
        for (&token, &count) in &self.counts {
            if let Some(logit) = logits.get_mut(token as usize) {
                // Dividing a negative logit would reward the token.
                *logit = if *logit > 0.0 { *logit / self.repeat } else { *logit * self.repeat };
                *logit -= count as f32 * self.frequency + self.presence;
            }
        }
    }
}
