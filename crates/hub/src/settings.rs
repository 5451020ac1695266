//! What the environment decides: folders, the Hugging Face hub's address and token, time-outs.

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::{Error, Result};

/// The Hugging Face hub, unless `HF_ENDPOINT` names another.
const HF_ENDPOINT: &str = "https://huggingface.co";

/// A secret; its `Debug` form does not show it.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl Token {
    /// Wraps a token; `None` if it is blank or could not be sent in a header.
    pub fn new(text: &str) -> Option<Self> {
        let text = text.trim();
        let sendable = !text.is_empty() && text.bytes().all(|b| b.is_ascii_graphic());
        sendable.then(|| Self(text.into()))
    }

    pub(crate) fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

/// Where models are kept and how they are fetched.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The store's folder.
    pub home: PathBuf,
    /// The user's own `catalog.toml`, read if it exists.
    pub user_catalog: Option<PathBuf>,
    /// Base address of the Hugging Face hub, without a final slash.
    pub hf_endpoint: String,
    /// Sent to [`hf_endpoint`](Self::hf_endpoint) and to no other host.
    pub hf_token: Option<Token>,
    /// The Hugging Face cache (`…/hub`), whose files are used where they are.
    pub hf_cache: Option<PathBuf>,
    /// No network at all.
    pub offline: bool,
    /// The Python whose pip is used; else the first that works of `python3`, `python`, `pip3`, `pip`.
    pub python: Option<PathBuf>,
    /// For looking up a host, and for connecting to it.
    pub connect_timeout: Duration,
    /// For an answer to begin, and between two reads of it.
    pub idle_timeout: Duration,
    /// How often a broken connection is tried again without having brought anything new.
    pub retries: u32,
    /// Wait before the first retry; it doubles with each.
    pub backoff: Duration,
}

impl Settings {
    /// Settings for a store at `home` with everything else at its default and no environment read.
    pub fn at(home: impl Into<PathBuf>) -> Self {
        Self {
            home: home.into(),
            user_catalog: None,
            hf_endpoint: HF_ENDPOINT.into(),
            hf_token: None,
            hf_cache: None,
            offline: false,
            python: None,
            connect_timeout: Duration::from_secs(5),
            idle_timeout: Duration::from_secs(30),
            retries: 4,
            backoff: Duration::from_secs(1),
        }
    }

    /// Reads `BATON_HOME`, `BATON_CONFIG`, `BATON_PYTHON`, `HF_ENDPOINT`, `HF_TOKEN`, `HF_HOME`,
    /// `HF_HUB_CACHE`, `HF_HUB_OFFLINE`, `HOME` and the `XDG_…_HOME`s; also the names that
    /// huggingface_hub still reads for older set-ups. A leading `~/` is the user's home.
    ///
    /// # Errors
    /// [`Error::NoHome`] if none of them tells where to keep models.
    pub fn from_env() -> Result<Self> {
        Self::from_vars(&|name| std::env::var_os(name))
    }

    /// As [`from_env`](Self::from_env), with `var` in place of the environment.
    pub fn from_vars(var: &dyn Fn(&str) -> Option<OsString>) -> Result<Self> {
        let text = |name: &str| var(name).filter(|value| !value.is_empty());
        let user_home = text("HOME").map(PathBuf::from).or_else(std::env::home_dir);
        let path = |name: &str| {
            let path = PathBuf::from(text(name)?);
            // Where no shell has seen to it, as in a service's settings.
            Some(match (path.strip_prefix("~"), &user_home) {
                (Ok(below), Some(home)) => home.join(below),
                _ => path,
            })
        };
        let below = |xdg: &str, linux: &str, mac: &str| {
            let fallback = if cfg!(target_os = "macos") { mac } else { linux };
            // The XDG specification: a relative path there is to be ignored.
            path(xdg)
                .filter(|dir| dir.is_absolute())
                .or_else(|| user_home.as_ref().map(|home| home.join(fallback)))
        };
        let home = path("BATON_HOME")
            .or_else(|| Some(below("XDG_CACHE_HOME", ".cache", "Library/Caches")?.join("baton")))
            .ok_or(Error::NoHome)?;
        let config = path("BATON_CONFIG").or_else(|| {
            Some(below("XDG_CONFIG_HOME", ".config", "Library/Application Support")?.join("baton"))
        });

        let hf_home = path("HF_HOME").or_else(|| {
            let cache = path("XDG_CACHE_HOME").filter(|dir| dir.is_absolute());
            let cache = cache.or_else(|| Some(user_home.as_ref()?.join(".cache")))?;
            Some(cache.join("huggingface"))
        });
        let hf_token = match text("HF_TOKEN").or_else(|| text("HUGGING_FACE_HUB_TOKEN")) {
            Some(token) => token.to_str().and_then(Token::new),
            None => path("HF_TOKEN_PATH")
                .or_else(|| Some(hf_home.as_ref()?.join("token")))
                .and_then(|file| read_token(&file)),
        };

        let mut settings = Self::at(home);
        settings.user_catalog = config.map(|dir| dir.join("catalog.toml"));
        if let Some(endpoint) = text("HF_ENDPOINT").and_then(|value| value.into_string().ok()) {
            settings.hf_endpoint = endpoint.trim_end_matches('/').to_owned();
        }
        settings.hf_token = hf_token;
        settings.hf_cache = path("HF_HUB_CACHE")
            .or_else(|| path("HUGGINGFACE_HUB_CACHE"))
            .or_else(|| Some(hf_home?.join("hub")));
        settings.offline = text("HF_HUB_OFFLINE").is_some_and(|value| is_true(&value));
        settings.python = path("BATON_PYTHON");
        Ok(settings)
    }

    /// Checks that [`hf_endpoint`](Self::hf_endpoint) is an address.
    ///
    /// # Errors
    /// [`Error::BadEndpoint`].
    pub fn check_endpoint(&self) -> Result<()> {
        if crate::http::is_address(&self.hf_endpoint) {
            return Ok(());
        }
        Err(Error::BadEndpoint { endpoint: self.hf_endpoint.clone() })
    }

    /// Checks that models can be kept in [`home`](Self::home). Nothing is created.
    ///
    /// # Errors
    /// [`Error::HomeIsNoFolder`] or [`Error::HomeNotWritable`].
    pub fn check_home(&self) -> Result<()> {
        let path = self.home.clone();
        let existing = self.nearest_folder()?;
        match tempfile::tempfile_in(existing) {
            Ok(_) => Ok(()),
            Err(source) => Err(Error::HomeNotWritable { path, source }),
        }
    }

    /// The home, or the folder that exists in which it would be created.
    ///
    /// # Errors
    /// [`Error::HomeIsNoFolder`].
    pub fn nearest_folder(&self) -> Result<&Path> {
        let existing = self.home.ancestors().find(|path| path.symlink_metadata().is_ok());
        match existing {
            Some(path) if path.is_dir() => Ok(path),
            // A relative path: its folder is where we are.
            None => Ok(Path::new(".")),
            Some(path) => Err(Error::HomeIsNoFolder { path: path.into() }),
        }
    }
}

fn is_true(value: &OsString) -> bool {
    let value = value.to_string_lossy().to_ascii_lowercase();
    matches!(value.as_str(), "1" | "true" | "yes" | "on")
}

/// A missing or unreadable token file means no token: most models need none.
fn read_token(file: &Path) -> Option<Token> {
    let small = std::fs::metadata(file).ok()?.len() < 4096;
    small.then(|| std::fs::read_to_string(file).ok()).flatten().and_then(|text| Token::new(&text))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(vars: &[(&str, &str)]) -> Settings {
        let vars: Vec<_> = vars.iter().map(|(k, v)| (k.to_string(), OsString::from(v))).collect();
        Settings::from_vars(&|name| vars.iter().find(|(k, _)| k == name).map(|(_, v)| v.clone()))
            .unwrap()
    }

    #[test]
    fn folders_follow_the_environment() {
        let default = if cfg!(target_os = "macos") { "Library/Caches" } else { ".cache" };
        let settings = with(&[("HOME", "/h")]);
        assert_eq!(settings.home, Path::new("/h").join(default).join("baton"));
        assert_eq!(settings.hf_cache.unwrap(), Path::new("/h/.cache/huggingface/hub"));
        assert_eq!(with(&[("HOME", "/h"), ("XDG_CACHE_HOME", "/c")]).home, Path::new("/c/baton"));
        assert_eq!(with(&[("HOME", "/h"), ("BATON_HOME", "/b")]).home, Path::new("/b"));
        let settings = with(&[("HOME", "/h"), ("HF_HOME", "/hf"), ("HF_ENDPOINT", "http://m:1//")]);
        assert_eq!(settings.hf_cache.unwrap(), Path::new("/hf/hub"));
        assert_eq!(settings.hf_endpoint, "http://m:1");
        let settings = with(&[("HOME", "/h"), ("HF_HUB_CACHE", "/x"), ("HF_HUB_OFFLINE", "1")]);
        assert_eq!(settings.hf_cache.unwrap(), Path::new("/x"));
        assert!(settings.offline);
        assert!(!with(&[("HOME", "/h"), ("HF_HUB_OFFLINE", "0")]).offline);
        let settings = with(&[("HOME", "/h"), ("HUGGINGFACE_HUB_CACHE", "/old")]);
        assert_eq!(settings.hf_cache.unwrap(), Path::new("/old"));
        let settings = with(&[("HOME", "/h"), ("HF_HOME", "~/hf"), ("BATON_HOME", "~")]);
        assert_eq!(settings.hf_cache.unwrap(), Path::new("/h/hf/hub"));
        assert_eq!(settings.home, Path::new("/h/"));
    }

    #[test]
    fn the_token_comes_from_the_variable_or_the_file_and_is_not_printed() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("token"), "from-file\n").unwrap();
        let hf_home = dir.path().to_str().unwrap();
        let settings = with(&[("HOME", "/h"), ("HF_HOME", hf_home)]);
        assert_eq!(settings.hf_token.as_ref().unwrap().expose(), "from-file");
        assert!(!format!("{settings:?}").contains("from-file"));
        let settings = with(&[("HOME", "/h"), ("HF_HOME", hf_home), ("HF_TOKEN", "from-var")]);
        assert_eq!(settings.hf_token.unwrap().expose(), "from-var");
        let old = [("HOME", "/h"), ("HF_HOME", hf_home), ("HUGGING_FACE_HUB_TOKEN", "from-old")];
        assert_eq!(with(&old).hf_token.unwrap().expose(), "from-old");
        assert!(Token::new("a\r\nHost: evil").is_none());
    }
}
