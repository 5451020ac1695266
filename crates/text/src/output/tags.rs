//! Formats in which reasoning and calls stand between tags, and everything else is text.

use super::body::{Body, Progress, Reader};
use super::markers::{Trim, Watch};
use super::sink::Sink;

/// The tags around the reasoning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Think {
    pub open: &'static str,
    pub close: &'static str,
    /// Whether the model may begin to reason in the middle of its answer.
    pub anywhere: bool,
}

/// What begins a tool call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Opening {
    pub marker: &'static str,
    pub kind: Kind,
}

/// What a marker does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Begins a call; the second is the marker that may end it.
    Call(Body, Option<&'static str>),
    /// Stands around calls and means nothing without them.
    Around,
    /// Begins reasoning.
    Think,
}

/// Reads a stream of characters in such a format.
#[derive(Clone, Debug)]
pub(super) struct Tags {
    markers: Vec<&'static str>,
    kinds: Vec<Kind>,
    think: Option<Think>,
    /// Whether reasoning is split off; if not it comes as text with its tags.
    split: bool,
    /// Whether a call may stand in the text without a marker.
    bare: bool,
    state: State,
    watch: Watch,
    /// Space and markers after which a call may still follow, or text.
    gap: Option<Gap>,
    /// Characters that belong to no marker; kept only to reuse its memory.
    free: String,
}

#[derive(Clone, Debug)]
enum State {
    /// Only space has come: the model may begin to reason, or not.
    Undecided,
    Reasoning {
        trim: Trim,
    },
    Text,
    Call {
        reader: Reader,
        raw: String,
        marker: usize,
        close: Option<&'static str>,
    },
    /// After a call whose closing marker may still come.
    Closing {
        close: &'static str,
    },
}

#[derive(Clone, Debug)]
struct Gap {
    held: String,
    after: After,
}

/// What a gap follows, which says what becomes of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum After {
    /// Nothing, or text: it is text unless a call follows.
    Text,
    /// Reasoning: space goes with it.
    Reasoning,
    /// A call: it is text only if text follows.
    Call,
}

impl Gap {
    fn new(after: After) -> Option<Self> {
        Some(Gap { held: String::new(), after })
    }
}

/// How a parser begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Begin {
    /// The model may reason first.
    Undecided,
    /// The prompt opened the reasoning.
    Reasoning,
    /// The prompt closed the reasoning, or there is none.
    Text,
}

impl Tags {
    pub fn new(
        openings: &[Opening],
        think: Option<Think>,
        bare: bool,
        split: bool,
        begin: Begin,
    ) -> Self {
        let thinks = think.filter(|think| think.anywhere);
        let thinks = thinks.map(|think| Opening { marker: think.open, kind: Kind::Think });
        let all: Vec<Opening> = openings.iter().copied().chain(thinks).collect();
        let state = match (begin, think) {
            (Begin::Undecided, Some(_)) => State::Undecided,
            (Begin::Reasoning, Some(_)) => State::Reasoning { trim: Trim::default() },
            _ => State::Text,
        };
        Self {
            markers: all.iter().map(|opening| opening.marker).collect(),
            kinds: all.iter().map(|opening| opening.kind).collect(),
            think,
            split,
            bare,
            state,
            watch: Watch::default(),
            gap: Gap::new(After::Text),
            free: String::new(),
        }
    }

    /// Whether the model reasons, or may be about to.
    pub fn reasoning(&self) -> bool {
        matches!(self.state, State::Undecided | State::Reasoning { .. })
    }

    /// Takes the next character.
    pub fn push(&mut self, c: char, sink: &mut Sink) {
        match std::mem::replace(&mut self.state, State::Text) {
            State::Undecided => self.undecided(c, sink),
            State::Reasoning { trim } => self.reason(c, trim, sink),
            State::Text => self.text(c, sink),
            State::Call { reader, raw, marker, close } => {
                self.call(c, reader, raw, marker, close, sink);
            }
            State::Closing { close } => self.closing(c, close, sink),
        }
    }

    /// The end of the output.
    pub fn finish(&mut self, sink: &mut Sink) {
        let held = self.watch.take();
        match std::mem::replace(&mut self.state, State::Text) {
            State::Reasoning { .. } if !self.split => sink.text(&held),
            State::Reasoning { mut trim } => {
                let mut rest = String::new();
                held.chars().for_each(|c| trim.push(c, &mut rest));
                sink.reasoning(&rest);
                self.gap = None;
            }
            State::Call { reader, raw, marker, .. } => {
                let calls = reader.calls(&raw[marker..], &sink.tools);
                if sink.calls(calls) {
                    self.gap = None;
                } else {
                    self.show(&raw, sink);
                }
            }
            State::Undecided | State::Text | State::Closing { .. } if !held.is_empty() => {
                self.show(&held, sink);
            }
            _ => {}
        }
        if let Some(gap) = self.gap.take().filter(|gap| gap.after == After::Text) {
            sink.text(&gap.held);
        }
    }

    fn undecided(&mut self, c: char, sink: &mut Sink) {
        let Some(think) = self.think else { return self.text(c, sink) };
        if self.watch.is_empty() && c.is_whitespace() {
            self.state = State::Undecided;
            return self.hold(c);
        }
        self.free.clear();
        let found = self.watch.push(c, &[think.open], &mut self.free);
        if found.is_some() {
            return self.think(think, sink);
        }
        if self.free.is_empty() {
            self.state = State::Undecided;
            return;
        }
        let text = std::mem::take(&mut self.free) + &self.watch.take();
        text.chars().for_each(|c| self.push(c, sink));
    }

    /// Begins to reason, after the opening tag.
    fn think(&mut self, think: Think, sink: &mut Sink) {
        if self.split {
            let gap = self.gap.take();
            if gap.is_some_and(|gap| gap.after != After::Text) {
                self.gap = Gap::new(After::Reasoning);
            }
        } else {
            self.show(think.open, sink);
        }
        self.state = State::Reasoning { trim: Trim::default() };
    }

    fn reason(&mut self, c: char, mut trim: Trim, sink: &mut Sink) {
        let Some(think) = self.think else { return self.text(c, sink) };
        // A model may repeat the opening tag that the prompt ended with.
        let both = [think.close, think.open];
        let markers = if trim.started() { &both[..1] } else { &both[..] };
        self.free.clear();
        let found = self.watch.push(c, markers, &mut self.free);
        if self.split {
            let mut shown = String::new();
            self.free.chars().for_each(|c| trim.push(c, &mut shown));
            sink.reasoning(&shown);
        } else {
            sink.text(&self.free);
            // Only whether something has come counts here.
            self.free.chars().for_each(|c| trim.push(c, &mut String::new()));
            sink.text(found.map_or("", |found| markers[found]));
        }
        self.state = match found {
            Some(0) => {
                self.gap = Gap::new(if self.split { After::Reasoning } else { After::Text });
                State::Text
            }
            _ => State::Reasoning { trim },
        };
    }

    fn text(&mut self, c: char, sink: &mut Sink) {
        let free =
            self.watch.is_empty() && !self.markers.iter().any(|marker| marker.starts_with(c));
        if self.bare && free && matches!(c, '{' | '[') && self.gap.is_some() {
            let reader = Reader::new(Body::Bare);
            return self.call(c, reader, String::new(), 0, None, sink);
        }
        let mut free = std::mem::take(&mut self.free);
        free.clear();
        let found = self.watch.push(c, &self.markers, &mut free);
        for c in free.chars() {
            let separates = matches!(c, ';' | ',');
            match &self.gap {
                Some(_) if c.is_whitespace() => self.hold(c),
                Some(gap) if self.bare && separates && gap.after == After::Call => self.hold(c),
                Some(_) => self.show(c.encode_utf8(&mut [0; 4]), sink),
                None => sink.text(c.encode_utf8(&mut [0; 4])),
            }
        }
        self.free = free;
        let Some(found) = found else { return };
        let marker = self.markers[found];
        match (self.kinds[found], self.think) {
            (Kind::Call(body, close), _) => {
                let reader = Reader::new(body);
                let raw = marker.to_owned();
                self.state = State::Call { reader, raw, marker: marker.len(), close };
            }
            (Kind::Think, Some(think)) => self.think(think, sink),
            _ => {
                let gap = self.gap.get_or_insert(Gap { held: String::new(), after: After::Text });
                gap.held.push_str(marker);
            }
        }
    }

    fn call(
        &mut self,
        c: char,
        mut reader: Reader,
        mut raw: String,
        marker: usize,
        close: Option<&'static str>,
        sink: &mut Sink,
    ) {
        match reader.push(c, &sink.tools) {
            Progress::More => {
                raw.push(c);
                self.state = State::Call { reader, raw, marker, close };
            }
            Progress::Done => {
                raw.push(c);
                let calls = reader.calls(&raw[marker..], &sink.tools);
                if !sink.calls(calls) {
                    return self.show(&raw, sink);
                }
                self.gap = Gap::new(After::Call);
                let close = close.filter(|_| !reader.closed());
                self.state = close.map_or(State::Text, |close| State::Closing { close });
            }
            Progress::Failed => {
                self.show(&raw, sink);
                if marker == 0 && raw.is_empty() {
                    return self.show(c.encode_utf8(&mut [0; 4]), sink);
                }
                self.push(c, sink);
            }
        }
    }

    fn closing(&mut self, c: char, close: &'static str, sink: &mut Sink) {
        if self.watch.is_empty() && c.is_whitespace() {
            self.state = State::Closing { close };
            return self.hold(c);
        }
        self.free.clear();
        match self.watch.push(c, &[close], &mut self.free) {
            Some(_) => self.gap = Gap::new(After::Call),
            None if self.free.is_empty() => self.state = State::Closing { close },
            None => {
                let text = std::mem::take(&mut self.free) + &self.watch.take();
                text.chars().for_each(|c| self.push(c, sink));
            }
        }
    }

    /// Keeps a character until it is known what follows.
    fn hold(&mut self, c: char) {
        if let Some(gap) = &mut self.gap {
            gap.held.push(c);
        }
    }

    /// Shows text, after what was kept before it.
    fn show(&mut self, text: &str, sink: &mut Sink) {
        if let Some(gap) = self.gap.take() {
            let space = gap.after == After::Reasoning;
            sink.text(if space { gap.held.trim_start() } else { &gap.held });
        }
        sink.text(text);
    }
}
