//! Which files make up a checkpoint.

use std::fs;
use std::path::{Component, Path, PathBuf};

use serde::Deserialize;
use serde_json::Value;

use super::header::UniqueMap;
use crate::{Error, Result};

const INDEX: &str = "model.safetensors.index.json";
const SINGLE: &str = "model.safetensors";

/// Far more than any configuration or index has.
const MAX_JSON: u64 = 100_000_000;

/// The files of a checkpoint and what is wanted of them.
pub(super) struct Files {
    /// Where `config.json` is.
    pub(super) folder: PathBuf,
    pub(super) files: Vec<PathBuf>,
    /// For a checkpoint with an index: each tensor and the number of its file.
    pub(super) index: Option<Vec<(String, usize)>>,
}

#[derive(Deserialize)]
struct Index {
    weight_map: UniqueMap<String>,
}

/// The files that `path`, a file or a folder, stands for.
pub(super) fn find(path: &Path) -> Result<Files> {
    if !path.is_dir() {
        let folder = path.parent().unwrap_or(Path::new("")).to_owned();
        // One shard stands for all.
        let is_shard = path.file_stem().is_some_and(|s| s.to_string_lossy().contains("-of-"));
        if is_shard && folder.join(INDEX).is_file() {
            return indexed(folder);
        }
        return Ok(Files { folder, files: vec![path.to_owned()], index: None });
    }
    let folder = path.to_owned();
    // Before the index, as transformers does: some folders keep the index of former shards.
    let single = folder.join(SINGLE);
    if single.is_file() {
        return Ok(Files { folder, files: vec![single], index: None });
    }
    if folder.join(INDEX).is_file() {
        return indexed(folder);
    }
    let io = |source| Error::Io { path: path.to_owned(), source };
    let mut files = Vec::new();
    for entry in fs::read_dir(path).map_err(io)? {
        let file = entry.map_err(io)?.path();
        if file.extension().is_some_and(|e| e == "safetensors") {
            files.push(file);
        }
    }
    if files.is_empty() {
        let problem = "has no *.safetensors files".to_owned();
        return Err(Error::Unsupported { path: folder, problem });
    }
    files.sort();
    Ok(Files { folder, files, index: None })
}

fn indexed(folder: PathBuf) -> Result<Files> {
    let path = folder.join(INDEX);
    let malformed = |problem| Error::Malformed { path: path.clone(), problem };
    let Index { weight_map: UniqueMap(entries) } = serde_json::from_slice(&read(&path)?)
        .map_err(|e| malformed(format!("is no index of shards: {e}")))?;
    let mut names: Vec<&str> = entries.iter().map(|(_, file)| file.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    if let Some(name) = names.iter().find(|name| !is_plain_name(name)) {
        return Err(malformed(format!("names {name:?}, which is no file of this folder")));
    }
    let number = |file: &String| names.binary_search(&file.as_str()).unwrap_or_default();
    let index = entries.iter().map(|(tensor, file)| (tensor.clone(), number(file))).collect();
    let files: Vec<PathBuf> = names.iter().map(|name| folder.join(name)).collect();
    if let Some(missing) = files.iter().position(|file| !file.exists()) {
        let (path, parts) = (files[missing].clone(), files.len());
        return Err(Error::MissingPart { path, part: missing + 1, parts });
    }
    Ok(Files { folder, files, index: Some(index) })
}

/// True for names that cannot lead out of the folder, on any system.
fn is_plain_name(name: &str) -> bool {
    let mut components = Path::new(name).components();
    let one = matches!(components.next(), Some(Component::Normal(only)) if only == name);
    one && components.next().is_none() && !name.contains(['\\', ':', '\0'])
}

/// `config.json` of the folder; null if there is none.
pub(super) fn config(folder: &Path) -> Result<(PathBuf, Value)> {
    let path = folder.join("config.json");
    if !path.exists() {
        return Ok((path, Value::Null));
    }
    match serde_json::from_slice(&read(&path)?) {
        Ok(config) => Ok((path, config)),
        Err(e) => Err(Error::Malformed { path, problem: format!("is not JSON: {e}") }),
    }
}

fn read(path: &Path) -> Result<Vec<u8>> {
    let io = |source| Error::Io { path: path.to_owned(), source };
    let info = fs::metadata(path).map_err(io)?;
    if !info.is_file() || info.len() > MAX_JSON {
        let problem = format!("is no JSON file of at most {MAX_JSON} bytes");
        return Err(Error::Unsupported { path: path.to_owned(), problem });
    }
    fs::read(path).map_err(io)
}

#[cfg(test)]
mod tests {
    use super::is_plain_name;

    #[test]
    fn names_that_lead_elsewhere() {
        assert!(is_plain_name("model-00001-of-00002.safetensors"));
        let bad = ["", ".", "..", "/etc/passwd", "../x", "a/b", "a/", "a\\b", "C:x", "a\0b", "./a"];
        assert!(!bad.iter().any(|name| is_plain_name(name)));
    }
}
