//! What can go wrong with Core ML packages.

use std::fmt;
use std::path::{Path, PathBuf};

/// Shorthand for results of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a package could not be read, written, checked or run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file could not be opened, read or written.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// A folder that a model was compiled into cannot be used.
    #[error("{path}: {problem}")]
    Folder {
        /// The file or the folder that is at fault.
        path: PathBuf,
        /// What is wrong with it, and what to do.
        problem: String,
    },
    /// Writing failed.
    #[error("cannot write weights: {0}")]
    Write(#[from] std::io::Error),
    /// A weight is missing or unreadable.
    #[error(transparent)]
    Weights(#[from] baton_weights::Error),
    /// The bytes contradict the format: the package is cut off, damaged or hostile.
    #[error("the package is damaged: {problem}; get it anew, or compile the model again")]
    Malformed {
        /// What is wrong, and where.
        problem: String,
    },
    /// The package is sound, but has something that is not read or run here.
    #[error("{what} is not supported; {instead}")]
    Unsupported {
        /// What it is.
        what: String,
        /// What to do instead.
        instead: String,
    },
    /// A program breaks the rules of MIL.
    #[error("{} in the program:{}", count(.0.len()), list(.0))]
    Invalid(Vec<Problem>),
    /// A text is no dump of a program.
    #[error("line {line}: {problem}")]
    Parse {
        /// The line, from 1.
        line: usize,
        /// What is wrong with it.
        problem: String,
    },
    /// Core ML has refused or failed.
    #[error("Core ML cannot {doing}: {problem}")]
    CoreMl {
        /// What it was to do.
        doing: String,
        /// What it says.
        problem: String,
    },
    /// A function could not be run.
    #[error("function {function:?}, {op}: {problem}")]
    Run {
        /// The function.
        function: String,
        /// The operation, or what else is at fault.
        op: String,
        /// What is wrong.
        problem: String,
    },
}

/// One rule that a program breaks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The function and the operation in it, or what else is at fault.
    pub place: String,
    /// What is wrong with it.
    pub text: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.text)
    }
}

/// Problems that an error's text lists.
const LISTED: usize = 10;

fn count(n: usize) -> String {
    format!("{n} {}", if n == 1 { "problem" } else { "problems" })
}

fn list(problems: &[Problem]) -> String {
    let lines = problems.iter().take(LISTED).map(|p| format!("\n  {p}"));
    let rest = problems.len().saturating_sub(LISTED);
    lines.chain((rest > 0).then(|| format!("\n  and {rest} more"))).collect()
}

impl Error {
    pub(crate) fn malformed(problem: impl Into<String>) -> Error {
        Error::Malformed { problem: problem.into() }
    }

    /// The same error of a file that lies in `to` once all is done, and in `from` until then.
    #[must_use]
    pub fn moved(self, from: &Path, to: &Path) -> Error {
        match self {
            Error::Io { path, source } => match path.strip_prefix(from) {
                // Joined with nothing, a path would get a separator at its end.
                Ok(rest) if rest.as_os_str().is_empty() => Error::Io { path: to.into(), source },
                Ok(rest) => Error::Io { path: to.join(rest), source },
                Err(_) => Error::Io { path, source },
            },
            other => other,
        }
    }

    /// There is not the memory that a problem tells of.
    pub(crate) fn no_memory(problem: String) -> Error {
        let instead = "use a shorter context, fewer sequences, or a smaller model".to_owned();
        Error::Unsupported { what: format!("this size ({problem})"), instead }
    }

    /// A context that is longer than packages have room for.
    pub fn beyond_packages(context: usize, room: usize) -> Error {
        Error::Unsupported {
            what: format!("a context of {context} tokens by these packages"),
            instead: format!(
                "they have room for {room}: use a shorter one (-c), or compile the model again with a larger \
                 --context"
            ),
        }
    }

    pub(crate) fn io(path: &Path) -> impl FnOnce(std::io::Error) -> Error + '_ {
        move |source| Error::Io { path: path.to_owned(), source }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_named_by_where_they_will_lie() {
        let of = |path: &str| {
            let source = std::io::ErrorKind::StorageFull.into();
            let error = Error::Io { path: path.into(), source };
            match error.moved(Path::new("a/.b.partial"), Path::new("a/b")) {
                Error::Io { path, .. } => path,
                other => panic!("{other}"),
            }
        };
        assert_eq!(of("a/.b.partial/Data/x"), Path::new("a/b/Data/x"));
        assert_eq!(of("a/.b.partial").to_str(), Path::new("a/b").to_str());
        assert_eq!(of("a/c"), Path::new("a/c"));
        let other = Error::malformed("x").moved(Path::new("a"), Path::new("b"));
        assert!(other.to_string().contains("damaged"));
    }
}
