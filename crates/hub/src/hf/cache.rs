//! Files that other programs have already put into the Hugging Face cache on this machine:
//! `models--ORG--REPO/refs/REV` names a commit, `snapshots/COMMIT/` holds its files as links into
//! `blobs/`, where a large file is called by its SHA-256.

use std::fs::File;
use std::path::{Path, PathBuf};

use crate::download::Want;
use crate::hash::hash_reader;
use crate::hf::RemoteFile;
use crate::hf::select::select;
use crate::{Error, Event, HfRef, Progress, Result, Sha256};

/// A file in the cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Cached {
    /// Where its bytes are, links resolved.
    pub path: PathBuf,
    /// As listed, with the size found.
    pub file: RemoteFile,
}

/// Finds all files of `hf` in the cache, or `None` if one is not there.
pub(crate) fn lookup(cache: &Path, hf: &HfRef) -> Option<Vec<Cached>> {
    let snapshot = snapshot(&repo_folder(cache, hf), hf.revision())?;
    let mut all = Vec::new();
    collect(&snapshot, "", 0, &mut all);
    let listed: Vec<_> = all.iter().map(|cached| cached.file.clone()).collect();
    let chosen = select(hf, &listed).ok()?;
    let chosen: Vec<_> = chosen
        .into_iter()
        .filter_map(|file| all.iter().find(|cached| cached.file == *file).cloned())
        .collect();
    // Without the tokenizer a partial snapshot of a checkpoint would be taken for a whole one.
    let complete = chosen.iter().any(|cached| {
        cached.file.path.to_ascii_lowercase().ends_with(".gguf")
            || cached.file.path.starts_with("tokenizer")
    });
    complete.then_some(chosen)
}

/// Finds a file of known content, whichever revision of `hf` it came with.
pub(crate) fn by_digest(cache: &Path, hf: &HfRef, digest: Sha256) -> Option<Cached> {
    let pick = hf.pick.as_ref().filter(|pick| pick.to_ascii_lowercase().ends_with(".gguf"))?;
    let blob = repo_folder(cache, hf).join("blobs").join(digest.to_string());
    let path = blob.canonicalize().ok()?;
    let size = path.metadata().ok().filter(std::fs::Metadata::is_file)?.len();
    let file = RemoteFile { path: pick.clone(), size: Some(size), sha256: Some(digest) };
    Some(Cached { path, file })
}

fn repo_folder(cache: &Path, hf: &HfRef) -> PathBuf {
    cache.join(format!("models--{}", hf.repo.replace('/', "--")))
}

fn snapshot(repo: &Path, revision: &str) -> Option<PathBuf> {
    let snapshots = repo.join("snapshots");
    let direct = snapshots.join(revision);
    if direct.is_dir() {
        return Some(direct);
    }
    let reference = repo.join("refs").join(revision);
    let small = std::fs::metadata(&reference).ok()?.len() <= 256;
    let commit = small.then(|| std::fs::read_to_string(&reference).ok()).flatten()?;
    let commit = commit.trim();
    let plain = !commit.is_empty() && commit.bytes().all(|b| b.is_ascii_alphanumeric());
    let folder = snapshots.join(commit);
    (plain && folder.is_dir()).then_some(folder)
}

fn collect(folder: &Path, prefix: &str, depth: u32, out: &mut Vec<Cached>) {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    for entry in entries {
        let Ok(name) = entry.file_name().into_string() else { continue };
        let path = format!("{prefix}{name}");
        let Ok(real) = entry.path().canonicalize() else { continue };
        let Ok(data) = real.metadata() else { continue };
        if data.is_dir() && depth < 4 {
            collect(&entry.path(), &format!("{path}/"), depth + 1, out);
        } else if data.is_file() {
            let digest = real.file_name().and_then(|name| Sha256::parse(name.to_str()?));
            let file = RemoteFile { path, size: Some(data.len()), sha256: digest };
            out.push(Cached { path: real, file });
        }
    }
}

/// Checks a cached file against what is wanted. Its digest is taken from its name in the cache, or
/// computed where the cache does not tell. A file that cannot be read is as good as none.
pub(crate) fn matches(
    cached: &Cached,
    want: &Want<'_>,
    progress: &mut dyn Progress,
) -> Result<bool> {
    if want.size.is_some() && want.size != cached.file.size {
        return Ok(false);
    }
    let Some(expected) = want.sha256 else { return Ok(true) };
    if let Some(known) = cached.file.sha256 {
        return Ok(known == expected);
    }
    let total = cached.file.size.unwrap_or(0);
    let Ok(mut file) = File::open(&cached.path) else { return Ok(false) };
    let mut hasher = <sha2::Sha256 as sha2::Digest>::new();
    let hashed = hash_reader(&mut file, &mut hasher, |done| {
        progress.event(Event::Verifying { file: want.file, done, total });
        !progress.cancelled()
    });
    match progress.cancelled() {
        true => Err(Error::Cancelled),
        false => Ok(hashed.is_ok() && Sha256::finish(hasher) == expected),
    }
}

#[cfg(test)]
mod tests;
