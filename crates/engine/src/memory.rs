//! What a model needs of the machine's memory.

use std::fmt;

/// The terms of a model's memory, in bytes. Made before anything is allocated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryPlan {
    /// Weights, as stored. What is not copied is mapped from files: the system can drop and read
    /// it again, at the price of speed.
    pub weights: u64,
    /// What the units keep of the weights for themselves, in an order or a precision of their own.
    pub copied: u64,
    /// Keys and values of all tokens that the cache can hold, for each unit.
    pub kv: u64,
    /// Intermediate values of one batch, for each unit.
    pub scratch: u64,
    /// What packages keep and are given of the cache: states of sequences, and a history.
    pub states: u64,
    /// All of the draft model, if there is one.
    pub draft: u64,
    /// All that a unit with memory of its own holds there. How much there is the system does not tell.
    pub apart: u64,
    /// Memory that the system can give, if it tells.
    pub available: Option<u64>,
}

impl MemoryPlan {
    /// Weights with all copies. What is mapped of those that were copied can go.
    fn resident(&self) -> u64 {
        self.weights.max(self.copied)
    }

    /// All that is needed of the machine's memory.
    pub fn total(&self) -> u64 {
        self.resident().saturating_add(self.computed())
    }

    /// All but weights.
    fn computed(&self) -> u64 {
        let all = [self.kv, self.states, self.scratch, self.draft];
        all.into_iter().fold(0, u64::saturating_add)
    }

    /// Adds what a unit keeps: in the machine's memory, or `apart` from it.
    pub(crate) fn add(&mut self, copied: u64, kv: u64, scratch: u64, apart: bool) {
        if apart {
            let all = copied.saturating_add(kv).saturating_add(scratch);
            self.apart = self.apart.saturating_add(all);
            return;
        }
        self.copied = self.copied.saturating_add(copied);
        self.kv = self.kv.saturating_add(kv);
        self.scratch = self.scratch.saturating_add(scratch);
    }

    /// What must be allocated, mapped weights left out.
    pub fn unmapped(&self) -> u64 {
        self.copied.saturating_add(self.computed())
    }
}

impl fmt::Display for MemoryPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = |bytes: u64| bytes.div_ceil(1 << 20);
        let (weights, kv, scratch) = (mib(self.resident()), mib(self.kv), mib(self.scratch));
        write!(f, "weights {weights} MiB + KV cache {kv} MiB + scratch {scratch} MiB")?;
        if self.states > 0 {
            write!(f, " + states of packages {} MiB", mib(self.states))?;
        }
        if self.draft > 0 {
            write!(f, " + draft model {} MiB", mib(self.draft))?;
        }
        if self.apart > 0 {
            write!(f, ", and {} MiB on the GPU", mib(self.apart))?;
        }
        match self.available {
            Some(available) => write!(f, ", {} MiB are available", mib(available)),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_term_is_shown() {
        let plan = MemoryPlan {
            weights: 5 << 20,
            copied: 1 << 20,
            kv: 3 << 20,
            scratch: 1,
            states: 0,
            draft: 0,
            apart: 0,
            available: Some(7 << 20),
        };
        let text = "weights 5 MiB + KV cache 3 MiB + scratch 1 MiB, 7 MiB are available";
        assert_eq!(plan.to_string(), text);
        assert_eq!((plan.total(), plan.unmapped()), ((8 << 20) + 1, (4 << 20) + 1));
        let plan = MemoryPlan { draft: 2 << 20, available: None, ..plan };
        let text = "weights 5 MiB + KV cache 3 MiB + scratch 1 MiB + draft model 2 MiB";
        assert_eq!(plan.to_string(), text);
        assert_eq!((plan.total(), plan.unmapped()), ((10 << 20) + 1, (6 << 20) + 1));
        let plan = MemoryPlan { states: 4 << 20, ..plan };
        assert!(plan.to_string().contains(" + states of packages 4 MiB + draft"), "{plan}");
        assert_eq!((plan.total(), plan.unmapped()), ((14 << 20) + 1, (10 << 20) + 1));
    }

    #[test]
    fn what_units_keep_for_themselves_is_added_where_it_is() {
        let mut plan = MemoryPlan { weights: 5 << 20, ..MemoryPlan::default() };
        plan.add(4 << 20, 2 << 20, 1 << 20, false);
        // A copy takes the place of what was mapped; of two copies both are there.
        assert_eq!((plan.total(), plan.unmapped()), (8 << 20, 7 << 20));
        plan.add(5 << 20, 2 << 20, 1 << 20, false);
        assert_eq!((plan.total(), plan.unmapped()), (15 << 20, 15 << 20));
        let text = "weights 9 MiB + KV cache 4 MiB + scratch 2 MiB";
        assert_eq!(plan.to_string(), text);
        plan.add(5 << 20, 2 << 20, 1 << 20, true);
        assert_eq!((plan.total(), plan.unmapped()), (15 << 20, 15 << 20));
        assert_eq!(plan.to_string(), format!("{text}, and 8 MiB on the GPU"));
    }
}
