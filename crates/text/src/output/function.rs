//! Tool calls written as `<function=NAME><parameter=KEY>value</parameter></function>`, or with
//! JSON between the tags.

use serde_json::{Map, Value};

use super::body::Progress;
use super::json::{JsonScan, arguments_object};
use super::markers::Watch;
use super::sink::{Call, Tools};

pub(super) const OPEN: &str = "<function=";
const CLOSE: &str = "</function>";
const PARAMETER: &str = "<parameter=";
const VALUE_END: &str = "</parameter>";
const LONGEST_NAME: usize = 128;

/// Finds the closing tag, a character at a time.
#[derive(Clone, Debug)]
pub(super) struct FunctionScan {
    at: At,
    watch: Watch,
    text: String,
}

#[derive(Clone, Debug)]
enum At {
    Open,
    Name,
    Between,
    Key,
    Value,
    Json(JsonScan),
    Close,
}

impl FunctionScan {
    /// Starts before the opening tag, or after its `=`.
    pub fn new(opened: bool) -> Self {
        let at = if opened { At::Name } else { At::Open };
        Self { at, watch: Watch::default(), text: String::new() }
    }

    pub fn push(&mut self, c: char, known: impl Fn(&str) -> bool) -> Progress {
        match self.next(c, known) {
            Ok(None) => Progress::More,
            Ok(Some(at)) => {
                self.at = at;
                self.text.clear();
                Progress::More
            }
            Err(progress) => progress,
        }
    }

    fn next(
        &mut self,
        c: char,
        known: impl Fn(&str) -> bool,
    ) -> std::result::Result<Option<At>, Progress> {
        let failed = Err(Progress::Failed);
        match &mut self.at {
            At::Open | At::Close | At::Between => {
                if matches!(self.at, At::Between) && c == '{' && self.watch.is_empty() {
                    let mut json = JsonScan::new(false);
                    _ = json.push(c);
                    return Ok(Some(At::Json(json)));
                }
                let markers: &[&str] = match self.at {
                    At::Open => &[OPEN],
                    At::Close => &[CLOSE],
                    _ => &[CLOSE, PARAMETER],
                };
                let found = self.watch.push(c, markers, &mut self.text);
                if !self.text.trim().is_empty() {
                    return failed;
                }
                self.text.clear();
                match found.map(|found| markers[found]) {
                    None => Ok(None),
                    Some(OPEN) => Ok(Some(At::Name)),
                    Some(PARAMETER) => Ok(Some(At::Key)),
                    Some(_) => Err(Progress::Done),
                }
            }
            At::Name if c == '>' => {
                if known(self.text.trim()) {
                    Ok(Some(At::Between))
                } else {
                    failed
                }
            }
            At::Key if c == '>' => Ok(Some(At::Value)),
            At::Name | At::Key => {
                self.text.push(c);
                if c == '\n' || self.text.len() > LONGEST_NAME { failed } else { Ok(None) }
            }
            At::Value => {
                let found = self.watch.push(c, &[VALUE_END], &mut self.text);
                self.text.clear();
                Ok(found.map(|_| At::Between))
            }
            At::Json(json) => match json.push(c) {
                Progress::More => Ok(None),
                Progress::Done => Ok(Some(At::Close)),
                Progress::Failed => failed,
            },
        }
    }
}

/// The call in a text that [`FunctionScan`] found whole; its opening tag may be missing.
pub(super) fn call(text: &str, tools: &Tools) -> Option<Call> {
    let text = text.trim();
    let (name, body) = text.strip_prefix(OPEN).unwrap_or(text).split_once('>')?;
    let name = name.trim().to_owned();
    let body = body.trim_start();
    if body.starts_with('{') {
        let arguments = arguments_object(body.strip_suffix(CLOSE)?)?;
        return Some(Call { name, arguments });
    }
    let mut rest = body;
    let mut fields = Map::new();
    while let Some(parameter) = rest.strip_prefix(PARAMETER) {
        let (key, value) = parameter.split_once('>')?;
        let (value, after) = value.split_once(VALUE_END)?;
        let value = value.strip_prefix('\n').unwrap_or(value);
        let value = value.strip_suffix('\n').unwrap_or(value);
        let key = key.trim();
        fields.insert(key.to_owned(), tools.value(&name, key, value));
        rest = after.trim_start();
    }
    let arguments = Value::Object(fields).to_string();
    (rest == CLOSE).then_some(Call { name, arguments })
}
