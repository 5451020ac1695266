//! What stands between the markers of a tool call, read a character at a time.

use super::function::{self, FunctionScan};
use super::json::{self, JsonScan};
use super::markers::Watch;
use super::python::{self, FenceScan, PythonScan};
use super::sink::{Call, Tools};
use super::tagged::Inside;

/// The longest name between `[TOOL_CALLS]` and the arguments.
const LONGEST_HEAD: usize = 256;

/// How far a reader is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// It needs more.
    More,
    /// The character ended it.
    Done,
    /// It is no call, or none of a known tool; the character belongs to what follows.
    Failed,
}

/// What a marker announces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Body {
    /// JSON, a list of Python calls, or a function in tags.
    Any,
    /// As `Any`, but nothing announced it: it must look like a call from the start.
    Bare,
    /// As `Bare`, up to a closing fence.
    Fence,
    /// A function in tags, after its `<function=`.
    Function,
    /// JSON, or a name and JSON.
    Named,
    /// Anything up to a closing tag.
    Tagged(Inside, &'static str),
}

/// Reads one body.
#[derive(Clone, Debug)]
pub(super) struct Reader {
    body: Body,
    scan: Scan,
}

#[derive(Clone, Debug)]
enum Scan {
    /// Only space, or a bracket and space, has come.
    Start(String),
    Json(JsonScan),
    Python(PythonScan),
    Fence(FenceScan),
    Function(FunctionScan),
    /// The name before the arguments.
    Head(usize),
    Tagged(Watch),
}

impl Reader {
    pub fn new(body: Body) -> Self {
        let scan = match body {
            Body::Function => Scan::Function(FunctionScan::new(true)),
            Body::Tagged(Inside::ArgKeys, _) => Scan::Start(String::new()),
            Body::Tagged(..) => Scan::Tagged(Watch::default()),
            _ => Scan::Start(String::new()),
        };
        Self { body, scan }
    }

    /// Takes the next character.
    pub fn push(&mut self, c: char, tools: &Tools) -> Progress {
        let known = |name: &str| tools.knows(name);
        match &mut self.scan {
            Scan::Start(_) => self.start(c, tools),
            Scan::Json(scan) => scan.push(c),
            Scan::Python(scan) => scan.push(c, known),
            Scan::Fence(scan) => scan.push(c, known),
            Scan::Function(scan) => scan.push(c, known),
            Scan::Head(length) => {
                *length += 1;
                if c == '{' {
                    self.scan = Scan::Json(JsonScan::new(false));
                    return self.push(c, tools);
                }
                let fits = c.is_alphanumeric()
                    || matches!(c, '_' | '-' | '.' | ':' | '/' | '[' | ']' | ' ');
                if fits && *length <= LONGEST_HEAD { Progress::More } else { Progress::Failed }
            }
            Scan::Tagged(watch) => {
                let Body::Tagged(_, close) = self.body else { return Progress::Failed };
                match watch.push(c, &[close], &mut String::new()) {
                    Some(_) => Progress::Done,
                    None => Progress::More,
                }
            }
        }
    }

    /// Chooses the form by the first characters.
    fn start(&mut self, c: char, tools: &Tools) -> Progress {
        let Scan::Start(bracket) = &mut self.scan else { return Progress::Failed };
        if c.is_whitespace() {
            // Inside a list it is read again when its form is known.
            if !bracket.is_empty() {
                bracket.push(c);
            }
            return Progress::More;
        }
        let bare = matches!(self.body, Body::Bare | Body::Fence);
        let json = || Scan::Json(JsonScan::new(bare));
        let named = self.body == Body::Named;
        let begun = std::mem::take(bracket);
        self.scan = match (begun.is_empty(), c) {
            (true, '{') => json(),
            (true, '[') if named => json(),
            (true, '[') => {
                bracket.push(c);
                return Progress::More;
            }
            (false, '{' | ']') => json(),
            (true, '<') if self.body == Body::Any => Scan::Function(FunctionScan::new(false)),
            (true, _) if named => Scan::Head(0),
            (true, _) if matches!(self.body, Body::Tagged(..)) => Scan::Tagged(Watch::default()),
            _ if self.body == Body::Fence => Scan::Fence(FenceScan::default()),
            (false, _) => Scan::Python(PythonScan::default()),
            (true, _) => return Progress::Failed,
        };
        begun.chars().chain([c]).fold(Progress::More, |progress, c| match progress {
            Progress::More => self.push(c, tools),
            other => other,
        })
    }

    /// Whether the closing marker was read with the body.
    pub fn closed(&self) -> bool {
        matches!(self.scan, Scan::Fence(_) | Scan::Tagged(_))
    }

    /// The calls in `text`, the body as far as it was read.
    pub fn calls(&self, text: &str, tools: &Tools) -> Option<Vec<Call>> {
        match &self.scan {
            Scan::Start(_) => None,
            Scan::Json(_) if self.body == Body::Named => named(text),
            Scan::Json(_) => json::calls(text),
            Scan::Python(_) => python::calls(text),
            Scan::Fence(_) => python::calls(text.strip_suffix("```").unwrap_or(text)),
            Scan::Function(_) => Some(vec![function::call(text, tools)?]),
            Scan::Head(_) => None,
            Scan::Tagged(_) => {
                let Body::Tagged(inside, close) = self.body else { return None };
                Some(vec![inside.call(text.strip_suffix(close).unwrap_or(text), tools)?])
            }
        }
    }
}

/// JSON, or a name and JSON: `NAME{…}`, `NAME[ARGS]{…}`, `NAME[CALL_ID]id[ARGS]{…}`.
fn named(text: &str) -> Option<Vec<Call>> {
    let text = text.trim();
    if text.starts_with(['[', '{']) {
        return json::calls(text);
    }
    let (head, _) = text.split_once('{')?;
    let arguments = json::arguments_object(&text[head.len()..])?;
    let head = head.trim();
    let head = head.strip_suffix("[ARGS]").unwrap_or(head);
    let name = head.split_once("[CALL_ID]").map_or(head, |(name, _)| name).trim();
    Some(vec![Call { name: name.to_owned(), arguments }])
}
