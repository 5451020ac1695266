//! Models that the user names by a path: a GGUF file, its shards, a checkpoint folder, or a folder of
//! packages that a model was compiled into.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use super::{LocalFile, LocalModel};
use crate::hf::RemoteFile;
use crate::hf::select::{select, shard};
use crate::{Error, HfRef, Result};

/// What folders of packages are known by: our description of one, and a package that all of coreml-llm-cli's
/// have.
const PACKAGES: [&str; 3] = ["baton.json", "cache-processor.mlpackage", "cache-processor.mlmodelc"];
/// The outline of the model that packages of our own lie beside.
const OUTLINE: &str = "outline.json";
/// Files of tensors that lie beside packages and are no model, without their endings.
const BESIDE: [&str; 2] = ["embeddings", "tokenizer"];
/// The description by which Anemll's programs are given a folder, and what it begins a line with; others use the
/// name too.
const META: (&str, &str) = ("meta.yaml", "model_info:");
/// Bytes of it that are looked at.
const META_BEGINNING: u64 = 64 << 10;
/// Folders in each other that a package has at most, and more.
const DEPTH: usize = 8;

/// Looks at `path` and lists the files of the model there. Their content is left to the loader.
pub(super) fn open(path: &Path) -> Result<LocalModel> {
    let data = std::fs::metadata(path)
        .map_err(|source| Error::NoSuchPath { path: path.into(), source })?;
    let path = std::path::absolute(path).map_err(Error::io("find", path))?;
    let path = match path.parent() {
        Some(folder) if data.is_file() && path.ends_with(META.0) => folder.to_owned(),
        _ => path,
    };
    let is_known = PACKAGES.iter().any(|name| path.join(name).exists()) || is_anemll(&path);
    if is_known || has_packages_alone(&path) {
        let mut files = Vec::new();
        // Any folder may hold a package, so that all that lies below it may be anything.
        if is_known {
            list_all(&path, "", DEPTH, &mut files)?;
        }
        return Ok(LocalModel { path: path.clone(), ..model(&path, &path, files) });
    }
    let none = || Error::NoModelAtPath { path: path.clone() };
    let (folder, pick) = if data.is_dir() {
        (path.as_path(), None)
    } else {
        let name = path.file_name().and_then(|name| name.to_str()).ok_or_else(none)?;
        let folder = path.parent().ok_or_else(none)?;
        let lower = name.to_ascii_lowercase();
        let stem = lower.strip_suffix(".gguf");
        if stem.is_none() && !is_gguf(&path) {
            return Err(none());
        }
        if stem.and_then(shard).is_none() {
            let files = vec![local_file(folder, name, data.len())];
            return Ok(LocalModel { path: path.clone(), ..model(&path, folder, files) });
        }
        (folder, Some(name.to_owned()))
    };

    let entries = std::fs::read_dir(folder).map_err(Error::io("read", folder))?;
    let listed: Vec<_> = entries
        .flatten()
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let data = std::fs::metadata(entry.path()).ok().filter(std::fs::Metadata::is_file)?;
            // A name that the rules for foreign files would refuse is of no model.
            let name = crate::names::safe_relative(&name, "").ok()?.to_owned();
            Some(RemoteFile { path: name, size: Some(data.len()), sha256: None })
        })
        .collect();
    let repo = folder.display().to_string();
    let chosen =
        select(&HfRef { repo, revision: None, pick }, &listed).map_err(|error| match error {
            Error::NoModelFiles { .. } => none(),
            other => other,
        })?;
    let files = chosen.iter().map(|file| local_file(folder, &file.path, file.size.unwrap_or(0)));
    Ok(model(&path, folder, files.collect()))
}

/// Lists the files in a folder, and those in its folders to some depth.
fn list_all(root: &Path, at: &str, depth: usize, files: &mut Vec<LocalFile>) -> Result<()> {
    let folder = root.join(at);
    let entries = std::fs::read_dir(&folder).map_err(Error::io("read", &folder))?;
    for entry in entries.flatten() {
        let Ok(name) = entry.file_name().into_string() else { continue };
        let name = if at.is_empty() { name } else { format!("{at}/{name}") };
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            if depth > 0 {
                list_all(root, &name, depth - 1, files)?;
            }
            continue;
        }
        // A file that is linked counts as it does for whoever reads it.
        if let Ok(data) = std::fs::metadata(entry.path())
            && data.is_file()
        {
            files.push(local_file(root, &name, data.len()));
        }
    }
    Ok(())
}

/// Whether a folder has packages and no model beside them: whoever loads it knows what it lacks.
fn has_packages_alone(folder: &Path) -> bool {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let names: Vec<String> =
        entries.map(|entry| entry.file_name().to_string_lossy().to_ascii_lowercase()).collect();
    let of = |ends: &[&str]| -> Vec<&String> {
        names.iter().filter(|name| ends.iter().any(|end| name.ends_with(end))).collect()
    };
    let weights = of(&[".gguf", ".safetensors"]);
    let is_beside =
        |name: &&String| name.rsplit_once('.').is_some_and(|(stem, _)| BESIDE.contains(&stem));
    let is_own = names.iter().any(|name| name == OUTLINE) && !weights.is_empty();
    (is_own || !of(&[".mlpackage", ".mlmodelc"]).is_empty()) && weights.iter().all(is_beside)
}

/// Whether a folder has a description of Anemll's.
fn is_anemll(folder: &Path) -> bool {
    let path = folder.join(META.0);
    let mut text = Vec::new();
    let file = path.is_file().then(|| File::open(path));
    file.is_some_and(|file| {
        file.and_then(|file| file.take(META_BEGINNING).read_to_end(&mut text)).is_ok()
    }) && String::from_utf8_lossy(&text).lines().any(|line| line.starts_with(META.1))
}

/// Whether a file is GGUF whatever it is called, as Ollama's are called by their digests.
fn is_gguf(path: &Path) -> bool {
    let mut magic = [0; 4];
    let file = path.is_file().then(|| File::open(path));
    file.is_some_and(|file| file.and_then(|mut f| f.read_exact(&mut magic)).is_ok())
        && &magic == b"GGUF"
}

fn local_file(folder: &Path, name: &str, size: u64) -> LocalFile {
    LocalFile { name: name.into(), path: folder.join(name), size, sha256: None }
}

fn model(path: &Path, folder: &Path, files: Vec<LocalFile>) -> LocalModel {
    LocalModel {
        name: path.display().to_string(),
        path: entry_point(folder, &files),
        size: files.iter().fold(0, |sum, file| sum.saturating_add(file.size)),
        files,
        source: None,
        fetched_at: None,
        custom: None,
        complete: true,
    }
}

/// What a loader opens of these files: the first GGUF file, else the folder.
pub(super) fn entry_point(folder: &Path, files: &[LocalFile]) -> PathBuf {
    let gguf = files.iter().find(|file| file.name.to_ascii_lowercase().ends_with(".gguf"));
    gguf.map_or_else(|| folder.to_owned(), |file| file.path.clone())
}
