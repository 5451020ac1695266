//! How a unit keeps keys and values.

use std::fmt;
use std::str::FromStr;

/// What the elements of the KV cache are kept as. The quantized types are those of the same names in
/// weight files: blocks of 32 features of one head and token, with a scale in half precision.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum KvType {
    /// Half precision: 16 bits an element.
    #[default]
    F16,
    /// 8-bit integers: 8.5 bits an element.
    Q8_0,
    /// 4-bit integers: 4.5 bits an element. Answers differ noticeably.
    Q4_0,
}

/// No type of the KV cache has that name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no KV cache type {name:?}; say f16, q8_0 or q4_0")]
pub struct UnknownKvType {
    /// What was asked for.
    pub name: String,
}

impl KvType {
    /// Features of a head that share a scale.
    pub const BLOCK: usize = 32;
    /// Every type.
    pub const ALL: [KvType; 3] = [KvType::F16, KvType::Q8_0, KvType::Q4_0];

    /// Bytes of one token's keys, or of its values, of one head.
    pub fn bytes(self, head_dim: usize) -> usize {
        let blocks = head_dim.div_ceil(Self::BLOCK);
        match self {
            KvType::F16 => 2 * head_dim,
            KvType::Q8_0 => 34 * blocks,
            KvType::Q4_0 => 18 * blocks,
        }
    }
}

impl fmt::Display for KvType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            KvType::F16 => "f16",
            KvType::Q8_0 => "q8_0",
            KvType::Q4_0 => "q4_0",
        })
    }
}

impl FromStr for KvType {
    type Err = UnknownKvType;

    fn from_str(name: &str) -> Result<Self, UnknownKvType> {
        let wanted = name.to_ascii_lowercase();
        let found = KvType::ALL.into_iter().find(|kind| kind.to_string() == wanted);
        found.ok_or_else(|| UnknownKvType { name: name.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_parse_back_and_sizes_are_those_of_the_formats() {
        for kind in KvType::ALL {
            assert_eq!(kind.to_string().to_uppercase().parse(), Ok(kind));
        }
        assert_eq!(KvType::ALL.map(|kind| kind.bytes(64)), [128, 68, 36]);
        assert_eq!(KvType::Q8_0.bytes(80), 3 * 34);
        assert!("q2".parse::<KvType>().unwrap_err().to_string().contains("q8_0"));
    }
}
