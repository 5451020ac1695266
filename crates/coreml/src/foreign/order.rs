//! Whether the chunks of a folder are all there, in their order, and of one model, as far as they tell.
//!
//! A folder with `baton.json` has hashes of all files. Without it, packages tell by notes in their metadata, by the
//! layers of the shared cache that they write, and by the numbers of layers in the names of operations; the model's
//! `config.json` beside them tells how many layers there are. A chunk of another model with the same sizes and without
//! notes is not told from the right one.

use std::fmt::Display;
use std::ops::Range;
use std::path::Path;

use serde_json::Value;

use super::signature::Signature;
use crate::layout::names::{anemll::metadata, place};
use crate::package::read;
use crate::{Error, Result};

/// What says of a checkpoint how many layers it has.
const CONFIG: &str = "config.json";
/// No such file is longer.
const MAX_CONFIG: u64 = 1 << 20;
/// What says of a model that its layers are of several kinds.
const MIXED: [&str; 5] = [
    "block_configs",
    "hybrid_override_pattern",
    "layers_block_type",
    "attn_layer_indices",
    "full_attn_idxs",
];
/// What to do about a folder that is not whole.
pub(crate) const REMEDY: &str = "get the whole folder anew, or compile the model again";

/// The packages of a folder in the order in which they are called.
pub(super) struct Order<'a> {
    pub folder: &'a Path,
    pub packages: &'a [Signature],
    /// Which of them are layers.
    pub chunks: Range<usize>,
    /// How many layers there are.
    pub layers: usize,
    /// How many layers each chunk has, if that is known of each by itself.
    pub each: Option<Vec<usize>>,
}

impl Order<'_> {
    /// That nothing that is known speaks against the order of the packages, or for one that is missing.
    ///
    /// # Errors
    /// If something does.
    pub fn check(&self) -> Result<()> {
        self.check_parts()?;
        self.check_numbers()?;
        self.check_written()?;
        self.check_layers()?;
        self.check_config()
    }

    fn chunks(&self) -> &[Signature] {
        &self.packages[self.chunks.clone()]
    }

    fn missing(&self, what: impl Display) -> Error {
        Error::Folder { path: self.folder.to_owned(), problem: format!("{what}; {REMEDY}") }
    }

    /// Packages that say which part of which model they are.
    fn check_parts(&self) -> Result<()> {
        let part = |package: &Signature| {
            let model = package.origin.notes.get(place::MODEL)?.clone();
            Some((model, package.origin.part()?))
        };
        let Some((first, (model, (_, of)))) =
            self.packages.iter().find_map(|package| Some((package, part(package)?)))
        else {
            return Ok(());
        };
        for (i, package) in self.packages.iter().enumerate() {
            match part(package) {
                Some((own, _)) if own != model => {
                    return Err(package.wrong(format!("is of another model than {}", first.file)));
                }
                None => {
                    let text =
                        format!("does not say of which model it is part, as {} does", first.file);
                    return Err(package.wrong(text));
                }
                Some((_, own)) if own == (i + 1, of) => {}
                Some((_, (part, all))) => {
                    let wanted = i + 1;
                    let text =
                        format!("is part {part} of {all}, where part {wanted} of {of} belongs");
                    return Err(package.wrong(text));
                }
            }
        }
        match of == self.packages.len() {
            true => Ok(()),
            false => {
                let n = self.packages.len();
                Err(self.missing(format_args!("has {n} of the {of} packages of its model")))
            }
        }
    }

    /// Chunks that Anemll's converter has numbered, from 1, or from 0.
    fn check_numbers(&self) -> Result<()> {
        let n = self.chunks().len();
        let mut base = None;
        for (i, chunk) in self.chunks().iter().enumerate() {
            let (own, all) = (
                chunk.origin.number(metadata::CHUNK_NO),
                chunk.origin.number(metadata::NUM_CHUNKS),
            );
            if let Some(all) = all.filter(|&all| all != n) {
                return Err(chunk.wrong(format!("is one of {all} chunks, and there are {n}")));
            }
            let Some(own) = own else { continue };
            let wanted = i + *base.get_or_insert(usize::from(own != i));
            if own != wanted {
                return Err(chunk.wrong(format!("is chunk {own}, where chunk {wanted} belongs")));
            }
        }
        Ok(())
    }

    /// Chunks that share a cache, of which each writes the keys and the values of its layers.
    fn check_written(&self) -> Result<()> {
        let layers = self.layers;
        let mut next = 0;
        for chunk in self.chunks() {
            let Some(written) = &chunk.origin.written else { return Ok(()) };
            let keys: Vec<usize> = written.range(..layers).copied().collect();
            let values = written.range(layers..).map(|row| row - layers);
            // Laid out otherwise than all that is known.
            let (Some(&first), Some(&last)) = (keys.first(), keys.last()) else { return Ok(()) };
            if !values.eq(keys.iter().copied()) || keys.len() != last + 1 - first {
                return Ok(());
            }
            next = follows(chunk, &(first..last + 1), next)?;
        }
        self.are_all(next)
    }

    /// That the chunks have all layers, which end where those of the last one do.
    fn are_all(&self, end: usize) -> Result<()> {
        let layers = self.layers;
        match end == layers {
            true => Ok(()),
            false => Err(self.missing(format_args!(
                "has a cache of {layers} layers, and chunks of {end} alone: one is missing"
            ))),
        }
    }

    /// Chunks that say which layers they have, or whose operations are named after layers.
    fn check_layers(&self) -> Result<()> {
        let noted: Option<Vec<_>> = self.chunks().iter().map(|c| c.origin.layers()).collect();
        let named = || -> Option<Vec<_>> {
            let named: Vec<_> =
                self.chunks().iter().map(|c| c.origin.named.clone()).collect::<Option<_>>()?;
            // Where each counts its own, the numbers say nothing.
            let is_global = named.len() == 1 || named.iter().any(|range| range.start > 1);
            // Some count from 1.
            let first = named.first()?.start;
            let begins = first == 0 || named.len() > 1 && first > 1;
            (is_global && begins).then_some(named)
        };
        let Some(ranges) = noted.or_else(named) else { return Ok(()) };
        let lens = ranges.iter().map(ExactSizeIterator::len);
        if self.each.as_ref().is_some_and(|each| !lens.eq(each.iter().copied())) {
            return Ok(());
        }
        let mut next = 0;
        for (chunk, range) in self.chunks().iter().zip(&ranges) {
            next = follows(chunk, range, next)?;
        }
        self.are_all(next)
    }

    /// The model's own description, where it lies beside the packages.
    fn check_config(&self) -> Result<()> {
        let Some(said) = configured(self.folder).filter(|&said| said != self.layers) else {
            return Ok(());
        };
        let found = self.layers;
        Err(self.missing(format_args!(
            "has packages of {found} layers, and {CONFIG} is of a model of {said}: chunks are missing, or one of the \
             two is of another model"
        )))
    }
}

/// Where the layers of a chunk end that must begin at `next`.
fn follows(chunk: &Signature, range: &Range<usize>, next: usize) -> Result<usize> {
    match range.start == next {
        true => Ok(range.end),
        false => {
            let (first, last) = (range.start, range.end - 1);
            let text =
                format!("has the layers {first} to {last}, where those from {next} on belong");
            Err(chunk.wrong(text))
        }
    }
}

/// The layers of a model by its `config.json`, if that says it, and all of them have a cache.
fn configured(folder: &Path) -> Option<usize> {
    let value: Value =
        serde_json::from_slice(&read(&folder.join(CONFIG), MAX_CONFIG).ok()?).ok()?;
    let text = value.get("text_config").filter(|inner| inner.is_object()).unwrap_or(&value);
    let number = |key: &str| text[key].as_u64().and_then(|n| usize::try_from(n).ok());
    let kinds = text["layer_types"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let all_have =
        kinds.into_iter().all(|kind| ["full_attention", "sliding_attention"].contains(&kind));
    let none_shares = number("num_kv_shared_layers").is_none_or(|n| n == 0);
    // Of mixed models some layers have no cache.
    let is_mixed = MIXED.iter().any(|key| text.get(key).is_some());
    (all_have && none_shares && !is_mixed).then(|| number("num_hidden_layers"))?
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::foreign::origin::Origin;

    /// What is found wrong with chunks of these many layers, of which operations are named after those.
    fn of(named: &[Range<usize>], each: &[usize], layers: usize) -> Option<String> {
        let package = |named: Option<Range<usize>>| Signature {
            file: "x".to_owned(),
            functions: BTreeMap::new(),
            origin: Origin { named, ..Origin::default() },
        };
        let packages: Vec<_> = named.iter().map(|range| package(Some(range.clone()))).collect();
        let each = (!each.is_empty()).then(|| each.to_vec());
        let (folder, chunks) = (Path::new("f"), 0..packages.len());
        let order = Order { folder, packages: &packages, chunks, layers, each };
        order.check().err().map(|error| error.to_string())
    }

    #[test]
    #[expect(clippy::single_range_in_vec_init, reason = "there is one chunk of layers")]
    fn names_that_count_the_layers_of_the_model_show_what_is_missing() {
        for (named, each) in [
            (&[0..4, 4..8, 8..10][..], &[4, 4, 2][..]),
            // Each counts its own, or what is counted is something else.
            (&[0..4, 0..4, 0..2], &[4, 4, 2]),
            (&[0..4, 8..10], &[4, 4]),
            (&[1..5, 5..9], &[4, 4]),
            (&[0..4], &[4]),
        ] {
            assert_eq!(of(named, each, each.iter().sum()), None, "{named:?}");
        }
        for (named, each, text) in [
            (&[4..8, 0..4][..], &[4, 4][..], "has the layers 4 to 7, where those from 0 on belong"),
            (&[0..4, 8..10], &[4, 2], "has the layers 8 to 9, where those from 4 on belong"),
            (&[0..4, 0..4, 8..12], &[4; 3], "has the layers 0 to 3, where those from 4 on belong"),
            (&[4..8, 8..12], &[4; 2], "where those from 0 on belong"),
        ] {
            let found = of(named, each, each.iter().sum()).unwrap();
            assert!(found.contains(text), "{named:?}: {found}");
        }
        // The cache says how many there are.
        assert!(of(&[0..4, 4..8], &[], 10).unwrap().contains("one is missing"));
    }
}
