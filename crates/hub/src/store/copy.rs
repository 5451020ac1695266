//! Models under further names, with settings of the user's own.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::lock::Lock;
use super::manifest::Manifest;
use super::{LocalModel, Store};
use crate::part::sync_folder;
use crate::{Error, Reference, Result};

/// What a user has set for a model that was made from another.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Custom {
    /// Instructions for conversations that have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system: Option<String>,
    /// Parameters of answers by their names, for requests that do not set them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub parameters: BTreeMap<String, Value>,
    /// The licence of what was added.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub license: Option<String>,
}

impl Store {
    /// Gives the model `source` the further name `name`; its bytes are shared. A model that had that
    /// name before is replaced. With `custom` it has settings of its own, else those of the source.
    ///
    /// # Errors
    /// [`Error::NotInstalled`]; [`Error::BadReference`] for a name that is not plain, or is one of
    /// the catalog's.
    pub fn copy(&self, source: &str, name: &str, custom: Option<Custom>) -> Result<LocalModel> {
        let bad = |reason: &str| Error::BadReference { text: name.into(), reason: reason.into() };
        let Reference::Name(name) = Reference::parse(name)? else {
            return Err(bad("expected a plain name such as my-model:small"));
        };
        if self.catalog.get(&name).is_some() {
            return Err(bad("the catalog has a model of that name"));
        }
        let absent = || Error::NotInstalled { name: source.into() };
        let from = match self.resolve(source) {
            Ok(Reference::Path(_)) | Err(Error::UnknownModel { .. }) => return Err(absent()),
            other => other?.to_string(),
        };
        if self.installed(&from).is_none() {
            return Err(absent());
        }
        if from != name && self.folder(&name).is_dir() {
            self.remove(&name)?;
        }
        let _lock = Lock::wait(&self.lock_path("store"))?;
        // It may have been removed meanwhile.
        self.installed(&from).ok_or_else(absent)?;
        let old = Manifest::read(&self.folder(&from))?;
        let custom = custom.or(old.custom);
        let manifest = Manifest { custom, ..Manifest::new(name, old.source, old.files) };
        let folder = self.place(&manifest)?;
        Ok(manifest.model(&folder))
    }

    /// Puts a model's folder into place in one step. The caller holds the store's lock.
    pub(super) fn place(&self, manifest: &Manifest) -> Result<PathBuf> {
        let scratch = self.scratch()?;
        let (new, old) = (scratch.path().join("new"), scratch.path().join("old"));
        std::fs::create_dir(&new).map_err(Error::io("create", &new))?;
        manifest.write(&new)?;
        sync_folder(Some(&new));
        self.subfolder("models")?;
        let folder = self.folder(&manifest.name);
        if folder.exists() {
            // A broken earlier copy, or one with other settings.
            std::fs::rename(&folder, &old).map_err(Error::io("replace", &folder))?;
        }
        std::fs::rename(&new, &folder).map_err(Error::io("move a model to", &folder))?;
        sync_folder(folder.parent());
        Ok(folder)
    }
}
