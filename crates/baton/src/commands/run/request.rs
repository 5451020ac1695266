//! Which words of the command line are the model and which the prompt.

use baton_hub::{Reference, Store};

use super::Args;
use crate::failure::{hinted, note, usage};
use crate::models::{self, Meaning};

/// What is asked of which model.
#[derive(Debug, PartialEq, Eq)]
pub struct Request {
    /// The model.
    pub model: Reference,
    /// The prompt on the command line.
    pub prompt: Option<String>,
}

/// Tells model and prompt apart.
///
/// # Errors
/// If the words make no sense together, or name no model.
pub fn understand(args: &Args, store: &Store) -> anyhow::Result<Request> {
    let words: Vec<&str> = args.words.iter().map(String::as_str).collect();
    let (model, prompt) = match (&args.model, words.as_slice()) {
        (Some(model), words) => (models::resolve(store, model)?, text(words)),
        (None, []) => (default(store)?, None),
        // With -p, the one word can only be the model.
        (None, [model]) if args.prompt.is_some() => (models::resolve(store, model)?, None),
        (None, [word]) => match models::meaning(store, word)? {
            Meaning::Model(model) => (model, None),
            Meaning::Prompt(near) => {
                // A short word is like many names.
                let is_meant = |near: &&String| word.len() > 3 || near.starts_with("./");
                if let Some(near) = near.first().filter(is_meant) {
                    note(format_args!(
                        "no model is called {word:?}, so it is taken as the prompt; did you mean {near}?"
                    ));
                }
                (default(store)?, Some((*word).to_owned()))
            }
        },
        (None, [model, prompt @ ..]) => match models::meaning(store, model)? {
            Meaning::Model(reference) => (reference, text(prompt)),
            Meaning::Prompt(near) => {
                let hint = match near.first() {
                    Some(near) => format!("did you mean {near}?"),
                    None => "put a prompt of several words in quotes: baton run \"…\"".into(),
                };
                return Err(hinted(format_args!("no model is called {model:?}"), hint));
            }
        },
    };
    let prompt = match (prompt, &args.prompt) {
        (Some(_), Some(_)) => {
            return Err(usage("the prompt is given twice: as an argument and by -p"));
        }
        (prompt, flag) => prompt.or_else(|| flag.clone()),
    };
    Ok(Request { model, prompt: prompt.filter(|prompt| !prompt.trim().is_empty()) })
}

fn default(store: &Store) -> anyhow::Result<Reference> {
    models::resolve(store, store.catalog().default_model())
}

fn text(words: &[&str]) -> Option<String> {
    if words.is_empty() { None } else { Some(words.join(" ")) }
}

/// The prompt of the command line with what was piped in below it.
pub fn join(prompt: Option<String>, piped: Option<String>) -> Option<String> {
    match (prompt, piped) {
        (Some(prompt), Some(piped)) => Some(format!("{prompt}\n\n{piped}")),
        (prompt, piped) => prompt.or(piped),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Command};
    use baton_hub::Settings;
    use clap::Parser;

    fn understood(words: &[&str]) -> anyhow::Result<(String, Option<String>)> {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::with_settings(Settings::at(dir.path())).unwrap();
        let line = ["baton", "run"].iter().chain(words);
        let Command::Run(args) = Cli::try_parse_from(line)?.command else { unreachable!() };
        let request = understand(&args, &store)?;
        Ok((request.model.to_string(), request.prompt))
    }

    #[test]
    fn model_and_prompt_are_told_apart() {
        for (words, model, prompt) in [
            (&[][..], "smollm2", None),
            (&["Why is the sky blue?"], "smollm2", Some("Why is the sky blue?")),
            (&["gemma3:270m"], "gemma3:270m", None),
            (&["gemma3:270m", "Hi", "there"], "gemma3:270m", Some("Hi there")),
            (&["./x.gguf", "Hi"], "./x.gguf", Some("Hi")),
            (&["hf:a/b:Q8_0", "Hi"], "hf:a/b:Q8_0", Some("Hi")),
            (
                &["-m", "qwen3:0.6b", "gemma3:270m", "or", "not"],
                "qwen3:0.6b",
                Some("gemma3:270m or not"),
            ),
            (&["--repo-id", "a/b", "--prompt", "Hi"], "hf:a/b", Some("Hi")),
            (&["gemma3:270m", "-p", "Hi"], "gemma3:270m", Some("Hi")),
            (&["-p", "Hi"], "smollm2", Some("Hi")),
            (&["hello"], "smollm2", Some("hello")),
            (&["-n", "5", "--", "-n"], "smollm2", Some("-n")),
            (&[" "], "smollm2", None),
        ] {
            let (found_model, found_prompt) = understood(words).unwrap();
            assert_eq!(
                (found_model.as_str(), found_prompt.as_deref()),
                (model, prompt),
                "{words:?}"
            );
        }
    }

    #[test]
    fn contradictions_are_refused() {
        for words in [
            &["why", "is", "the", "sky", "blue"][..],
            &["-m", "smollm2", "Hi", "-p", "Hi"],
            &["-m", "nosuchmodel", "Hi"],
            &["--raw", "--system", "x", "Hi"],
            &["--json", "--interactive", "Hi"],
            &["--temp", "-1", "Hi"],
            &["--ctx", "0", "Hi"],
        ] {
            assert!(understood(words).is_err(), "{words:?}");
        }
    }

    #[test]
    fn what_is_piped_in_comes_last() {
        let text = |s: &str| Some(s.to_owned());
        assert_eq!(join(text("a"), text("b")), text("a\n\nb"));
        assert_eq!(join(None, text("b")), text("b"));
        assert_eq!(join(text("a"), None), text("a"));
        assert_eq!(join(None, None), None);
    }
}
