//! The sequences of all clients in one executor.

use std::collections::HashMap;

use baton_graph::{Batch, ExecError, Executor, KvBlock, Rows, SeqId};

use super::messages::{Reply, Request, narrow};

/// Most sequences of one client; the least recently used goes.
const MOST_SEQUENCES: usize = 1024;

/// A client's name for a sequence.
type Name = (u64, u32);

pub(super) struct Pool {
    executor: Box<dyn Executor>,
    sequences: HashMap<Name, Entry>,
    next: u32,
    clock: u64,
}

#[derive(Clone, Copy)]
struct Entry {
    seq: SeqId,
    used: u64,
}

impl Pool {
    pub(super) fn new(executor: Box<dyn Executor>) -> Self {
        Pool { executor, sequences: HashMap::new(), next: 0, clock: 0 }
    }

    /// Does what a client asks for.
    pub(super) fn answer(&mut self, client: u64, request: Request) -> Reply {
        let name = match &request {
            Request::Hello { .. } => return failed(0, "it was greeted already"),
            Request::Export { seq, start, end } => {
                let range = *start as usize..*end as usize;
                let Some(entry) = self.sequences.get(&(client, *seq)) else {
                    return failed(0, "there is no such sequence");
                };
                return match self.executor.export_kv(entry.seq, range) {
                    Ok(block) => Reply::Block(block.to_bytes()),
                    Err(error) => Reply::of_error(&error, self.executor.len(entry.seq)),
                };
            }
            Request::Forward { seq, .. }
            | Request::Import { seq, .. }
            | Request::Truncate { seq, .. }
            | Request::Copy { to: seq, .. }
            | Request::Free { seq } => (client, *seq),
        };
        let done = self.change(name, request);
        let held = self.sequences.get(&name).map_or(0, |entry| self.executor.len(entry.seq));
        match done {
            Ok(()) => Reply::Done { held: narrow(held) },
            Err(error) => Reply::of_error(&error, held),
        }
    }

    fn change(&mut self, name: Name, request: Request) -> Result<(), ExecError> {
        let client = name.0;
        match request {
            Request::Forward { at, tokens, .. } => {
                self.check_end(name, at)?;
                let seq = self.entry(name);
                let batch = Batch::one(seq, tokens, Rows::None);
                self.with_room(name, |executor| executor.forward(&batch).map(drop))
            }
            Request::Import { at, block, .. } => {
                self.check_end(name, at)?;
                let block = KvBlock::from_bytes(&block)?;
                let seq = self.entry(name);
                self.with_room(name, |executor| executor.import_kv(seq, at as usize, &block))
            }
            Request::Truncate { len, .. } => match self.sequences.get(&name) {
                Some(entry) => self.executor.truncate(entry.seq, len as usize),
                None => Ok(()),
            },
            Request::Copy { from, len, .. } => {
                self.free(name);
                let Some(from) = self.sequences.get(&(client, from)).map(|entry| entry.seq) else {
                    return Ok(());
                };
                let to = self.entry(name);
                self.executor.copy(from, to, len as usize)
            }
            Request::Free { .. } => {
                self.free(name);
                Ok(())
            }
            Request::Hello { .. } | Request::Export { .. } => unreachable!("answered before"),
        }
    }

    /// Refuses what does not continue a sequence where it ends: the client does not know that it went.
    fn check_end(&self, name: Name, at: u32) -> Result<(), ExecError> {
        let held = self.sequences.get(&name).map_or(0, |entry| self.executor.len(entry.seq));
        match held == at as usize {
            true => Ok(()),
            false => Err(ExecError::Invalid(format!("the sequence has {held} tokens, not {at}"))),
        }
    }

    /// The sequence of that name, which may be new.
    fn entry(&mut self, name: Name) -> SeqId {
        self.clock += 1;
        if let Some(entry) = self.sequences.get_mut(&name) {
            entry.used = self.clock;
            return entry.seq;
        }
        if self.sequences.keys().filter(|other| other.0 == name.0).count() >= MOST_SEQUENCES {
            self.evict(|other| other.0 == name.0);
        }
        let taken = |seq| self.sequences.values().any(|entry| entry.seq == seq);
        let mut next = self.next;
        while taken(SeqId(next)) {
            next = next.wrapping_add(1);
        }
        self.next = next.wrapping_add(1);
        let entry = Entry { seq: SeqId(next), used: self.clock };
        self.sequences.insert(name, entry);
        entry.seq
    }

    /// Does something that needs room, for which other sequences go, whoever's they are.
    fn with_room(
        &mut self,
        name: Name,
        mut work: impl FnMut(&mut dyn Executor) -> Result<(), ExecError>,
    ) -> Result<(), ExecError> {
        loop {
            match work(&mut *self.executor) {
                Err(ExecError::OutOfPages { .. }) if self.evict(|other| *other != name) => {}
                other => return other,
            }
        }
    }

    /// Frees the least recently used sequence of some; false if there is none.
    fn evict(&mut self, among: impl Fn(&Name) -> bool) -> bool {
        let some = self.sequences.iter().filter(|(name, _)| among(name));
        let Some((&name, _)) = some.min_by_key(|(_, entry)| entry.used) else { return false };
        self.free(name);
        true
    }

    fn free(&mut self, name: Name) {
        if let Some(entry) = self.sequences.remove(&name) {
            self.executor.free(entry.seq);
        }
    }

    /// Frees all of a client's sequences.
    pub(super) fn leave(&mut self, client: u64) {
        let names: Vec<Name> =
            self.sequences.keys().filter(|name| name.0 == client).copied().collect();
        names.into_iter().for_each(|name| self.free(name));
    }

    /// How many sequences there are.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.sequences.len()
    }
}

pub(super) fn failed(held: usize, problem: &str) -> Reply {
    Reply::Failed { held: narrow(held), problem: problem.into() }
}

#[cfg(test)]
mod tests {
    use baton_graph::reference::Reference;
    use baton_graph::testing::{Tiny, random_weights};
    use baton_graph::{Limits, Unit};

    use super::*;

    #[test]
    fn one_client_has_no_more_sequences_than_anybody_needs() {
        let graph = Tiny { layers: 1, ..Tiny::default() }.graph().unwrap();
        let limits = Limits { context: 4, kv_tokens: 4 * MOST_SEQUENCES, batch_tokens: 4 };
        let weights = random_weights(&graph, 1);
        let mut pool = Pool::new(Reference.compile(&graph, &weights, limits).unwrap());
        let forward = |at| move |seq| Request::Forward { seq, at, tokens: vec![1] };
        let done = |reply| matches!(reply, Reply::Done { .. });
        assert!(done(pool.answer(7, forward(0)(0))));
        for seq in 0..MOST_SEQUENCES as u32 {
            assert!(done(pool.answer(8, forward(0)(seq))), "{seq}");
        }
        assert_eq!(pool.len(), MOST_SEQUENCES + 1);
        // The first was used again, so that the second goes.
        assert!(done(pool.answer(8, forward(1)(0))));
        assert!(done(pool.answer(8, forward(0)(u32::MAX))));
        assert_eq!(pool.len(), MOST_SEQUENCES + 1);
        assert!(done(pool.answer(8, forward(2)(0))));
        assert!(!done(pool.answer(8, forward(1)(1))), "it went");
        // Whoever else there is keeps its own.
        assert!(done(pool.answer(7, forward(1)(0))));
    }
}
