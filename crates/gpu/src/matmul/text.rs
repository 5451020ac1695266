//! What is done to the text of a shader before it is compiled.

use std::collections::HashSet;
use std::fmt::Write;

use crate::Constant;

/// Repeats what stands between lines `//each NAME COUNT` and `//end`, with the word NAME replaced by
/// 0, 1, ... Words end at underscores too. COUNT is a number or the name of a constant.
pub(crate) fn unroll(source: &str, constants: &[(&str, Constant)]) -> String {
    let mut lines = source.lines();
    let mut out = String::new();
    unroll_block(&mut lines, constants, &mut out);
    out
}

fn unroll_block(lines: &mut std::str::Lines<'_>, constants: &[(&str, Constant)], out: &mut String) {
    while let Some(line) = lines.next() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["//end"] => return,
            ["//each", name, count] => {
                let named = constants.iter().find(|(constant, _)| *constant == count);
                let count = match named {
                    Some((_, Constant::Uint(n))) => *n,
                    _ => count.parse().expect("a shader repeats a whole number of times"),
                };
                let mut body = String::new();
                unroll_block(lines, constants, &mut body);
                (0..count).for_each(|i| replace_word(&body, name, &i.to_string(), out));
            }
            _ => {
                out.push_str(line);
                out.push('\n');
            }
        }
    }
}

fn replace_word(text: &str, word: &str, by: &str, out: &mut String) {
    let mut rest = text;
    let mut before = ' ';
    while let Some(at) = rest.find(word) {
        let end = at + word.len();
        before = rest[..at].chars().next_back().unwrap_or(before);
        let after = rest[end..].chars().next().unwrap_or(' ');
        let is_word = !before.is_alphanumeric() && !after.is_alphanumeric();
        out.push_str(&rest[..at]);
        out.push_str(if is_word { by } else { word });
        before = word.chars().next_back().unwrap_or(before);
        rest = &rest[end..];
    }
    out.push_str(rest);
}

/// The text with every name that it defines outside of functions, and these other names, followed by `_` and a
/// number: so several such texts can be one shader. Declarations of bindings and immediates are left out.
pub(super) fn numbered(text: &str, others: &[&str], number: usize) -> String {
    let own = text.lines().filter_map(defined);
    let names: HashSet<&str> = own.chain(others.iter().copied()).collect();
    let mut out = String::new();
    let is_bound = |line: &&str| line.starts_with("@group") || line.starts_with("var<immediate>");
    for line in text.lines().filter(|line| !is_bound(line)) {
        let code = line.split("//").next().unwrap_or_default();
        let mut rest = code;
        while let Some(start) = rest.find(|c: char| c.is_alphabetic() || c == '_') {
            let end = rest[start..].find(|c: char| !c.is_alphanumeric() && c != '_');
            let end = end.map_or(rest.len(), |end| start + end);
            let is_field = rest[..start].ends_with('.');
            let name = &rest[start..end];
            out.push_str(&rest[..end]);
            if !is_field && names.contains(name) {
                let _ = write!(out, "_{number}");
            }
            rest = &rest[end..];
        }
        out.push_str(rest);
        out.push('\n');
    }
    out
}

/// The name that a line defines outside of functions, if it does.
fn defined(line: &str) -> Option<&str> {
    let declared = ["fn ", "const ", "struct "].iter().find_map(|word| line.strip_prefix(word));
    let variable = || {
        let (before, name) = line.split_once("> ")?;
        (before.starts_with("var<") || before.starts_with("@group")).then_some(name)
    };
    let name = declared.or_else(variable)?;
    name.split(|c: char| !c.is_alphanumeric() && c != '_').next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_repeated_with_their_number() {
        let constants = [("COUNT", Constant::Uint(2))];
        let source = "a\n//each I COUNT\n//each J 2\nx_I_J + JI + I;\n//end\n//end\nb\n";
        let expected = "a\nx_0_0 + JI + 0;\nx_0_1 + JI + 0;\nx_1_0 + JI + 1;\nx_1_1 + JI + 1;\nb\n";
        assert_eq!(unroll(source, &constants), expected);
    }
    #[test]
    fn names_of_a_text_get_a_number() {
        let text = "@group(0) @binding(1) var<storage, read> w: array<u32>;\nvar<private> a: u32; // a\n\
            fn b(x: u32) -> u32 { return P.a + a + w[x] + w_a(x) + OTHER; }\nconst C: u32 = 1u;\n";
        let expected = "var<private> a_7: u32; \n\
            fn b_7(x: u32) -> u32 { return P.a + a_7 + w_7[x] + w_a(x) + OTHER_7; }\nconst C_7: u32 = 1u;\n";
        assert_eq!(numbered(text, &["OTHER"], 7), expected);
    }
}
