//! Getting models into the store.

use std::time::Duration;

use baton_engine::available_memory;
use baton_hub::{Event, LocalModel, Progress, Reference};
use tokio::sync::mpsc;

use super::{Models, name};
use crate::{ApiError, Result};

/// What happens while a model is fetched. Sizes are in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Pulling {
    /// Something to know before the bytes come.
    Note {
        /// What it is.
        text: String,
    },
    /// A source of the model is being asked.
    Trying {
        /// The source, as the catalog spells it.
        source: String,
    },
    /// That did not work, and another source is tried or the same one again.
    Failed {
        /// What failed and why.
        problem: String,
        /// When it is tried again, if it is.
        retry: Option<Duration>,
    },
    /// Somebody else fetches the same; this request waits.
    Waiting {
        /// What is waited for.
        what: String,
    },
    /// Bytes have come.
    Bytes {
        /// File name.
        file: String,
        /// Bytes that are here.
        done: u64,
        /// The whole size, where known.
        total: Option<u64>,
    },
    /// Bytes are being checked.
    Verifying {
        /// File name.
        file: String,
    },
    /// A file is complete.
    Done {
        /// File name.
        file: String,
        /// Its size.
        size: u64,
    },
}

impl Models {
    /// Fetches a model into the store: a name of the catalog, or a repository on the Hugging Face
    /// hub. Progress is told as far as `progress` has room for it; if its receiver goes, the
    /// download stops, and what has come so far is kept for the next time.
    ///
    /// # Errors
    /// [`Kind::NoModel`](crate::Kind::NoModel) for a name that nothing is known of,
    /// [`Kind::Invalid`](crate::Kind::Invalid) for what is none, or why it could not be fetched.
    pub async fn pull(&self, name: &str, progress: mpsc::Sender<Pulling>) -> Result<LocalModel> {
        let reference = match name::parse(name) {
            Some(Reference::Url(_)) => {
                let problem = "a model is pulled by its name or as hf.co/ORG/REPO; `baton pull` on \
                               the command line also takes addresses";
                return Err(ApiError::invalid("model", problem));
            }
            Some(reference) => reference,
            None => {
                let problem = format!("{name:?} is not the name of a model");
                return Err(ApiError::invalid("model", problem));
            }
        };
        self.warn_if_too_large(&reference, &progress);
        let _one_of_few = self.shared.pulls.acquire().await.map_err(ApiError::internal)?;
        let local = self.shared.blocking(move |shared| {
            let reference = shared.store.resolve(&reference.to_string())?;
            Ok(shared.store.get(&reference, &mut Teller { progress })?)
        });
        local.await
    }

    /// Better said before hours of downloading than after.
    fn warn_if_too_large(&self, reference: &Reference, progress: &mpsc::Sender<Pulling>) {
        let entry = self.catalog().get(&reference.to_string());
        let room = self.options().memory.or_else(available_memory);
        if let (Some(size), Some(room)) = (entry.and_then(|entry| entry.size), room)
            && size > room
        {
            let mib = |bytes: u64| bytes.div_ceil(1 << 20);
            let (size, room) = (mib(size), mib(room));
            let text = format!(
                "it has {size} MiB, and there are {room} MiB of memory for it: it will hardly load"
            );
            let _ = progress.try_send(Pulling::Note { text });
        }
    }
}

struct Teller {
    progress: mpsc::Sender<Pulling>,
}

impl Progress for Teller {
    fn event(&mut self, event: Event<'_>) {
        let pulling = match event {
            Event::TryingSource { source } => Pulling::Trying { source: source.into() },
            Event::SourceFailed { source, error } => {
                Pulling::Failed { problem: format!("{source}: {error}"), retry: None }
            }
            Event::Retrying { file, error, delay } => {
                Pulling::Failed { problem: format!("{file}: {error}"), retry: Some(delay) }
            }
            Event::WaitingForLock { what } => Pulling::Waiting { what: what.into() },
            Event::Started { file, total, resumed_at } => {
                Pulling::Bytes { file: file.into(), done: resumed_at, total }
            }
            Event::Bytes { file, done, total } => Pulling::Bytes { file: file.into(), done, total },
            Event::Verifying { file, .. } => Pulling::Verifying { file: file.into() },
            Event::Done { file, size, .. } => Pulling::Done { file: file.into(), size },
            _ => return,
        };
        // One that reads slowly misses some of it.
        let _ = self.progress.try_send(pulling);
    }

    fn cancelled(&self) -> bool {
        self.progress.is_closed()
    }
}
