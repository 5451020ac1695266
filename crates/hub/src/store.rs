//! The local store: which models are here, fetching one, removing one.

mod copy;
mod fetch;
mod local;
mod lock;
mod manifest;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::names::{folder_name, url_decode};
use crate::{Catalog, Error, Progress, Reference, Result, Settings, Sha256};
pub use copy::Custom;
use lock::Lock;
use manifest::Manifest;

/// A model on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalModel {
    /// What it is called: the canonical spelling of the reference it was fetched by.
    pub name: String,
    /// What a loader opens: the (first) GGUF file, or the checkpoint folder.
    pub path: PathBuf,
    /// Its files.
    pub files: Vec<LocalFile>,
    /// Bytes of all files.
    pub size: u64,
    /// The source that delivered it; `None` for a path given by the user.
    pub source: Option<String>,
    /// When it was fetched, in seconds since 1970; `None` for a path given by the user.
    pub fetched_at: Option<u64>,
    /// Settings of a model that the user made from another.
    pub custom: Option<Custom>,
    /// False if a file is missing or has another size than when it was fetched, or the manifest is
    /// damaged. Fetching the model again mends it.
    pub complete: bool,
}

/// A file of a [`LocalModel`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalFile {
    /// Its name.
    pub name: String,
    /// Where it is.
    pub path: PathBuf,
    /// Bytes.
    pub size: u64,
    /// Digest of its content, where it was computed or stated.
    pub sha256: Option<Sha256>,
}

/// The models on this machine, and the way to get more. May be used by several processes at once.
#[derive(Debug)]
pub struct Store {
    settings: Settings,
    catalog: Catalog,
}

impl Store {
    /// The store where the environment says (see [`Settings::from_env`]).
    ///
    /// # Errors
    /// As [`with_settings`](Self::with_settings); [`Error::NoHome`].
    pub fn open_default() -> Result<Self> {
        Self::with_settings(Settings::from_env()?)
    }

    /// The store in the folder `home`; all else as the environment says.
    ///
    /// # Errors
    /// As [`with_settings`](Self::with_settings).
    pub fn open(home: impl Into<PathBuf>) -> Result<Self> {
        let home = home.into();
        let var = |name: &str| match name {
            "BATON_HOME" => Some(home.clone().into_os_string()),
            other => std::env::var_os(other),
        };
        Self::with_settings(Settings::from_vars(&var)?)
    }

    /// The store that `settings` describe. Nothing is created before something is fetched.
    ///
    /// # Errors
    /// [`Error::BadCatalog`] if the user's catalog is not valid; [`Error::HomeIsNoFolder`].
    pub fn with_settings(mut settings: Settings) -> Result<Self> {
        settings.home =
            std::path::absolute(&settings.home).map_err(Error::io("find", &settings.home))?;
        settings.nearest_folder()?;
        let catalog = Catalog::load(settings.user_catalog.as_deref())?;
        Ok(Self { settings, catalog })
    }

    /// Where and how this store works.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The names that can be fetched.
    pub fn catalog(&self) -> &Catalog {
        &self.catalog
    }

    /// Reads what a user typed as a model: as [`Reference::parse`], and a name must be known.
    ///
    /// # Errors
    /// [`Error::UnknownModel`] with similar names; [`Error::BadReference`].
    pub fn resolve(&self, text: &str) -> Result<Reference> {
        let reference = Reference::parse(text)?;
        let Reference::Name(name) = &reference else { return Ok(reference) };
        if let Some(entry) = self.catalog.get(name) {
            return Ok(Reference::Name(entry.name.clone()));
        }
        // What was fetched under a name that the catalog has since lost is still here.
        if self.folder(name).join(manifest::FILE).exists() {
            return Ok(reference);
        }
        let here: Vec<_> = self.list().unwrap_or_default().into_iter().map(|m| m.name).collect();
        Err(Error::UnknownModel { name: name.clone(), near: self.catalog.near(name, &here) })
    }

    /// Gets the model: at once and without network if it is here, else from the first of its sources
    /// that delivers.
    ///
    /// # Errors
    /// Of its only source, or [`Error::AllSourcesFailed`] with that of each. Trouble at this end (a
    /// full disk, [`Error::Cancelled`]) ends it at once; what has come so far is kept and resumed.
    pub fn get(&self, reference: &Reference, progress: &mut dyn Progress) -> Result<LocalModel> {
        fetch::get(self, reference, progress)
    }

    /// All models in the store, in the order of their names.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub fn list(&self) -> Result<Vec<LocalModel>> {
        let mut models = Vec::new();
        for folder in self.folders()? {
            models.push(match Manifest::read(&folder) {
                Ok(manifest) => manifest.model(&folder),
                Err(_) => broken(folder),
            });
        }
        models.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(models)
    }

    /// The model called `name` (any spelling of a reference), if it is here and whole.
    ///
    /// # Errors
    /// For a name that is none, or a path without a model.
    pub fn find(&self, name: &str) -> Result<Option<LocalModel>> {
        match self.resolve(name) {
            Ok(Reference::Path(path)) => local::open(&path).map(Some),
            Ok(reference) => Ok(self.installed(&reference.to_string())),
            Err(Error::UnknownModel { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Removes a model from the store, and those of its bytes that no other model shares; returns how
    /// many bytes that freed. Files in the Hugging Face cache stay.
    ///
    /// # Errors
    /// [`Error::NotInstalled`]; a path is refused, since only what the store fetched is its to delete.
    pub fn remove(&self, name: &str) -> Result<u64> {
        let absent = || Error::NotInstalled { name: name.into() };
        let reference = match self.resolve(name) {
            Ok(Reference::Path(_)) | Err(Error::UnknownModel { .. }) => return Err(absent()),
            other => other?,
        };
        let folder = self.folder(&reference.to_string());
        if !folder.is_dir() {
            return Err(absent());
        }
        let _lock = Lock::wait(&self.lock_path("store"))?;
        let mut unused = blobs_of(&folder)?;
        for other in self.folders()?.into_iter().filter(|other| *other != folder) {
            for blob in blobs_of(&other)? {
                unused.remove(&blob);
            }
        }
        // First out of sight in one step, so that nobody ever sees half a model.
        let trash = self.scratch()?;
        let gone = trash.path().join("model");
        std::fs::rename(&folder, &gone).map_err(Error::io("remove", &folder))?;
        trash.close().map_err(Error::io("remove", &gone))?;
        let mut freed = 0;
        for digest in unused {
            let blob = self.blob(&digest);
            match std::fs::metadata(&blob) {
                Ok(data) => {
                    std::fs::remove_file(&blob).map_err(Error::io("remove", &blob))?;
                    freed += data.len();
                }
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => return Err(Error::io("remove", &blob)(error)),
            }
        }
        Ok(freed)
    }

    /// Deletes what unfinished downloads have left, except those that are running; returns how many
    /// bytes that freed.
    ///
    /// # Errors
    /// If the store cannot be read or written.
    pub fn discard_unfinished(&self) -> Result<u64> {
        let partial = self.subfolder("partial")?;
        let mut freed = 0;
        for entry in std::fs::read_dir(&partial).map_err(Error::io("read", &partial))?.flatten() {
            let path = entry.path();
            let Some(key) = path.file_stem().and_then(|stem| stem.to_str()) else { continue };
            let Some(_lock) = Lock::try_take(&self.lock_path(key))? else { continue };
            let size = entry.metadata().map_or(0, |data| data.len());
            std::fs::remove_file(&path).map_err(Error::io("remove", &path))?;
            freed += size;
        }
        Ok(freed)
    }

    fn installed(&self, name: &str) -> Option<LocalModel> {
        let folder = self.folder(name);
        let model = Manifest::read(&folder).ok()?.model(&folder);
        (model.complete && model.name == name).then_some(model)
    }

    fn folders(&self) -> Result<Vec<PathBuf>> {
        let models = self.settings.home.join("models");
        let entries = match std::fs::read_dir(&models) {
            Ok(entries) => entries,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(Error::io("read", &models)(error)),
        };
        let folders = entries.flatten().filter(|entry| entry.file_type().is_ok_and(|t| t.is_dir()));
        Ok(folders.map(|entry| entry.path()).collect())
    }

    fn folder(&self, name: &str) -> PathBuf {
        self.settings.home.join("models").join(folder_name(name))
    }

    fn blob(&self, digest: &Sha256) -> PathBuf {
        self.settings.home.join("blobs").join(digest.to_string())
    }

    fn lock_path(&self, key: &str) -> PathBuf {
        self.settings.home.join("locks").join(format!("{key}.lock"))
    }

    /// A folder of the store, created if it is not there.
    fn subfolder(&self, name: &str) -> Result<PathBuf> {
        let folder = self.settings.home.join(name);
        std::fs::create_dir_all(&folder).map_err(Error::io("create", &folder))?;
        Ok(folder)
    }

    /// An empty folder on the store's file system that goes away by itself.
    fn scratch(&self) -> Result<tempfile::TempDir> {
        let folder = self.subfolder("tmp")?;
        tempfile::tempdir_in(&folder).map_err(Error::io("create a folder in", &folder))
    }
}

/// The blobs that a model's folder, or a folder of a module in it, links to.
fn blobs_of(folder: &Path) -> Result<BTreeSet<Sha256>> {
    let read = |folder: &Path| std::fs::read_dir(folder).map_err(Error::io("read", folder));
    let digest = |entry: std::fs::DirEntry, blobs: &Path| {
        let target = std::fs::read_link(entry.path()).ok()?;
        // Links into the Hugging Face cache are absolute.
        let name = target.strip_prefix(blobs).ok()?;
        Sha256::parse(name.to_str()?)
    };
    let (blobs, above) = (Path::new(manifest::BLOBS), Path::new("..").join(manifest::BLOBS));
    let mut found = BTreeSet::new();
    for entry in read(folder)?.flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            let inner = read(&entry.path())?.flatten();
            found.extend(inner.filter_map(|entry| digest(entry, &above)));
        } else {
            found.extend(digest(entry, blobs));
        }
    }
    Ok(found)
}

fn broken(folder: PathBuf) -> LocalModel {
    let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
    LocalModel {
        name: url_decode(&name).unwrap_or(name),
        path: folder,
        files: Vec::new(),
        size: 0,
        source: None,
        fetched_at: None,
        custom: None,
        complete: false,
    }
}

#[cfg(test)]
mod tests;
