//! Passes: rewriting the functions of a package, whoever made it, so that they suit the Neural Engine.
//!
//! ```text
//! store          the weights of a package that is rewritten
//! rewrite        making a function anew
//! the others     a pass each
//! ```
//!
//! A pass keeps what a function computes. It may change how the function is called where that is its
//! purpose: states of other shapes, results in pieces, one function as several. What the passes know of
//! the Neural Engine are reports of others, as in [`report`](crate::report), not measurements.

mod attention;
mod chunks;
mod convolutions;

pub(crate) mod dead_code;
mod duplicates;
mod embed;
mod folding;
mod head;
mod merge_states;
mod mlp;
mod norms;
mod pad_states;
mod powers;
mod rewrite;
mod store;
#[cfg(test)]
mod testing;

use std::path::Path;

use self::store::Store;
use crate::mil::Function;
use crate::mil::view::View;
use crate::package::{LARGEST, Package, PackageWriter};
use crate::{Error, FunctionDescription, Model, Result, blob};

/// One pass.
#[derive(Debug)]
pub struct Pass {
    /// Its name.
    pub name: &'static str,
    /// What it does, and why, in a sentence.
    pub about: &'static str,
    /// Whether it is among those that run if none are named.
    pub default: bool,
    run: Run,
}

/// What became of a draft, and what was done.
pub type Applied = (Vec<Draft>, Vec<Change>);

/// What a pass is given and yields.
#[derive(Debug)]
enum Run {
    /// It changes a package.
    Within(fn(&mut Draft, &Options) -> Result<Vec<Change>>),
    /// It takes a package apart.
    Apart(fn(Draft, &Options) -> Result<Applied>),
}

/// All passes, in the order in which those of the default run.
pub static PASSES: [Pass; 12] = [
    Pass {
        name: "fold_constants",
        about: "computes what depends on constants alone, and shapes, beforehand",
        default: true,
        run: Run::Within(folding::run),
    },
    Pass {
        name: "pow_to_mul",
        about: "makes squares, cubes and fourth powers products, since powers leave the Neural Engine",
        default: true,
        run: Run::Within(powers::run),
    },
    Pass {
        name: "fuse_rmsnorm_epsilon",
        about: "takes what a norm adds before its reciprocal root into that operation",
        default: true,
        run: Run::Within(norms::run),
    },
    Pass {
        name: "merge_kv_states",
        about: "lays states of equal shape one behind the other, keys in one and values in another, \
                since functions with three states fail",
        default: true,
        run: Run::Within(merge_states::run),
    },
    Pass {
        name: "pad_state_dims_to_power_of_two",
        about: "pads the dimensions of states behind the first to powers of two, the last to at least 32, \
                since others fail",
        default: true,
        run: Run::Within(pad_states::run),
    },
    Pass {
        name: "slice_attention_queries",
        about: "makes attention products and a softmax, over some of the queries at a time if they are \
                many (--min-queries, --query-divider)",
        default: true,
        run: Run::Within(attention::run),
    },
    Pass {
        name: "linear_to_conv",
        about: "makes linear layers convolutions of one point over (1, C, 1, S), and what lies between \
                them follow",
        default: true,
        run: Run::Within(convolutions::run),
    },
    Pass {
        name: "reshape_mlp_8x8",
        about: "lays the 64 tokens of a feed-forward layer out as 8 x 8: faster on older chips, slower \
                on the newest",
        default: false,
        run: Run::Within(mlp::run),
    },
    Pass {
        name: "split_head",
        about: "splits products with more rows than the Neural Engine takes (--head-piece)",
        default: true,
        run: Run::Within(head::run),
    },
    Pass {
        name: "split_chunks",
        about: "cuts functions with too many weights into several, in a package each (--chunk-size)",
        default: true,
        run: Run::Apart(chunks::run),
    },
    Pass {
        name: "deduplicate_constants",
        about: "makes equal constants one, in functions and in the weight file",
        default: true,
        run: Run::Within(duplicates::run),
    },
    Pass {
        name: "eliminate_dead_code",
        about: "leaves out what no result depends on",
        default: true,
        run: Run::Within(dead_code::run),
    },
];

/// Numbers that passes go by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// From how many queries on attention is sliced.
    pub min_queries: usize,
    /// Into how many slices.
    pub query_divider: usize,
    /// Most rows of a product with a matrix.
    pub head_piece: usize,
    /// Most bytes of a package's weights, each counted as in half precision.
    pub chunk_bytes: u64,
}

impl Default for Options {
    fn default() -> Self {
        Options { min_queries: 1280, query_divider: 16, head_piece: 16384, chunk_bytes: LARGEST }
    }
}

/// What a pass did, or why it did not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The function and the operation, or what else was changed.
    pub place: String,
    /// What was done, or why it was left.
    pub text: String,
    /// Whether something was changed at all.
    pub done: bool,
}

impl Change {
    fn done(function: &str, op: &str, text: impl Into<String>) -> Change {
        Change { place: format!("{function}/{op}"), text: text.into(), done: true }
    }

    fn left(function: &str, op: &str, text: impl Into<String>) -> Change {
        Change { done: false, ..Change::done(function, op, text) }
    }
}

/// A package while it is rewritten.
#[derive(Clone, Debug)]
pub struct Draft {
    /// What sets it apart from others that were one package with it; empty if there are none.
    pub part: String,
    model: Model,
    store: Store,
}

impl Draft {
    /// The draft that begins as a package.
    pub fn new(package: Package) -> Draft {
        let (model, weights) = package.into_parts();
        Draft { part: String::new(), model, store: Store::new(weights) }
    }

    /// What it is now.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Runs a pass and checks what it made by all rules. What a pass takes apart becomes several drafts.
    ///
    /// # Errors
    /// If a weight cannot be read, the pass has broken a rule, or an input may have one of several shapes.
    pub fn apply(mut self, pass: &Pass, options: &Options) -> Result<Applied> {
        if self.model.varies() {
            return Err(Error::Unsupported {
                what: "a pass over functions whose inputs may have one of several shapes".into(),
                instead: "convert the model with fixed input shapes".into(),
            });
        }
        let (drafts, changes) = match pass.run {
            Run::Within(run) => {
                let changes = run(&mut self, options)?;
                (vec![self], changes)
            }
            Run::Apart(run) => run(self, options)?,
        };
        let described = drafts.into_iter().map(Draft::described).collect::<Result<_>>()?;
        Ok((described, changes))
    }

    /// Writes it as a package at `path`, which must not exist. Weights that nothing refers to any more
    /// are left out.
    ///
    /// # Errors
    /// If a weight cannot be read or the package cannot be written.
    pub fn write(&self, path: &Path) -> Result<()> {
        let mut writer = PackageWriter::create(path)?;
        let mut model = self.model.clone();
        self.store.write(&mut model.program, &mut writer.weights)?;
        writer.finish(&model)
    }

    /// It as a package in memory.
    ///
    /// # Errors
    /// If a weight cannot be read.
    pub fn package(&self) -> Result<Package> {
        let mut model = self.model.clone();
        let mut writer = blob::in_memory();
        self.store.write(&mut model.program, &mut writer)?;
        let bytes = writer.finish()?.into_inner();
        Package::new(model, Some(crate::Blobs::from_bytes(bytes)?))
    }

    /// With a description of each function as it is now; features that did not change keep theirs.
    fn described(mut self) -> Result<Draft> {
        let old = std::mem::take(&mut self.model.functions);
        for (name, function) in &self.model.program.functions {
            let mut description = FunctionDescription::of(name, function)?;
            if let Some(old) = old.iter().find(|old| old.name == *name) {
                description.keep_of(old);
            }
            self.model.functions.push(description);
        }
        // In the order in which they were.
        let place = |name: &str| old.iter().position(|old| old.name == name).unwrap_or(old.len());
        self.model.functions.sort_by_key(|function| place(&function.name));
        self.model.verify()?;
        Ok(self)
    }

    /// Replaces each function by what `rewrite` makes of it, if anything.
    fn each(
        &mut self,
        mut rewrite: impl FnMut(&str, &Function, &mut Store) -> Result<(Option<Function>, Vec<Change>)>,
    ) -> Result<Vec<Change>> {
        let mut all = Vec::new();
        for (name, function) in &mut self.model.program.functions {
            let (made, changes) = rewrite(name, function, &mut self.store)?;
            if let Some(made) = made {
                *function = made;
            }
            all.extend(changes);
        }
        Ok(all)
    }
}

/// Bytes of a function's weights, each counted as in half precision.
pub(crate) fn expanded_bytes(view: &View<'_>) -> u64 {
    chunks::Weights::of(view).bytes()
}

/// The pass of that name.
pub fn pass(name: &str) -> Option<&'static Pass> {
    PASSES.iter().find(|pass| pass.name == name)
}
