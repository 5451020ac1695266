//! Folders of packages that have lost what they are known by: what they are, and what is missing.

use std::fs;
use std::path::Path;

use super::order::REMEDY;
use crate::folder::FOLDER_FILE;
use crate::layout::names::{COMPILED, PACKAGE, anemll, llm_cli};
use crate::{Error, Result};

/// Most entries of a folder that are looked at.
const MOST_ENTRIES: usize = 1 << 16;
/// The outline that lies beside packages of our own.
const OUTLINE: &str = "outline.json";
/// Files of tensors that are no model, by their names without what they end with: they lie beside packages.
const BESIDE: [&str; 2] = ["embeddings", "tokenizer"];
/// What files of tensors end with.
const WEIGHTS: [&str; 2] = [".gguf", ".safetensors"];

/// That at `path` there is no folder of packages without a description, nor such a folder's embeddings.
///
/// # Errors
/// If there is, with what is missing.
pub fn check_described(path: &Path) -> Result<()> {
    let is_beside = path.file_stem().is_some_and(|stem| BESIDE.iter().any(|name| stem == *name));
    let folder = match path.parent() {
        // Alone, such a name may be that of a model.
        Some(parent) if path.is_file() && is_beside && parent.join(OUTLINE).exists() => parent,
        _ => path,
    };
    if folder.join(FOLDER_FILE).exists() {
        return Ok(());
    }
    // What cannot be read, nobody can say anything of; whoever opens it will.
    let entries = fs::read_dir(folder).into_iter().flatten().flatten().take(MOST_ENTRIES);
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    match missing(&names.collect::<Vec<_>>()) {
        Some(text) => {
            Err(Error::Folder { path: folder.to_owned(), problem: format!("{text}; {REMEDY}") })
        }
        None => Ok(()),
    }
}

/// What a folder with these names lacks; none if it is none of packages, or has a model too.
fn missing(names: &[String]) -> Option<String> {
    let has = |wanted: &str| names.iter().any(|name| name == wanted);
    let is_model = |name: &&String| {
        let stem = WEIGHTS.iter().find_map(|end| name.strip_suffix(end));
        stem.is_some_and(|stem| !BESIDE.contains(&stem))
    };
    if names.iter().any(|name| is_model(&name)) {
        return None;
    }
    let is_own = has(OUTLINE) && WEIGHTS.iter().any(|end| has(&format!("{}{end}", BESIDE[0])));
    let stem = |name: &'_ String| {
        let (stem, end) = name.rsplit_once('.')?;
        (end == PACKAGE || end == COMPILED).then(|| stem.to_owned())
    };
    let stems: Vec<String> = names.iter().filter_map(stem).collect();
    let own = |stem: &String| stem == "model" || stem.starts_with("model_chunk_");
    let of_anemll = |stem: &String| {
        [anemll::LAYERS, anemll::HEAD, anemll::EMBEDDINGS]
            .iter()
            .any(|kind| stem.contains(&format!("_{kind}")))
    };
    let of_llm_cli = |stem: &String| {
        let number = stem.rsplit_once("_chunk").map(|(_, number)| number).unwrap_or_default();
        stem == llm_cli::CACHE_PROCESSOR
            || stem == llm_cli::LOGIT_PROCESSOR
            || !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit())
    };
    let compiled = "was written by `baton compile`, but its";
    Some(match &stems[..] {
        [] if is_own => format!("{compiled} packages and its {FOLDER_FILE} are missing"),
        [] => return None,
        _ if is_own => {
            format!("{compiled} {FOLDER_FILE} is missing, by which its files are known to be whole")
        }
        all if all.iter().any(of_anemll) => format!(
            "holds packages laid out for anemll, but no {} with a line \"model_info:\", which says how they go \
             together",
            anemll::META
        ),
        all if all.iter().any(of_llm_cli) => {
            let lacking = match all.iter().any(|stem| stem == llm_cli::CACHE_PROCESSOR) {
                true => llm_cli::chunk("X", 1),
                false => llm_cli::CACHE_PROCESSOR.to_owned(),
            };
            format!(
                "holds packages laid out for coreml-llm-cli, but {lacking}.{PACKAGE}, or .{COMPILED}, is missing"
            )
        }
        all if all.iter().any(own) => format!("{compiled} {FOLDER_FILE} is missing"),
        [first, ..] => format!(
            "holds packages, such as {first}, that nothing says how to call: there is no {FOLDER_FILE} of `baton \
             compile`, no {} of Anemll, and no {} of coreml-llm-cli",
            anemll::META,
            llm_cli::CACHE_PROCESSOR
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_called_as_embeddings_are_is_a_model_unless_an_outline_lies_beside_it() {
        let folder = tempfile::tempdir().unwrap();
        let put = |name: &str| fs::write(folder.path().join(name), "").unwrap();
        put("embeddings.gguf");
        fs::create_dir(folder.path().join("x.mlpackage")).unwrap();
        let file = folder.path().join("embeddings.gguf");
        check_described(&file).unwrap();
        put(OUTLINE);
        assert!(check_described(&file).unwrap_err().to_string().contains(FOLDER_FILE));
    }

    #[test]
    fn what_is_missing_is_said_by_what_is_there() {
        let of = |names: &str| {
            let names: Vec<String> = names.split_whitespace().map(str::to_owned).collect();
            missing(&names).unwrap_or_default()
        };
        for (names, text) in [
            ("outline.json embeddings.gguf model.mlpackage", "its baton.json is missing"),
            ("outline.json embeddings.gguf", "its packages and its baton.json"),
            ("tokenizer.gguf model_chunk_01_of_02.mlpackage", "its baton.json is missing"),
            ("q_FFN_PF_lut6_chunk_01of02.mlmodelc tokenizer.json config.json", "no meta.yaml"),
            ("q_embeddings.mlpackage q_lm_head_lut6.mlpackage", "no meta.yaml"),
            ("m_chunk1.mlpackage m_chunk2.mlpackage", "cache-processor.mlpackage"),
            ("cache-processor.mlmodelc m_chunk2.mlmodelc", "X_chunk1.mlpackage"),
            ("whisper.mlpackage", "such as whisper, that nothing says how to call"),
        ] {
            let found = of(names);
            assert!(found.contains(text), "{names}: {found}");
        }
        for whole in
            ["model.gguf m_chunk1.mlpackage", "a.safetensors x.mlmodelc", "outline.json x.gguf", ""]
        {
            assert_eq!(of(whole), "");
        }
    }
}
