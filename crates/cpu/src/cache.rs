//! Packed weights kept on disk, so that a model that was loaded once is not packed again.
//!
//! A file is made by one thread while the model already answers, under a name of its own that is
//! locked, and is renamed when all of it is on the disk: whoever finds a file finds it whole, and of
//! several processes that make the same one the last wins.

mod file;

#[cfg(test)]
mod tests;

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::{Duration, SystemTime};

use baton_graph::hex;
use memmap2::Mmap;

use crate::pages;
use crate::pool::Pool;
use file::Description;

/// Tells packed weights apart: a digest of everything that they depend on.
pub(crate) type Key = [u8; 32];

/// Of a finished file, and of one that is being written.
const FINISHED: &str = "packed";
const UNFINISHED: &str = "part";
/// Bytes of the disk that are left free.
const SPARE: u64 = 1 << 29;
/// How long the end of a program waits for them to be written.
const PATIENCE: Duration = Duration::from_secs(10);

/// A folder for packed weights, which may be used by several processes at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackedCache {
    folder: PathBuf,
    limit: u64,
}

/// The packed weights of one model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackedFile {
    /// Where they are.
    pub path: PathBuf,
    /// Bytes of the file.
    pub bytes: u64,
    /// When they were last used.
    pub used: SystemTime,
    /// The file that they were made of, as far as is known.
    pub source: Option<PathBuf>,
}

impl PackedCache {
    /// The cache in `folder`, which need not exist, of at most `limit` bytes. Those that were not
    /// used for longest make room for new ones.
    pub fn new(folder: impl Into<PathBuf>, limit: u64) -> PackedCache {
        PackedCache { folder: folder.into(), limit }
    }

    /// Where it is.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// What it holds, the least recently used first.
    ///
    /// # Errors
    /// If the folder cannot be read.
    pub fn list(&self) -> io::Result<Vec<PackedFile>> {
        let mut files = Vec::new();
        for path in self.files(FINISHED)? {
            let Ok(info) = std::fs::symlink_metadata(&path) else { continue };
            let told = file::open(&path).ok().flatten();
            let source = told.and_then(|(_, told)| told.source);
            let used = info.modified().unwrap_or(SystemTime::UNIX_EPOCH);
            files.push(PackedFile { path, bytes: info.len(), used, source });
        }
        files.sort_by_key(|file| file.used);
        Ok(files)
    }

    /// Deletes what no model file needs any more: packed weights of files that are gone, and what
    /// processes that were ended have left. Returns how many bytes that freed.
    ///
    /// # Errors
    /// If the folder cannot be read, or something in it cannot be deleted.
    pub fn sweep(&self) -> io::Result<u64> {
        self.remove(|file| file.source.as_ref().is_some_and(|source| !source.exists()))
    }

    /// Deletes everything but what is being written. Returns how many bytes that freed.
    ///
    /// # Errors
    /// As [`PackedCache::sweep`].
    pub fn clear(&self) -> io::Result<u64> {
        self.remove(|_| true)
    }

    /// The weights of that key, of `len` bytes at least, if they are here. What cannot be theirs is
    /// deleted.
    pub(crate) fn open(&self, pool: &Pool, key: &Key, len: usize) -> Option<Arc<Mmap>> {
        let path = self.path(key);
        let opened = match file::open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
            opened => opened,
        };
        let expected = |told: &Description| told.key == *key && told.len == len as u64;
        let found = match opened {
            Ok(Some((file, told))) if expected(&told) => {
                // The time of its last use; without it the file is only deleted sooner.
                let _ = file.set_modified(SystemTime::now());
                pages::of_file(pool, &file).map(Arc::new)
            }
            Ok(_) => Err(io::Error::new(io::ErrorKind::InvalidData, "it is damaged or foreign")),
            Err(error) => Err(error),
        };
        match found {
            Ok(memory) => Some(memory),
            Err(error) => {
                tracing::warn!("packed weights in {} are made anew: {error}", path.display());
                let _ = std::fs::remove_file(&path);
                None
            }
        }
    }

    /// Keeps the first `len` bytes of `weights`, which were made of the file `source`, for the next
    /// time. That goes on in the background; dropping the result waits for it, but not for long.
    pub(crate) fn save(&self, key: Key, source: &Path, weights: Arc<Mmap>, len: usize) -> Saving {
        let source = std::path::absolute(source).ok();
        let told = Description { key, len: len as u64, source };
        let cache = self.clone();
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, (ended, end)) = (Arc::clone(&stop), mpsc::channel());
        let work = move || {
            // Dropped at the end, however that comes.
            let _ended: Sender<()> = ended;
            let result = cache.write(&weights[..len], &told, &stopped);
            if let Err(error) = result
                && !stopped.load(Ordering::Relaxed)
            {
                let folder = cache.folder.display();
                tracing::warn!(
                    "packed weights cannot be kept in {folder} for the next start: {error}"
                );
            }
        };
        // Without a thread the channel's end is there at once.
        let _ = std::thread::Builder::new().name("baton-save".into()).spawn(work);
        Saving { stop, end }
    }

    fn write(&self, weights: &[u8], told: &Description, stop: &AtomicBool) -> io::Result<()> {
        let Some(size) = file::size(told.len).filter(|&size| size <= self.limit) else {
            tracing::debug!("packed weights of {} bytes are more than are kept", told.len);
            return Ok(());
        };
        create_folder(&self.folder)?;
        self.make_room(size)?;
        let free = fs4::available_space(&self.folder)?;
        if free < size.saturating_add(SPARE) {
            let text = format!("{size} bytes are wanted and {SPARE} left free, of {free} that are");
            return Err(io::Error::new(io::ErrorKind::StorageFull, text));
        }
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = self.path(&told.key);
        let part = path.with_extension(format!("{}-{number}.{UNFINISHED}", std::process::id()));
        let mut out = file::create(&part)?;
        // Held until the file is closed: others then know that it is being written.
        let _ = out.try_lock();
        let written = file::write(&mut out, weights, told, stop);
        written.and_then(|()| std::fs::rename(&part, &path)).inspect_err(|_| {
            let _ = std::fs::remove_file(&part);
        })
    }

    /// Deletes what is of no use, then the least recently used, until there is room for `size` bytes.
    fn make_room(&self, size: u64) -> io::Result<()> {
        self.sweep()?;
        let files = self.list()?;
        let mut held = files.iter().fold(size, |sum, file| sum.saturating_add(file.bytes));
        for file in files {
            if held <= self.limit {
                break;
            }
            held -= delete(&file.path, file.bytes)?;
        }
        Ok(())
    }

    fn remove(&self, unwanted: impl Fn(&PackedFile) -> bool) -> io::Result<u64> {
        let mut freed = 0;
        for part in self.files(UNFINISHED)? {
            let Ok(file) = File::open(&part) else { continue };
            if file.try_lock().is_ok() {
                freed += delete(&part, file.metadata()?.len())?;
            }
        }
        for file in self.list()?.iter().filter(|file| unwanted(file)) {
            freed += delete(&file.path, file.bytes)?;
        }
        Ok(freed)
    }

    fn path(&self, key: &Key) -> PathBuf {
        self.folder.join(hex(&key[..16])).with_extension(FINISHED)
    }

    /// Paths of files in the folder whose names end like that.
    fn files(&self, extension: &str) -> io::Result<Vec<PathBuf>> {
        let entries = match std::fs::read_dir(&self.folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries?,
        };
        let paths = entries.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>()?;
        Ok(paths.into_iter().filter(|p| p.extension().is_some_and(|e| e == extension)).collect())
    }
}

/// Deletes a file of `bytes` bytes, if it is still there, and says how many that freed.
fn delete(path: &Path, bytes: u64) -> io::Result<u64> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(bytes),
    }
}

/// A folder that is nobody else's to look into.
fn create_folder(path: &Path) -> io::Result<()> {
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(path)
}

/// Weights that are being written. Dropping it waits until they are; on a disk too slow for
/// [`PATIENCE`] it gives them up, since whoever has had an answer wants to go on.
#[derive(Debug)]
pub(crate) struct Saving {
    stop: Arc<AtomicBool>,
    end: Receiver<()>,
}

impl Drop for Saving {
    fn drop(&mut self) {
        // Nothing is ever sent: what comes is that the other end is gone.
        if let Err(mpsc::RecvTimeoutError::Timeout) = self.end.recv_timeout(PATIENCE) {
            tracing::info!("the disk is too slow: packed weights are not kept this time");
            self.stop.store(true, Ordering::Relaxed);
        }
    }
}
