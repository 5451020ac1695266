//! The token ids of a conversation as the model saw and wrote them.
//!
//! Text has more than one spelling in tokens, and a model does not always choose the one that a
//! tokenizer gives for its answer. If the conversation were tokenized anew each turn, ids would
//! differ from those in the cache at the first such place, and all that follows would be evaluated
//! again. So the ids are kept, and only the text behind what is known is tokenized.

use std::collections::VecDeque;
use std::sync::Arc;

use baton_text::Tokenizer;

use crate::Result;

/// Most conversations that an engine remembers.
const MAX_REMEMBERED: usize = 32;

/// The conversations that an engine answered last, so that their next turns find their ids.
#[derive(Debug, Default)]
pub(crate) struct Transcripts {
    latest: VecDeque<Arc<Transcript>>,
}

impl Transcripts {
    /// Keeps `transcript` in place of those that it continues.
    pub(crate) fn remember(&mut self, transcript: Transcript) {
        self.latest.retain(|old| !transcript.text.starts_with(&old.text));
        self.latest.push_back(Arc::new(transcript));
        if self.latest.len() > MAX_REMEMBERED {
            self.latest.pop_front();
        }
    }

    /// The one that `rendered` has most in common with; of equals, the latest.
    pub(crate) fn nearest(&self, rendered: &str) -> Arc<Transcript> {
        let common = |known: &&Arc<Transcript>| known.common(rendered.as_bytes());
        self.latest.iter().max_by_key(common).cloned().unwrap_or_default()
    }
}

/// Places tried, from the end of what is known backwards, to go on from.
const MAX_TRIES: usize = 16;

/// Ids and the bytes that they stand for.
#[derive(Clone, Debug, Default)]
pub(crate) struct Transcript {
    ids: Vec<u32>,
    text: Vec<u8>,
    /// Places at which some ids and some bytes end together, in order.
    marks: Vec<Mark>,
    /// A token that is not in the text came; there are no marks after it.
    broken: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Mark {
    ids: usize,
    text: usize,
}

impl Transcript {
    pub(crate) fn ids(&self) -> &[u32] {
        &self.ids
    }

    /// The transcript of `rendered`, a whole conversation with guarded messages: known ids as far as
    /// its text is the known one, the tokenizer's behind that. Guards count as text, so that what
    /// was a control token is never taken for a message that looks like it, nor the reverse.
    pub(crate) fn continued(&self, tokenizer: &Tokenizer, rendered: String) -> Result<Transcript> {
        let whole = tokenizer.encode_guarded(&rendered)?;
        let bytes = rendered.as_bytes();
        let same = self.common(bytes);
        let fits = |mark: &&Mark| mark.text <= same && rendered.is_char_boundary(mark.text);
        let mut next = Transcript { ids: whole, ..Transcript::default() };
        for mark in self.marks.iter().rev().filter(fits).take(MAX_TRIES) {
            let rest = tokenizer.encode_guarded(&rendered[mark.text..])?;
            // Text cut at this place must mean the same tokens as it does in the whole: not so if
            // a token reaches over it, or if the tokenizer treats a beginning in its own way.
            if next.ids.ends_with(&rest) {
                next.ids = [&self.ids[..mark.ids], &rest].concat();
                let kept = self.marks.iter().take_while(|m| m.text <= mark.text);
                next.marks = kept.copied().collect();
                break;
            }
        }
        next.text = rendered.into_bytes();
        next.mark();
        Ok(next)
    }

    /// How many bytes the two have in common at their beginning.
    fn common(&self, bytes: &[u8]) -> usize {
        self.text.iter().zip(bytes).take_while(|(a, b)| a == b).count()
    }

    /// Appends a token of the answer.
    pub(crate) fn push(&mut self, tokenizer: &Tokenizer, id: u32) {
        self.ids.push(id);
        self.broken |= tokenizer.is_control(id);
        if !self.broken {
            self.text.extend_from_slice(tokenizer.token_bytes(id));
            self.mark();
        }
    }

    fn mark(&mut self) {
        self.marks.push(Mark { ids: self.ids.len(), text: self.text.len() });
    }
}

#[cfg(test)]
#[path = "../tests/common/tokenizer.rs"]
#[allow(dead_code)]
mod tiny_tokenizer;

#[cfg(test)]
mod tests {
    use super::tiny_tokenizer::{END, tokenizer};
    use super::*;

    /// `t` and `h` apart, where the tokenizer has a token for both.
    const T_H: [u32; 2] = [83, 71];
    const TH: u32 = 259;

    fn answered(prompt: &str, answer: &[u32]) -> Transcript {
        let tokenizer = tokenizer();
        let mut transcript = Transcript::default().continued(&tokenizer, prompt.into()).unwrap();
        assert_eq!(transcript.ids(), tokenizer.encode(prompt, false).unwrap());
        answer.iter().for_each(|&id| transcript.push(&tokenizer, id));
        transcript
    }

    fn next(transcript: &Transcript, rendered: &str) -> Vec<u32> {
        let next = transcript.continued(&tokenizer(), rendered.into()).unwrap();
        assert_eq!(tokenizer().decode(next.ids(), false), rendered);
        next.ids().to_vec()
    }

    #[test]
    fn the_models_own_spelling_is_kept() {
        let transcript = answered("<|start|>go<|end|>", &[T_H[0], T_H[1], TH]);
        let ids = next(&transcript, "<|start|>go<|end|>thth<|end|>on");
        let start = transcript.ids().len();
        assert_eq!(ids[..start], *transcript.ids());
        assert_eq!(ids[start], END);
    }

    #[test]
    fn an_edited_answer_is_kept_as_far_as_it_is_the_same() {
        let transcript = answered("<|start|>", &[T_H[0], T_H[1], 78, T_H[0], T_H[1]]);
        let ids = next(&transcript, "<|start|>thox<|end|>");
        assert_eq!(ids, [256, T_H[0], T_H[1], 78, 87, END]);
    }

    #[test]
    fn a_token_that_reaches_over_the_end_is_respelled() {
        // The answer ended with `t`, and the template goes on with `h`.
        let transcript = answered("<|start|>", &[78, T_H[0]]);
        assert_eq!(next(&transcript, "<|start|>oth"), [256, 78, TH]);
    }

    #[test]
    fn nothing_is_kept_behind_a_token_that_is_not_in_the_text() {
        let transcript = answered("<|start|>", &[T_H[0], T_H[1], 261, T_H[0], T_H[1]]);
        assert_eq!(next(&transcript, "<|start|>thth<|end|>"), [256, T_H[0], T_H[1], TH, END]);
    }

    #[test]
    fn bytes_of_one_character_are_not_torn_apart() {
        let tokenizer = tokenizer();
        let bytes = tokenizer.encode("日", false).unwrap();
        assert_eq!(bytes.len(), 3);
        let transcript = answered("<|start|>", &[&T_H[..], &bytes[..2]].concat());
        let ids = next(&transcript, "<|start|>th\u{65e5}x");
        assert_eq!(ids, [&[256][..], &T_H, &bytes, &[87]].concat());
    }
}
