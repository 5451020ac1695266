//! Messages inside a rendered chat template, kept from being read as control tokens.
//!
//! A template's own `<|im_end|>` ends a turn; the same characters in a message are just characters.
//! Once both stand in one text nothing tells them apart. So before rendering a character that no
//! text has is put into each such name in a message, and [`Tokenizer::encode_guarded`] drops it when
//! the control tokens are found, before words are split. A message without such a name is not
//! touched, and all text gets the ids that it would get anyway.

use std::borrow::Cow;

use serde_json::Value;
use tokenizers::{NormalizerWrapper, OffsetReferential, OffsetType};

use crate::template::{Content, Message};
use crate::tokenizer::Tokenizer;

/// A noncharacter of Unicode, which texts that are exchanged do not have.
pub(crate) const GUARD: char = '\u{fdd0}';

impl Tokenizer {
    /// The message with a guard in each name of a control token, for a template whose text goes to
    /// [`Tokenizer::encode_guarded`].
    pub fn guard(&self, message: &Message) -> Message {
        let mut extra = message.extra.clone();
        extra.values_mut().for_each(|value| self.guard_value(value));
        Message {
            role: self.guard_text(&message.role).into_owned(),
            content: message.content.as_ref().map(|content| self.guard_content(content)),
            extra,
        }
    }

    /// The same for the texts in tools, documents and other values that a template writes.
    pub fn guard_json(&self, value: &Value) -> Value {
        let mut value = value.clone();
        self.guard_value(&mut value);
        value
    }

    fn guard_content(&self, content: &Content) -> Content {
        let parts = match content {
            Content::Text(text) => return Content::Text(self.guard_text(text).into_owned()),
            Content::Parts(parts) => parts,
        };
        let text = |part: &Value| part["text"].as_str().or(part.as_str()).unwrap_or("").to_owned();
        let joined: String = parts.iter().map(text).collect();
        let mut guarded = parts.clone();
        guarded.iter_mut().for_each(|part| self.guard_value(part));
        // A template may write the parts one behind the other, and a name lie across the seam.
        if self.guard_text(&joined) != guarded.iter().map(text).collect::<String>() {
            for part in &mut guarded {
                match part {
                    Value::String(text) => text.push(GUARD),
                    Value::Object(fields) => {
                        if let Some(Value::String(text)) = fields.get_mut("text") {
                            text.push(GUARD);
                        }
                    }
                    _ => {}
                }
            }
        }
        Content::Parts(guarded)
    }

    fn guard_value(&self, value: &mut Value) {
        match value {
            Value::String(text) => {
                if let Cow::Owned(guarded) = self.guard_text(text) {
                    *text = guarded;
                }
            }
            Value::Array(items) => items.iter_mut().for_each(|item| self.guard_value(item)),
            Value::Object(fields) => fields.values_mut().for_each(|field| self.guard_value(field)),
            _ => {}
        }
    }

    fn guard_text<'t>(&self, text: &'t str) -> Cow<'t, str> {
        let mut guarded = Cow::Borrowed(text);
        loop {
            let places = self.control_names(&guarded);
            if places.is_empty() {
                return guarded;
            }
            // From the end, so that the places before stay where they are. A broken name may leave
            // another one that overlapped it, which the next round finds.
            places.iter().rev().for_each(|&at| guarded.to_mut().insert(at, GUARD));
        }
    }

    /// Where to break the names of control tokens in `text`: behind their first characters.
    fn control_names(&self, text: &str) -> Vec<usize> {
        let added = self.added_tokens();
        let words = added.extract_and_normalize(None::<&NormalizerWrapper>, text);
        let splits = words.get_splits(OffsetReferential::Original, OffsetType::Byte);
        let name = |(_, (start, end), tokens): &(&str, (usize, usize), &Option<Vec<_>>)| {
            let token: &tokenizers::Token = tokens.as_ref()?.first()?;
            if !self.is_control(token.id) {
                return None;
            }
            let name = &added.get_added_tokens_decoder().get(&token.id)?.content;
            // Some tokens take the white space around their names with them.
            let at = start + text.get(*start..*end)?.find(name.as_str())?;
            // A name of one character cannot be broken.
            let (second, _) = name.char_indices().nth(1)?;
            Some(at + second)
        };
        splits.iter().filter_map(name).collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::template::{ChatTemplate, RenderOptions};

    /// Bytes of ASCII as tokens, `<|end|>` and two overlapping names as control tokens, and a word
    /// that is an added token but ordinary text.
    fn tokenizer() -> Tokenizer {
        let controls = ["<|end|>", "[e[", "[x]", "<pad>"];
        let mut vocab: serde_json::Map<String, Value> =
            ('!'..='~').enumerate().map(|(id, c)| (c.to_string(), id.into())).collect();
        for token in ["Ġ", "Ċ"].iter().chain(&controls).chain(&["<tool>"]) {
            vocab.insert((*token).into(), vocab.len().into());
        }
        let added = |content: &str| {
            json!({
                "id": vocab[content], "content": content, "special": content != "<tool>",
                "single_word": false, "lstrip": content == "<pad>", "rstrip": false,
                "normalized": false,
            })
        };
        let added: Vec<Value> = controls.iter().copied().chain(["<tool>"]).map(added).collect();
        let bytes = json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false,
            "use_regex": true });
        let json = json!({
            "version": "1.0", "added_tokens": added, "pre_tokenizer": bytes, "decoder": bytes,
            "model": { "type": "BPE", "vocab": vocab, "merges": [] },
        });
        Tokenizer::from_json_bytes(json.to_string().as_bytes()).unwrap()
    }

    fn guarded(text: &str) -> String {
        tokenizer().guard(&Message::user(text)).text()
    }

    #[test]
    fn a_guarded_text_is_ordinary_text() {
        let tokenizer = tokenizer();
        for text in
            ["<|end|>", "a <|end|>\n<|end|><|end|>", "[e[x] [e[e[e[", "to  <pad>", "<tool> <|end|>"]
        {
            let ids = tokenizer.encode_guarded(&guarded(text)).unwrap();
            assert_eq!(ids, tokenizer.encode_as_text(text, false).unwrap(), "{text}");
            assert!(!ids.iter().any(|&id| tokenizer.is_control(id)), "{text}");
            assert!(
                tokenizer.encode(text, false).unwrap().iter().any(|&id| tokenizer.is_control(id))
            );
            assert_eq!(tokenizer.decode(&ids, false), text);
        }
    }

    #[test]
    fn text_without_control_names_stays_as_it_is() {
        for text in ["", " a <b> | end", "<|end|", "<tool>"] {
            assert_eq!(guarded(text), text);
            let ids = tokenizer().encode(text, false).unwrap();
            assert_eq!(tokenizer().encode_guarded(text).unwrap(), ids);
        }
    }

    #[test]
    fn a_bound_on_the_number_of_tokens_holds() {
        let tokenizer = tokenizer();
        assert_eq!(tokenizer.least_tokens(" \n\t"), 0);
        // The longest token has seven bytes.
        assert_eq!(tokenizer.least_tokens(&"ab ".repeat(70)), 20);
        for text in ["", "a", "<|end|><|end|>x", "<pad>    <pad>", "[e[x] [e[e[e["] {
            let guarded = guarded(text);
            let ids = tokenizer.encode_guarded(&guarded).unwrap();
            assert!(tokenizer.least_tokens(&guarded) <= ids.len(), "{text}");
            let ids = tokenizer.encode(text, false).unwrap();
            assert!(tokenizer.least_tokens(text) <= ids.len(), "{text}");
        }
    }

    #[test]
    fn only_the_templates_own_control_tokens_are_read() {
        let tokenizer = tokenizer();
        let source = "{% for m in messages %}{{ m.role }}:\
            {% if m.content is string %}{{ m.content | trim }}\
            {% else %}{% for part in m.content %}{{ part.text }}{% endfor %}{% endif %}\
            {{ m.note }}<|end|>{% endfor %}";
        let template = ChatTemplate::new(source, None, None).unwrap();
        let messages: Vec<Message> = serde_json::from_value(json!([
            { "role": "us<|end|>er", "content": " x<|end|> " },
            { "role": "user", "content": [{ "type": "text", "text": "<|e" },
                { "type": "text", "text": "nd|>" }], "note": "<|end|>" },
        ]))
        .unwrap();
        let guarded: Vec<Message> = messages.iter().map(|m| tokenizer.guard(m)).collect();
        let text = template.render(&guarded, &RenderOptions::default()).unwrap();
        let ids = tokenizer.encode_guarded(&text).unwrap();
        let plain = template.render(&messages, &RenderOptions::default()).unwrap();
        assert_eq!(tokenizer.decode(&ids, false), plain);
        assert_eq!(ids.iter().filter(|&&id| tokenizer.is_control(id)).count(), 2);
        assert_eq!(plain.matches("<|end|>").count(), 6);
    }
}
