//! What a graph needs from whoever calls its functions, and where they are cut.

use baton_graph::{Graph, Lookup, Op, Rope, Scope, StateSpec, ValueId, WeightId};

use super::unsupported;
use crate::{Error, Result};

/// The parts of a graph that the lowering and the caller of its functions must agree on. Both find them
/// in the graph, in the same order.
#[derive(Clone, Debug, PartialEq)]
pub struct Anatomy {
    /// The embeddings, which are inputs of every function but the head.
    pub embeddings: Vec<Embedding>,
    /// The different rotations.
    pub ropes: Vec<Rope>,
    /// The different windows of attention, each of which has a mask.
    pub windows: Vec<Option<usize>>,
    /// Layers, key-value heads and features of a head, if anything is cached.
    pub cache: Option<[usize; 3]>,
    /// The value that the head begins with.
    pub(super) cut: ValueId,
    /// Features of that value.
    pub hidden: usize,
    /// Nodes that belong to the head, by position.
    pub(super) head: Vec<usize>,
}

/// One embedding of tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct Embedding {
    /// The matrix.
    pub table: WeightId,
    /// The factor.
    pub scale: f32,
    /// The row that a token gets.
    pub lookup: Lookup,
    /// The result.
    pub(super) output: ValueId,
}

impl Anatomy {
    /// The anatomy of a graph.
    ///
    /// # Errors
    /// If its functions cannot be cut so: it is no decoder, or its layers differ in their caches.
    pub fn of(graph: &Graph) -> Result<Anatomy> {
        if graph.needs_whole_texts() {
            return Err(unsupported("attention in both directions"));
        }
        let (mut embeddings, mut ropes, mut windows) = (Vec::new(), Vec::new(), Vec::new());
        for node in graph.nodes() {
            match &node.op {
                &Op::Embedding { table, scale, lookup } => {
                    embeddings.push(Embedding { table, scale, lookup, output: node.output });
                }
                Op::Rope(rope) if !ropes.contains(rope) => ropes.push(rope.clone()),
                Op::Attention(attention) => {
                    let Scope::Past(_) = attention.scope else { unreachable!("checked above") };
                    if !windows.contains(&attention.window) {
                        windows.push(attention.window);
                    }
                }
                _ => {}
            }
        }
        let mut shapes = graph.states().iter().map(|state| match state {
            StateSpec::Kv { kv_heads, head_dim, .. } => Some([*kv_heads, *head_dim]),
            _ => None,
        });
        let cache = match shapes.next() {
            None => None,
            Some(Some(shape)) if shapes.all(|other| other == Some(shape)) => {
                Some([graph.states().len(), shape[0], shape[1]])
            }
            Some(_) => return Err(unsupported("layers whose caches differ in shape")),
        };
        let (cut, head) = cut(graph);
        let hidden = graph.ty(cut).features();
        if hidden == 0 {
            let text = "the graph computes nothing from its tokens".to_owned();
            return Err(Error::Invalid(vec![crate::Problem { place: "graph".into(), text }]));
        }
        Ok(Anatomy { embeddings, ropes, windows, cache, cut, hidden, head })
    }

    /// The name of an embedding's input.
    pub fn embedded(i: usize) -> String {
        numbered("embedded", i)
    }

    /// The names of a rotation's inputs, cosines and sines.
    pub fn rotation(i: usize) -> [String; 2] {
        ["cos", "sin"].map(|name| numbered(name, i))
    }

    /// The name of the mask of a window.
    pub fn mask(window: Option<usize>) -> String {
        window.map_or("mask".into(), |window| format!("mask_w{window}"))
    }
}

fn numbered(name: &str, i: usize) -> String {
    if i == 0 { name.to_owned() } else { format!("{name}_{i}") }
}

/// The value behind which each row goes its own way to the output, and the nodes of that way: the head
/// is computed for the rows alone that somebody asked for.
fn cut(graph: &Graph) -> (ValueId, Vec<usize>) {
    let (mut at, mut nodes) = (graph.output(), Vec::new());
    while let Some(i) = graph.nodes().iter().position(|node| node.output == at) {
        let node = &graph.nodes()[i];
        let alone = matches!(
            node.op,
            Op::RmsNorm(_)
                | Op::LayerNorm { .. }
                | Op::Linear(_)
                | Op::Activation(_)
                | Op::Scale(_)
                | Op::Softcap(_)
                | Op::SelectRows
        );
        if !alone {
            break;
        }
        nodes.push(i);
        at = node.inputs[0];
    }
    nodes.reverse();
    (at, nodes)
}
