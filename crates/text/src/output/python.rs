//! Tool calls written as Python: `weather(place="Oslo", days=2)`, alone or in a list.

use serde_json::Value;

use super::body::Progress;
use super::literal::Literals;
use super::sink::Call;

/// The longest name of a function that is waited for.
const LONGEST_NAME: usize = 128;
/// Brackets that may be open at a time.
const MAX_DEPTH: usize = 100;

/// Finds the end of a list of calls, or of a call, a character at a time. Says at once if it begins
/// like something else.
#[derive(Clone, Debug, Default)]
pub(super) struct PythonScan {
    depth: usize,
    /// The quote around the text that is being read.
    quote: Option<char>,
    escaped: bool,
    name: String,
    named: bool,
}

impl PythonScan {
    /// Takes a character; `known` says whether a name is one of a tool.
    pub fn push(&mut self, c: char, known: impl Fn(&str) -> bool) -> Progress {
        if !self.named {
            return self.push_name(c, known);
        }
        if let Some(quote) = self.quote {
            self.push_text(c, quote);
            return Progress::More;
        }
        // Long texts in three quotes come out as an empty one, the text, and an empty one.
        match c {
            '"' | '\'' => self.quote = Some(c),
            '(' | '[' | '{' if self.depth == MAX_DEPTH => return Progress::Failed,
            '(' | '[' | '{' => self.depth += 1,
            ')' | ']' | '}' => {
                self.depth -= 1;
                if self.depth == 0 {
                    return Progress::Done;
                }
            }
            _ => {}
        }
        Progress::More
    }

    fn push_name(&mut self, c: char, known: impl Fn(&str) -> bool) -> Progress {
        match c {
            '[' if self.depth == 0 && self.name.is_empty() => self.depth = 1,
            '(' if known(self.name.trim_end()) => {
                self.depth += 1;
                self.named = true;
            }
            _ if c.is_whitespace() && self.name.is_empty() => {}
            _ if c.is_alphanumeric() || matches!(c, '_' | '.' | '-') => {
                self.name.push(c);
                if self.name.len() > LONGEST_NAME {
                    return Progress::Failed;
                }
            }
            _ => return Progress::Failed,
        }
        Progress::More
    }

    fn push_text(&mut self, c: char, quote: char) {
        if self.escaped {
            self.escaped = false;
        } else if c == '\\' {
            self.escaped = true;
        } else if c == quote {
            self.quote = None;
        }
    }
}

/// The calls in a text: one, a list, or several in lines; `print(…)` around one is looked through.
pub(super) fn calls(text: &str) -> Option<Vec<Call>> {
    let mut literals = Literals::new(text);
    let mut calls = Vec::new();
    let list = literals.eat("[");
    loop {
        while !list && literals.eat(";") {}
        if list && literals.eat("]") {
            break;
        }
        literals.skip_space();
        if !list && literals.rest().is_empty() {
            break;
        }
        calls.push(call(&mut literals, true)?);
        if list && !literals.eat(",") {
            if !literals.eat("]") {
                return None;
            }
            break;
        }
    }
    literals.skip_space();
    literals.rest().is_empty().then_some(calls)
}

fn call(literals: &mut Literals<'_>, may_print: bool) -> Option<Call> {
    let name = literals.name(&['.', '-'])?;
    if !literals.eat("(") {
        return None;
    }
    if name == "print" && may_print {
        let call = call(literals, false)?;
        return literals.eat(")").then_some(call);
    }
    let arguments = Value::Object(literals.fields("=", ")")?).to_string();
    Some(Call { name: name.to_owned(), arguments })
}

/// Finds the closing fence after calls in lines.
#[derive(Clone, Debug, Default)]
pub(super) struct FenceScan {
    call: Option<PythonScan>,
    ticks: usize,
}

impl FenceScan {
    /// As [`PythonScan::push`]; done at the end of the fence.
    pub fn push(&mut self, c: char, known: impl Fn(&str) -> bool) -> Progress {
        let known = |name: &str| name == "print" || known(name);
        if let Some(call) = &mut self.call {
            match call.push(c, known) {
                Progress::Done => self.call = None,
                other => return other,
            }
            return Progress::More;
        }
        match c {
            '`' if self.ticks == 2 => return Progress::Done,
            '`' => self.ticks += 1,
            _ if self.ticks > 0 => return Progress::Failed,
            ';' => {}
            _ if c.is_whitespace() => {}
            _ => return self.call.insert(PythonScan::default()).push(c, known),
        }
        Progress::More
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Option<Vec<(String, String)>> {
        Some(calls(text)?.into_iter().map(|call| (call.name, call.arguments)).collect())
    }

    #[test]
    fn calls_are_read_in_every_form() {
        let call = |name: &str, arguments: &str| (name.to_owned(), arguments.to_owned());
        let f = call("f", r#"{"a":1}"#);
        assert_eq!(read("f(a=1)"), Some(vec![f.clone()]));
        assert_eq!(read(" [ f(a = 1) , a.g() ]\n"), Some(vec![f.clone(), call("a.g", "{}")]));
        assert_eq!(read("print(f(a=1))\nf(a=1);"), Some(vec![f.clone(), f]));
        for text in
            ["f", "f(1)", "f(a=1", "[f()", "[f() g()]", "f() x", "print(print(f()))", "f(a=b)"]
        {
            assert_eq!(read(text), None, "{text}");
        }
    }

    #[test]
    fn the_end_is_found_at_once() {
        let end = |text: &str| {
            let mut scan = PythonScan::default();
            for (place, c) in text.char_indices() {
                match scan.push(c, |name| name == "f") {
                    Progress::More => {}
                    Progress::Done => return Some(place),
                    Progress::Failed => return None,
                }
            }
            panic!("no end in {text}")
        };
        assert_eq!(end(r#"f(a=")\")", b='(') tail"#), Some(17));
        assert_eq!(end("[f(), f()] tail"), Some(9));
        assert_eq!(end("f(a='''(''')"), Some(11));
        assert_eq!(end("g()"), None);
        assert_eq!(end("[1, 2]"), None);
        assert_eq!(end(&format!("f({}", "[".repeat(1000))), None);
    }
}
