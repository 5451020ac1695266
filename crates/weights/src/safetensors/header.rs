//! The header of one safetensors file.
//!
//! Parsed here and not by the `safetensors` crate, which lets a name occur twice, adds up offsets
//! unchecked, and refuses a whole file for one tensor of a type it has not heard of.

use std::fmt;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};
use std::collections::HashSet;

/// The format's own limit.
const MAX_HEADER: u64 = 100_000_000;

/// A tensor's entry; its bytes have been found to lie in the file.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    /// As the file calls it: `"BF16"`, `"U32"` …
    pub(super) dtype: String,
    pub(super) shape: Vec<usize>,
    /// Where its bytes start in the file.
    pub(super) start: usize,
    pub(super) len: usize,
}

#[derive(Deserialize)]
struct RawEntry {
    dtype: String,
    shape: Vec<usize>,
    data_offsets: (u64, u64),
}

/// Reads the header of a file of these bytes: names and entries in the order of their bytes.
pub(super) fn parse(file: &[u8]) -> Result<Vec<(String, Entry)>, String> {
    let Some((len, rest)) = file.split_first_chunk() else {
        return Err("is too short to be a safetensors file".to_owned());
    };
    let len = u64::from_le_bytes(*len);
    if len > MAX_HEADER {
        return Err(format!("is no safetensors file: it claims a header of {len} bytes"));
    }
    let Some((header, data)) = rest.split_at_checked(len as usize) else {
        let have = rest.len();
        return Err(format!("ends within its header, which has {len} bytes, not {have}"));
    };
    // Copied, so that a file that changes meanwhile cannot change what has been checked.
    let header = header.to_vec();
    let UniqueMap(mut entries) = serde_json::from_slice::<UniqueMap<RawEntry>>(&header)
        .map_err(|e| format!("has a malformed header: {e}"))?;
    entries.sort_by_key(|(_, entry)| entry.data_offsets);

    let data_start = file.len() - data.len();
    let mut at = 0;
    let mut placed = Vec::with_capacity(entries.len());
    for (name, RawEntry { dtype, shape, data_offsets: (start, end) }) in entries {
        if start != at || end < start {
            return Err(format!(
                "tensor {name:?} lies at {start}..{end}, but should start at {at}, where the one \
                 before it ends"
            ));
        }
        if end > data.len() as u64 {
            return Err(format!(
                "tensor {name:?} lies at {start}..{end}, beyond the {} bytes of data; is the file \
                 cut off?",
                data.len()
            ));
        }
        let len = (end - start) as usize;
        let elements = shape.iter().try_fold(1usize, |n, &dim| n.checked_mul(dim));
        let fits = elements.is_some_and(|n| match element_bits(&dtype) {
            Some(bits) => n.checked_mul(bits).is_some_and(|all| all % 8 == 0 && all / 8 == len),
            None => true,
        });
        if !fits {
            return Err(format!("tensor {name:?}: {dtype} {shape:?} does not fill {len} bytes"));
        }
        placed.push((name, Entry { dtype, shape, start: data_start + start as usize, len }));
        at = end;
    }
    if at != data.len() as u64 {
        return Err(format!("has {} bytes of data, but its tensors end at {at}", data.len()));
    }
    Ok(placed)
}

/// Bits of one element, for the types whose size is known.
fn element_bits(dtype: &str) -> Option<usize> {
    Some(match dtype {
        "F4" => 4,
        "F6_E2M3" | "F6_E3M2" => 6,
        "BOOL" | "U8" | "I8" => 8,
        "F8_E4M3" | "F8_E5M2" | "F8_E8M0" | "F8_E4M3FNUZ" | "F8_E5M2FNUZ" => 8,
        "U16" | "I16" | "F16" | "BF16" => 16,
        "U32" | "I32" | "F32" => 32,
        "U64" | "I64" | "F64" | "C64" => 64,
        _ => return None,
    })
}

/// A JSON object whose keys are unique, in order. `__metadata__` is left out.
pub(super) struct UniqueMap<V>(pub(super) Vec<(String, V)>);

impl<'de, V: Deserialize<'de>> Deserialize<'de> for UniqueMap<V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries<V>(PhantomData<V>);

        impl<'de, V: Deserialize<'de>> Visitor<'de> for Entries<V> {
            type Value = UniqueMap<V>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut seen = HashSet::new();
                let mut entries = Vec::new();
                while let Some(key) = map.next_key::<String>()? {
                    if !seen.insert(key.clone()) {
                        return Err(A::Error::custom(format_args!("{key:?} occurs twice")));
                    }
                    if key == "__metadata__" {
                        map.next_value::<IgnoredAny>()?;
                    } else {
                        entries.push((key, map.next_value()?));
                    }
                }
                Ok(UniqueMap(entries))
            }
        }

        deserializer.deserialize_map(Entries(PhantomData))
    }
}
