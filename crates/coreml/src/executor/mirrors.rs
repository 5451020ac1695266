//! Copies of the cache that functions have: as inputs, or as states.
//!
//! The pages are what counts. A copy holds a sequence's first positions, and is brought up to date before
//! a function reads it, so that only what is new is copied.

use baton_graph::SeqId;

/// Which sequence a copy is of, and how many of its positions it has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Mirror {
    of: Option<SeqId>,
    len: usize,
}

/// The states of the sequences that were answered last, each a `T`.
#[derive(Debug)]
pub(crate) struct SequenceStates<T> {
    held: Vec<SequenceState<T>>,
    most: usize,
    clock: u64,
}

/// The state of one sequence.
#[derive(Debug)]
pub(crate) struct SequenceState<T> {
    pub mirror: Mirror,
    pub held: T,
    used: u64,
}

impl Mirror {
    /// Whether it is of a sequence.
    fn is_of(self, seq: SeqId) -> bool {
        self.of == Some(seq)
    }

    /// How many positions of a sequence it has.
    pub fn has(self, seq: SeqId) -> usize {
        if self.is_of(seq) { self.len } else { 0 }
    }

    /// It has these now.
    pub fn holds(&mut self, seq: SeqId, len: usize) {
        *self = Mirror { of: Some(seq), len };
    }

    /// From position `len` on the sequence is another.
    pub fn forget(&mut self, seq: SeqId, len: usize) {
        if self.is_of(seq) {
            self.len = self.len.min(len);
        }
    }
}

impl<T> SequenceStates<T> {
    /// At most so many sequences have states.
    pub fn new(most: usize) -> SequenceStates<T> {
        SequenceStates { held: Vec::new(), most: most.max(1), clock: 0 }
    }

    /// The states for a sequence: its own, else new ones that `make` makes, else those that were used
    /// least recently.
    pub fn of<E>(
        &mut self,
        seq: SeqId,
        make: impl FnOnce() -> Result<T, E>,
    ) -> Result<&mut SequenceState<T>, E> {
        self.clock += 1;
        let own = self.held.iter().position(|state| state.mirror.is_of(seq));
        let at = match own {
            Some(at) => at,
            None if self.held.len() < self.most => {
                let held = make()?;
                self.held.push(SequenceState { mirror: Mirror::default(), held, used: 0 });
                self.held.len() - 1
            }
            None => {
                let oldest = (0..self.held.len()).min_by_key(|&i| self.held[i].used);
                oldest.expect("there is one at least")
            }
        };
        let state = &mut self.held[at];
        state.used = self.clock;
        Ok(state)
    }

    /// From position `len` on the sequence is another.
    pub fn forget(&mut self, seq: SeqId, len: usize) {
        self.held.iter_mut().for_each(|state| state.mirror.forget(seq, len));
    }

    /// The sequence is over: its states are the first to be used for another.
    pub fn free(&mut self, seq: SeqId) {
        for state in self.held.iter_mut().filter(|state| state.mirror.is_of(seq)) {
            state.mirror = Mirror::default();
            state.used = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: SeqId = SeqId(1);
    const B: SeqId = SeqId(2);
    const C: SeqId = SeqId(3);

    #[test]
    fn a_copy_is_of_one_sequence_and_no_longer_than_that() {
        let mut mirror = Mirror::default();
        assert_eq!(mirror.has(A), 0);
        mirror.holds(A, 10);
        mirror.forget(B, 0);
        assert_eq!((mirror.has(A), mirror.has(B)), (10, 0));
        mirror.forget(A, 20);
        assert_eq!(mirror.has(A), 10);
        mirror.forget(A, 4);
        assert_eq!(mirror.has(A), 4);
    }

    #[test]
    fn each_sequence_has_states_of_its_own_until_there_are_too_many() {
        let mut states = SequenceStates::new(2);
        let mut made = 0;
        let mut of = |states: &mut SequenceStates<usize>, seq, len| {
            let state = states.of::<()>(seq, || {
                made += 1;
                Ok(made)
            });
            let state = state.unwrap();
            let before = state.mirror.has(seq);
            state.mirror.holds(seq, len);
            (state.held, before)
        };
        assert_eq!(of(&mut states, A, 5), (1, 0));
        assert_eq!(of(&mut states, B, 7), (2, 0));
        assert_eq!(of(&mut states, A, 6), (1, 5));
        states.forget(A, 3);
        assert_eq!(of(&mut states, A, 4), (1, 3));
        // B's were used least recently, and hold nothing of C.
        assert_eq!(of(&mut states, C, 1), (2, 0));
        assert_eq!(of(&mut states, B, 1), (1, 0));
        // What is over gives way first, though it was used last.
        states.free(B);
        assert_eq!(of(&mut states, A, 2), (1, 0));
        assert_eq!(of(&mut states, C, 2), (2, 1));
        assert!(SequenceStates::<()>::new(1).of(A, || Err("full")).is_err());
    }
}
