//! The part of YAML that descriptions of folders are written in: mappings in mappings by indentation, whose
//! values are scalars, lists in brackets or with dashes, or texts of several lines.

use std::collections::BTreeMap;

/// Most lines, and most mappings around a value.
const MOST_LINES: usize = 4096;
const DEEPEST: usize = 16;

/// The values by the keys that lead to them, with dots between these. Lists are texts with commas.
///
/// # Errors
/// If a line is of another form, with its number.
pub(super) fn parse(text: &str) -> Result<BTreeMap<String, String>, String> {
    let mut values: BTreeMap<String, String> = BTreeMap::new();
    // Keys that the next line may lie in, with their indentation.
    let mut open: Vec<(usize, String)> = Vec::new();
    // The indentation of the key whose value is a text of several lines.
    let mut block: Option<usize> = None;
    for (i, line) in text.lines().enumerate() {
        let wrong = |problem: &str| format!("line {}: {problem}", i + 1);
        if i == MOST_LINES {
            return Err(wrong("there are too many"));
        }
        let content = line.trim();
        let indent = line.len() - line.trim_start_matches(' ').len();
        if let Some(outer) = block {
            if content.is_empty() || indent > outer {
                append(&mut values, &open, content, "\n");
                continue;
            }
            block = None;
        }
        if content.is_empty() || content.starts_with('#') || content == "---" {
            continue;
        }
        if line[indent..].starts_with('\t') {
            return Err(wrong("begins with a tab, which is no indentation"));
        }
        if let Some(item) = content.strip_prefix('-').filter(|item| item.starts_with(' ')) {
            append(&mut values, &open, &scalar(item).map_err(|problem| wrong(&problem))?, ",");
            continue;
        }
        let Some((key, value)) = entry(content) else {
            return Err(wrong("is neither a key with a value nor an item of a list"));
        };
        open.retain(|(outer, _)| *outer < indent);
        if open.len() == DEEPEST {
            return Err(wrong("lies in too many mappings"));
        }
        open.push((indent, key));
        let value = value.trim();
        if value.starts_with(['|', '>']) {
            block = Some(indent);
            continue;
        }
        let value = scalar(value).map_err(|problem| wrong(&problem))?;
        if !value.is_empty() && values.insert(path(&open), value).is_some() {
            return Err(wrong("has a key that was there before"));
        }
    }
    Ok(values)
}

fn path(open: &[(usize, String)]) -> String {
    let keys: Vec<&str> = open.iter().map(|(_, key)| key.as_str()).collect();
    keys.join(".")
}

fn append(
    values: &mut BTreeMap<String, String>,
    open: &[(usize, String)],
    text: &str,
    separator: &str,
) {
    let value = values.entry(path(open)).or_default();
    if !value.is_empty() {
        value.push_str(separator);
    }
    value.push_str(text);
}

/// A key and its value.
fn entry(content: &str) -> Option<(String, &str)> {
    let (key, value) = match content.strip_suffix(':').filter(|key| !key.contains(": ")) {
        Some(key) => (key, ""),
        None => content.split_once(": ")?,
    };
    let key = key.trim().trim_matches(['"', '\'']);
    (!key.is_empty()).then(|| (key.to_owned(), value))
}

/// A value without its quotes, brackets and comment.
fn scalar(text: &str) -> Result<String, String> {
    let text = text.trim();
    if text.starts_with('"') {
        let mut values = serde_json::Deserializer::from_str(text).into_iter::<String>();
        return match values.next() {
            Some(Ok(value)) => Ok(value),
            _ => Err("has a text in quotes that is none".to_owned()),
        };
    }
    if let Some(rest) = text.strip_prefix('\'') {
        let end = rest.rfind('\'').ok_or("has a text in quotes that does not end")?;
        return Ok(rest[..end].replace("''", "'"));
    }
    let text = text.split_once(" #").map_or(text, |(text, _)| text).trim_end();
    let list = text.strip_prefix('[').and_then(|text| text.strip_suffix(']'));
    Ok(list.unwrap_or(text).trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_found_by_their_keys_whatever_the_style() {
        let text = "# made by a script\n---\nmodel_info:\n  name: \"a \\\"b\\\"\"   # shown\n  description: |\n    two\n      lines: here\n\n  license: 'it''s free'\n  parameters:\n    context_length: 512\n    sizes: [8, 8]\n    more:\n      - 1\n      - 2\n    file: a_b.mlmodelc\nother: x";
        let values = parse(text).unwrap();
        let expected = [
            ("model_info.name", "a \"b\""),
            ("model_info.description", "two\nlines: here\n"),
            ("model_info.license", "it's free"),
            ("model_info.parameters.context_length", "512"),
            ("model_info.parameters.sizes", "8, 8"),
            ("model_info.parameters.more", "1,2"),
            ("model_info.parameters.file", "a_b.mlmodelc"),
            ("other", "x"),
        ];
        for (key, value) in expected {
            assert_eq!(values.get(key).map(String::as_str), Some(value), "{key}");
        }
        assert_eq!(values.len(), expected.len());
    }

    #[test]
    fn what_is_of_another_form_is_told_with_its_line() {
        let deep: String = (0..20).map(|i| format!("{}k{i}:\n", " ".repeat(i))).collect();
        let long = "a: 1\n".replace('1', "") + &"# c\n".repeat(5000);
        for (text, problem) in [
            ("a: 1\nnonsense", "line 2: is neither"),
            ("a: 1\na: 2", "line 2: has a key"),
            ("a:\n\tb: 1", "line 2: begins with a tab"),
            ("a: \"x", "line 1: has a text in quotes"),
            ("a: 'x", "line 1: has a text in quotes"),
            (&deep, "too many mappings"),
            (&long, "line 4097: there are too many"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(problem), "{text:.20}: {error}");
        }
    }
}
