//! A file of packed weights.
//!
//! ```text
//! packed weights, in the order of the plan, up to a whole page
//! one page    magic, key, length of the weights, path of the model, zeros, SHA-256 of the page so far
//! ```
//!
//! What describes them comes last, so that the weights can be mapped in large pages.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use sha2::{Digest, Sha256};

use super::Key;

const MAGIC: [u8; 8] = *b"BATONPW1";
const PAGE: usize = 4096;
const DIGEST: usize = 32;
/// Where the path is.
const PATH: usize = 8 + 32 + 8 + 4;
/// Bytes that are written at once: enough for the system to cache the file in large pages.
const CHUNK: usize = 8 << 20;

/// What a file says of its weights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Description {
    pub(super) key: Key,
    /// Bytes of weights.
    pub(super) len: u64,
    /// The model's file, if its path could be noted.
    pub(super) source: Option<PathBuf>,
}

impl Description {
    fn page(&self) -> [u8; PAGE] {
        let mut page = [0; PAGE];
        page[..8].copy_from_slice(&MAGIC);
        page[8..40].copy_from_slice(&self.key);
        page[40..48].copy_from_slice(&self.len.to_le_bytes());
        let path = self.source.as_deref().and_then(Path::to_str).unwrap_or_default();
        let path = if path.len() <= PAGE - DIGEST - PATH { path } else { "" };
        page[48..PATH].copy_from_slice(&(path.len() as u32).to_le_bytes());
        page[PATH..PATH + path.len()].copy_from_slice(path.as_bytes());
        let digest = Sha256::digest(&page[..PAGE - DIGEST]);
        page[PAGE - DIGEST..].copy_from_slice(&digest);
        page
    }

    fn parse(page: &[u8; PAGE]) -> Option<Description> {
        let (told, digest) = page.split_at(PAGE - DIGEST);
        let (magic, rest) = told.split_first_chunk()?;
        let (key, rest) = rest.split_first_chunk()?;
        let (len, rest) = rest.split_first_chunk()?;
        let (path_len, rest) = rest.split_first_chunk()?;
        if *magic != MAGIC || Sha256::digest(told)[..] != *digest {
            return None;
        }
        let path = rest.get(..u32::from_le_bytes(*path_len) as usize)?;
        let source = std::str::from_utf8(path).ok().filter(|path| !path.is_empty());
        Some(Description {
            key: *key,
            len: u64::from_le_bytes(*len),
            source: source.map(PathBuf::from),
        })
    }
}

/// Bytes of a file of so many bytes of weights.
pub(super) fn size(len: u64) -> Option<u64> {
    len.checked_next_multiple_of(PAGE as u64)?.checked_add(PAGE as u64)
}

/// Opens a file and reads what it says; nothing if it is damaged, incomplete, of another program, or
/// might be written by another user.
pub(super) fn open(path: &Path) -> io::Result<Option<(File, Description)>> {
    let listed = std::fs::symlink_metadata(path)?;
    if !is_private(&listed) {
        return Ok(None);
    }
    let mut file = File::open(path)?;
    let info = file.metadata()?;
    if !is_same(&listed, &info) || info.len() < PAGE as u64 {
        return Ok(None);
    }
    let mut page = [0; PAGE];
    file.seek(SeekFrom::Start(info.len() - PAGE as u64))?;
    file.read_exact(&mut page)?;
    let whole = |told: &Description| size(told.len) == Some(info.len());
    Ok(Description::parse(&page).filter(whole).map(|told| (file, told)))
}

/// Creates a file that only this user can read or write, where there is none.
pub(super) fn create(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

/// Writes weights and their description, safely on the disk when it returns, unless it is to `stop`.
pub(super) fn write(
    file: &mut File,
    weights: &[u8],
    told: &Description,
    stop: &AtomicBool,
) -> io::Result<()> {
    for chunk in weights.chunks(CHUNK) {
        if stop.load(Ordering::Relaxed) {
            return Err(io::ErrorKind::Interrupted.into());
        }
        file.write_all(chunk)?;
    }
    let padding = weights.len().next_multiple_of(PAGE) - weights.len();
    file.write_all(&[0; PAGE][..padding])?;
    file.write_all(&told.page())?;
    file.sync_all()
}

/// A regular file, no link to one, that only its owner may write.
fn is_private(info: &Metadata) -> bool {
    #[cfg(unix)]
    let others = std::os::unix::fs::MetadataExt::mode(info) & 0o022 != 0;
    #[cfg(not(unix))]
    let others = false;
    info.is_file() && !others
}

fn is_same(listed: &Metadata, opened: &Metadata) -> bool {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        listed.dev() == opened.dev() && listed.ino() == opened.ino()
    }
    #[cfg(not(unix))]
    {
        listed.len() == opened.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_description_reads_back() {
        for source in [None, Some("/models/größe.gguf".into())] {
            let told = Description { key: [7; 32], len: 12345, source };
            assert_eq!(Description::parse(&told.page()), Some(told));
        }
        let long = Description { key: [1; 32], len: 1, source: Some("x".repeat(PAGE).into()) };
        let found = Description::parse(&long.page()).unwrap();
        assert_eq!(found, Description { source: None, ..long });
    }

    #[test]
    fn a_description_with_any_bit_changed_is_none() {
        let page = Description { key: [7; 32], len: 9, source: Some("/m".into()) }.page();
        for at in (0..64).chain([100, 2000, PAGE - DIGEST, PAGE - 1]) {
            let mut page = page;
            page[at] ^= 4;
            assert_eq!(Description::parse(&page), None, "byte {at}");
        }
    }

    #[test]
    fn sizes_are_whole_pages_and_do_not_overflow() {
        assert_eq!([0, 1, 4096].map(size), [Some(4096), Some(8192), Some(8192)]);
        assert_eq!([u64::MAX, u64::MAX - 4096].map(size), [None, None]);
    }
}
