//! A model in several packages: chunks of its layers, and its head in pieces.

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;

use baton_graph::{Graph, Op, Scope, ValueId};

use super::{Anatomy, unsupported};
use crate::{Error, Result};

/// What one package holds of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Part {
    /// Its nodes, by position in the graph, of which those of the head are left out.
    pub(super) nodes: Range<usize>,
    /// The value of an earlier part that it begins with, if it does not with embeddings.
    pub(super) enters: Option<ValueId>,
    /// The value that it ends with.
    pub(super) leaves: ValueId,
    /// Layers that keep keys and values.
    pub layers: Range<usize>,
    /// Rows of the vocabulary that its head computes, if it has one.
    pub head: Option<Range<usize>>,
}

/// How a model is cut into packages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Chunks {
    /// All of it is one package.
    #[default]
    Whole,
    /// So many packages of layers, and one for the head.
    Count(usize),
    /// Packages of at most so many bytes of weights, counted in half precision: it is so that the Neural
    /// Engine has them in memory. The head is cut by rows.
    Bytes(u64),
}

/// Where a graph can be cut: in front of a node, where all that goes on is one value.
struct Seam {
    before: usize,
    value: ValueId,
}

impl Part {
    /// All of a model.
    pub(super) fn whole(graph: &Graph, anatomy: &Anatomy) -> Part {
        Part {
            nodes: 0..graph.nodes().len(),
            enters: None,
            leaves: anatomy.cut,
            layers: 0..anatomy.cache.map_or(0, |[layers, ..]| layers),
            head: Some(0..graph.vocab()),
        }
    }

    /// Whether it has layers, not the head alone.
    pub fn has_layers(&self) -> bool {
        !self.nodes.is_empty()
    }

    /// The parts of a model, those of layers in their order, then the head's.
    pub(super) fn all(graph: &Graph, anatomy: &Anatomy, chunks: Chunks) -> Result<Vec<Part>> {
        let whole = Part::whole(graph, anatomy);
        let seams = seams(graph, anatomy);
        // The layers between seams, by their first node.
        let starts: Vec<usize> =
            std::iter::once(0).chain(seams.iter().map(|seam| seam.before)).collect();
        let end_of = |i: usize| starts.get(i + 1).copied().unwrap_or(graph.nodes().len());
        let sizes: Vec<u64> =
            (0..starts.len()).map(|i| bytes(graph, anatomy, starts[i]..end_of(i))).collect();
        let head = whole.head.clone().expect("a whole model has one");
        let (firsts, heads) = match chunks {
            Chunks::Whole => return Ok(vec![whole]),
            Chunks::Count(n) => {
                if n == 0 || n > sizes.len() {
                    return Err(too_few(format!("{n} chunks of {} layers", sizes.len())));
                }
                (balanced(&sizes, n), vec![head])
            }
            Chunks::Bytes(limit) => {
                if let Some(i) = sizes.iter().position(|&size| size > limit) {
                    let text = format!("layer {i}, of {} bytes, in a chunk of {limit}", sizes[i]);
                    return Err(too_few(text));
                }
                let row = 2 * anatomy.hidden as u64;
                let rows = usize::try_from(limit / row).unwrap_or(usize::MAX);
                if rows == 0 {
                    return Err(too_few(format!("a row of {row} bytes in a chunk of {limit}")));
                }
                let pieces = head.clone().step_by(rows);
                let pieces = pieces.map(|start| start..head.end.min(start.saturating_add(rows)));
                (filled(&sizes, limit), pieces.collect())
            }
        };
        let mut parts = Vec::new();
        for (k, &first) in firsts.iter().enumerate() {
            let nodes =
                starts[first]..firsts.get(k + 1).map_or(graph.nodes().len(), |&i| starts[i]);
            let seam = |at: usize| seams.iter().find(|seam| seam.before == at).map(|s| s.value);
            let layers = layers(graph, nodes.clone())?;
            let leaves = seam(nodes.end).unwrap_or(anatomy.cut);
            parts.push(Part { enters: seam(nodes.start), leaves, layers, head: None, nodes });
        }
        let nowhere = graph.nodes().len()..graph.nodes().len();
        parts.extend(heads.into_iter().map(|rows| Part {
            nodes: nowhere.clone(),
            layers: 0..0,
            head: Some(rows),
            ..whole.clone()
        }));
        Ok(parts)
    }
}

fn too_few(what: String) -> Error {
    Error::Unsupported { what, instead: "ask for larger chunks, or fewer of them".into() }
}

/// The last place between each two attentions where one value alone goes on: where a layer ends.
fn seams(graph: &Graph, anatomy: &Anatomy) -> Vec<Seam> {
    let nodes = graph.nodes();
    let mut last_use: HashMap<ValueId, usize> = HashMap::new();
    for (i, node) in nodes.iter().enumerate() {
        last_use.extend(node.inputs.iter().map(|&input| (input, i)));
    }
    // Embeddings are inputs of whichever part wants them.
    let is_given = |op: &Op| matches!(op, Op::Embedding { .. });
    let (mut live, mut latest) = (BTreeSet::new(), None);
    let (mut seams, mut attentions) = (Vec::new(), 0);
    for (i, node) in nodes.iter().enumerate() {
        if anatomy.head.contains(&i) {
            continue;
        }
        if let Op::Attention(_) = node.op {
            seams.extend(latest.take().filter(|_| attentions > 0));
            attentions += 1;
        }
        live.retain(|value: &ValueId| last_use.get(value).is_some_and(|&at| at > i));
        if !is_given(&node.op) && last_use.contains_key(&node.output) {
            live.insert(node.output);
        }
        if let (1, Some(&value)) = (live.len(), live.first()) {
            latest = Some(Seam { before: i + 1, value });
        }
    }
    seams
}

/// Bytes in half precision of the matrices of some nodes that are not the head's.
fn bytes(graph: &Graph, anatomy: &Anatomy, nodes: Range<usize>) -> u64 {
    let nodes = nodes.filter(|i| !anatomy.head.contains(i)).map(|i| &graph.nodes()[i]);
    let matrices = nodes.flat_map(|node| match &node.op {
        Op::Linear(linear) => linear.parts.iter().map(|part| part.weight).collect(),
        Op::Moe(moe) => vec![moe.router, moe.gate, moe.up, moe.down],
        _ => Vec::new(),
    });
    let elements = |shape: &[usize]| shape.iter().product::<usize>() as u64;
    matrices.map(|id| 2 * elements(&graph.weights()[id.index()].shape)).sum()
}

/// The first layer of each of `n` chunks of about the same size; there are as many layers at least.
fn balanced(sizes: &[u64], n: usize) -> Vec<usize> {
    let total: u64 = sizes.iter().sum();
    let (mut firsts, mut before) = (vec![0], 0);
    for (i, &size) in sizes.iter().enumerate() {
        let (k, rest) = (firsts.len(), sizes.len() - i);
        // Where a chunk ends nearest to its share, or has to for those behind it to have a layer each.
        let wanted = total as f64 * k as f64 / n as f64;
        let over = before as f64 + size as f64 / 2.0 >= wanted;
        if k < n && i > firsts[k - 1] && (over || rest == n - k) {
            firsts.push(i);
        }
        before += size;
    }
    firsts
}

/// The first layer of each chunk, each filled up to a limit that no layer exceeds.
fn filled(sizes: &[u64], limit: u64) -> Vec<usize> {
    let (mut firsts, mut held) = (vec![0], 0);
    for (i, &size) in sizes.iter().enumerate() {
        if held + size > limit && i > 0 {
            firsts.push(i);
            held = 0;
        }
        held += size;
    }
    firsts
}

/// The layers whose keys and values some nodes make.
fn layers(graph: &Graph, nodes: Range<usize>) -> Result<Range<usize>> {
    let mut found: Vec<usize> = graph.nodes()[nodes]
        .iter()
        .filter_map(|node| match &node.op {
            Op::Attention(attention) => match attention.scope {
                Scope::Past(state) => Some(state.index()),
                _ => None,
            },
            _ => None,
        })
        .collect();
    found.sort_unstable();
    found.dedup();
    let range = found.first().map_or(0..0, |&first| first..first + found.len());
    match range.clone().eq(found) {
        true => Ok(range),
        false => Err(unsupported("chunks of layers that are not in order")),
    }
}

#[cfg(test)]
mod tests {
    use baton_graph::testing::Tiny;

    use super::*;

    #[test]
    fn chunks_are_filled_or_balanced() {
        assert_eq!(filled(&[3, 3, 3, 3, 3], 6), [0, 2, 4]);
        assert_eq!(filled(&[6, 1, 5, 1], 6), [0, 1, 3]);
        assert_eq!(balanced(&[1; 6], 3), [0, 2, 4]);
        assert_eq!(balanced(&[1; 6], 6), [0, 1, 2, 3, 4, 5]);
        assert_eq!(balanced(&[9, 1, 1], 3), [0, 1, 2]);
        assert_eq!(balanced(&[1, 1, 9], 2), [0, 2]);
        assert_eq!(balanced(&[5], 1), [0]);
    }

    #[test]
    fn a_model_is_cut_between_its_layers() {
        let tiny = Tiny { layers: 5, ..Tiny::default() };
        let graph = tiny.graph().unwrap();
        let anatomy = Anatomy::of(&graph).unwrap();
        let parts = |chunks| Part::all(&graph, &anatomy, chunks);
        assert_eq!(parts(Chunks::Whole).unwrap(), [Part::whole(&graph, &anatomy)]);
        let two = parts(Chunks::Count(2)).unwrap();
        let layers: Vec<_> = two.iter().map(|part| part.layers.clone()).collect();
        assert!(layers == [0..2, 2..5, 0..0] || layers == [0..3, 3..5, 0..0], "{layers:?}");
        assert_eq!(two[1].enters, Some(two[0].leaves));
        assert_eq!((two[0].enters, two[1].leaves), (None, anatomy.cut));
        assert_eq!(two[2].head, Some(0..tiny.vocab));
        // A chunk for each layer, and rows of the head in pieces.
        let layer = bytes(&graph, &anatomy, two[0].nodes.clone()) / two[0].layers.len() as u64;
        let each = parts(Chunks::Bytes(layer)).unwrap();
        let (layers, heads): (Vec<_>, Vec<_>) = each.iter().partition(|part| part.has_layers());
        assert_eq!(layers.len(), 5);
        assert!(layers.windows(2).all(|pair| pair[1].enters == Some(pair[0].leaves)));
        let rows: Vec<_> = heads.iter().filter_map(|part| part.head.clone()).collect();
        assert!(rows.windows(2).all(|pair| pair[0].end == pair[1].start));
        assert_eq!((rows[0].start, rows[rows.len() - 1].end), (0, tiny.vocab));
        for wrong in
            [Chunks::Count(0), Chunks::Count(6), Chunks::Bytes(layer - 1), Chunks::Bytes(1)]
        {
            let error = parts(wrong).unwrap_err().to_string();
            assert!(error.contains("chunk"), "{error}");
        }
    }
}
