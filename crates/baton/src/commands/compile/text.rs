//! The text that a model is calibrated and measured on.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use anyhow::Context;

use crate::failure::hinted;

/// Most bytes of a text that are read: many times what the tokens that are run take.
const MOST_TEXT: usize = 64 << 10;

/// What the model is calibrated and measured on, if no text is named.
const TEXT: &str = "The harbour lay still in the early light, and the boats that had come in with the night \
    tide were tied up three deep along the wall. A man in a blue coat counted the boxes as they were \
    lifted ashore: forty-two of herring, nine of cod, and one, at the very end, that held nothing but a \
    brass clock packed in straw. Nobody knew whose it was. \"Leave it by the office,\" he said, \"and write \
    the time on the slip, so that there is no question later.\" By noon the sun had burned off the haze, \
    the prices stood in chalk on the board, and the clock, which had not been wound, showed ten past four. \
    In the afternoon a woman came down from the upper town and asked for it. She had no paper to show, only \
    a key, small and worn, that she turned over in her hand while she waited. The clerk opened the glass, \
    and the key fitted; seven turns, and the pendulum began to swing as if it had stopped a minute ago. \"My \
    father set it by the ferry,\" she said. \"It was never right, but it was always wrong by the same \
    amount, so we knew.\" He laughed, made a note of her name and the street, and held the door. Outside, \
    the gulls had found what was left of the cod, and two boys were running along the wall to chase them \
    off before the cart came back for the second load.";

/// The beginning of the text in a file, or of the one that is built in.
pub fn text(path: Option<&Path>) -> anyhow::Result<String> {
    path.map_or_else(|| Ok(TEXT.to_owned()), beginning)
}

/// The text that a file begins with, at most [`MOST_TEXT`] bytes of it.
fn beginning(path: &Path) -> anyhow::Result<String> {
    let mut bytes = Vec::new();
    File::open(path)
        .and_then(|file| file.take(MOST_TEXT as u64 + 1).read_to_end(&mut bytes))
        .with_context(|| format!("cannot read {}", path.display()))?;
    if bytes.len() > MOST_TEXT {
        bytes.truncate(MOST_TEXT);
        // The last character may be cut in two.
        if let Err(error) = std::str::from_utf8(&bytes)
            && error.error_len().is_none()
        {
            bytes.truncate(error.valid_up_to());
        }
    }
    String::from_utf8(bytes).map_err(|_| {
        let problem = format!("{} is no UTF-8 text", path.display());
        hinted(problem, "convert it first, as with iconv")
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_text_is_read_up_to_a_character_near_its_bound() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("text");
        let read = |bytes: &[u8]| {
            fs::write(&path, bytes).unwrap();
            beginning(&path)
        };
        assert_eq!(read("grüße".as_bytes()).unwrap(), "grüße");
        // 64 KiB are no multiple of three bytes.
        let long = "\u{20ac}".repeat(MOST_TEXT);
        assert_eq!(read(long.as_bytes()).unwrap(), long[..MOST_TEXT / 3 * 3]);
        let exact = "a".repeat(MOST_TEXT);
        assert_eq!(read(exact.as_bytes()).unwrap(), exact);
        // What ends in half a character by itself is no text, nor is one with other bytes in it.
        for bytes in [&b"gr\xc3"[..], b"\xff\xfe", &[b"\xff".as_slice(), long.as_bytes()].concat()]
        {
            let error = read(bytes).unwrap_err().to_string();
            assert!(error.contains("is no UTF-8 text"), "{error}");
        }
        let error = beginning(&folder.path().join("none")).unwrap_err().to_string();
        assert!(error.contains("cannot read"), "{error}");
    }
}
