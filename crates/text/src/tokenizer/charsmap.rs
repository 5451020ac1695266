//! Checks of SentencePiece's precompiled character map before it is used.
//!
//! The map is a double array of 32-bit units followed by a blob of replacement texts. The crate
//! that reads it follows its offsets unchecked, so that a damaged file would make it panic.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::error::{Error, Result};

/// Checks the bytes of a map.
pub(crate) fn check(map: &[u8]) -> Result<()> {
    let bad = |reason: &str| {
        Err(Error::BadMetadata { reason: format!("the precompiled character map {reason}") })
    };
    let Some((size, rest)) = map.split_first_chunk::<4>() else {
        return bad("has no length");
    };
    let size = u32::from_le_bytes(*size) as usize;
    if size == 0 || !size.is_multiple_of(4) || size > rest.len() {
        return bad("has a wrong length");
    }
    let (array, texts) = rest.split_at(size);
    let Ok(texts) = std::str::from_utf8(texts) else {
        return bad("has texts that are not UTF-8");
    };
    let units = size / 4;
    for (at, unit) in array.chunks_exact(4).enumerate() {
        let unit = u32::from_le_bytes([unit[0], unit[1], unit[2], unit[3]]) as usize;
        if unit >> 31 == 1 {
            // A leaf: where a text begins.
            if !texts.is_char_boundary(unit & 0x7fff_ffff) {
                return bad("points outside its texts");
            }
        } else {
            // A node: its children lie within 256 units of its offset, in any order.
            let offset = (unit >> 10) << ((unit & (1 << 9)) >> 6);
            if (at ^ offset) | 0xff >= units {
                return bad("points outside itself");
            }
        }
    }
    Ok(())
}

/// Checks every map in a `tokenizer.json`.
pub(crate) fn check_json(bytes: &[u8]) -> Result<()> {
    #[derive(serde::Deserialize)]
    struct Normalizer {
        #[serde(default)]
        normalizer: serde_json::Value,
    }
    let json: Normalizer = serde_json::from_slice(bytes)
        .map_err(|error| Error::Json { what: "tokenizer.json", reason: error.to_string() })?;
    check_value(&json.normalizer)
}

fn check_value(value: &serde_json::Value) -> Result<()> {
    match value {
        serde_json::Value::Array(items) => items.iter().try_for_each(check_value),
        serde_json::Value::Object(fields) => {
            fields.iter().try_for_each(|(key, value)| match value.as_str() {
                Some(text) if key == "precompiled_charsmap" => {
                    let map = STANDARD.decode(text).map_err(|error| Error::Json {
                        what: "tokenizer.json",
                        reason: format!("precompiled_charsmap: {error}"),
                    })?;
                    check(&map)
                }
                _ => check_value(value),
            })
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A map with `units` and `texts`.
    fn map(units: &[u32], texts: &[u8]) -> Vec<u8> {
        let mut map = (units.len() as u32 * 4).to_le_bytes().to_vec();
        map.extend(units.iter().flat_map(|unit| unit.to_le_bytes()));
        map.extend_from_slice(texts);
        map
    }

    #[test]
    fn damaged_maps_are_errors() {
        assert!(check(&map(&[0; 256], b"a\0")).is_ok());
        assert!(check(b"").is_err());
        assert!(check(&[0xff; 4]).is_err());
        assert!(check(&u32::MAX.to_le_bytes().repeat(9)).is_err());
        assert!(check(&map(&[0; 8], b"")).is_err(), "children outside the array");
        let mut units = [0; 256];
        units[3] = 1 << 31 | 77;
        assert!(check(&map(&units, b"short")).is_err(), "a text outside the blob");
        assert!(check(&map(&[0; 256], &[0xff])).is_err(), "texts that are not UTF-8");
    }

    #[test]
    fn maps_inside_json_are_found() {
        let json = br#"{"normalizer":{"type":"Sequence","normalizers":
            [{"type":"Precompiled","precompiled_charsmap":"/////w=="}]},"model":{}}"#;
        assert!(check_json(json).is_err());
        assert!(check_json(b"{}").is_ok());
    }
}
