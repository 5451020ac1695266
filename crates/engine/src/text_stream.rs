//! The text of an answer as its tokens come, without what comes from a stop string on. Stop strings
//! count where a grammar does: from the end of the reasoning on, if there is any.

use std::collections::VecDeque;

use baton_text::{Detokenizer, Emit, StopStrings, Tokenizer};

use crate::{Error, GenerateOptions, Reasoning, Result};

/// Tokens to text.
#[derive(Debug)]
pub(crate) struct TextStream {
    detokenizer: Detokenizer,
    stage: Stage,
    stops: StopStrings,
    list: Vec<String>,
    /// Control tokens that are part of the text.
    show: Vec<u32>,
}

/// Where in the answer it is.
#[derive(Debug)]
enum Stage {
    /// At the beginning: what has come may be white space and a part of this text, behind which the
    /// model reasons.
    Opening {
        open: String,
        seen: String,
        then: VecDeque<StopStrings>,
    },
    /// In the reasoning, which ends with these texts, one after the other.
    Within(VecDeque<StopStrings>),
    Answer,
}

impl TextStream {
    /// Nothing if there is no tokenizer, and no stop string that would need one.
    ///
    /// # Errors
    /// If a stop string is empty, or needs a tokenizer and there is none.
    pub(crate) fn new(
        tokenizer: Result<&Tokenizer>,
        options: &GenerateOptions,
    ) -> Result<Option<Self>> {
        let list = options.stop.clone();
        let tokenizer = match tokenizer {
            Err(Error::NoTokenizer) if list.is_empty() => return Ok(None),
            other => other?,
        };
        let detokenizer = tokenizer.detokenizer_showing(&options.show);
        let stops = StopStrings::new(&list)?;
        let stage = match &options.reasoning {
            Some(reasoning) if !list.is_empty() => Stage::before(reasoning)?,
            _ => Stage::Answer,
        };
        Ok(Some(TextStream { detokenizer, stage, stops, list, show: options.show.clone() }))
    }

    /// Takes a token: the text that is now known to be shown, and the stop string that ended it.
    pub(crate) fn push(&mut self, tokenizer: &Tokenizer, id: u32) -> (String, Option<String>) {
        let text = self.detokenizer.push(id);
        let emit = self.take(&text);
        if !matches!(self.stage, Stage::Answer)
            && tokenizer.is_control(id)
            && !self.show.contains(&id)
            && let Some(name) = tokenizer.token(id)
        {
            // It is not shown, and may begin or end the reasoning all the same.
            self.take(&name);
        }
        (emit.text, emit.stopped.map(|at| self.list[at].clone()))
    }

    /// No more tokens will come: the text that was held back.
    pub(crate) fn finish(&mut self) -> String {
        // A character that was cut off may still complete a stop string.
        let last = self.detokenizer.finish();
        let mut text = self.take(&last).text;
        if let Stage::Opening { seen, .. } = &mut self.stage {
            text += &self.stops.push(&std::mem::take(seen)).text;
        }
        text + &self.stops.finish()
    }

    fn take(&mut self, text: &str) -> Emit {
        let mut shown = String::new();
        for (at, c) in text.char_indices() {
            match &mut self.stage {
                Stage::Answer => {
                    let Emit { text, stopped } = self.stops.push(&text[at..]);
                    return Emit { text: shown + &text, stopped };
                }
                Stage::Within(close) => {
                    shown.push(c);
                    let mut part = [0; 4];
                    let found = close.front_mut().map(|text| text.push(c.encode_utf8(&mut part)));
                    if found.is_some_and(|emit| emit.stopped.is_some()) {
                        close.pop_front();
                    }
                    if close.is_empty() {
                        self.stage = Stage::Answer;
                    }
                }
                Stage::Opening { open, seen, then } => {
                    seen.push(c);
                    let begun = seen.trim_start();
                    if begun == open {
                        shown += seen;
                        self.stage = Stage::Within(std::mem::take(then));
                    } else if !open.starts_with(begun) {
                        let Emit { text, stopped } = self.stops.push(&std::mem::take(seen));
                        self.stage = Stage::Answer;
                        shown += &text;
                        if stopped.is_some() {
                            return Emit { text: shown, stopped };
                        }
                    }
                }
            }
        }
        Emit { text: shown, stopped: None }
    }
}

impl Stage {
    fn before(Reasoning { open, close }: &Reasoning) -> Result<Self> {
        let close = close.iter().filter(|text| !text.is_empty());
        let close = close.map(|text| Ok(StopStrings::new([text])?));
        let then = close.collect::<Result<VecDeque<_>>>()?;
        Ok(match open {
            _ if then.is_empty() => Stage::Answer,
            Some(open) if !open.is_empty() => {
                Stage::Opening { open: open.clone(), seen: String::new(), then }
            }
            _ => Stage::Within(then),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grammar::tests::{PAD, byte, tokenizer};

    /// The shown text and the stop string of an answer that comes in pieces of `size` characters.
    fn shown(reasoning: Option<Reasoning>, text: &str, size: usize) -> (String, Option<String>) {
        let tokenizer = tokenizer(&[]);
        let options = GenerateOptions {
            stop: vec!["\n\n".into(), "END".into()],
            reasoning,
            ..GenerateOptions::default()
        };
        let mut stream = TextStream::new(Ok(&tokenizer), &options).unwrap().unwrap();
        let chars: Vec<char> = text.chars().collect();
        let mut all = String::new();
        for piece in chars.chunks(size) {
            let emit = stream.take(&piece.iter().collect::<String>());
            all += &emit.text;
            if let Some(at) = emit.stopped {
                return (all, Some(stream.list[at].clone()));
            }
        }
        (all + &stream.finish(), None)
    }

    #[test]
    fn stop_strings_count_from_the_end_of_the_reasoning_on() {
        let think = |open: Option<&str>, close: &[&str]| {
            let close = close.iter().map(|text| text.to_string()).collect();
            Some(Reasoning { open: open.map(str::to_owned), close })
        };
        let may = || think(Some("<t>"), &["</t>"]);
        let must = || think(None, &["<c>final", "<m>"]);
        let cases = [
            (None, "a\n\nb", "a", Some("\n\n")),
            (may(), " <t>a\n\nEND</t>bENDc", " <t>a\n\nEND</t>b", Some("END")),
            (may(), "<t>never\n\n", "<t>never\n\n", None),
            (may(), "<tEND", "<t", Some("END")),
            (may(), "no <t>\n\n", "no <t>", Some("\n\n")),
            (may(), " <", " <", None),
            (may(), "\n\nx", "", Some("\n\n")),
            (think(None, &["</t>"]), "a\n\n</t>\n\nb", "a\n\n</t>", Some("\n\n")),
            (must(), "<m>END<c>final END<m>xEND", "<m>END<c>final END<m>x", Some("END")),
            (must(), "<c>final\n\n", "<c>final\n\n", None),
        ];
        for (reasoning, text, expected, stop) in cases {
            for size in 1..=text.len() {
                let expected = (expected.to_owned(), stop.map(str::to_owned));
                assert_eq!(shown(reasoning.clone(), text, size), expected, "{text:?} by {size}");
            }
        }
    }
    #[test]
    fn the_reasoning_may_end_with_a_token_that_is_not_shown() {
        let tokenizer = tokenizer(&[]);
        let reasoning = Reasoning { open: None, close: vec!["<|pad|>".into()] };
        let mut options = GenerateOptions { stop: vec!["b".into()], ..GenerateOptions::default() };
        options.reasoning = Some(reasoning);
        for show in [vec![], vec![PAD]] {
            options.show = show.clone();
            let mut stream = TextStream::new(Ok(&tokenizer), &options).unwrap().unwrap();
            let [a, b] = [b'a', b'b'].map(byte);
            let pushed = [a, b, PAD, a, b].map(|id| stream.push(&tokenizer, id));
            let text: String = pushed.iter().map(|(text, _)| text.as_str()).collect();
            assert_eq!(text, if show.is_empty() { "aba" } else { "ab<|pad|>a" });
            assert_eq!(pushed[4].1.as_deref(), Some("b"));
            assert!(pushed[..4].iter().all(|(_, stop)| stop.is_none()));
        }
    }
}
