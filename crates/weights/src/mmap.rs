//! Memory-mapped files: the one place of this crate with `unsafe`.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use memmap2::Mmap;

use crate::{Error, Result};

/// A whole file, mapped for reading. Pages are read when they are touched.
#[derive(Clone, Debug)]
pub(crate) struct MappedFile {
    // None for an empty file, which cannot be mapped.
    map: Option<Arc<Mmap>>,
    origin: Arc<Origin>,
}

/// The file that a tensor's bytes are mapped from, as it was when it was opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// Where it was found.
    pub path: PathBuf,
    /// Its bytes.
    pub len: u64,
    /// When it was last written to, if the system tells.
    pub modified: Option<SystemTime>,
}

/// Lets slices of the file own a share of the mapping.
struct Share(Arc<Mmap>);

impl AsRef<[u8]> for Share {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl MappedFile {
    /// Maps the regular file at `path`.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let io = |source| Error::Io { path: path.to_owned(), source };
        // Before opening: a named pipe would block.
        let info = std::fs::metadata(path).map_err(io)?;
        if !info.is_file() {
            let problem = "is not a regular file".to_owned();
            return Err(Error::Unsupported { path: path.to_owned(), problem });
        }
        let file = File::open(path).map_err(io)?;
        // Of the file that is mapped, should another have taken its place meanwhile.
        let info = file.metadata().map_err(io)?;
        let (len, modified) = (info.len(), info.modified().ok());
        let origin = Arc::new(Origin { path: path.to_owned(), len, modified });
        if len == 0 {
            return Ok(MappedFile { map: None, origin });
        }
        // SAFETY: the mapping is private to reads, and lives as long as any slice of it. What no
        // program can rule out is that another one changes the file meanwhile: then the bytes of
        // tensors change, which are plain data and valid whatever they hold; what must be valid
        // (lengths, UTF-8) is copied out of the mapping before it is checked. If the file is cut
        // short, touching the lost pages ends the process with SIGBUS, as in every program that
        // maps its weights. Downloads are renamed into place, so no file of ours shrinks.
        let map = unsafe { Mmap::map(&file) }.map_err(io)?;
        Ok(MappedFile { map: Some(Arc::new(map)), origin })
    }

    /// What is known of the file.
    pub(crate) fn origin(&self) -> &Origin {
        &self.origin
    }

    /// The file's bytes. Slices of them keep the mapping alive.
    pub(crate) fn bytes(&self) -> Bytes {
        self.map.as_ref().map_or_else(Bytes::new, |map| Bytes::from_owner(Share(map.clone())))
    }

    /// Asks the system to start reading the whole file in the background. A hint: failure is of no
    /// consequence and is ignored.
    pub(crate) fn prefetch(&self) {
        #[cfg(unix)]
        if let Some(map) = &self.map {
            let _ = map.advise(memmap2::Advice::WillNeed);
        }
    }

    /// Lets the system take back the memory of `part`, if it is part of this file: what is touched
    /// again is read again. A hint, like [`MappedFile::prefetch`].
    pub(crate) fn release(&self, part: &[u8]) {
        #[cfg(unix)]
        if let Some(map) = &self.map {
            let offset = (part.as_ptr() as usize).wrapping_sub(map.as_ptr() as usize);
            if offset < map.len() && part.len() <= map.len() - offset {
                // SAFETY: the mapping is of a file and never written to, so that nothing is lost.
                let _ = unsafe {
                    map.unchecked_advise_range(
                        memmap2::UncheckedAdvice::DontNeed,
                        offset,
                        part.len(),
                    )
                };
            }
        }
        #[cfg(not(unix))]
        let _ = part;
    }
}
