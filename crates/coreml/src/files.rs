//! Files that others made: one of them, and all below a folder.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use baton_graph::hex;
use sha2::{Digest, Sha256};

use crate::{Error, Result};

/// SHA-256 in hexadecimal digits of files that were looked at already, by their paths.
pub type Hashes = BTreeMap<PathBuf, String>;

/// Bytes that are hashed at once.
const AT_ONCE: usize = 1 << 20;

/// How deep folders lie in each other at most: links may lead in a circle.
const DEEPEST: usize = 16;
/// Files and folders that are looked at at most: circles may branch.
const MOST: usize = 1 << 16;

/// A file, which must be a regular one, and its length: pipes and devices have none, may have no end, or
/// let nobody open them until somebody writes.
///
/// # Errors
/// If it is none, or cannot be opened.
pub(crate) fn open(path: &Path) -> Result<(File, u64)> {
    let is_file = |about: &fs::Metadata| match about.is_file() {
        true => Ok(about.len()),
        false => Err(Error::malformed(format!("{} is no file", path.display()))),
    };
    is_file(&fs::metadata(path).map_err(Error::io(path))?)?;
    let file = File::open(path).map_err(Error::io(path))?;
    let len = is_file(&file.metadata().map_err(Error::io(path))?)?;
    Ok((file, len))
}

/// SHA-256 in hexadecimal digits of an open file of that length, of which no more is read.
///
/// # Errors
/// If it cannot be read, or has become shorter.
pub(crate) fn hash(path: &Path, file: File, len: u64) -> Result<String> {
    let (mut file, mut hash) = (file.take(len), Sha256::new());
    let mut part = vec![0; AT_ONCE.min(usize::try_from(len).unwrap_or(AT_ONCE))];
    let mut left = len;
    while left > 0 {
        match file.read(&mut part).map_err(Error::io(path))? {
            0 => return Err(Error::io(path)(io::ErrorKind::UnexpectedEof.into())),
            n => {
                hash.update(&part[..n]);
                left -= n as u64;
            }
        }
    }
    Ok(hex(&hash.finalize()))
}

/// The files below a folder, by their names. Links are followed, as they are by whoever opens such a file.
///
/// # Errors
/// If something cannot be looked at, or there is no end.
pub(crate) fn below(folder: &Path) -> Result<Vec<PathBuf>> {
    let (mut files, mut folders) = (Vec::new(), vec![(folder.to_owned(), 0)]);
    let mut seen = 0;
    while let Some((at, depth)) = folders.pop() {
        for entry in fs::read_dir(&at).map_err(Error::io(&at))? {
            let path = entry.map_err(Error::io(&at))?.path();
            let kind = fs::metadata(&path).map_err(Error::io(&path))?;
            seen += 1;
            if seen > MOST || kind.is_dir() && depth == DEEPEST {
                let problem =
                    "has too many files or folders below it; does a link lead in a circle?";
                return Err(Error::io(folder)(io::Error::other(problem)));
            }
            if kind.is_dir() {
                folders.push((path, depth + 1));
            } else if kind.is_file() {
                files.push(path);
            }
        }
    }
    files.sort();
    Ok(files)
}

#[cfg(all(test, unix))]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn links_are_followed_and_those_in_circles_and_to_nowhere_are_errors() {
        let room = tempfile::tempdir().unwrap();
        let at = |name: &str| room.path().join(name);
        fs::create_dir_all(at("blobs/inner")).unwrap();
        fs::write(at("blobs/inner/a"), "a").unwrap();
        fs::create_dir(at("folder")).unwrap();
        symlink("../blobs/inner", at("folder/linked")).unwrap();
        symlink("../blobs/inner/a", at("folder/b")).unwrap();
        let found = || below(&at("folder")).map_err(|error| error.to_string());
        assert_eq!(found().unwrap(), [at("folder/b"), at("folder/linked/a")]);
        for name in ["one", "two"] {
            symlink("../folder", at("folder").join(name)).unwrap();
        }
        let error = found().unwrap_err();
        assert!(error.contains("circle") && error.contains("folder"), "{error}");
        fs::remove_file(at("folder/one")).unwrap();
        assert!(found().unwrap_err().contains("circle"));
        fs::remove_file(at("folder/two")).unwrap();
        symlink("nothing", at("folder/nowhere")).unwrap();
        assert!(found().unwrap_err().contains("nowhere"));
    }
}
