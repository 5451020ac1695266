//! From what a user typed to a model on this machine.

use std::path::Path;

use baton_hub::{Error, LocalModel, Reference, Store};

use crate::failure::{self, hinted, note};
use crate::progress::Download;

/// The models of this machine and the catalog.
///
/// # Errors
/// If the environment names no place for them, or the user's catalog is damaged.
pub fn store() -> anyhow::Result<Store> {
    Ok(Store::open_default()?)
}

/// Says so if the store is empty and cannot be filled. One that has models may be read-only.
///
/// # Errors
/// If the store cannot be read.
pub fn warn_if_unusable(store: &Store) -> anyhow::Result<()> {
    if let Err(problem) = store.settings().check_home()
        && store.list()?.is_empty()
    {
        note(problem);
    }
    Ok(())
}

/// What a lone argument of `run` is.
#[derive(Debug, PartialEq, Eq)]
pub enum Meaning {
    /// It names a model.
    Model(Reference),
    /// It names none, so it is a prompt. The names are of models that are spelled much like it.
    Prompt(Vec<String>),
}

/// Decides whether `text` names a model: a name of the catalog or the store, `hf:…`, `ORG/REPO`, an
/// address, or a path.
///
/// # Errors
/// If it has the form of an address but is none.
pub fn meaning(store: &Store, text: &str) -> anyhow::Result<Meaning> {
    let prompt = Ok(Meaning::Prompt(Vec::new()));
    if text.contains(char::is_whitespace) || text.is_empty() {
        let exists = !text.is_empty() && Path::new(text).exists();
        return if exists { Ok(Meaning::Model(Reference::Path(text.into()))) } else { prompt };
    }
    if let Some(path) = strange(text) {
        return Ok(Meaning::Model(path));
    }
    let is_address = ["hf:", "https://", "http://"].iter().any(|form| text.starts_with(form));
    match store.resolve(text) {
        // `.NET?` and `~5` begin like paths.
        Ok(Reference::Path(path)) => {
            let says_path = ["/", "./", "../", "~/"].iter().any(|start| text.starts_with(start))
                || text.to_ascii_lowercase().ends_with(".gguf");
            if says_path || path.exists() {
                Ok(Meaning::Model(Reference::Path(path)))
            } else {
                prompt
            }
        }
        Ok(reference) => Ok(Meaning::Model(reference)),
        Err(Error::UnknownModel { near, .. }) => {
            Ok(Meaning::Prompt(beside(text).into_iter().chain(near).collect()))
        }
        Err(Error::BadReference { .. }) if !is_address => prompt,
        Err(error) => Err(error.into()),
    }
}

/// What is there at a path that no other name may look like, since it has control characters.
fn strange(text: &str) -> Option<Reference> {
    let is_there = text.contains(char::is_control) && Path::new(text).exists();
    is_there.then(|| Reference::Path(text.into()))
}

/// How a file or a folder here is named, if there is one of a name that is no model's.
fn beside(name: &str) -> Option<String> {
    Path::new(name).exists().then(|| format!("./{name}"))
}

/// The model that `text` names.
///
/// # Errors
/// If it names none.
pub fn resolve(store: &Store, text: &str) -> anyhow::Result<Reference> {
    match strange(text) {
        Some(path) => Ok(path),
        None => store.resolve(text).map_err(explain),
    }
}

/// The files of the model of that name, or of the default one.
///
/// # Errors
/// As [`resolve`] and [`get`].
pub fn named_or_default(store: &Store, name: Option<&str>) -> anyhow::Result<LocalModel> {
    let name = name.unwrap_or(store.catalog().default_model());
    get(store, &resolve(store, name)?)
}

/// The model's files; fetches them if they are not here, and shows how that goes.
///
/// # Errors
/// If they cannot be had, or the user pressed Ctrl-C.
pub fn get(store: &Store, reference: &Reference) -> anyhow::Result<LocalModel> {
    let mut progress = Download::new();
    match store.get(reference, &mut progress) {
        Err(Error::Cancelled) => {
            progress.clear();
            note(match progress.resumes() {
                true => {
                    "stopped; what has come so far is kept, and the next try goes on from there"
                }
                false => "stopped; pip cannot resume, so the next try begins this package again",
            });
            Err(failure::Stop::Interrupted.into())
        }
        other => other.map_err(explain),
    }
}

/// Adds what to do, where the hub's own message does not say.
pub fn explain(error: Error) -> anyhow::Error {
    match error {
        Error::UnknownModel { name, mut near } => {
            near.splice(0..0, beside(&name));
            let hint = match near.as_slice() {
                [] => "`baton list --all` shows all names; hf:ORG/REPO, https://… or a path also \
                       names a model"
                    .to_owned(),
                near => format!(
                    "did you mean {}? `baton list --all` shows all names",
                    near.join(" or ")
                ),
            };
            hinted(format_args!("no model is called {name:?}"), hint)
        }
        Error::NotInstalled { name } => hinted(
            format_args!("{name} is not on this machine"),
            "`baton list` shows what is; `baton pull` fetches a model",
        ),
        Error::AllSourcesFailed { name, failures } => {
            // The failures of the others were said when they happened.
            let last = failures.last().map(|last| format!(": {}: {}", last.source, last.error));
            let message = format!("no source could deliver {name}{}", last.unwrap_or_default());
            hinted(message, "check the network, or name a file you have: baton run ./model.gguf")
        }
        error => error.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use baton_hub::Settings;

    #[test]
    fn a_lone_argument_is_a_model_or_a_prompt() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::with_settings(Settings::at(dir.path())).unwrap();
        let file = dir.path().join("with space.gguf");
        std::fs::write(&file, "GGUF").unwrap();
        let is_model = |text: &str| match meaning(&store, text).unwrap() {
            Meaning::Model(_) => true,
            Meaning::Prompt(_) => false,
        };
        for model in [
            "smollm2",
            "SmolLM2",
            "gemma3:270m",
            "hf:org/repo",
            "org/repo",
            "https://example.com/x.gguf",
            "./missing.gguf",
            "/no/such/folder",
            "model.gguf",
            file.to_str().unwrap(),
        ] {
            assert!(is_model(model), "{model}");
        }
        for prompt in [
            "Why is the sky blue?",
            "hello",
            ".NET?",
            "~5",
            "",
            "...",
            "What is in https://example.com/x.gguf ?",
            "Explain model.gguf",
            "what/is/this",
            "naïve",
            "two\nlines",
        ] {
            assert!(!is_model(prompt), "{prompt}");
        }
        assert!(meaning(&store, "https://example.com/page").is_err());
        assert!(meaning(&store, "hf:nonsense").is_err());
        let strange = dir.path().join("x\u{1b}[2J");
        let strange = strange.to_str().unwrap();
        assert!(!is_model(strange));
        std::fs::create_dir(strange).unwrap();
        assert!(is_model(strange) && resolve(&store, strange).is_ok());
        let Meaning::Prompt(near) = meaning(&store, "smolm2").unwrap() else { panic!() };
        assert!(near.contains(&"smollm2".to_owned()), "{near:?}");
    }
}
