//! An unfinished file: bytes on disk, their digest so far, and a note of where they come from.

use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::Digest;

use crate::hash::hash_reader;
use crate::{Error, Event, Progress, Result, Sha256};

/// What is remembered about an unfinished file between runs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Note {
    /// The source the bytes come from.
    pub origin: String,
    /// The strong ETag of that source's file, if it gave one.
    pub etag: Option<String>,
    /// For a file joined of pieces: where each finished piece ends.
    pub ends: Vec<u64>,
}

/// An open `.part` file. The caller holds the file's lock.
pub(crate) struct Part {
    path: PathBuf,
    note_path: PathBuf,
    file: File,
    len: u64,
    hasher: sha2::Sha256,
    hashed: u64,
    pub note: Note,
}

impl Part {
    /// Opens `<dir>/<key>.part`, creating it if it is new.
    pub(crate) fn open(dir: &Path, key: &str) -> Result<Self> {
        let path = dir.join(format!("{key}.part"));
        let note_path = dir.join(format!("{key}.json"));
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create(true).truncate(false).open(&path);
        let file = file.map_err(Error::io("open", &path))?;
        let len = file.metadata().map_err(Error::io("read", &path))?.len();
        // A note that is missing or damaged only costs the chance to resume.
        let note = std::fs::read(&note_path).ok();
        let note = note.and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default();
        let hasher = sha2::Sha256::new();
        Ok(Self { path, note_path, file, len, hasher, hashed: 0, note })
    }

    /// Bytes that are here.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Keeps the first `len` bytes only.
    pub(crate) fn truncate(&mut self, len: u64) -> Result<()> {
        self.file.set_len(len).map_err(Error::io("shorten", &self.path))?;
        self.len = len;
        if len < self.hashed {
            self.hasher = sha2::Sha256::new();
            self.hashed = 0;
        }
        Ok(())
    }

    /// Writes the note, for a later run to find.
    pub(crate) fn save_note(&self) -> Result<()> {
        let bytes = serde_json::to_vec(&self.note).expect("a note is plain data");
        std::fs::write(&self.note_path, bytes).map_err(|error| self.write_error(error, None))
    }

    /// Hashes what an earlier run left, so that appending can go on.
    pub(crate) fn catch_up(&mut self, label: &str, progress: &mut dyn Progress) -> Result<()> {
        if self.hashed == self.len {
            return Ok(());
        }
        let (from, total) = (self.hashed, self.len);
        let io = Error::io("read", &self.path);
        let mut step = |done: u64| {
            progress.event(Event::Verifying { file: label, done: from + done, total });
            !progress.cancelled()
        };
        let hashed = self.file.seek(SeekFrom::Start(from)).and_then(|_| {
            let mut rest = io::Read::take(&self.file, total - from);
            hash_reader(&mut rest, &mut self.hasher, &mut step)
        });
        self.hashed = from + hashed.map_err(io)?;
        match self.hashed == total {
            true => Ok(()),
            false if progress.cancelled() => Err(Error::Cancelled),
            // Something else shortened the file under us.
            false => self.truncate(0),
        }
    }

    /// Appends `bytes`; `missing` is what remains to come, where known, for the error of a full disk.
    pub(crate) fn append(&mut self, bytes: &[u8], missing: Option<u64>) -> Result<()> {
        debug_assert_eq!(self.hashed, self.len, "catch_up comes before append");
        let written =
            self.file.seek(SeekFrom::Start(self.len)).and_then(|_| self.file.write_all(bytes));
        written.map_err(|error| self.write_error(error, missing))?;
        self.hasher.update(bytes);
        self.len += bytes.len() as u64;
        self.hashed = self.len;
        Ok(())
    }

    /// The digest of all bytes.
    pub(crate) fn digest(&self) -> Sha256 {
        debug_assert_eq!(self.hashed, self.len, "catch_up comes before digest");
        Sha256::finish(self.hasher.clone())
    }

    /// The first four bytes, fewer if there are not as many.
    pub(crate) fn magic(&mut self) -> Result<Vec<u8>> {
        let mut magic = Vec::new();
        let read = self
            .file
            .seek(SeekFrom::Start(0))
            .and_then(|_| io::Read::read_to_end(&mut io::Read::take(&self.file, 4), &mut magic));
        read.map_err(Error::io("read", &self.path))?;
        Ok(magic)
    }

    /// Deletes the part and its note.
    pub(crate) fn discard(self) -> Result<()> {
        let _ = std::fs::remove_file(&self.note_path);
        std::fs::remove_file(&self.path).map_err(Error::io("remove", &self.path))
    }

    /// Moves the finished file to `target`, safely on disk before it appears there.
    pub(crate) fn land(self, target: &Path) -> Result<()> {
        self.file.sync_all().map_err(|error| self.write_error(error, None))?;
        std::fs::rename(&self.path, target).map_err(Error::io("move a download to", target))?;
        sync_folder(target.parent());
        let _ = std::fs::remove_file(&self.note_path);
        Ok(())
    }

    fn write_error(&self, error: io::Error, needed: Option<u64>) -> Error {
        use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
        if matches!(error.kind(), StorageFull | QuotaExceeded | FileTooLarge) {
            let available = fs4::available_space(&self.path).unwrap_or(0);
            let (path, what) = (self.path.clone(), "a download".into());
            return Error::DiskFull { path, what, needed, available };
        }
        Error::Io { action: "write", path: self.path.clone(), source: error }
    }
}

/// Makes a rename in `folder` last through a power failure, where the system can.
pub(crate) fn sync_folder(folder: Option<&Path>) {
    // Not every file system allows it, and the rename itself has already succeeded.
    if let Some(folder) = folder.and_then(|folder| File::open(folder).ok()) {
        let _ = folder.sync_all();
    }
}

/// Fails if fewer than `needed` bytes are free where `path` is.
pub(crate) fn ensure_space(path: &Path, needed: u64, what: &str) -> Result<()> {
    // Where the free space cannot be known, writing will tell.
    match fs4::available_space(path) {
        Ok(available) if available < needed => {
            let (path, what, needed) = (path.into(), what.into(), Some(needed));
            Err(Error::DiskFull { path, what, needed, available })
        }
        _ => Ok(()),
    }
}
