//! `manifest.json` of a model in the store: what it is, where it came from, what its files were.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::local::entry_point;
use super::{Custom, LocalFile, LocalModel};
use crate::hf::select::is_module_file;
use crate::names::safe_file_name;
use crate::{Error, Result, Sha256};

/// The manifest's name in the model's folder.
pub(super) const FILE: &str = "manifest.json";
/// From a model's folder to the blobs.
pub(super) const BLOBS: &str = "../../blobs";

const VERSION: u32 = 1;
const MAX_SIZE: u64 = 4 << 20;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Manifest {
    pub version: u32,
    /// The canonical reference.
    pub name: String,
    /// The source that delivered.
    pub source: String,
    /// Seconds since 1970.
    pub fetched_at: u64,
    /// In the order in which a loader wants them.
    pub files: Vec<ManifestFile>,
    /// Settings of a model that the user made from another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub custom: Option<Custom>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ManifestFile {
    pub name: String,
    pub size: u64,
    pub sha256: Option<Sha256>,
    /// Set for a file that stays in the Hugging Face cache.
    pub external: Option<PathBuf>,
}

impl Manifest {
    pub(super) fn new(name: String, source: String, files: Vec<ManifestFile>) -> Self {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let fetched_at = now.map_or(0, |elapsed| elapsed.as_secs());
        Self { version: VERSION, name, source, fetched_at, files, custom: None }
    }

    pub(super) fn read(folder: &Path) -> Result<Self> {
        let path = folder.join(FILE);
        let bad = |reason: String| Error::BadManifest { path: path.clone(), reason };
        let size = std::fs::metadata(&path).map_err(|error| bad(error.to_string()))?.len();
        if size > MAX_SIZE {
            return Err(bad(format!("it has {size} bytes")));
        }
        let bytes = std::fs::read(&path).map_err(|error| bad(error.to_string()))?;
        let manifest: Self =
            serde_json::from_slice(&bytes).map_err(|error| bad(error.to_string()))?;
        if manifest.version != VERSION {
            let version = manifest.version;
            return Err(bad(format!("version {version} is not {VERSION}; it is of another Baton")));
        }
        if manifest.files.is_empty() {
            return Err(bad("it lists no files".into()));
        }
        for file in &manifest.files {
            let plain = safe_file_name(&file.name, "the manifest")? == file.name;
            if !(plain || is_module_file(&file.name)) || file.name == FILE {
                return Err(bad(format!("{:?} is no file name", file.name)));
            }
        }
        Ok(manifest)
    }

    /// Fills `folder` with this manifest and a link to each file.
    pub(super) fn write(&self, folder: &Path) -> Result<()> {
        for file in &self.files {
            let nested = is_module_file(&file.name);
            let blobs = if nested { Path::new("..").join(BLOBS) } else { BLOBS.into() };
            let blob = |digest: Sha256| blobs.join(digest.to_string());
            // A file of the store has a digest; one without is in the Hugging Face cache.
            if let Some(target) = file.external.clone().or(file.sha256.map(blob)) {
                let link = folder.join(&file.name);
                if let Some(parent) = link.parent().filter(|_| nested) {
                    std::fs::create_dir_all(parent).map_err(Error::io("create", parent))?;
                }
                symlink(&target, &link).map_err(Error::io("create the link", &link))?;
            }
        }
        let path = folder.join(FILE);
        let text = serde_json::to_vec_pretty(self).expect("a manifest is plain data");
        std::fs::write(&path, text).map_err(Error::io("write", &path))
    }

    /// The model as it is on disk now.
    pub(super) fn model(self, folder: &Path) -> LocalModel {
        let mut complete = true;
        let mut files = Vec::with_capacity(self.files.len());
        for file in self.files {
            let path = folder.join(&file.name);
            complete &= std::fs::metadata(&path).is_ok_and(|data| data.len() == file.size);
            let ManifestFile { name, size, sha256, .. } = file;
            files.push(LocalFile { name, path, size, sha256 });
        }
        LocalModel {
            name: self.name,
            path: entry_point(folder, &files),
            size: files.iter().fold(0, |sum, file| sum.saturating_add(file.size)),
            files,
            source: Some(self.source),
            fetched_at: Some(self.fetched_at),
            custom: self.custom,
            complete,
        }
    }
}

#[cfg(unix)]
fn symlink(target: &Path, link: &Path) -> std::io::Result<()> {
    std::os::unix::fs::symlink(target, link)
}

#[cfg(windows)]
fn symlink(target: &Path, link: &Path) -> std::io::Result<()> {
    std::os::windows::fs::symlink_file(target, link)
}
