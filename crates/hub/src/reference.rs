//! The ways to name a model: a catalog name, a repository on the Hugging Face hub, an address, a path.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use crate::names::{safe_relative, url_decode};
use crate::{Error, Result};

/// What a user typed to name a model. `Display` gives the one canonical spelling, which is also the
/// name under which the store keeps it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Reference {
    /// A name to be looked up in the catalog, such as `gemma3:270m`.
    Name(String),
    /// A repository on the Hugging Face hub.
    Hf(HfRef),
    /// A GGUF file behind an `http(s)` address.
    Url(String),
    /// A GGUF file or a checkpoint folder on this machine.
    Path(PathBuf),
}

/// A model in a repository on the Hugging Face hub: `ORG/REPO[@REVISION][:PICK]`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct HfRef {
    /// `ORG/REPO`.
    pub repo: String,
    /// Branch, tag or commit; `None` is `main`.
    pub revision: Option<String>,
    /// A file's path in the repository or a quantization (`Q4_K_M`); `None` leaves the choice to us.
    pub pick: Option<String>,
}

impl HfRef {
    /// The branch, tag or commit to ask for.
    pub fn revision(&self) -> &str {
        self.revision.as_deref().unwrap_or("main")
    }
}

impl FromStr for HfRef {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (repo, pick) = match text.split_once(':') {
            Some((repo, pick)) => (repo, Some(pick)),
            None => (text, None),
        };
        let (repo, revision) = match repo.split_once('@') {
            Some((repo, revision)) => (repo, Some(revision)),
            None => (repo, None),
        };
        let parts: Vec<_> = repo.split('/').collect();
        if parts.len() != 2 || !parts.iter().all(|part| is_repo_part(part)) {
            return Err(format!("{repo:?} is not of the form ORG/REPO"));
        }
        if let Some(revision) = revision
            && (safe_relative(revision, text).is_err() || revision.contains(char::is_whitespace))
        {
            return Err(format!("{revision:?} is no revision"));
        }
        if let Some(pick) = pick
            && safe_relative(pick, text).is_err()
        {
            return Err(format!("{pick:?} is neither a file nor a quantization"));
        }
        let owned = |part: Option<&str>| part.map(str::to_owned);
        Ok(Self { repo: repo.into(), revision: owned(revision), pick: owned(pick) })
    }
}

impl fmt::Display for HfRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "hf:{}", self.repo)?;
        if let Some(revision) = &self.revision {
            write!(f, "@{revision}")?;
        }
        if let Some(pick) = &self.pick {
            write!(f, ":{pick}")?;
        }
        Ok(())
    }
}

fn is_repo_part(part: &str) -> bool {
    let word = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
    (1..=96).contains(&part.len())
        && part.bytes().all(word)
        && !part.starts_with(['.', '-'])
        && !part.contains("..")
}

impl Reference {
    /// Reads a reference. Only its form decides, and for `a/b` whether such a path exists; whether a
    /// name is in the catalog is asked by [`Store::resolve`](crate::Store::resolve).
    ///
    /// # Errors
    /// [`Error::BadReference`] for what has none of the forms.
    pub fn parse(text: &str) -> Result<Self> {
        let text = text.trim();
        let bad = |reason: String| Error::BadReference { text: text.into(), reason };
        if text.is_empty() || text.contains(char::is_control) || text.len() > 4096 {
            return Err(bad("it is empty, too long, or has control characters in it".into()));
        }
        if let Some(rest) = text.strip_prefix("hf:") {
            return rest.trim_start_matches("//").parse().map(Self::Hf).map_err(bad);
        }
        for host in ["hf.co/", "huggingface.co/"] {
            if let Some(rest) = text.strip_prefix(host) {
                return rest.parse().map(Self::Hf).map_err(bad);
            }
            if let Some(rest) = text.strip_prefix("https://").and_then(|t| t.strip_prefix(host)) {
                return hub_page(rest).map(Self::Hf).map_err(bad);
            }
        }
        if text.starts_with("https://") || text.starts_with("http://") {
            return url_file_name(text).map(|_| Self::Url(text.into())).map_err(bad);
        }
        if let Some(rest) = text.strip_prefix("~/")
            && let Some(home) = std::env::home_dir()
        {
            return Ok(Self::Path(home.join(rest)));
        }
        let is_path = text.starts_with(['/', '.', '~'])
            || text.to_ascii_lowercase().ends_with(".gguf")
            || (text.contains(['/', '\\']) && std::path::Path::new(text).exists());
        if is_path {
            return Ok(Self::Path(PathBuf::from(text)));
        }
        if text.contains('/') {
            return text.parse().map(Self::Hf).map_err(bad);
        }
        if is_name(text) {
            let name = text.strip_suffix(":latest").unwrap_or(text);
            return Ok(Self::Name(name.to_ascii_lowercase()));
        }
        Err(bad(
            "expected a name such as gemma3:270m, hf:ORG/REPO[:QUANT], https://…/x.gguf, or the \
             path of a .gguf file or checkpoint folder"
                .into(),
        ))
    }
}

impl FromStr for Reference {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self> {
        Self::parse(text)
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => f.write_str(name),
            Self::Hf(hf) => hf.fmt(f),
            Self::Url(url) => f.write_str(url),
            Self::Path(path) => path.display().fmt(f),
        }
    }
}

/// What a catalog may call a model.
pub(crate) fn is_name(text: &str) -> bool {
    let word = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-' | b':');
    text.len() <= 128
        && text.bytes().all(word)
        && text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && !text.ends_with(':')
}

/// Reads what follows the host in the address of a page on the hub, as copied from a browser:
/// `ORG/REPO`, `ORG/REPO/blob/REV/FILE`, `ORG/REPO/resolve/REV/FILE`, `ORG/REPO/tree/REV`.
fn hub_page(rest: &str) -> Result<HfRef, String> {
    let rest = rest.split(['?', '#']).next().unwrap_or(rest).trim_end_matches('/');
    let mut parts = rest.splitn(5, '/');
    let (org, repo) = (parts.next().unwrap_or(""), parts.next().unwrap_or(""));
    let mut hf: HfRef = format!("{org}/{repo}").parse()?;
    match (parts.next(), parts.next(), parts.next()) {
        (None, ..) => {}
        (Some("blob" | "resolve" | "raw" | "tree"), Some(revision), file) => {
            let revision = url_decode(revision).ok_or("a broken %-escape")?;
            let file = file.map(|f| url_decode(f).ok_or("a broken %-escape")).transpose()?;
            let full = match &file {
                Some(file) => format!("{org}/{repo}@{revision}:{file}"),
                None => format!("{org}/{repo}@{revision}"),
            };
            hf = full.parse()?;
            hf.revision = hf.revision.filter(|revision| revision != "main");
        }
        (Some(other), ..) => return Err(format!("no model is at …/{other}")),
    }
    Ok(hf)
}

/// The name of the file behind an address, which must be a GGUF file.
pub(crate) fn url_file_name(url: &str) -> Result<String, String> {
    let rest = url.split_once("://").map_or("", |(_, rest)| rest);
    let rest = rest.split(['?', '#']).next().unwrap_or(rest);
    let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
    let plain = |text: &str| text.bytes().all(|b| b.is_ascii_graphic());
    if host.is_empty() || host.contains('@') || !plain(url) {
        return Err("it is not an address that can be asked".into());
    }
    let last = path.rsplit('/').next().unwrap_or("");
    let name = url_decode(last).ok_or("a broken %-escape")?;
    if !name.to_ascii_lowercase().ends_with(".gguf") {
        return Err(
            "the address of a model must end in .gguf (safetensors checkpoints can be named \
            as hf:ORG/REPO, or by the path of a local folder)"
                .into(),
        );
    }
    safe_relative(&name, url).map_err(|error| error.to_string())?;
    if name.contains('/') {
        return Err("the file name has an escaped slash in it".into());
    }
    Ok(name)
}

#[cfg(test)]
mod tests;
