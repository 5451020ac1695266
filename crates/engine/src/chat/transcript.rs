//! The token ids of a conversation as the model saw and wrote them.
//!
//! Text has more than one spelling in tokens, and a model does not always choose the one that a
//! tokenizer gives for its answer. If the conversation were tokenized anew each turn, ids would
//! differ from those in the cache at the first such place, and all that follows would be evaluated
//! again. So the ids are kept, and only the text behind what is known is tokenized.

use baton_text::Tokenizer;

use crate::Result;

/// Places tried, from the end of what is known backwards, to go on from.
const MAX_TRIES: usize = 16;

/// Ids and the bytes that they stand for.
#[derive(Clone, Debug, Default)]
pub(super) struct Transcript {
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
    pub(super) fn ids(&self) -> &[u32] {
        &self.ids
    }

    /// The transcript of `rendered`, a whole conversation: known ids as far as its text is the
    /// known one, the tokenizer's behind that.
    pub(super) fn continued(&self, tokenizer: &Tokenizer, rendered: String) -> Result<Transcript> {
        let whole = tokenizer.encode(&rendered, false)?;
        let bytes = rendered.as_bytes();
        let same = self.text.iter().zip(bytes).take_while(|(a, b)| a == b).count();
        let fits = |mark: &&Mark| mark.text <= same && rendered.is_char_boundary(mark.text);
        let mut next = Transcript { ids: whole, ..Transcript::default() };
        for mark in self.marks.iter().rev().filter(fits).take(MAX_TRIES) {
            let rest = tokenizer.encode(&rendered[mark.text..], false)?;
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

    /// Appends a token of the answer.
    pub(super) fn push(&mut self, tokenizer: &Tokenizer, id: u32) {
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
