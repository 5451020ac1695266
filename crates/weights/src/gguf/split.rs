//! Files split into parts named `…-00001-of-00003.gguf`.

use std::path::{Path, PathBuf};

use super::Metadata;
use crate::{Error, Result};

const COUNT: &str = "split.count";
const NUMBER: &str = "split.no";
const TENSORS: &str = "split.tensors.count";

/// Whether a key of the metadata says that a file is a part of a set.
pub(super) fn is_key(key: &str) -> bool {
    [COUNT, NUMBER, TENSORS].contains(&key)
}

/// A split file: where its parts lie.
pub(super) struct Set {
    folder: PathBuf,
    stem: String,
    count: usize,
}

impl Set {
    /// The set that a part belongs to; `None` if its metadata names no other parts.
    pub(super) fn of(path: &Path, metadata: &Metadata) -> Result<Option<Self>> {
        let count = number(path, metadata, COUNT)?.unwrap_or(1);
        if count <= 1 {
            return Ok(None);
        }
        let name = path.file_name().and_then(|n| n.to_str());
        match name.and_then(stem_and_count) {
            Some((stem, named)) if named == count => {
                let folder = path.parent().unwrap_or(Path::new("")).to_owned();
                Ok(Some(Set { folder, stem: stem.to_owned(), count }))
            }
            _ => {
                let problem = format!(
                    "is one of {count} parts, but is not named like one \
                     (NAME-00001-of-{count:05}.gguf), so the others cannot be found"
                );
                Err(Error::Unsupported { path: path.to_owned(), problem })
            }
        }
    }

    /// Number of parts.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Path of a part, counted from 0.
    pub(super) fn path(&self, number: usize) -> PathBuf {
        let name = format!("{}-{:05}-of-{:05}.gguf", self.stem, number + 1, self.count);
        self.folder.join(name)
    }

    /// Checks that a part is what its name says.
    pub(super) fn check_member(&self, path: &Path, no: usize, metadata: &Metadata) -> Result<()> {
        let count = number(path, metadata, COUNT)?;
        let found = number(path, metadata, NUMBER)?;
        if count == Some(self.count) && found == Some(no) {
            return Ok(());
        }
        let problem = format!(
            "should be part {} of {}, but {NUMBER} is {found:?} and {COUNT} is {count:?}",
            no + 1,
            self.count
        );
        Err(Error::Malformed { path: path.to_owned(), problem })
    }

    /// Checks the number of tensors of all parts together against what the first one states.
    pub(super) fn check_tensor_count(&self, found: usize, metadata: &Metadata) -> Result<()> {
        let path = self.path(0);
        match number(&path, metadata, TENSORS)? {
            Some(stated) if stated != found => {
                let problem = format!("its parts should have {stated} tensors, found {found}");
                Err(Error::Malformed { path, problem })
            }
            _ => Ok(()),
        }
    }
}

fn number(path: &Path, metadata: &Metadata, key: &str) -> Result<Option<usize>> {
    match metadata.opt_u32(key) {
        Ok(n) => Ok(n.map(|n| n as usize)),
        Err(e) => Err(Error::Malformed { path: path.to_owned(), problem: e.to_string() }),
    }
}

/// Splits `STEM-00001-of-00003.gguf`.
fn stem_and_count(name: &str) -> Option<(&str, usize)> {
    let (rest, count) = name.strip_suffix(".gguf")?.rsplit_once("-of-")?;
    let (stem, number) = rest.rsplit_once('-')?;
    let digits = |s: &str| s.len() == 5 && s.bytes().all(|b| b.is_ascii_digit());
    if !digits(number) || !digits(count) {
        return None;
    }
    Some((stem, count.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::stem_and_count;

    #[test]
    fn names_of_parts() {
        assert_eq!(stem_and_count("a-b-00002-of-00010.gguf"), Some(("a-b", 10)));
        for name in ["a.gguf", "a-1-of-2.gguf", "a-00001-of-0000x.gguf", "a-00001-of-00002.bin"] {
            assert_eq!(stem_and_count(name), None, "{name}");
        }
    }
}
