//! What the files of a model begin with.

use std::fmt;

use crate::{Error, Result};

/// What the names of a model's files begin with: letters, digits and `. - _`, a letter first, so that it is a
/// part of a file's name on any system, a plain text in YAML, and no pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prefix(String);

/// What programs look for in names to tell what comes before it from what comes behind.
const MARKS: [&str; 4] = ["_lut", "_chunk", "_FFN_PF", "__"];
/// Words that are no text in YAML.
const WORDS: [&str; 9] = ["true", "false", "null", "yes", "no", "on", "off", "y", "n"];

impl Prefix {
    /// A prefix.
    ///
    /// # Errors
    /// If the programs that read it would not.
    pub fn new(text: &str) -> Result<Prefix> {
        let wrong = |what: String| Err(Error::Unsupported { what, instead: INSTEAD.to_owned() });
        let legal = |c: char| c.is_ascii_alphanumeric() || ".-_".contains(c);
        if !text.starts_with(|c: char| c.is_ascii_alphabetic()) || !text.chars().all(legal) {
            return wrong(format!("the prefix {text:?}"));
        }
        if let Some(mark) = MARKS.iter().find(|mark| text.contains(**mark)) {
            return wrong(format!("{mark:?} in the prefix {text:?}"));
        }
        if text.ends_with(['_', '.']) || WORDS.contains(&text.to_ascii_lowercase().as_str()) {
            return wrong(format!("the prefix {text:?}"));
        }
        Ok(Prefix(text.to_owned()))
    }

    /// The prefix that the name of a model gives: other characters are left out, and where nothing is left,
    /// it is `model`.
    pub fn of_model(name: &str) -> Prefix {
        let legal = |c: char| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' };
        let text: String = name.chars().map(legal).collect();
        let text = text.trim_start_matches(|c: char| !c.is_ascii_alphabetic());
        let text = text.trim_end_matches(|c: char| !c.is_ascii_alphanumeric());
        Prefix::new(text).unwrap_or_else(|_| Prefix("model".to_owned()))
    }
}

const INSTEAD: &str = "take letters, digits, '.', '-' and '_', a letter first, and none of the marks that \
    these files have behind their prefix";

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_has_no_character_that_programs_stumble_over() {
        for good in ["qwen", "Llama-3.2-1B", "a_b", "x1"] {
            assert_eq!(Prefix::new(good).unwrap().to_string(), good);
        }
        for bad in [
            "", "1b", "a/b", "a b", "..", "a*", "ä", "a\"", "a_", "x_lut4", "a_chunk1", "a__b",
            "Yes",
        ] {
            let error = Prefix::new(bad).unwrap_err().to_string();
            assert!(error.contains("prefix") && error.contains("letters"), "{bad}: {error}");
        }
    }

    #[test]
    fn names_of_models_become_prefixes() {
        for (name, prefix) in [
            ("Qwen3 0.6B", "Qwen3-0.6B"),
            ("SmolLM2_135M", "SmolLM2-135M"),
            ("7b/Über", "b--ber"),
            ("", "model"),
            ("123", "model"),
            ("no", "model"),
        ] {
            assert_eq!(Prefix::of_model(name).to_string(), prefix);
        }
    }
}
