//! The cache on disk: what was evaluated once need not be after a restart.
//!
//! A file holds sequences in an order in which each can share its beginning with an earlier one, as
//! it did in the cache. All numbers are little-endian:
//!
//! | bytes | content |
//! |---|---|
//! | 8 | `BATONPC1` |
//! | 4 | number of sequences, `u32` |
//! | | then for each: |
//! | 4 | tokens, `u32` |
//! | 4 | how many of them, from the first on, an earlier sequence begins with too, `u32` |
//! | 8 | bytes of the block, `u64` |
//! | 4·n | the token ids, each `u32` |
//! | | a [`KvBlock`] of the tokens that are not shared |

use std::io::{Read, Write};

use baton_graph::{ExecError, KvBlock, SeqId};

use super::{Sequences, common};
use crate::{Error, Result};

const MAGIC: &[u8; 8] = b"BATONPC1";

/// What a file of a saved cache holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SavedCache {
    /// Sequences.
    pub sequences: usize,
    /// Tokens of all sequences; those that several share count once.
    pub tokens: usize,
    /// Bytes of the file.
    pub bytes: u64,
}

impl Sequences {
    /// Writes all sequences.
    pub(crate) fn save(&self, to: &mut impl Write) -> Result<SavedCache> {
        let mut all: Vec<(&[u32], SeqId)> = self
            .entries
            .iter()
            .filter(|(_, entry)| !entry.tokens.is_empty())
            .map(|(&seq, entry)| (&entry.tokens[..], seq))
            .collect();
        // In this order the sequence before is the one with the longest common beginning.
        all.sort();
        let mut saved = SavedCache { sequences: all.len(), tokens: 0, bytes: 12 };
        let count = u32::try_from(all.len()).expect("a sequence number has 32 bits");
        let written =
            |result: std::io::Result<()>| result.map_err(|source| Error::Write { source });
        written(to.write_all(MAGIC).and_then(|()| to.write_all(&count.to_le_bytes())))?;
        let mut before: &[u32] = &[];
        for (tokens, seq) in all {
            let shared = common(before, tokens);
            let block = self.executor.export_kv(seq, shared..tokens.len())?.to_bytes();
            let number = |n: usize| u32::try_from(n).expect("a context has 32 bits").to_le_bytes();
            let mut head = [number(tokens.len()), number(shared)].concat();
            head.extend((block.len() as u64).to_le_bytes());
            head.extend(tokens.iter().flat_map(|token| token.to_le_bytes()));
            written(to.write_all(&head).and_then(|()| to.write_all(&block)))?;
            saved.tokens += tokens.len() - shared;
            saved.bytes += (head.len() + block.len()) as u64;
            before = tokens;
        }
        Ok(saved)
    }

    /// Adds the sequences of a file to those that are there, as far as there is room. `bytes` is
    /// the length of the file.
    pub(crate) fn restore(&mut self, from: &mut impl Read, bytes: u64) -> Result<SavedCache> {
        let mut reader = Reader { from, left: bytes };
        if reader.take(8)? != MAGIC {
            return Err(damaged("it does not begin as one"));
        }
        let mut restored = SavedCache { bytes, ..SavedCache::default() };
        for _ in 0..reader.u32()? {
            let (len, shared) = (reader.u32()? as usize, reader.u32()? as usize);
            let block = reader.u64()?;
            if len > self.executor.limits().context || shared > len {
                return Err(damaged("a sequence in it has an impossible length"));
            }
            let ids = reader.take(4 * len as u64)?;
            let id = |bytes: &[u8]| u32::from_le_bytes(bytes.try_into().expect("four bytes"));
            let tokens: Vec<u32> = ids.chunks_exact(4).map(id).collect();
            let block = KvBlock::from_bytes(&reader.take(block)?)?;
            if block.tokens != len - shared {
                return Err(damaged("a sequence in it has another length than its keys"));
            }
            match self.restore_one(&tokens, shared, &block) {
                Ok(()) => {
                    restored.sequences += 1;
                    restored.tokens += len - shared;
                }
                Err(Error::Exec(ExecError::OutOfPages { .. })) => {
                    tracing::info!("the cache is full; not all that was saved is restored");
                    break;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(restored)
    }

    fn restore_one(&mut self, tokens: &[u32], shared: usize, block: &KvBlock) -> Result<()> {
        let (source, known) = self.best_match(None, tokens);
        if known == tokens.len() {
            return Ok(());
        }
        if known < shared {
            return Err(damaged("a sequence in it builds on one that is not there"));
        }
        let seq = self.insert(tokens.to_vec());
        let copied = match source.filter(|_| shared > 0) {
            Some(source) => self.executor.copy(source, seq, shared),
            None => Ok(()),
        };
        let imported = copied.and_then(|()| self.executor.import_kv(seq, shared, block));
        match imported {
            Ok(()) => self.orphan(seq),
            Err(_) => drop(self.remove(seq)),
        }
        Ok(imported?)
    }
}

fn damaged(problem: &str) -> Error {
    Error::SavedCache { problem: problem.into() }
}

/// Reads no more than the file is said to hold, so that no number in it makes for a large
/// allocation.
struct Reader<'r, R> {
    from: &'r mut R,
    left: u64,
}

impl<R: Read> Reader<'_, R> {
    fn take(&mut self, bytes: u64) -> Result<Vec<u8>> {
        if bytes > self.left {
            return Err(damaged("it is cut short"));
        }
        self.left -= bytes;
        let mut taken = Vec::new();
        let read = self.from.take(bytes).read_to_end(&mut taken);
        match read {
            Ok(n) if n as u64 == bytes => Ok(taken),
            Ok(_) => Err(damaged("it is cut short")),
            Err(source) => Err(Error::SavedCache { problem: source.to_string() }),
        }
    }

    fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_le_bytes(self.take(4)?.try_into().expect("four bytes")))
    }

    fn u64(&mut self) -> Result<u64> {
        Ok(u64::from_le_bytes(self.take(8)?.try_into().expect("eight bytes")))
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{sequences, visit};
    use super::*;

    fn filled() -> (Sequences, Vec<Vec<u32>>) {
        let mut s = sequences(64 * 16);
        let beginning: Vec<u32> = (1..21).collect();
        let all: Vec<Vec<u32>> =
            (0..4).map(|i| [&beginning[..], &[30 + i, 31 + i, 32 + i]].concat()).collect();
        for tokens in all.iter().chain([&vec![40, 41, 42]]) {
            let (seq, _) = visit(&mut s, None, tokens);
            s.orphan(seq);
        }
        (s, all)
    }

    fn saved(s: &Sequences) -> (Vec<u8>, SavedCache) {
        let mut file = Vec::new();
        let saved = s.save(&mut file).unwrap();
        assert_eq!(saved.bytes, file.len() as u64);
        (file, saved)
    }

    #[test]
    fn what_was_saved_need_not_be_evaluated() {
        let (full, all) = filled();
        let (file, written) = saved(&full);
        assert_eq!((written.sequences, written.tokens), (5, 20 + 4 * 3 + 3));
        let mut fresh = sequences(64 * 16);
        let restored = fresh.restore(&mut &file[..], file.len() as u64).unwrap();
        assert_eq!(restored, written);
        assert_eq!(fresh.executor().usage().kv_tokens, full.executor().usage().kv_tokens);
        let (mut full, next) = (full, |s: &mut Sequences, tokens: &[u32]| {
            let seq = s.acquire(None, tokens).unwrap();
            assert_eq!(s.tokens(seq).len(), tokens.len() - 1);
            let last = vec![*tokens.last().unwrap()];
            let batch = baton_graph::Batch::one(seq, last, baton_graph::Rows::Last);
            s.extend(batch).unwrap().values
        });
        for tokens in &all {
            // Halves are saved, of what the reference keeps as singles.
            let mut pairs = next(&mut fresh, tokens).into_iter().zip(next(&mut full, tokens));
            assert!(pairs.all(|(a, b)| (a - b).abs() < 5e-3));
        }
        // What is there already is not stored twice.
        let before = fresh.entries.len();
        fresh.restore(&mut &file[..], file.len() as u64).unwrap();
        assert_eq!(fresh.entries.len(), before);
    }

    #[test]
    fn a_cache_that_is_too_small_takes_what_fits() {
        let (full, _) = filled();
        let (file, written) = saved(&full);
        let mut small = sequences(24);
        let restored = small.restore(&mut &file[..], file.len() as u64).unwrap();
        assert!(restored.sequences > 0 && restored.sequences < written.sequences);
    }

    #[test]
    fn damaged_files_are_refused() {
        let (full, _) = filled();
        let (file, _) = saved(&full);
        for cut in [0, 7, 11, 12, 20, 27, 60, file.len() - 1] {
            let error = sequences(1024).restore(&mut &file[..cut], cut as u64).unwrap_err();
            assert!(matches!(error, Error::SavedCache { .. } | Error::Exec(_)), "{cut}: {error}");
        }
        // Every bit of the numbers at the front of the first sequence.
        for bit in 0..8 * 28 {
            let mut bad = file.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            let _ = sequences(1024).restore(&mut &bad[..], bad.len() as u64);
        }
    }
}
