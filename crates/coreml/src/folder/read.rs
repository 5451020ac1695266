//! Which files of a folder of packages are read.

use std::fs;
use std::path::{Path, PathBuf};

use crate::{Error, Result, files};

/// Stands for a model with the tensors beside it; without it, what lies beside the packages is not read.
const OUTLINE: &str = "outline.json";
/// By this, and a file of tensors, a folder is a checkpoint.
const CONFIG: &str = "config.json";
/// What else is read of a checkpoint, if it is there.
const OF_CHECKPOINTS: [&str; 7] = [
    "chat_template.jinja",
    "generation_config.json",
    "model.safetensors.index.json",
    "modules.json",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer_config.json",
];
const SAFETENSORS: &str = ".safetensors";
const GGUF: &str = ".gguf";
/// In names of GGUF files that are no models.
const PROJECTOR: &str = "mmproj";

/// What the system's file manager leaves in folders, packages too.
const LEFT_BY_SYSTEM: &str = ".DS_Store";

/// The files that are read by whoever runs the packages of a folder: those of the packages, and of the model
/// that lies beside them.
///
/// # Errors
/// If a folder cannot be read.
pub(super) fn files(
    folder: &Path,
    packages: impl Iterator<Item = PathBuf>,
) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for package in packages {
        found.extend(files::below(&package)?);
    }
    found.retain(|path| path.file_name().is_none_or(|name| name != LEFT_BY_SYSTEM));
    let entries = fs::read_dir(folder).map_err(Error::io(folder))?;
    let names = entries
        .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
        .collect::<std::io::Result<Vec<_>>>()
        .map_err(Error::io(folder))?;
    found.extend(of_model(&names).into_iter().map(|name| folder.join(name)));
    Ok(found)
}

/// Those of the names in a folder that the model is read from.
fn of_model(names: &[String]) -> Vec<&str> {
    let has = |wanted: &str| names.iter().any(|name| name == wanted);
    let has_end = |end: &str| names.iter().any(|name| name.ends_with(end));
    if !has(OUTLINE) {
        return Vec::new();
    }
    let is_checkpoint = has(CONFIG) && (has_end(SAFETENSORS) || !has_end(GGUF));
    let is_read = |name: &&str| match is_checkpoint {
        _ if *name == OUTLINE => true,
        true => *name == CONFIG || name.ends_with(SAFETENSORS) || OF_CHECKPOINTS.contains(name),
        false => name.ends_with(GGUF) && !name.contains(PROJECTOR),
    };
    names.iter().map(String::as_str).filter(is_read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_folder_only_what_its_kind_of_model_has_is_read() {
        let of = |names: &str| {
            let names: Vec<String> = names.split(' ').map(str::to_owned).collect();
            of_model(&names).join(" ")
        };
        let stray = "notes.txt .DS_Store baton.json 0.mlpackage";
        // Beside GGUF, what other programs want is not read.
        let gguf = "outline.json embeddings.gguf";
        let others = "config.json tokenizer.json chat_template.jinja mmproj.gguf";
        assert_eq!(of(&format!("{gguf} {others} {stray}")), gguf);
        assert_eq!(of(&format!("{gguf} b.gguf {stray}")), format!("{gguf} b.gguf"));
        let checkpoint = "outline.json embeddings.safetensors config.json tokenizer.json";
        assert_eq!(of(&format!("{checkpoint} a.gguf README.md {stray}")), checkpoint);
        let more = format!("{checkpoint} special_tokens_map.json b.safetensors");
        assert_eq!(of(&format!("{more} {stray}")), more);
        // The model is elsewhere.
        assert_eq!(of(&format!("tokenizer.gguf config.json {stray}")), "");
    }
}
