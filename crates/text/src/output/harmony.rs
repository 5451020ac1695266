//! The harmony format of gpt-oss: messages with a header that names the channel and the recipient.
//!
//! `<|channel|>analysis<|message|>…<|end|><|start|>assistant<|channel|>commentary
//! to=functions.NAME <|constrain|>json<|message|>{…}<|call|>`; the answer is on the channel `final`.

use super::json::arguments_object;
use super::markers::{Trim, Watch};
use super::sink::{Call, Sink};

const CHANNEL: &str = "<|channel|>";
const MESSAGE: &str = "<|message|>";
const START: &str = "<|start|>";
const CONSTRAIN: &str = "<|constrain|>";
const MARKERS: [&str; 7] =
    [CHANNEL, MESSAGE, START, CONSTRAIN, "<|end|>", "<|call|>", "<|return|>"];
/// The tokens that must be seen; those that end an answer need not.
pub(super) const VISIBLE: &[&str] = &[CHANNEL, MESSAGE, START, CONSTRAIN, "<|end|>"];
/// What comes before the answer that the user sees, with anything between the two.
pub(super) const FINAL: [&str; 2] = ["<|channel|>final", MESSAGE];
const LONGEST_HEADER: usize = 512;

/// Reads a stream of characters in this format.
#[derive(Clone, Debug)]
pub(super) struct Harmony {
    state: State,
    watch: Watch,
    /// The header, and the whole message if it is a call, as it was written.
    raw: String,
    /// Whether tool calls are wanted.
    tools: bool,
    /// Whether reasoning is split off; if not it comes as text with its markers.
    split: bool,
    free: String,
}

#[derive(Clone, Debug)]
enum State {
    /// Before or between messages; the words of the header without its markers, and whether a
    /// marker has shown that it is one.
    Header {
        words: String,
        sure: bool,
    },
    Reasoning(Trim),
    /// Shown as it is.
    Text {
        answer: bool,
    },
    /// Shown with its markers.
    Verbatim,
    /// A call of this tool; its arguments begin at this place of `raw`.
    Call {
        name: String,
        body: usize,
    },
}

impl Harmony {
    pub fn new(tools: bool, split: bool, open: bool) -> Self {
        let state = if open { State::Reasoning(Trim::default()) } else { header() };
        let (watch, raw, free) = Default::default();
        Self { state, watch, raw, tools, split, free }
    }

    /// Whether the answer itself is still to come.
    pub fn reasoning(&self) -> bool {
        !matches!(self.state, State::Text { answer: true })
    }

    /// Takes the next character.
    pub fn push(&mut self, c: char, sink: &mut Sink) {
        let mut free = std::mem::take(&mut self.free);
        free.clear();
        let found = self.watch.push(c, &MARKERS, &mut free);
        free.chars().for_each(|c| self.character(c, sink));
        self.free = free;
        if let Some(found) = found {
            self.marker(MARKERS[found], sink);
        }
    }

    /// The end of the output.
    pub fn finish(&mut self, sink: &mut Sink) {
        let held = self.watch.take();
        held.chars().for_each(|c| self.character(c, sink));
        self.end("", sink);
        let State::Header { words, sure } = std::mem::replace(&mut self.state, header()) else {
            return;
        };
        if sure || !words.trim().is_empty() {
            sink.text(&self.raw);
        }
        self.raw.clear();
    }

    fn character(&mut self, c: char, sink: &mut Sink) {
        let mut bytes = [0; 4];
        let text = c.encode_utf8(&mut bytes);
        match &mut self.state {
            State::Header { words, sure } => {
                words.push(c);
                self.raw.push(c);
                if !(*sure || may_begin(words)) || self.raw.len() > LONGEST_HEADER {
                    sink.text(&std::mem::take(&mut self.raw));
                    self.state = State::Text { answer: true };
                }
            }
            State::Reasoning(trim) if self.split => {
                let mut shown = String::new();
                trim.push(c, &mut shown);
                sink.reasoning(&shown);
            }
            State::Reasoning(_) | State::Text { .. } | State::Verbatim => sink.text(text),
            State::Call { .. } => self.raw.push(c),
        }
    }

    fn marker(&mut self, marker: &'static str, sink: &mut Sink) {
        let State::Header { words, sure } = &mut self.state else {
            match marker {
                // These have no meaning inside a message.
                MESSAGE | CONSTRAIN => marker.chars().for_each(|c| self.character(c, sink)),
                CHANNEL | START => {
                    self.end("", sink);
                    self.state = header();
                    self.marker(marker, sink);
                }
                _ => self.end(marker, sink),
            }
            return;
        };
        self.raw.push_str(marker);
        match marker {
            CHANNEL | CONSTRAIN | START => {
                words.push(' ');
                *sure = true;
            }
            MESSAGE => {
                let words = std::mem::take(words);
                self.open(&words, sink);
            }
            // A header that ends without a message.
            _ => {
                if *sure || !words.trim().is_empty() {
                    sink.text(&self.raw);
                }
                self.raw.clear();
                self.state = header();
            }
        }
    }

    /// Begins a message after its header.
    fn open(&mut self, words: &str, sink: &mut Sink) {
        let mut recipient = None;
        let mut channel = None;
        for word in words.split_whitespace() {
            match word.strip_prefix("to=") {
                Some(name) => recipient = Some(name.strip_prefix("functions.").unwrap_or(name)),
                None if word == "assistant" => {}
                None => channel = channel.or(Some(word)),
            }
        }
        let known = recipient.filter(|name| self.tools && sink.tools.knows(name));
        self.state = match (recipient, known, channel) {
            (_, Some(name), _) => State::Call { name: name.to_owned(), body: self.raw.len() },
            (Some(_), None, _) => State::Verbatim,
            (None, _, Some("analysis")) if self.split => State::Reasoning(Trim::default()),
            (None, _, Some("analysis")) => State::Verbatim,
            (None, _, Some("commentary")) => State::Text { answer: false },
            (None, _, Some("final") | None) => State::Text { answer: true },
            (None, _, Some(_)) => State::Verbatim,
        };
        if matches!(self.state, State::Verbatim) {
            sink.text(&self.raw);
        }
        if !matches!(self.state, State::Call { .. }) {
            self.raw.clear();
        }
    }

    /// Ends the message, if there is one.
    fn end(&mut self, marker: &str, sink: &mut Sink) {
        match std::mem::replace(&mut self.state, header()) {
            // The end of the output needs to know what is left of a header.
            state @ State::Header { .. } => self.state = state,
            State::Verbatim => sink.text(marker),
            State::Reasoning(_) if !self.split => sink.text(marker),
            State::Reasoning(_) | State::Text { .. } => {}
            State::Call { name, body } => {
                let arguments = arguments_object(&self.raw[body..]);
                let calls = arguments.map(|arguments| vec![Call { name, arguments }]);
                if !sink.calls(calls) {
                    self.raw.push_str(marker);
                    sink.text(&self.raw);
                }
                self.raw.clear();
            }
        }
    }
}

fn header() -> State {
    State::Header { words: String::new(), sure: false }
}

/// Whether words before any marker may belong to a header: the role, or a recipient.
fn may_begin(words: &str) -> bool {
    let words = words.trim_start();
    let begins = |start: &str| start.starts_with(words) || words.starts_with(start);
    !words.contains('\n') && (begins("assistant") || begins("to="))
}
