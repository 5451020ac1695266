//! Token ids to text, one id at a time.
//!
//! The pieces a [`Detokenizer`] returns, joined, are what decoding all ids at once gives. A
//! character that is not whole yet is held back, so U+FFFD appears only for bytes that can never
//! become text, and for a character that generation cut off. The work per token is that of its own
//! bytes: nothing is decoded twice.

use std::sync::Arc;

use crate::tokenizer::pieces::{Lead, Pieces};

/// Turns a stream of token ids into a stream of text.
#[derive(Clone, Debug)]
pub struct Detokenizer {
    pieces: Arc<Pieces>,
    skip_special: bool,
    /// Control tokens that are shown all the same.
    visible: Vec<u32>,
    lead: Lead,
    /// The first bytes of a character whose last bytes are still to come: at most three.
    held: Vec<u8>,
}

impl Detokenizer {
    pub(crate) fn new(pieces: Arc<Pieces>, skip_special: bool) -> Self {
        let lead = pieces.lead;
        Self { pieces, skip_special, visible: Vec::new(), lead, held: Vec::new() }
    }

    /// Shows these control tokens, though others are skipped.
    pub(crate) fn showing(mut self, visible: &[u32]) -> Self {
        self.visible = visible.to_vec();
        self
    }

    /// Keeps the space that SentencePiece vocabularies put before the first word.
    ///
    /// Right when the text continues other text; wrong for a text of its own, such as an answer.
    #[must_use]
    pub fn keep_leading_space(mut self) -> Self {
        self.lead = Lead::Keep;
        self
    }

    /// The text that `id` completes; empty while a character is not whole.
    pub fn push(&mut self, id: u32) -> String {
        if self.skip_special && self.pieces.is_control(id) && !self.visible.contains(&id) {
            return String::new();
        }
        let pieces = Arc::clone(&self.pieces);
        let piece = self.after_lead(pieces.get(id));
        self.held.extend_from_slice(piece);
        let mut text = String::new();
        let whole = write_lossy(&self.held, &mut text);
        self.held.drain(..whole);
        text
    }

    /// The end of the text: U+FFFD if a character was cut off, else nothing.
    pub fn finish(&mut self) -> String {
        let text = String::from_utf8_lossy(&self.held).into_owned();
        self.held.clear();
        text
    }

    /// `piece` without what the decoder drops at the start of the output.
    fn after_lead<'a>(&mut self, piece: &'a [u8]) -> &'a [u8] {
        let spaces = piece.iter().take_while(|&&byte| byte == b' ').count();
        match self.lead {
            Lead::Keep => piece,
            Lead::Spaces(left) => {
                let dropped = spaces.min(left);
                let only_spaces = dropped == piece.len();
                self.lead = if only_spaces { Lead::Spaces(left - dropped) } else { Lead::Keep };
                &piece[dropped..]
            }
            Lead::FirstToken => {
                self.lead = Lead::Keep;
                &piece[spaces..]
            }
        }
    }
}

/// Appends the text of `bytes` to `text`, with U+FFFD for what is not UTF-8, and returns how many
/// bytes that took: all but a character at the end that may still be completed.
fn write_lossy(bytes: &[u8], text: &mut String) -> usize {
    let mut done = 0;
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        done += chunk.valid().len();
        let invalid = chunk.invalid();
        if invalid.is_empty() {
            continue;
        }
        let at_end = done + invalid.len() == bytes.len();
        let unfinished =
            at_end && std::str::from_utf8(invalid).is_err_and(|error| error.error_len().is_none());
        if unfinished {
            break;
        }
        text.push(char::REPLACEMENT_CHARACTER);
        done += invalid.len();
    }
    done
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::tokenizer::pieces::{DecodeRule, Spelling};

    /// A vocabulary of the 256 bytes and a few words.
    fn detokenizer(lead: Lead, skip_special: bool) -> Detokenizer {
        let bytes: Vec<String> = (0..=255).map(|byte| format!("<0x{byte:02X}>")).collect();
        let words = ["▁Hi", "▁▁", "▁", "日", "😀", "<end>"];
        let tokens = bytes
            .iter()
            .map(String::as_str)
            .chain(words)
            .map(|token| Some((token, token == "<end>")));
        let rule = DecodeRule { spelling: Spelling::SentencePiece { bytes: true }, lead };
        Detokenizer::new(Arc::new(Pieces::new(rule, tokens).unwrap()), skip_special)
    }

    fn stream(mut detokenizer: Detokenizer, ids: impl IntoIterator<Item = u32>) -> Vec<String> {
        let mut texts: Vec<String> = ids.into_iter().map(|id| detokenizer.push(id)).collect();
        texts.push(detokenizer.finish());
        texts
    }

    #[test]
    fn an_emoji_in_four_byte_tokens_comes_out_whole() {
        let ids = "😀".bytes().map(u32::from);
        assert_eq!(stream(detokenizer(Lead::Keep, true), ids), ["", "", "", "😀", ""]);
    }

    #[test]
    fn a_joined_emoji_survives_every_split() {
        let family = "👩‍👩‍👧‍👦";
        let texts = stream(detokenizer(Lead::Keep, true), family.bytes().map(u32::from));
        assert_eq!(texts.concat(), family);
        assert!(texts.iter().all(|text| !text.contains('\u{fffd}')));
    }

    #[test]
    fn a_cut_character_is_one_replacement_at_the_end() {
        let ids = "日".bytes().take(2).map(u32::from);
        assert_eq!(stream(detokenizer(Lead::Keep, true), ids), ["", "", "\u{fffd}"]);
    }

    #[test]
    fn the_leading_space_is_dropped_once() {
        assert_eq!(stream(detokenizer(Lead::Spaces(1), true), [256, 256]).concat(), "Hi Hi");
        assert_eq!(stream(detokenizer(Lead::Spaces(1), true), [257, 256]).concat(), "  Hi");
        assert_eq!(stream(detokenizer(Lead::Spaces(1), true), [258, 256]).concat(), " Hi");
        assert_eq!(stream(detokenizer(Lead::FirstToken, true), [257, 256]).concat(), " Hi");
        let kept = detokenizer(Lead::Spaces(1), true).keep_leading_space();
        assert_eq!(stream(kept, [256]).concat(), " Hi");
    }

    #[test]
    fn control_tokens_are_shown_only_if_asked_for() {
        assert_eq!(stream(detokenizer(Lead::Keep, true), [256, 261]).concat(), " Hi");
        assert_eq!(stream(detokenizer(Lead::Keep, false), [256, 261]).concat(), " Hi<end>");
        let shown = detokenizer(Lead::Keep, true).showing(&[261]);
        assert_eq!(stream(shown, [256, 261]).concat(), " Hi<end>");
        let other = detokenizer(Lead::Keep, true).showing(&[260]);
        assert_eq!(stream(other, [256, 261]).concat(), " Hi");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(10_000))]

        #[test]
        fn the_stream_is_the_lossy_text_of_all_bytes(
            ids in proptest::collection::vec(0u32..264, 0..24),
        ) {
            let stream = stream(detokenizer(Lead::Keep, true), ids.iter().copied());
            let pieces = detokenizer(Lead::Keep, true).pieces;
            let bytes: Vec<u8> = ids
                .iter()
                .filter(|&&id| !pieces.is_control(id))
                .flat_map(|&id| pieces.get(id).iter().copied())
                .collect();
            prop_assert_eq!(stream.concat(), String::from_utf8_lossy(&bytes));
        }
    }
}
