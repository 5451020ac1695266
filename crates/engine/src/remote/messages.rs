//! What is said: a request, then its reply. All numbers are `u32`, little-endian.

use baton_graph::{ExecError, KvBlock};

/// Changes with anything that an older end would misunderstand.
pub(super) const VERSION: u32 = 1;

/// Bytes of the longest message without tokens or a block, and more than any has besides these.
pub(super) const HEAD: usize = 1024;

/// Bytes of the longest message with a block of so many tokens; `empty` is one of none.
pub(super) fn longest(empty: &KvBlock, tokens: usize) -> usize {
    let KvBlock { layers, kv_heads, head_dim, .. } = empty;
    // Keys and values in halves.
    (4 * layers * kv_heads * head_dim).saturating_mul(tokens).saturating_add(HEAD)
}

/// What a client wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Request {
    /// The first: says which model's cache it wants, and how long sequences become.
    Hello {
        version: u32,
        fingerprint: [u8; 32],
        context: u32,
    },
    /// Append tokens to a sequence that has `at` tokens.
    Forward {
        seq: u32,
        at: u32,
        tokens: Vec<u32>,
    },
    /// The block of a range.
    Export {
        seq: u32,
        start: u32,
        end: u32,
    },
    /// Append a block.
    Import {
        seq: u32,
        at: u32,
        block: Vec<u8>,
    },
    Truncate {
        seq: u32,
        len: u32,
    },
    Copy {
        from: u32,
        to: u32,
        len: u32,
    },
    Free {
        seq: u32,
    },
}

/// What a server answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Reply {
    /// To a hello: the limits.
    Ready { context: u32, kv_tokens: u32, batch_tokens: u32 },
    /// It was done; the sequence has so many tokens now.
    Done { held: u32 },
    /// A block's bytes.
    Block(Vec<u8>),
    /// There is no room; the sequence still has so many tokens.
    Full { needed: u32, free: u32, page_tokens: u32, held: u32 },
    /// It was not done.
    Failed { held: u32, problem: String },
}

impl Request {
    pub(super) fn encode(&self) -> Vec<u8> {
        match self {
            Request::Hello { version, fingerprint, context } => {
                let mut out = numbers(0, &[*version, *context]);
                out.extend(fingerprint);
                out
            }
            Request::Forward { seq, at, tokens } => {
                let mut out = numbers(1, &[*seq, *at]);
                out.extend(tokens.iter().flat_map(|token| token.to_le_bytes()));
                out
            }
            Request::Export { seq, start, end } => numbers(2, &[*seq, *start, *end]),
            Request::Import { seq, at, block } => {
                let mut out = numbers(3, &[*seq, *at]);
                out.extend(block);
                out
            }
            Request::Truncate { seq, len } => numbers(4, &[*seq, *len]),
            Request::Copy { from, to, len } => numbers(5, &[*from, *to, *len]),
            Request::Free { seq } => numbers(6, &[*seq]),
        }
    }

    /// None if it is no request.
    pub(super) fn decode(bytes: &[u8]) -> Option<Request> {
        let (kind, rest) = bytes.split_first()?;
        Some(match kind {
            0 => {
                let ([version, context], rest) = take(rest)?;
                Request::Hello { version, context, fingerprint: rest.try_into().ok()? }
            }
            1 => {
                let ([seq, at], rest) = take(rest)?;
                let (tokens, rest) = rest.as_chunks::<4>();
                let tokens = tokens.iter().map(|token| u32::from_le_bytes(*token)).collect();
                return rest.is_empty().then_some(Request::Forward { seq, at, tokens });
            }
            2 => {
                let [seq, start, end] = all(rest)?;
                Request::Export { seq, start, end }
            }
            3 => {
                let ([seq, at], rest) = take(rest)?;
                Request::Import { seq, at, block: rest.to_vec() }
            }
            4 => {
                let [seq, len] = all(rest)?;
                Request::Truncate { seq, len }
            }
            5 => {
                let [from, to, len] = all(rest)?;
                Request::Copy { from, to, len }
            }
            6 => {
                let [seq] = all(rest)?;
                Request::Free { seq }
            }
            _ => return None,
        })
    }
}

impl Reply {
    pub(super) fn encode(&self) -> Vec<u8> {
        match self {
            Reply::Ready { context, kv_tokens, batch_tokens } => {
                numbers(0, &[*context, *kv_tokens, *batch_tokens])
            }
            Reply::Done { held } => numbers(1, &[*held]),
            Reply::Block(block) => {
                let mut out = vec![2];
                out.extend(block);
                out
            }
            Reply::Full { needed, free, page_tokens, held } => {
                numbers(3, &[*needed, *free, *page_tokens, *held])
            }
            Reply::Failed { held, problem } => {
                let mut out = numbers(4, &[*held]);
                out.extend(problem.as_bytes());
                out
            }
        }
    }

    /// None if it is no reply.
    pub(super) fn decode(bytes: &[u8]) -> Option<Reply> {
        let (kind, rest) = bytes.split_first()?;
        Some(match kind {
            0 => {
                let [context, kv_tokens, batch_tokens] = all(rest)?;
                Reply::Ready { context, kv_tokens, batch_tokens }
            }
            1 => {
                let [held] = all(rest)?;
                Reply::Done { held }
            }
            2 => Reply::Block(rest.to_vec()),
            3 => {
                let [needed, free, page_tokens, held] = all(rest)?;
                Reply::Full { needed, free, page_tokens, held }
            }
            4 => {
                let ([held], rest) = take(rest)?;
                Reply::Failed { held, problem: String::from_utf8_lossy(rest).into_owned() }
            }
            _ => return None,
        })
    }

    /// That something was not done, and why.
    pub(super) fn of_error(error: &ExecError, held: usize) -> Reply {
        match error {
            ExecError::OutOfPages { needed, free, page_tokens } => Reply::Full {
                needed: narrow(*needed),
                free: narrow(*free),
                page_tokens: narrow(*page_tokens),
                held: narrow(held),
            },
            other => Reply::Failed { held: narrow(held), problem: other.to_string() },
        }
    }
}

/// Numbers of tokens are far below this.
pub(super) fn narrow(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

fn numbers(kind: u8, numbers: &[u32]) -> Vec<u8> {
    let bytes = numbers.iter().flat_map(|number| number.to_le_bytes());
    std::iter::once(kind).chain(bytes).collect()
}

fn take<const N: usize>(bytes: &[u8]) -> Option<([u32; N], &[u8])> {
    let (numbers, rest) = bytes.split_at_checked(4 * N)?;
    let mut taken = [0; N];
    for (number, bytes) in taken.iter_mut().zip(numbers.as_chunks::<4>().0) {
        *number = u32::from_le_bytes(*bytes);
    }
    Some((taken, rest))
}

fn all<const N: usize>(bytes: &[u8]) -> Option<[u32; N]> {
    take(bytes).filter(|(_, rest)| rest.is_empty()).map(|(numbers, _)| numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_understood() {
        let requests = [
            Request::Hello { version: 1, fingerprint: [7; 32], context: 5 },
            Request::Forward { seq: 1, at: 2, tokens: vec![3, 4, u32::MAX] },
            Request::Forward { seq: 1, at: 2, tokens: vec![] },
            Request::Export { seq: 1, start: 2, end: 3 },
            Request::Import { seq: 1, at: 2, block: vec![1, 2, 3] },
            Request::Truncate { seq: 1, len: 2 },
            Request::Copy { from: 1, to: 2, len: 3 },
            Request::Free { seq: 9 },
        ];
        for request in requests {
            assert_eq!(Request::decode(&request.encode()), Some(request));
        }
        let replies = [
            Reply::Ready { context: 1, kv_tokens: 2, batch_tokens: 3 },
            Reply::Done { held: 1 },
            Reply::Block(vec![1, 2]),
            Reply::Full { needed: 1, free: 2, page_tokens: 3, held: 4 },
            Reply::Failed { held: 1, problem: "no".into() },
        ];
        for reply in replies {
            assert_eq!(Reply::decode(&reply.encode()), Some(reply));
        }
    }

    #[test]
    fn nonsense_is_not_understood() {
        for bytes in [&[][..], &[0], &[0, 1, 2], &[1, 0, 0, 0, 0, 0, 0, 0, 0, 1], &[99], &[6; 6]] {
            assert_eq!(Request::decode(bytes), None, "{bytes:?}");
        }
        for bytes in [&[][..], &[0], &[1, 1], &[3; 16], &[4, 1], &[5]] {
            assert_eq!(Reply::decode(bytes), None, "{bytes:?}");
        }
    }
}
