//! The hand-off format: the KV cache of a run of tokens, independent of any unit's own layout.
//!
//! The same bytes are what a saved prompt cache on disk holds and what crosses a network. All
//! numbers are little-endian:
//!
//! | offset | bytes | content |
//! |---|---|---|
//! | 0 | 8 | `BATONKV1` |
//! | 8 | 32 | fingerprint of the model |
//! | 40 | 4 × 4 | layers, kv_heads, tokens, head_dim as `u32` |
//! | 56 | 2·n | keys after rotation, f16, `(layers, kv_heads, tokens, head_dim)` |
//! | 56 + 2·n | 2·n | values, f16, the same shape |

use std::ops::Range;

use half::f16;
use half::slice::HalfFloatSliceExt;

use crate::{ExecError, Graph, SeqId, StateSpec};

const MAGIC: &[u8; 8] = b"BATONKV1";
const HEADER: usize = 56;

/// Keys and values of consecutive tokens of one sequence, over all layers.
#[derive(Clone, Debug, PartialEq)]
pub struct KvBlock {
    /// The model, see [`Graph::fingerprint`].
    pub fingerprint: [u8; 32],
    /// Attention layers.
    pub layers: usize,
    /// Key-value heads of a layer.
    pub kv_heads: usize,
    /// Tokens.
    pub tokens: usize,
    /// Features of a head.
    pub head_dim: usize,
    /// Keys after rotation, `(layers, kv_heads, tokens, head_dim)`.
    pub keys: Vec<f16>,
    /// Values, the same shape.
    pub values: Vec<f16>,
}

impl KvBlock {
    /// A block of zeros for `tokens` tokens of `graph`'s model.
    ///
    /// # Errors
    /// If the graph has no KV state, or layers differ in shape.
    pub fn zeros(graph: &Graph, tokens: usize) -> Result<Self, ExecError> {
        let mut shapes = graph
            .states()
            .iter()
            .map(|StateSpec::Kv { kv_heads, head_dim, .. }| (*kv_heads, *head_dim));
        let Some((kv_heads, head_dim)) = shapes.next() else {
            return Err(ExecError::Invalid("the model has no KV cache".into()));
        };
        if shapes.any(|shape| shape != (kv_heads, head_dim)) {
            let text =
                "the KV caches of the model's layers differ in shape: it cannot be handed over";
            return Err(ExecError::Invalid(text.into()));
        }
        let layers = graph.states().len();
        let zeros = vec![f16::ZERO; layers * kv_heads * tokens * head_dim];
        Ok(KvBlock {
            fingerprint: *graph.fingerprint(),
            layers,
            kv_heads,
            tokens,
            head_dim,
            keys: zeros.clone(),
            values: zeros,
        })
    }

    /// A block of zeros for positions `range` of a sequence that holds `held` tokens.
    ///
    /// # Errors
    /// If it does not hold them, and as [`KvBlock::zeros`].
    pub fn for_range(
        graph: &Graph,
        seq: SeqId,
        held: usize,
        range: &Range<usize>,
    ) -> Result<Self, ExecError> {
        if range.start > range.end || range.end > held {
            let text = format!("sequence {seq} holds {held} tokens, not {range:?}");
            return Err(ExecError::Invalid(text));
        }
        KvBlock::zeros(graph, range.len())
    }

    /// Checks that a block for position `at` comes right behind the `len` tokens of a sequence.
    ///
    /// # Errors
    /// If it does not.
    pub fn check_position(at: usize, len: usize) -> Result<(), ExecError> {
        if at == len {
            return Ok(());
        }
        let text = format!("a block for position {at} of a sequence of {len} tokens");
        Err(ExecError::Invalid(text))
    }

    /// Index in `keys` and `values` of the first feature of a head's token.
    pub fn offset(&self, layer: usize, head: usize, token: usize) -> usize {
        ((layer * self.kv_heads + head) * self.tokens + token) * self.head_dim
    }

    /// Checks that the block belongs to `graph`'s model and is whole.
    ///
    /// # Errors
    /// What does not fit.
    pub fn check(&self, graph: &Graph) -> Result<(), ExecError> {
        if self.fingerprint != *graph.fingerprint() {
            return Err(ExecError::Invalid("the KV block is of another model".into()));
        }
        let wanted = KvBlock::zeros(graph, 0)?;
        let shape = (self.layers, self.kv_heads, self.head_dim);
        let elements = self.layers * self.kv_heads * self.tokens * self.head_dim;
        if shape != (wanted.layers, wanted.kv_heads, wanted.head_dim)
            || self.keys.len() != elements
            || self.values.len() != elements
        {
            return Err(ExecError::Invalid("the KV block has another shape".into()));
        }
        Ok(())
    }

    /// The block's bytes, as the module describes them.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEADER + 4 * self.keys.len());
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&self.fingerprint);
        for n in [self.layers, self.kv_heads, self.tokens, self.head_dim] {
            out.extend_from_slice(&(n as u32).to_le_bytes());
        }
        for part in [&self.keys, &self.values] {
            let start = out.len();
            out.resize(start + 2 * part.len(), 0);
            // In this form a copy of memory where bytes have that order anyway.
            let pairs = out[start..].as_chunks_mut::<2>().0;
            for (pair, bits) in pairs.iter_mut().zip(part.reinterpret_cast()) {
                *pair = bits.to_le_bytes();
            }
        }
        out
    }

    /// Reads a block.
    ///
    /// # Errors
    /// If the bytes are no block or are cut short; memory is allocated only for what is there.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, ExecError> {
        let invalid = |text: &str| ExecError::Invalid(format!("KV block: {text}"));
        if bytes.len() < HEADER || &bytes[..8] != MAGIC {
            return Err(invalid("no header"));
        }
        let number = |at: usize| {
            u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes")) as usize
        };
        let [layers, kv_heads, tokens, head_dim] = [40, 44, 48, 52].map(number);
        let elements = [kv_heads, tokens, head_dim]
            .iter()
            .try_fold(layers, |n, &d| n.checked_mul(d))
            .filter(|n| n.checked_mul(4) == Some(bytes.len() - HEADER))
            .ok_or_else(|| invalid("its length does not match its shape"))?;
        let part = |at: usize| -> Vec<f16> {
            bytes[at..at + 2 * elements]
                .chunks_exact(2)
                .map(|pair| f16::from_le_bytes([pair[0], pair[1]]))
                .collect()
        };
        Ok(KvBlock {
            fingerprint: bytes[8..40].try_into().expect("32 bytes"),
            layers,
            kv_heads,
            tokens,
            head_dim,
            keys: part(HEADER),
            values: part(HEADER + 2 * elements),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block() -> KvBlock {
        let keys: Vec<f16> = (0..24).map(|i| f16::from_f32(i as f32 / 3.0)).collect();
        let values = keys.iter().map(|v| -*v).collect();
        let (layers, kv_heads, tokens, head_dim) = (2, 1, 3, 4);
        KvBlock { fingerprint: [7; 32], layers, kv_heads, tokens, head_dim, keys, values }
    }

    #[test]
    fn bytes_round_trip() {
        let block = block();
        let bytes = block.to_bytes();
        assert_eq!(bytes.len(), 56 + 2 * 2 * 24);
        assert_eq!(KvBlock::from_bytes(&bytes).unwrap(), block);
    }

    #[test]
    fn cut_or_swollen_blocks_are_refused() {
        let bytes = block().to_bytes();
        for n in 0..bytes.len() {
            assert!(KvBlock::from_bytes(&bytes[..n]).is_err(), "{n} bytes");
        }
        let mut swollen = bytes.clone();
        swollen[40..56].fill(0xff);
        assert!(KvBlock::from_bytes(&swollen).is_err());
    }
}
