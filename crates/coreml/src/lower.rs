//! From a model's graph to the functions of a package.
//!
//! ```text
//! anatomy     what a graph needs from its caller: embeddings, rotations, masks; where its head begins
//! features    the names of inputs and outputs
//! forms       which weights are written in half precision, palettized or as integers
//! weights     weights in their forms, written once for all functions
//! palette     indices into tables, whose values are the means that `means` finds
//! integers    integers with scales
//! mixed       how many bits each matrix gets
//! parts       a model cut into several packages
//! function    one function: the graph's nodes in order between what a layout gives and takes
//! nodes       each operation of a graph in operations of MIL
//! mixture     mixtures of experts
//! attention   attention over past and new tokens, or over a state
//! native      the functions of Baton's own layout
//! ```
//!
//! Every value of `(tokens, features)` is a tensor `(1, features, 1, tokens)`, the layout that the Neural
//! Engine works in, and a product with weights is a convolution of a single point. Embeddings, the
//! tables of rotations and masks are computed by the caller.

mod anatomy;
mod attention;
mod features;
mod forms;
mod function;
mod integers;
mod means;
mod mixed;
mod mixture;
mod native;
mod nodes;
mod palette;
mod parts;
mod weights;

use std::collections::BTreeMap;
use std::io::{Seek, Write};

use baton_graph::Graph;
use baton_weights::Weights;

pub use self::anatomy::{Anatomy, Embedding};
pub(crate) use self::attention::MASKED;
pub(crate) use self::features::{CACHES, HIDDEN_STATE, NEW, PAST, POSITION};
pub use self::forms::{Form, Forms};
pub(crate) use self::function::{Cache, FunctionLowering, HeadCut, Held, PartLowering};
pub use self::integers::{INTEGER_BITS, Integer};
pub use self::mixed::{Sample, mixed_palettes};
pub(crate) use self::native::INCOMING;
pub use self::palette::{PALETTE_BITS, Palette};
pub use self::parts::{Chunks, Part};
pub(crate) use self::weights::Emitter;
use crate::blob::BlobWriter;
use crate::mil::Program;
use crate::{Error, Model, Result};

/// A way to write a graph as the programs of some runtime.
pub trait Lowering {
    /// The packages that `graph` becomes, those of layers in their order, then those of the head.
    ///
    /// # Errors
    /// If it cannot be cut so.
    fn parts(&self, graph: &Graph, chunks: Chunks) -> Result<Vec<Part>>;

    /// The functions of a part of `graph`. Weights go to `blobs`, each once however many functions use
    /// it.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the graph has something that cannot be written so; also if a weight is
    /// missing or writing fails.
    fn lower_part<W: Write + Seek>(
        &self,
        graph: &Graph,
        weights: &Weights,
        part: &Part,
        blobs: &mut BlobWriter<W>,
    ) -> Result<Model>;

    /// The functions of all of `graph`.
    ///
    /// # Errors
    /// As [`Lowering::lower_part`].
    fn lower<W: Write + Seek>(
        &self,
        graph: &Graph,
        weights: &Weights,
        blobs: &mut BlobWriter<W>,
    ) -> Result<Model> {
        let parts = self.parts(graph, Chunks::Whole)?;
        self.lower_part(graph, weights, &parts[0], blobs)
    }
}

/// Lowering to MIL of opset `CoreML8`, for iOS 18 and macOS 15.
///
/// With `L` layers, `K` key-value heads of `D` features, `F` features of the hidden state:
///
/// | function | inputs | outputs |
/// |---|---|---|
/// | `prefill_{S}_h{H}` | `embedded (1,F,1,S)`, `cos`, `sin (1,1,D,S)`, `mask (1,1,S,H+S)`, `past_keys`, `past_values (L,K,H,D)` | `hidden (1,F,1,S)`, `keys`, `values (L,K,S,D)` |
/// | `decode` | as `prefill_1`, `mask (1,1,1,C)` over places, `position (1)`; states `key_cache`, `value_cache` | `hidden (1,F,1,1)` |
/// | `head` | `hidden (1,F,1,R)` | `logits_0`... `(1,n,1,R)`, one below the other |
///
/// Names have a number behind them if a model needs several: `cos_1` is the second rotation,
/// `mask_w512` the mask of layers with a window of 512. Without a history (`h0`) there are no `past`
/// inputs. A chunk of layers behind the first has the earlier one's hidden state as `incoming` instead of
/// `embedded`, and its own layers' keys and values alone. Masks are 0 for what is seen and [`HIDDEN`] for what is not. See [`Anatomy`].
#[derive(Clone, Debug, PartialEq)]
pub struct MilLowering {
    /// New tokens and tokens of history of each prefill function.
    pub prefill: Vec<(usize, usize)>,
    /// The context of the decode function, if there shall be one.
    pub decode: Option<usize>,
    /// Rows that the head takes at once.
    pub head_rows: usize,
    /// Most rows of the vocabulary in one product: the Neural Engine refuses long dimensions.
    pub head_piece: usize,
    /// Whether the dimensions of states are raised to powers of two, and the last one to a multiple of
    /// 32, without which the Neural Engine is reported to fail.
    pub pad_states: bool,
    /// How the matrices of products are written.
    pub forms: Forms,
    /// How large the inputs of products are, by which the errors of quantized weights are weighed; all
    /// alike for those that it lacks.
    pub energies: Energies,
    /// How large values get, by which they are kept within half precision.
    pub ranges: Ranges,
}

/// What masks add to the scores of tokens that are not seen.
pub const HIDDEN: f32 = -1e4;

/// The largest magnitudes that a graph's values were seen to have, by the names of the nodes that read
/// them. See [`calibrate`](crate::calibrate).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Ranges {
    /// Of the inputs of each [`Op::RmsNorm`](baton_graph::Op::RmsNorm).
    pub norms: BTreeMap<String, f32>,
    /// Of the hidden state that all layers add to.
    pub residual: Option<f32>,
}

/// The mean square of each feature that a product reads, by the name of its matrix. See
/// [`calibrate`](crate::calibrate).
pub type Energies = BTreeMap<String, Vec<f32>>;

impl Default for MilLowering {
    fn default() -> Self {
        MilLowering {
            prefill: vec![(64, 0), (64, 512)],
            decode: None,
            head_rows: 1,
            head_piece: 16_384,
            pad_states: true,
            forms: Forms::default(),
            energies: Energies::new(),
            ranges: Ranges::default(),
        }
    }
}

impl MilLowering {
    /// Prefill functions of each of these numbers of new tokens, with histories up to `context`. There are
    /// few of them, since each has its share of memory: the first begins a sequence, those behind it take
    /// four times as much history as the one before.
    pub fn for_context(context: usize, tokens: &[usize]) -> MilLowering {
        let mut histories = vec![0];
        let mut history = 512;
        while *histories.last().expect("it has 0") < context.saturating_sub(1) {
            histories.push(history.min(context));
            history *= 4;
        }
        let of = |&n: &usize| histories.iter().map(move |&h| (n, h)).collect::<Vec<_>>();
        MilLowering { prefill: tokens.iter().flat_map(of).collect(), ..MilLowering::default() }
    }

    /// What the hidden state is multiplied with to stay within half precision: a power of two, so that
    /// nothing else about it changes.
    pub(crate) fn residual_factor(&self) -> f32 {
        const LARGEST: f32 = 16_384.0;
        match self.ranges.residual {
            Some(largest) if largest > LARGEST => (LARGEST / largest).log2().floor().exp2(),
            _ => 1.0,
        }
    }
}

/// The key of a model's metadata for the number that callers multiply embeddings with, beside the
/// graph's own.
pub const EMBEDDING_FACTOR: &str = "baton.embedding_factor";

/// The key of a model's metadata for what has become of weights that were quantized in their source.
pub const WEIGHTS_NOTE: &str = "baton.weights";

/// The name of a prefill function.
pub fn prefill_name(tokens: usize, history: usize) -> String {
    format!("prefill_{tokens}_h{history}")
}

/// New tokens and history of a prefill function, by its [name](prefill_name); none of any other name.
pub fn prefill_sizes(name: &str) -> Option<(usize, usize)> {
    let (tokens, history) = name.strip_prefix("prefill_")?.split_once("_h")?;
    let sizes: (usize, usize) = (tokens.parse().ok()?, history.parse().ok()?);
    // Written as we write it, so that it can be found again.
    (sizes.0 > 0 && prefill_name(sizes.0, sizes.1) == name).then_some(sizes)
}

/// The name of the decode function.
pub const DECODE: &str = "decode";
/// The name of the head.
pub const HEAD: &str = "head";

impl Lowering for MilLowering {
    fn parts(&self, graph: &Graph, chunks: Chunks) -> Result<Vec<Part>> {
        Part::all(graph, &Anatomy::of(graph)?, chunks)
    }

    fn lower_part<W: Write + Seek>(
        &self,
        graph: &Graph,
        weights: &Weights,
        part: &Part,
        blobs: &mut BlobWriter<W>,
    ) -> Result<Model> {
        let mut lowering = PartLowering::new(self, graph, weights, part, blobs)?;
        let mut program = Program::default();
        if part.has_layers() {
            for &(tokens, history) in &self.prefill {
                let function = native::prefill(lowering.function(tokens), history)?;
                program.functions.insert(prefill_name(tokens, history), function);
            }
            if let Some(context) = self.decode {
                program
                    .functions
                    .insert(DECODE.into(), native::decode(lowering.function(1), context)?);
            }
        }
        if part.head.is_some() {
            program.functions.insert(HEAD.into(), native::head(lowering.function(self.head_rows))?);
        }
        let first = program.functions.keys().next().cloned();
        let default = if part.head.is_some() { Some(HEAD.to_owned()) } else { first };
        let mut model = Model::new(program, default.as_deref())?;
        let factor = self.residual_factor().to_string();
        model.metadata.user.insert(EMBEDDING_FACTOR.into(), factor);
        if let Some(note) = lowering.emitter.note() {
            model.metadata.user.insert(WEIGHTS_NOTE.into(), note);
        }
        Ok(model)
    }
}

/// The name that a node's operations begin with, which no input or output of a function does.
fn label(node: &str) -> String {
    let legal = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
    format!("n_{}", node.chars().map(legal).collect::<String>())
}

/// The error for something that has no form in MIL yet.
pub(crate) fn unsupported(what: impl Into<String>) -> Error {
    Error::Unsupported {
        what: format!("{} in a Core ML package", what.into()),
        instead: "run this model on another unit".into(),
    }
}
