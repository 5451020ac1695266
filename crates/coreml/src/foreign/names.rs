//! Which files the packages of a folder are.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use super::meta::Meta;
use super::order::REMEDY;
use crate::layout::names::{COMPILED, PACKAGE, anemll, llm_cli};
use crate::{Error, Result};

/// Most entries of a folder that are looked at.
const MOST_ENTRIES: usize = 1 << 16;
/// Most chunks: more than any model has layers.
const MOST_CHUNKS: usize = 1024;

/// A layout, and the names of its packages without what they end with, in the order in which they are called.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Found {
    /// Embeddings, layers, head.
    Anemll(Box<Meta>, Vec<String>),
    /// Chunks by the prefix of their names, then what moves the caches on.
    LlmCli(String, Vec<String>),
}

impl Found {
    pub fn stems(&self) -> &[String] {
        match self {
            Found::Anemll(_, stems) | Found::LlmCli(_, stems) => stems,
        }
    }
}

/// The folder of a path with what it holds; none if it has none of these layouts.
///
/// # Errors
/// If it has one, but its description or its names make no sense.
pub(super) fn find(path: &Path) -> Result<Option<(PathBuf, Found)>> {
    let folder = match (path.file_name(), path.parent()) {
        (Some(name), Some(parent)) if name == anemll::META && path.is_file() => parent,
        _ => path,
    };
    if !folder.is_dir() {
        return Ok(None);
    }
    let found = match Meta::open(folder)? {
        Some(meta) => {
            let stems = of_meta(folder, &meta)?;
            Some(Found::Anemll(Box::new(meta), stems))
        }
        None => of_chunks(folder)?,
    };
    Ok(found.map(|found| (folder.to_owned(), found)))
}

/// Whether there is a package of that name, or a compiled one.
fn exists(folder: &Path, stem: &str) -> bool {
    [PACKAGE, COMPILED].iter().any(|end| folder.join(format!("{stem}.{end}")).is_dir())
}

fn of_meta(folder: &Path, meta: &Meta) -> Result<Vec<String>> {
    let [embeddings, head, layers] = &meta.files;
    let [embedding_lut, layer_lut, head_lut] = &meta.luts;
    let own = |given: &Option<String>, kind: &str, lut: &str| {
        given.clone().unwrap_or_else(|| format!("{}_{kind}{lut}", meta.prefix))
    };
    let layers = own(layers, anemll::LAYERS, layer_lut);
    // The first chunk is named, or what all chunks begin with.
    let (base, end) = match layers.rfind(anemll::CHUNK).map(|at| layers.split_at(at)) {
        Some((base, end)) if is_number(end) => (base, end),
        _ => (layers.as_str(), ""),
    };
    if !end.is_empty() && end != anemll::chunk(1, meta.chunks) {
        let n = meta.chunks;
        let problem = format!("says that there are {n} chunks and {layers} is the first; {REMEDY}");
        return Err(Error::Folder { path: folder.join(anemll::META), problem });
    }
    let chunks: Vec<String> = match meta.chunks == 1 && exists(folder, &layers) {
        true => vec![layers.clone()],
        false => {
            (1..=meta.chunks).map(|i| format!("{base}{}", anemll::chunk(i, meta.chunks))).collect()
        }
    };
    let embeddings = own(embeddings, anemll::EMBEDDINGS, embedding_lut);
    let head = own(head, anemll::HEAD, head_lut);
    Ok([embeddings].into_iter().chain(chunks).chain([head]).collect())
}

/// Whether this is what the name of one of several chunks ends with.
fn is_number(end: &str) -> bool {
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let numbers = end.strip_prefix(anemll::CHUNK).and_then(|rest| rest.split_once("of"));
    numbers.is_some_and(|(one, all)| digits(one) && digits(all))
}

fn of_chunks(folder: &Path) -> Result<Option<Found>> {
    if !exists(folder, llm_cli::CACHE_PROCESSOR) {
        return Ok(None);
    }
    let problem = |problem: String| Error::Folder { path: folder.to_owned(), problem };
    let mut names = BTreeSet::new();
    for entry in fs::read_dir(folder).map_err(Error::io(folder))?.take(MOST_ENTRIES) {
        let path = PathBuf::from(entry.map_err(Error::io(folder))?.file_name());
        let ending = path.extension().unwrap_or_default();
        if let Some(stem) = path.file_stem().and_then(|stem| stem.to_str())
            && (ending == PACKAGE || ending == COMPILED)
        {
            names.insert(stem.to_owned());
        }
    }
    let first = llm_cli::chunk("", 1);
    let mut prefixes = names.iter().filter_map(|name| name.strip_suffix(&first));
    let Some(prefix) = prefixes.next() else { return Ok(None) };
    if let Some(other) = prefixes.next() {
        let text = format!(
            "has chunks of two models, {prefix}{first} and {other}{first}; put each into a folder of its own"
        );
        return Err(problem(text));
    }
    let there = |i: &usize| names.contains(&llm_cli::chunk(prefix, *i));
    let chunks: Vec<String> =
        (1..=MOST_CHUNKS).take_while(there).map(|i| llm_cli::chunk(prefix, i)).collect();
    let begins = llm_cli::chunk(prefix, 1);
    let begins = begins.trim_end_matches('1');
    let of_chunks = |name: &&String| {
        let number = name.strip_prefix(begins).unwrap_or_default();
        !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit())
    };
    if let Some(stray) = names.iter().filter(of_chunks).find(|name| !chunks.contains(name)) {
        let text = format!("has {stray}, but not all chunks before it; {REMEDY}");
        return Err(problem(text));
    }
    let processor = llm_cli::CACHE_PROCESSOR.to_owned();
    let prefix = prefix.to_owned();
    Ok(Some(Found::LlmCli(prefix, chunks.into_iter().chain([processor]).collect())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(names: &[&str]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for name in names {
            fs::create_dir(folder.path().join(name)).unwrap();
        }
        folder
    }

    #[test]
    fn chunks_are_found_by_their_numbers() {
        let names = ["m_x_chunk1.mlpackage", "m_x_chunk2.mlmodelc", "cache-processor.mlpackage"];
        let found = folder(&names);
        let (_, found) = find(found.path()).unwrap().unwrap();
        let Found::LlmCli(prefix, stems) = found else { panic!("{found:?}") };
        assert_eq!(prefix, "m_x");
        assert_eq!(stems, ["m_x_chunk1", "m_x_chunk2", "cache-processor"]);
        assert_eq!(find(folder(&names[..2]).path()).unwrap(), None);
        for (more, text) in
            [("m_x_chunk4.mlpackage", "not all chunks"), ("b_chunk1.mlpackage", "two models")]
        {
            let stray = folder(&[&names[..], &[more]].concat());
            let error = find(stray.path()).unwrap_err().to_string();
            assert!(error.contains(text), "{error}");
        }
    }

    #[test]
    fn files_that_a_description_does_not_name_have_the_usual_names() {
        let meta = Meta {
            prefix: "q".to_owned(),
            chunks: 2,
            luts: [String::new(), "_lut6".to_owned(), "_lut8".to_owned()],
            ..Meta::default()
        };
        let empty = folder(&[]);
        let expected = [
            "q_embeddings",
            "q_FFN_PF_lut6_chunk_01of02",
            "q_FFN_PF_lut6_chunk_02of02",
            "q_lm_head_lut8",
        ];
        assert_eq!(of_meta(empty.path(), &meta).unwrap(), expected);
        // Of one chunk, the name may lack its number, in the description or of the file.
        let one = Meta { chunks: 1, files: [None, None, Some("q_FFN_PF".to_owned())], ..meta };
        let second = |folder: &Path, meta: &Meta| of_meta(folder, meta).unwrap().swap_remove(1);
        assert_eq!(second(empty.path(), &one), "q_FFN_PF_chunk_01of01");
        assert_eq!(second(folder(&["q_FFN_PF.mlmodelc"]).path(), &one), "q_FFN_PF");
        // The first of two is not all.
        for name in ["q_FFN_PF_chunk_01of02", "q_FFN_PF_chunk_02of02"] {
            let files = [None, None, Some(name.to_owned())];
            let there = folder(&[&format!("{name}.mlmodelc")]);
            let error = of_meta(there.path(), &Meta { files, ..one.clone() }).unwrap_err();
            assert!(error.to_string().contains("1 chunks and"), "{error}");
        }
    }
}
