//! Which ids mean the beginning and the end of a text, and which end an answer.

use std::collections::BTreeSet;

/// The special ids of a vocabulary.
#[derive(Clone, Debug, Default)]
pub(crate) struct Specials {
    pub bos: Option<u32>,
    pub eos: Option<u32>,
    /// Every id that ends an answer.
    pub eog: BTreeSet<u32>,
    /// What the model wants before a text.
    pub prefix: Vec<u32>,
    /// What the model wants after a text.
    pub suffix: Vec<u32>,
}

impl Specials {
    /// Makes a text begin with BOS, or not.
    pub fn set_add_bos(&mut self, add: bool) {
        let Some(bos) = self.bos else { return };
        let has = self.prefix.first() == Some(&bos);
        if add && !has {
            self.prefix.insert(0, bos);
        } else if !add && has {
            self.prefix.remove(0);
        }
    }

    /// Makes a text end with EOS, or not.
    pub fn set_add_eos(&mut self, add: bool) {
        let Some(eos) = self.eos else { return };
        let has = self.suffix.last() == Some(&eos);
        if add && !has {
            self.suffix.push(eos);
        } else if !add && has {
            self.suffix.pop();
        }
    }

    /// Ends `ids`, whose text begins at `start` after the prefix, so that no token of the model
    /// stands twice where the text already had it.
    pub fn close(&self, ids: &mut Vec<u32>, start: usize) {
        let doubled = start > 0
            && self.bos.is_some()
            && ids.get(start - 1).copied() == self.bos
            && ids.get(start).copied() == self.bos;
        if doubled {
            tracing::warn!(
                "the text starts with the BOS token, which the tokenizer adds too; one was kept"
            );
            ids.remove(start);
        }
        let ends = self.suffix.len() == 1 && ids.last() == self.suffix.first();
        if !ends {
            ids.extend_from_slice(&self.suffix);
        }
    }
}

/// Names by which published models end a turn or a text.
///
/// The flag says that the name is odd enough to be a control token even in a file that forgot to
/// mark it as one; `</s>` is also an HTML tag, which some vocabularies have as a word.
const END_NAMES: &[(&str, bool)] = &[
    ("<|eot_id|>", true),
    ("<|eom_id|>", true),
    ("<|im_end|>", true),
    ("<|end|>", true),
    ("<|return|>", true),
    ("<|call|>", true),
    ("<|calls|>", true),
    ("<|flush|>", true),
    ("<end_of_turn>", true),
    ("<turn|>", true),
    ("<|tool_response>", true),
    ("<|endoftext|>", true),
    ("<|end_of_text|>", true),
    ("<|end_of_turn|>", true),
    ("<|end_of_sentence|>", true),
    ("<｜end▁of▁sentence｜>", true),
    ("<|END_OF_TURN_TOKEN|>", true),
    ("<|END_RESPONSE|>", true),
    ("<|assistant_end|>", true),
    ("<|eot|>", true),
    ("<|eom|>", true),
    ("<end_of_utterance>", true),
    ("<|fim_pad|>", true),
    ("<|file_sep|>", true),
    ("<|repo_name|>", true),
    ("[|endofturn|]", true),
    ("[e~[", true),
    ("</s>", false),
    ("<eos>", false),
    ("<EOT>", false),
    ("_<EOT>", false),
    ("[EOT]", false),
    ("[EOS]", false),
];

/// How sure the vocabulary is that a token is a control token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mark {
    /// Marked as a control token.
    Control,
    /// Added by hand, but not as a control token.
    Added,
    /// A piece of ordinary text.
    Text,
}

/// The ids among `END_NAMES`, found with `lookup`.
pub(crate) fn ends_by_name(lookup: impl Fn(&str) -> Option<(u32, Mark)>) -> BTreeSet<u32> {
    let mut ends = BTreeSet::new();
    for &(name, odd) in END_NAMES {
        match lookup(name) {
            Some((id, Mark::Control)) => _ = ends.insert(id),
            Some((id, Mark::Added)) if odd => _ = ends.insert(id),
            _ => {}
        }
    }
    // Where the model has tokens of its own for the end of an answer, `<|end|>` only ends one of
    // several messages of that answer (the harmony format).
    let has = |name| lookup(name).is_some_and(|(_, mark)| mark != Mark::Text);
    let harmony = (has("<|return|>") && has("<|call|>")) || (has("<|flush|>") && has("<|calls|>"));
    if let Some((id, _)) = lookup("<|end|>").filter(|_| harmony) {
        ends.remove(&id);
    }
    ends
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends(tokens: &[(&str, Mark)]) -> Vec<u32> {
        let lookup = |name: &str| {
            let id = tokens.iter().position(|(token, _)| *token == name)?;
            Some((id as u32, tokens[id].1))
        };
        ends_by_name(lookup).into_iter().collect()
    }

    #[test]
    fn names_count_only_for_control_tokens() {
        assert_eq!(ends(&[("</s>", Mark::Control), ("<|eot_id|>", Mark::Control)]), [0, 1]);
        assert_eq!(ends(&[("</s>", Mark::Added), ("<|im_end|>", Mark::Added)]), [1]);
        assert_eq!(ends(&[("</s>", Mark::Text), ("<|im_end|>", Mark::Text)]), [0; 0]);
    }

    #[test]
    fn a_message_of_the_harmony_format_does_not_end_the_answer() {
        let control = |name| (name, Mark::Control);
        assert_eq!(ends(&[control("<|end|>")]), [0]);
        assert_eq!(ends(&[control("<|end|>"), control("<|return|>"), control("<|call|>")]), [1, 2]);
    }

    #[test]
    fn nothing_is_added_twice() {
        let mut specials = Specials { bos: Some(1), eos: Some(2), ..Specials::default() };
        specials.set_add_bos(true);
        specials.set_add_bos(true);
        specials.set_add_eos(true);
        assert_eq!((specials.prefix.as_slice(), specials.suffix.as_slice()), (&[1][..], &[2][..]));
        let mut ids = vec![1, 1, 7, 2];
        specials.close(&mut ids, 1);
        assert_eq!(ids, [1, 7, 2]);
        specials.set_add_bos(false);
        assert!(specials.prefix.is_empty());
    }
}
