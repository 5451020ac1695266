//! Locks between processes, on files that stay; the system drops them with the process.

use std::fs::{File, OpenOptions, TryLockError};
use std::path::Path;
use std::time::Duration;

use crate::{Error, Event, Progress, Result};

/// How often a waiting process looks again.
const POLL: Duration = Duration::from_millis(100);

/// Held until dropped.
#[derive(Debug)]
pub(super) struct Lock {
    _file: File,
}

impl Lock {
    /// Takes the lock, telling `progress` that it waits for `what` if another process holds it.
    pub(super) fn take(path: &Path, what: &str, progress: &mut dyn Progress) -> Result<Self> {
        let file = open(path)?;
        let mut told = false;
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(Self { _file: file }),
                Err(TryLockError::Error(error)) => return Err(Error::io("lock", path)(error)),
                Err(TryLockError::WouldBlock) => {}
            }
            if !told {
                progress.event(Event::WaitingForLock { what });
                told = true;
            }
            if progress.cancelled() {
                return Err(Error::Cancelled);
            }
            std::thread::sleep(POLL);
        }
    }

    /// Takes the lock if nobody holds it.
    pub(super) fn try_take(path: &Path) -> Result<Option<Self>> {
        let file = open(path)?;
        match file.try_lock() {
            Ok(()) => Ok(Some(Self { _file: file })),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(Error::io("lock", path)(error)),
        }
    }

    /// Takes a lock that is only ever held for a moment.
    pub(super) fn wait(path: &Path) -> Result<Self> {
        let file = open(path)?;
        file.lock().map_err(Error::io("lock", path))?;
        Ok(Self { _file: file })
    }
}

fn open(path: &Path) -> Result<File> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).map_err(Error::io("create", folder))?;
    }
    let mut options = OpenOptions::new();
    let file = options.read(true).write(true).create(true).truncate(false).open(path);
    file.map_err(Error::io("open", path))
}
