//! What the answer must look like: flags of `run`.

use std::fs;
use std::io::Read;

use baton_engine::Grammar;
use serde_json::Value;

use crate::failure::usage;

/// Bytes of a schema or grammar that are read at most.
const MAX_FILE: u64 = 4 << 20;

/// A grammar that the answer is held to, in one of several notations.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Structured output (@FILE stands for what is in that file)")]
#[group(multiple = false)]
pub struct Structure {
    /// Answer with a JSON object (json), or with JSON as this schema describes it
    #[arg(long, value_name = "json|SCHEMA")]
    format: Option<String>,
    /// Answer with JSON as this schema describes it
    #[arg(long, short, value_name = "SCHEMA")]
    json_schema: Option<String>,
    /// Answer with a text that this regular expression matches
    #[arg(long, value_name = "REGEX")]
    regex: Option<String>,
    /// Answer with a text of this Lark grammar
    #[arg(long, value_name = "LARK")]
    grammar: Option<String>,
}

impl Structure {
    /// The grammar, if one was given.
    ///
    /// # Errors
    /// If a file cannot be read, or a schema is not JSON. Whether it can be obeyed is up to the
    /// engine.
    pub fn grammar(&self) -> anyhow::Result<Option<Grammar>> {
        if let Some(format) = &self.format {
            return match format.as_str() {
                "json" => Ok(Some(Grammar::JsonObject)),
                schema => json_schema("--format", schema).map(Some),
            };
        }
        if let Some(schema) = &self.json_schema {
            return json_schema("--json-schema", schema).map(Some);
        }
        if let Some(regex) = &self.regex {
            // A line of a file ends with a line break, which is no part of the expression.
            let regex = text("--regex", regex)?;
            return Ok(Some(Grammar::Regex(regex.trim_end_matches(['\r', '\n']).to_owned())));
        }
        let lark = self.grammar.as_ref().map(|lark| text("--grammar", lark));
        Ok(lark.transpose()?.map(Grammar::Lark))
    }
}

fn json_schema(flag: &str, value: &str) -> anyhow::Result<Grammar> {
    match serde_json::from_str(&text(flag, value)?) {
        Ok(schema @ (Value::Object(_) | Value::Bool(_))) => Ok(Grammar::JsonSchema(schema)),
        Ok(_) => Err(usage(format_args!("{flag} is JSON, but no schema: it must be an object"))),
        Err(error) => Err(usage(format_args!("{flag} is not valid JSON: {error}"))),
    }
}

/// The value of a flag, or what is in the file it names.
fn text(flag: &str, value: &str) -> anyhow::Result<String> {
    let Some(path) = value.strip_prefix('@') else { return Ok(value.to_owned()) };
    let failed = |error| usage(format_args!("{flag}: cannot read {path}: {error}"));
    let file = fs::File::open(path).map_err(failed)?;
    let mut text = String::new();
    file.take(MAX_FILE + 1).read_to_string(&mut text).map_err(failed)?;
    if text.len() as u64 > MAX_FILE {
        return Err(usage(format_args!("{flag}: {path} has more than {} MiB", MAX_FILE >> 20)));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Command};
    use clap::Parser;
    use serde_json::json;

    fn grammar(args: &[&str]) -> anyhow::Result<Option<Grammar>> {
        let line = ["baton", "run", "Hi"].iter().chain(args);
        let Command::Run(args) = Cli::try_parse_from(line)?.command else { unreachable!() };
        args.structure.grammar()
    }

    #[test]
    fn each_notation_is_a_grammar() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = folder.path().join(name);
            fs::write(&path, text).unwrap();
            format!("@{}", path.display())
        };
        let (schema, regex) = (file("a.json", "{\"type\":\"null\"}\n"), file("r", "a+\n"));
        let lark = file("g.lark", "start: \"a\"\n");
        let null = Grammar::JsonSchema(json!({ "type": "null" }));
        for (args, wanted) in [
            (&[][..], None),
            (&["--format", "json"], Some(Grammar::JsonObject)),
            (&["--format", "{\"type\":\"null\"}"], Some(null.clone())),
            (&["-j", "{\"type\":\"null\"}"], Some(null.clone())),
            (&["--json-schema", &schema], Some(null)),
            (&["--regex", "a|b"], Some(Grammar::Regex("a|b".into()))),
            (&["--regex", &regex], Some(Grammar::Regex("a+".into()))),
            (&["--grammar", "start: \"a\""], Some(Grammar::Lark("start: \"a\"".into()))),
            (&["--grammar", &lark], Some(Grammar::Lark("start: \"a\"\n".into()))),
        ] {
            assert_eq!(grammar(args).unwrap(), wanted, "{args:?}");
        }
    }

    #[test]
    fn what_is_no_schema_is_refused() {
        for (args, wanted) in [
            (&["--format", "yaml"][..], "not valid JSON"),
            (&["-j", "{"], "not valid JSON"),
            (&["-j", "[]"], "must be an object"),
            (&["-j", "@/no/such/file"], "cannot read /no/such/file"),
            (&["-j", "{}", "--regex", "a"], "cannot be used with"),
            (&["--format", "json", "--grammar", "a"], "cannot be used with"),
        ] {
            let error = grammar(args).unwrap_err().to_string();
            assert!(error.contains(wanted), "{args:?}: {error}");
        }
    }
}
