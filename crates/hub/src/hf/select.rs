//! Which files of a repository make the model that was asked for.

use std::collections::BTreeMap;

use crate::hf::RemoteFile;
use crate::names::{safe_file_name, safe_relative};
use crate::{Error, HfRef, Result};

/// What is taken when no quantization was asked for, best first.
const PREFERRED: [&str; 8] = ["Q4_K_M", "Q4_K_S", "Q4_0", "MXFP4", "Q5_K_M", "Q8_0", "F16", "BF16"];

/// Files of a checkpoint beside its weights. `config.json` alone is required.
const COMPANIONS: [&str; 13] = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
    "modules.json",
    "sentence_bert_config.json",
];

/// Whether a path is that of a module behind an embedding model, which sentence-transformers keeps in
/// a folder of its own: `1_Pooling/config.json`, `2_Dense/model.safetensors`.
pub(crate) fn is_module_file(path: &str) -> bool {
    let Some((folder, name)) = path.split_once('/') else { return false };
    let Some((number, kind)) = folder.split_once('_') else { return false };
    (1..=2).contains(&number.len())
        && number.bytes().all(|b| b.is_ascii_digit())
        && matches!(kind, "Pooling" | "Dense" | "Normalize")
        && matches!(name, "config.json" | "model.safetensors")
}

/// Splits `name-00002-of-00005` into `name`, 2 and 5.
pub(crate) fn shard(stem: &str) -> Option<(&str, u32, u32)> {
    let (rest, count) = stem.rsplit_once("-of-")?;
    let (name, index) = rest.rsplit_once('-')?;
    let number = |text: &str| {
        let digits = text.len() == 5 && text.bytes().all(|b| b.is_ascii_digit());
        digits.then(|| text.parse().ok()).flatten()
    };
    let (index, count) = (number(index)?, number(count)?);
    (1..=count).contains(&index).then_some((name, index, count))
}

fn gguf_stem(path: &str) -> Option<&str> {
    let stem = path.len().checked_sub(5)?;
    let extension = path.get(stem..)?;
    extension.eq_ignore_ascii_case(".gguf").then(|| &path[..stem])
}

/// A GGUF model: one file, or its shards in order.
type Family<'a> = Vec<&'a RemoteFile>;

/// All GGUF models of the repository by the stem of their path.
fn families(files: &[RemoteFile]) -> BTreeMap<&str, Family<'_>> {
    let mut families: BTreeMap<&str, Family<'_>> = BTreeMap::new();
    for file in files {
        let Some(stem) = gguf_stem(&file.path) else { continue };
        let base = stem.rsplit('/').next().unwrap_or(stem).to_ascii_lowercase();
        // Vision projectors and calibration data are not models.
        if base.contains("mmproj") || base.contains("imatrix") {
            continue;
        }
        families.entry(shard(stem).map_or(stem, |(name, ..)| name)).or_default().push(file);
    }
    for family in families.values_mut() {
        family.sort_by(|a, b| a.path.cmp(&b.path));
    }
    families
}

/// The files to fetch for `hf`, in the order in which a loader wants them.
///
/// # Errors
/// Naming what the repository has instead, or what is missing.
pub(crate) fn select<'a>(hf: &HfRef, files: &'a [RemoteFile]) -> Result<Vec<&'a RemoteFile>> {
    for file in files {
        // Only what is chosen gets written, but one hostile name discredits the listing.
        crate::names::safe_relative(&file.path, &hf.repo)?;
    }
    let families = families(files);
    if let Some(pick) = &hf.pick {
        if let Some(file) = files.iter().find(|file| file.path == *pick) {
            let Some(stem) = gguf_stem(pick) else {
                let reason = format!("{pick} is no GGUF file");
                return Err(Error::NoModelFiles { repo: hf.repo.clone(), reason });
            };
            return match shard(stem) {
                Some((name, ..)) => complete(hf, name, &families[name]),
                None => Ok(vec![file]),
            };
        }
        let family = by_quant(&families, pick).ok_or_else(|| no_such_quant(hf, pick, &families))?;
        return complete(hf, family, &families[family]);
    }
    if families.is_empty() {
        return checkpoint(hf, files);
    }
    if let [(name, family)] = families.iter().collect::<Vec<_>>()[..] {
        return complete(hf, name, family);
    }
    let name = PREFERRED.iter().find_map(|quant| by_quant(&families, quant));
    let name = name.ok_or_else(|| Error::SeveralModels {
        repo: hf.repo.clone(),
        available: first_files(&families),
    })?;
    complete(hf, name, &families[name])
}

/// The model whose file name has `quant` as a word of its own; the plainest name if several do.
fn by_quant<'a>(families: &BTreeMap<&'a str, Family<'_>>, quant: &str) -> Option<&'a str> {
    let quant = quant.to_ascii_lowercase();
    let has_word = |path: &str| {
        let path = path.to_ascii_lowercase();
        path.match_indices(&quant).any(|(start, found)| {
            let (before, after) = (&path[..start], &path[start + found.len()..]);
            (before.is_empty() || before.ends_with(['-', '.', '/', '_', ' ']))
                && (after.is_empty() || after.starts_with(['-', '.', '/', ' ']))
        })
    };
    families.keys().copied().filter(|name| has_word(name)).min_by_key(|name| {
        // "UD-Q4_K_M" is another mix than the "Q4_K_M" it would otherwise pass for.
        (name.to_ascii_lowercase().contains(&format!("ud-{quant}")), name.len())
    })
}

fn first_files(families: &BTreeMap<&str, Family<'_>>) -> Vec<String> {
    families.values().map(|family| family[0].path.clone()).collect()
}

fn no_such_quant(hf: &HfRef, wanted: &str, families: &BTreeMap<&str, Family<'_>>) -> Error {
    let available = first_files(families);
    Error::NoSuchQuant { repo: hf.repo.clone(), wanted: wanted.into(), available }
}

/// Checks that all shards are there.
fn complete<'a>(hf: &HfRef, name: &str, family: &[&'a RemoteFile]) -> Result<Vec<&'a RemoteFile>> {
    let shards: Vec<_> = family.iter().filter_map(|file| shard(gguf_stem(&file.path)?)).collect();
    if let Some(&(_, _, count)) = shards.first() {
        let missing = (1..=count).find(|want| !shards.iter().any(|(_, at, _)| at == want));
        if let Some(missing) = missing {
            let (repo, family) = (hf.repo.clone(), name.to_owned());
            return Err(Error::MissingShard { repo, family, missing, count });
        }
        // A lone file of the same stem beside the shards is another copy of the model.
        let of = |file: &&&RemoteFile| gguf_stem(&file.path).and_then(shard).is_some();
        return Ok(family.iter().filter(of).copied().collect());
    }
    Ok(family.to_vec())
}

/// The files of a safetensors checkpoint.
fn checkpoint<'a>(hf: &HfRef, files: &'a [RemoteFile]) -> Result<Vec<&'a RemoteFile>> {
    let none = |reason: &str| Error::NoModelFiles { repo: hf.repo.clone(), reason: reason.into() };
    let has = |name: &str| files.iter().any(|file| file.path == name);
    let root = |file: &&RemoteFile| !file.path.contains('/');
    let all: Vec<_> =
        files.iter().filter(root).filter(|file| file.path.ends_with(".safetensors")).collect();
    if !has("config.json") {
        return Err(none(match has("adapter_config.json") {
            true => "it is a LoRA adapter; name the model it was made for",
            false => "neither a GGUF file nor a config.json is in it",
        }));
    }
    if all.is_empty() {
        return Err(none(
            "it has no .safetensors files; look for a converted copy, or one in GGUF",
        ));
    }
    // Some repositories hold the same weights a second time, under other names.
    let usual = |file: &RemoteFile| {
        let stem = file.path.trim_end_matches(".safetensors");
        stem == "model" || shard(stem).is_some_and(|(name, ..)| name == "model")
    };
    let weights: Vec<_> = match all.iter().any(|file| usual(file)) {
        true => all.into_iter().filter(|file| usual(file)).collect(),
        false => all,
    };
    let sharded = weights.iter().filter_map(|f| shard(f.path.trim_end_matches(".safetensors")));
    if let Some((name, _, count)) = sharded.clone().next() {
        let missing = (1..=count).find(|want| !sharded.clone().any(|(_, at, _)| at == *want));
        if let Some(missing) = missing {
            let (repo, family) = (hf.repo.clone(), name.to_owned());
            return Err(Error::MissingShard { repo, family, missing, count });
        }
    }
    let companion = |file: &&RemoteFile| {
        COMPANIONS.contains(&&*file.path)
            || file.path.ends_with(".safetensors.index.json")
            || file.path.to_ascii_uppercase().starts_with("LICENSE")
    };
    let of_module = |file: &&RemoteFile| has("modules.json") && is_module_file(&file.path);
    let modules = files.iter().filter(of_module);
    // The small files first: what is missing or forbidden shows at once.
    Ok(files.iter().filter(root).filter(companion).chain(modules).chain(weights).collect())
}

/// The name of a chosen file in the store: files of modules stay in their folders.
pub(crate) fn store_name<'a>(file: &'a RemoteFile, repo: &str) -> Result<&'a str> {
    match is_module_file(&file.path) {
        true => safe_relative(&file.path, repo),
        false => safe_file_name(&file.path, repo),
    }
}

#[cfg(test)]
mod tests;
