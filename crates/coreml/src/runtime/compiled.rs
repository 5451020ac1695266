//! Packages as Core ML has compiled them for this machine, kept between runs.
//!
//! Compiling takes from seconds to minutes, and what the system itself keeps of it for the Neural Engine
//! depends on where the result lies: each has one place, by a digest of its package and the system. It is
//! made beside its place, and moved there when all of it is on the disk. Who makes one holds a lock, on
//! which others wait; who uses one holds another with all other users, and nothing is deleted meanwhile.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use baton_graph::hex;
use sha2::{Digest, Sha256};

use crate::files::{self, Hashes};
use crate::{Error, Result};

/// What folders in the cache are called: compiled packages, packages that were made to be compiled, and
/// what is not finished.
const COMPILED: &str = "mlmodelc";
const PACKAGE: &str = "mlpackage";
const UNFINISHED: &str = "part";
const LOCK: &str = "lock";
const IN_USE: &str = "use";
/// What lies in an unfinished folder until it is whole.
const MADE: &str = "made";
/// A file in it says what it was made of.
const SOURCE: &str = "source";

/// A folder for compiled packages, which several processes may use at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompiledCache {
    folder: PathBuf,
}

/// Something in the cache that is in use, and stays there as long as this does.
#[derive(Debug)]
pub struct Kept {
    path: PathBuf,
    _lease: File,
}

impl Kept {
    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// What clearing the cache came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cleared {
    /// Bytes that were freed.
    pub freed: u64,
    /// How many things are left, since somebody makes or uses them.
    pub in_use: usize,
}

/// Something that the cache holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompiledEntry {
    /// Where it is.
    pub path: PathBuf,
    /// Bytes of its files.
    pub bytes: u64,
    /// When it was last used.
    pub used: SystemTime,
    /// What it was made of.
    pub source: Option<String>,
}

impl CompiledCache {
    /// The cache in a folder, which need not exist.
    pub fn new(folder: impl Into<PathBuf>) -> CompiledCache {
        CompiledCache { folder: folder.into() }
    }

    /// Where it is.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The compiled form of a package on a system, which `compile` makes if it is not there: it returns
    /// the folder that it has made, wherever that is. Files whose hashes are known are not read to find it.
    ///
    /// # Errors
    /// If the package cannot be read, `compile` fails, or the result cannot be kept.
    pub fn compiled(
        &self,
        package: &Path,
        system: &str,
        hashes: &Hashes,
        compile: impl FnOnce(&Path) -> Result<PathBuf>,
    ) -> Result<Kept> {
        let key = digest(package, system, hashes)?;
        self.entry(&key, COMPILED, &package.display().to_string(), |place| {
            let made = compile(package)?;
            // What has failed is reported; that something is left then changes nothing.
            moved(&made, place).inspect_err(|_| drop(remove(&made)))
        })
    }

    /// The package that a key stands for, made of `source`, which `make` writes if it is not there.
    ///
    /// # Errors
    /// If `make` fails, or its result cannot be kept.
    pub fn package(
        &self,
        key: &[u8],
        source: &str,
        make: impl FnOnce(&Path) -> Result<()>,
    ) -> Result<Kept> {
        self.entry(&name(&Sha256::digest(key)), PACKAGE, source, |place| {
            tracing::warn!("a Core ML package is made of {source}; this is done once");
            make(place)
        })
    }

    fn entry(
        &self,
        key: &str,
        kind: &str,
        source: &str,
        make: impl FnOnce(&Path) -> Result<()>,
    ) -> Result<Kept> {
        create_folder(&self.folder).map_err(Error::io(&self.folder))?;
        let place = self.folder.join(key).with_extension(kind);
        let note = place.with_extension(format!("{kind}.{SOURCE}"));
        let lock_path = place.with_extension(format!("{kind}.{LOCK}"));
        let lock = File::create(&lock_path).map_err(Error::io(&lock_path))?;
        if lock.try_lock().is_err() {
            tracing::warn!("waiting for another process to be done with {}", place.display());
            lock.lock().map_err(Error::io(&lock_path))?;
        }
        if !place.exists() {
            let part = place.with_extension(format!("{kind}.{UNFINISHED}"));
            remove(&part).and_then(|()| fs::create_dir(&part)).map_err(Error::io(&part))?;
            // In a folder of its own, so that nothing is overlooked that was left beside it.
            let whole = part.join(MADE);
            let made = make(&whole).and_then(|()| {
                sync(&whole)?;
                fs::write(&note, source).map_err(Error::io(&note))?;
                fs::rename(&whole, &place).map_err(Error::io(&place))
            });
            // That what is left cannot be removed changes nothing for the caller.
            let _ = remove(&part);
            made.map_err(|error| error.moved(&whole, &place))?;
            sync_folder(&self.folder);
        }
        // The time of its last use; without it, it only seems older.
        let _ = File::options()
            .append(true)
            .open(&note)
            .map(|file| file.set_modified(SystemTime::now()));
        // Who clears the cache needs both locks: nothing comes in between.
        let use_path = place.with_extension(format!("{kind}.{IN_USE}"));
        let lease = File::create(&use_path).map_err(Error::io(&use_path))?;
        lease.lock_shared().map_err(Error::io(&use_path))?;
        Ok(Kept { path: place, _lease: lease })
    }

    /// What it holds, the least recently used first.
    ///
    /// # Errors
    /// If the folder cannot be read.
    pub fn list(&self) -> io::Result<Vec<CompiledEntry>> {
        let mut found = Vec::new();
        for path in self.paths(&[COMPILED, PACKAGE])? {
            let Some(note) = beside(&path, SOURCE) else { continue };
            let used = fs::metadata(&note).and_then(|info| info.modified());
            found.push(CompiledEntry {
                bytes: size(&path),
                used: used.unwrap_or(SystemTime::UNIX_EPOCH),
                source: fs::read_to_string(&note).ok(),
                path,
            });
        }
        found.sort_by_key(|entry| entry.used);
        Ok(found)
    }

    /// Deletes everything but what is being made, or is in use.
    ///
    /// # Errors
    /// If the folder cannot be read, or something in it cannot be deleted.
    pub fn clear(&self) -> io::Result<Cleared> {
        let mut cleared = Cleared::default();
        for path in self.paths(&[COMPILED, PACKAGE, UNFINISHED])? {
            // Of what is being made, the lock has the name of what it becomes.
            let whole = path.extension().is_some_and(|end| end != UNFINISHED);
            let place = if whole { path.clone() } else { path.with_extension("") };
            let locks = beside(&place, LOCK).zip(beside(&place, IN_USE));
            let Some((lock_path, use_path)) = locks else { continue };
            let locks = [File::create(&lock_path)?, File::create(&use_path)?];
            if locks.iter().any(|lock| lock.try_lock().is_err()) {
                cleared.in_use += 1;
                continue;
            }
            cleared.freed += size(&path);
            remove(&path)?;
            // The locks stay: others may be waiting for these very files.
            beside(&place, SOURCE).map_or(Ok(()), |note| remove(&note))?;
        }
        Ok(cleared)
    }

    /// Paths in the folder whose names end like that.
    fn paths(&self, ends: &[&str]) -> io::Result<Vec<PathBuf>> {
        let entries = match fs::read_dir(&self.folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries?,
        };
        let paths = entries.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>()?;
        let ends =
            |path: &PathBuf| path.extension().is_some_and(|e| ends.iter().any(|end| e == *end));
        Ok(paths.into_iter().filter(ends).collect())
    }
}

/// `X.mlmodelc` with another end behind its own.
fn beside(path: &Path, end: &str) -> Option<PathBuf> {
    let kind = path.extension()?.to_str()?;
    Some(path.with_extension(format!("{kind}.{end}")))
}

fn name(digest: &[u8]) -> String {
    hex(&digest[..16])
}

/// What tells compiled packages apart: a digest of every file's name and content, and of the system.
/// Links count as what they lead to.
fn digest(package: &Path, system: &str, hashes: &Hashes) -> Result<String> {
    let mut hash = Sha256::new();
    for path in &files::below(package)? {
        let inner = path.strip_prefix(package).unwrap_or(path).to_string_lossy();
        hash.update((inner.len() as u64).to_le_bytes());
        hash.update(inner.as_bytes());
        match hashes.get(path) {
            Some(known) => hash.update(known),
            None => {
                let (file, len) = files::open(path)?;
                hash.update(files::hash(path, file, len)?);
            }
        }
    }
    hash.update(system);
    Ok(name(&hash.finalize()))
}

fn size(folder: &Path) -> u64 {
    // What cannot be read has no size that could be told.
    let files = files::below(folder).unwrap_or_default();
    files.iter().filter_map(|file| file.metadata().ok()).map(|info| info.len()).sum()
}

/// Waits until all of a folder is on the disk.
fn sync(folder: &Path) -> Result<()> {
    let mut folders = BTreeSet::from([folder.to_owned()]);
    for path in files::below(folder)? {
        // Windows lets nobody sync a file who may not write it.
        let file = File::options().read(true).write(cfg!(windows)).open(&path);
        file.and_then(|file| file.sync_all()).map_err(Error::io(&path))?;
        let above = path.ancestors().skip(1).take_while(|above| above.starts_with(folder));
        folders.extend(above.map(Path::to_owned));
    }
    folders.iter().for_each(|folder| sync_folder(folder));
    Ok(())
}

/// The same for the names in a folder, where the system can do that.
fn sync_folder(folder: &Path) {
    let _ = File::open(folder).and_then(|folder| folder.sync_all());
}

/// Moves a folder, to another disk if need be.
fn moved(from: &Path, to: &Path) -> Result<()> {
    if fs::rename(from, to).is_ok() {
        return Ok(());
    }
    for path in files::below(from)? {
        let place = to.join(path.strip_prefix(from).unwrap_or(&path));
        let folder = place.parent().unwrap_or(to);
        fs::create_dir_all(folder).map_err(Error::io(folder))?;
        fs::copy(&path, &place).map_err(Error::io(&place))?;
    }
    remove(from).map_err(Error::io(from))
}

/// Removes a folder or a file, if it is there.
fn remove(path: &Path) -> io::Result<()> {
    let removed = match fs::symlink_metadata(path) {
        Ok(info) if info.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(error) => Err(error),
    };
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// A folder that is nobody else's to look into.
fn create_folder(path: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(path)
}

#[cfg(test)]
mod tests;
