//! A chat on disk: what `/save` writes and `/load` reads.

use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};

use crate::failure::hinted;
use crate::paths;
use crate::sampling::Sampling;

/// The only version of the format so far.
const VERSION: u32 = 1;
/// More than any context holds.
const MOST_BYTES: u64 = 64 << 20;

/// A conversation and what belongs to it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Transcript {
    /// Version of the format.
    #[serde(rename = "baton_chat")]
    version: u32,
    /// Name of the model that answered.
    pub model: String,
    /// The system prompt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system: Option<String>,
    /// Sampling parameters that were set.
    #[serde(default)]
    pub parameters: Sampling,
    /// Questions and answers in turn.
    pub messages: Vec<Turn>,
}

/// One message.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Turn {
    /// Who said it.
    pub role: Speaker,
    /// What was said.
    pub content: String,
}

/// Who says something in a chat.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Speaker {
    /// The person at the keyboard.
    User,
    /// The model.
    Assistant,
}

impl Transcript {
    /// A conversation of the present format.
    pub fn new(
        model: &str,
        system: Option<String>,
        parameters: Sampling,
        messages: Vec<Turn>,
    ) -> Self {
        Self { version: VERSION, model: model.to_owned(), system, parameters, messages }
    }

    /// Writes it; only its owner may read the file, which replaces an older one in one step.
    ///
    /// # Errors
    /// If it cannot be written, or would replace something that is no chat.
    pub fn save(&self, path: &Path) -> anyhow::Result<()> {
        // Replacing works on anything, models and devices too.
        let is_kept = fs::metadata(path).is_ok_and(|found| !found.is_file() || found.len() > 0);
        if is_kept && Self::load(path).is_err() {
            let hint = "choose another name, or remove it first";
            let path = path.display();
            return Err(hinted(format_args!("{path} is there already and is no saved chat"), hint));
        }
        let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let written = (|| -> anyhow::Result<()> {
            fs::create_dir_all(folder)?;
            let mut file = tempfile::NamedTempFile::new_in(folder)?;
            file.write_all(serde_json::to_string_pretty(self)?.as_bytes())?;
            file.write_all(b"\n")?;
            file.as_file().sync_all()?;
            file.persist(path)?;
            Ok(())
        })();
        written.with_context(|| format!("cannot write {}", path.display()))
    }

    /// Reads one.
    ///
    /// # Errors
    /// If it cannot be read, or is no chat.
    pub fn load(path: &Path) -> anyhow::Result<Self> {
        let here = || path.display();
        let cannot = || format!("cannot read {}", here());
        // Devices and pipes may have no end, and opening some of them waits for a writer.
        if !fs::metadata(path).with_context(cannot)?.is_file() {
            bail!("{} is no saved chat: it is no file", here());
        }
        let mut text = Vec::new();
        let file = fs::File::open(path).with_context(cannot)?;
        file.take(MOST_BYTES + 1).read_to_end(&mut text).with_context(cannot)?;
        if text.len() as u64 > MOST_BYTES {
            bail!("{} is no saved chat: it has more than {MOST_BYTES} bytes", here());
        }
        let chat: Self = serde_json::from_slice(&text).map_err(|error| {
            hinted(format_args!("{} is no saved chat: {error}", here()), "/save writes one")
        })?;
        if chat.version != VERSION {
            bail!(
                "{} has version {} of the format, and this Baton reads {VERSION}",
                here(),
                chat.version
            );
        }
        let is_turn = |(i, turn): (usize, &Turn)| (turn.role == Speaker::User) == (i % 2 == 0);
        if !chat.messages.len().is_multiple_of(2) || !chat.messages.iter().enumerate().all(is_turn)
        {
            bail!("{} is no saved chat: user and assistant do not take turns", here());
        }
        Ok(chat)
    }
}

/// The file that a name in `/save` and `/load` means: a path if it looks like one, else a file in
/// our own folder.
///
/// # Errors
/// If there is no such folder.
pub fn file_of(name: &str) -> anyhow::Result<PathBuf> {
    if name.contains(['/', '\\']) || name.ends_with(".json") {
        if let (Some(rest), Some(home)) = (name.strip_prefix("~/"), std::env::home_dir()) {
            return Ok(home.join(rest));
        }
        return Ok(PathBuf::from(name));
    }
    if name.starts_with('.') {
        bail!("{name:?} cannot be the name of a chat");
    }
    let Some(folder) = paths::data_dir() else {
        let hint = "set BATON_HOME, or give a path: /save ./chat.json";
        return Err(hinted("there is no folder for chats", hint));
    };
    Ok(folder.join("chats").join(format!("{name}.json")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turn(role: Speaker, content: &str) -> Turn {
        Turn { role, content: content.to_owned() }
    }

    fn sample() -> Transcript {
        let parameters = Sampling { temperature: Some(0.5), ..Sampling::default() };
        let messages =
            vec![turn(Speaker::User, "Hi \"there\"\n"), turn(Speaker::Assistant, "你好 🦀")];
        Transcript::new("smollm2", Some("Be brief.".into()), parameters, messages)
    }

    #[test]
    fn what_is_saved_is_loaded() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("new/chat.json");
        sample().save(&path).unwrap();
        assert_eq!(Transcript::load(&path).unwrap(), sample());
        sample().save(&path).unwrap();
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o077, 0);
        }
    }

    #[test]
    fn other_files_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.json");
        let first = r#"{"role": "user", "content": "a"}"#;
        for text in [
            "",
            "[]",
            "{}",
            r#"{"baton_chat": 2, "model": "m", "messages": []}"#,
            &format!(r#"{{"baton_chat": 1, "model": "m", "messages": [{first}]}}"#),
            &format!(r#"{{"baton_chat": 1, "model": "m", "messages": [{first}, {first}]}}"#),
            r#"{"baton_chat": 1, "model": "m", "messages": [{"role": "tool", "content": "a"}]}"#,
            r#"{"baton_chat": 1, "model": "m", "messages": [], "parameters": {"warmth": 1}}"#,
        ] {
            fs::write(&path, text).unwrap();
            assert!(Transcript::load(&path).is_err(), "{text}");
        }
        assert!(Transcript::load(dir.path()).is_err());
    }

    #[test]
    fn nothing_but_a_chat_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("model.gguf");
        fs::write(&path, "GGUF").unwrap();
        assert!(sample().save(&path).is_err());
        assert_eq!(fs::read(&path).unwrap(), b"GGUF");
        assert!(sample().save(dir.path()).is_err());
        fs::write(&path, "").unwrap();
        sample().save(&path).unwrap();
    }

    #[test]
    #[cfg(unix)]
    fn what_has_no_end_is_not_read() {
        let dir = tempfile::tempdir().unwrap();
        let link = dir.path().join("endless.json");
        std::os::unix::fs::symlink("/dev/zero", &link).unwrap();
        assert!(Transcript::load(&link).is_err());
        assert!(sample().save(&link).is_err());
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    }

    #[test]
    fn names_and_paths() {
        assert_eq!(file_of("./a").unwrap(), Path::new("./a"));
        assert_eq!(file_of("a.json").unwrap(), Path::new("a.json"));
        assert!(file_of("..").is_err());
        assert!(file_of("my chat").unwrap().ends_with("chats/my chat.json"));
    }
}
