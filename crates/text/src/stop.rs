//! Stop strings over streamed text.
//!
//! Text is released as soon as it cannot be the beginning of a stop string, and the stop string
//! itself never is. The result does not depend on how the text was cut into pieces: of several
//! stop strings the one that is complete first counts, and of those complete at the same character
//! the longest.

use crate::error::{Error, Result};
use crate::needle::Needle;

/// What [`StopStrings::push`] releases.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Emit {
    /// Text that may be shown now.
    pub text: String,
    /// The stop string that was found, by its place in the list. Generation is over.
    pub stopped: Option<usize>,
}

/// Looks for stop strings in a stream of text.
#[derive(Clone, Debug, Default)]
pub struct StopStrings {
    stops: Vec<Stop>,
    /// Text that may turn out to begin a stop string.
    held: String,
    stopped: Option<usize>,
}

/// One stop string.
#[derive(Clone, Debug)]
struct Stop {
    needle: Needle,
    /// How many of its bytes the text ends with.
    matched: usize,
}

impl StopStrings {
    /// Watches for any of `stops`.
    ///
    /// # Errors
    ///
    /// An empty stop string: it would stop everything, or nothing.
    pub fn new<S: AsRef<str>>(stops: impl IntoIterator<Item = S>) -> Result<Self> {
        let stops =
            stops.into_iter().map(|stop| Stop::new(stop.as_ref())).collect::<Result<_>>()?;
        Ok(Self { stops, held: String::new(), stopped: None })
    }

    /// Takes the next piece of text. After a stop string was found, everything is swallowed.
    pub fn push(&mut self, text: &str) -> Emit {
        if self.stopped.is_some() {
            return Emit { text: String::new(), stopped: self.stopped };
        }
        if self.stops.is_empty() {
            return Emit { text: text.to_owned(), stopped: None };
        }
        for (position, &byte) in text.as_bytes().iter().enumerate() {
            let mut found: Option<(usize, usize)> = None;
            for (index, stop) in self.stops.iter_mut().enumerate() {
                let complete = stop.advance(byte);
                if complete && found.is_none_or(|(_, length)| stop.needle.len() > length) {
                    found = Some((index, stop.needle.len()));
                }
            }
            if let Some((index, length)) = found {
                self.stopped = Some(index);
                let mut all = std::mem::take(&mut self.held);
                all.push_str(&text[..=position]);
                all.truncate(all.len() - length);
                return Emit { text: all, stopped: self.stopped };
            }
        }
        self.held.push_str(text);
        // A match starts with the first byte of a stop string, so this is a character boundary.
        let keep = self.stops.iter().map(|stop| stop.matched).max().unwrap_or(0);
        let rest = self.held.split_off(self.held.len() - keep);
        Emit { text: std::mem::replace(&mut self.held, rest), stopped: None }
    }

    /// The end of generation: the text held back, since no stop string will complete it.
    pub fn finish(&mut self) -> String {
        for stop in &mut self.stops {
            stop.matched = 0;
        }
        std::mem::take(&mut self.held)
    }
}

impl Stop {
    fn new(text: &str) -> Result<Self> {
        if text.is_empty() {
            return Err(Error::BadStop { reason: "it is empty".into() });
        }
        Ok(Self { needle: Needle::new(text), matched: 0 })
    }

    /// Reads one byte; true if the text now ends with the whole string.
    fn advance(&mut self, byte: u8) -> bool {
        self.matched = self.needle.advance(self.matched, byte);
        self.matched == self.needle.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Feeds `text` cut at the characters whose bit is set in `cuts`.
    fn run(stops: &[&str], text: &str, cuts: u32) -> (String, Option<usize>) {
        let mut watch = StopStrings::new(stops).unwrap();
        let mut shown = String::new();
        let mut piece = String::new();
        for (index, character) in text.chars().enumerate() {
            piece.push(character);
            if cuts >> index & 1 == 1 {
                shown += &watch.push(&std::mem::take(&mut piece)).text;
            }
        }
        let last = watch.push(&piece);
        shown += &last.text;
        if last.stopped.is_none() {
            shown += &watch.finish();
        }
        (shown, last.stopped)
    }

    fn every_split(stops: &[&str], text: &str, shown: &str, stopped: Option<usize>) {
        let characters = text.chars().count() as u32;
        assert!(characters <= 16, "too many splits to try");
        for cuts in 0..1u32 << characters {
            assert_eq!(run(stops, text, cuts), (shown.to_owned(), stopped), "cuts {cuts:b}");
        }
    }

    #[test]
    fn every_split_gives_the_same_text() {
        every_split(&["STOP"], "one STOP two", "one ", Some(0));
        every_split(&["STOP"], "STOP", "", Some(0));
        every_split(&["\n"], "\nfirst", "", Some(0));
        every_split(&["STOP"], "one STO", "one STO", None);
        every_split(&["STOP"], "SSTOSTOP.", "SSTO", Some(0));
        every_split(&["aab"], "aaaab", "aa", Some(0));
        every_split(&[">>> UPDATED"], "x>>> UPDATE", "x>>> UPDATE", None);
        every_split(&["日本"], "今日本日日本", "今", Some(0));
        every_split(&["😀!"], "😀😀!", "😀", Some(0));
        every_split(&[], "anything", "anything", None);
    }

    #[test]
    fn overlapping_stops_do_not_depend_on_the_split() {
        // "b" is complete before "abc" is.
        every_split(&["abc", "b"], "xabc", "xa", Some(1));
        // Both are complete at "c": the longer one counts.
        every_split(&["c", "abc"], "xabc", "x", Some(1));
        every_split(&["ab", "bc"], "abc", "", Some(0));
    }

    #[test]
    fn characters_that_share_bytes_are_not_confused() {
        // U+00E9 and U+00E8 differ in the last byte only.
        every_split(&["é"], "èè", "èè", None);
        every_split(&["éa"], "éè", "éè", None);
    }

    #[test]
    fn only_what_may_begin_a_stop_is_held_back() {
        let mut watch = StopStrings::new(["<end>"]).unwrap();
        assert_eq!(watch.push("hello").text, "hello");
        assert_eq!(watch.push(" <en").text, " ");
        assert_eq!(watch.push("x").text, "<enx");
        let emit = watch.push("<end>tail");
        assert_eq!(emit, Emit { text: String::new(), stopped: Some(0) });
        assert_eq!(watch.push("more"), Emit { text: String::new(), stopped: Some(0) });
        assert_eq!(watch.finish(), "");
    }

    #[test]
    fn an_empty_stop_string_is_refused() {
        assert!(matches!(StopStrings::new([""]), Err(Error::BadStop { .. })));
    }
}
