//! Layouts: how a model's packages, their functions and features are called and shaped for the programs that
//! read them.
//!
//! ```text
//! names     what files, functions and features are called
//! prefix    what files begin with
//! baton     Baton's own layout
//! anemll    the layout of the project Anemll
//! llm_cli   the layout of the project coreml-llm-cli
//! glue      what the latter two have in common: embeddings, rows and columns, tables
//! ```
//!
//! All of them are made of the same layers and heads of [`lower`](crate::lower); a layout gives these what
//! they begin with, and takes what they come to.

mod anemll;
mod baton;
mod glue;
mod llm_cli;
pub mod names;
mod prefix;

use std::collections::BTreeSet;
use std::io::{Seek, Write};

use baton_graph::{Graph, Op, WeightId, hex};
use baton_weights::Weights;

pub use self::anemll::Anemll;
pub use self::llm_cli::LlmCli;
pub use self::prefix::Prefix;
use crate::blob::BlobWriter;
use crate::lower::{Chunks, Lowering, MilLowering, Part};
use crate::{Error, Model, Result, memory};

/// How the packages of a model are laid out.
#[derive(Clone, Debug, PartialEq)]
pub enum Layout {
    /// As Baton runs them: see [`MilLowering`].
    Baton,
    /// As the programs of the project Anemll do.
    Anemll(Anemll),
    /// As the program coreml-llm-cli does.
    LlmCli(LlmCli),
}

/// One package of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Piece {
    /// The name of its folder.
    pub file: String,
    /// What it holds.
    pub content: Content,
}

/// What a package holds.
#[derive(Clone, Debug, PartialEq)]
pub enum Content {
    /// Layers, the head, or both.
    Part(Part),
    /// Tokens to hidden states, and what else the layers are given.
    Embeddings,
    /// What moves the window of a cache on.
    CacheProcessor,
    /// What finds the likeliest tokens.
    LogitProcessor,
}

/// A model and how it is written in MIL.
#[derive(Clone, Copy, Debug)]
pub struct Task<'a> {
    /// The model.
    pub graph: &'a Graph,
    /// Its weights.
    pub weights: &'a Weights,
    /// How it is written; the shapes of functions are those of the layout, but for Baton's own.
    pub lowering: &'a MilLowering,
}

impl Layout {
    /// What the layout is called on the command line and in `baton.json`.
    pub fn name(&self) -> &'static str {
        match self {
            Layout::Baton => "baton",
            Layout::Anemll(_) => "anemll",
            Layout::LlmCli(_) => "coreml-llm-cli",
        }
    }

    /// The packages of a model, in the order in which they are called.
    ///
    /// # Errors
    /// If the model cannot be cut so, or not be laid out so at all.
    pub fn pieces(&self, task: Task<'_>, chunks: Chunks) -> Result<Vec<Piece>> {
        match self {
            Layout::Baton => Ok(baton::pieces(task.lowering.parts(task.graph, chunks)?)),
            Layout::Anemll(anemll) => anemll.pieces(task, chunks),
            Layout::LlmCli(llm_cli) => llm_cli.pieces(task, chunks),
        }
    }

    /// Bytes that the weights of all packages take at least, with so many bits for each one of products.
    pub fn least_bytes(&self, graph: &Graph, bits: f32) -> u64 {
        let distinct = |ids: Vec<WeightId>| -> u64 {
            let ids: BTreeSet<usize> = ids.into_iter().map(WeightId::index).collect();
            let elements = |id: usize| memory::bytes(1, &graph.weights()[id].shape);
            ids.into_iter().map(elements).fold(0, u64::saturating_add)
        };
        let nodes = || graph.nodes().iter().map(|node| &node.op);
        let products = nodes().filter_map(|op| match op {
            Op::Linear(linear) => Some(linear.parts.iter().map(|part| part.weight)),
            _ => None,
        });
        let products = distinct(products.flatten().collect()) as f64 * f64::from(bits) / 8.0;
        // In half precision.
        let tables = match self {
            Layout::Baton => return products as u64,
            Layout::Anemll(anemll) => anemll.tables(graph),
            Layout::LlmCli(llm_cli) => llm_cli.masks(graph),
        };
        let embeddings = nodes().filter(|op| matches!(op, Op::Embedding { .. }));
        let embeddings = distinct(embeddings.flat_map(Op::weights).collect());
        (products as u64).saturating_add(2 * embeddings.saturating_add(tables))
    }

    /// The functions of one of these packages. Weights go to `blobs`.
    ///
    /// # Errors
    /// As [`Lowering::lower_part`].
    ///
    /// # Panics
    /// If the pieces are those of another layout.
    pub fn lower<W: Write + Seek>(
        &self,
        task: Task<'_>,
        pieces: &[Piece],
        at: usize,
        blobs: &mut BlobWriter<W>,
    ) -> Result<Model> {
        let mut model = match (self, &pieces[at].content) {
            (Layout::Baton, Content::Part(part)) => {
                return task.lowering.lower_part(task.graph, task.weights, part, blobs);
            }
            (Layout::Baton, _) => unreachable!("it has no such pieces"),
            (Layout::Anemll(anemll), _) => anemll.lower(task, pieces, at, blobs)?,
            (Layout::LlmCli(llm_cli), _) => llm_cli.lower(task, pieces, at, blobs)?,
        };
        model.metadata.user.extend(place(task.graph, pieces, at));
        Ok(model)
    }
}

/// What a package says of its place, for folders that have lost their description.
fn place(graph: &Graph, pieces: &[Piece], at: usize) -> Vec<(String, String)> {
    // What only picks tokens may be left out.
    let of = pieces.iter().filter(|piece| piece.content != Content::LogitProcessor).count();
    let mut notes = vec![(names::place::MODEL.to_owned(), hex(graph.fingerprint()))];
    if at < of {
        notes.push((names::place::PART.to_owned(), format!("{} of {of}", at + 1)));
    }
    if let Content::Part(part) = &pieces[at].content
        && part.has_layers()
    {
        let layers = format!("{}..{}", part.layers.start, part.layers.end);
        notes.push((names::place::LAYERS.to_owned(), layers));
    }
    notes
}

/// The parts of a model whose layers are in packages of their own, and whose head is one package, however
/// long.
fn separate_parts(task: Task<'_>, chunks: Chunks) -> Result<(Vec<Part>, Part)> {
    let chunks = if chunks == Chunks::Whole { Chunks::Count(1) } else { chunks };
    let parts = task.lowering.parts(task.graph, chunks)?;
    let (layers, heads): (Vec<Part>, Vec<Part>) = parts.into_iter().partition(Part::has_layers);
    let head = heads.into_iter().next().map(|head| head.with_all_rows(task.graph));
    match head {
        Some(head) if !layers.is_empty() => Ok((layers, head)),
        _ => Err(refused("a model without layers or head", "compile it with --layout baton")),
    }
}

/// What a layout has no form for.
fn refused(what: impl Into<String>, instead: &str) -> Error {
    Error::Unsupported { what: what.into(), instead: instead.to_owned() }
}
