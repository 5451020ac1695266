//! Keeps only the rows whose logits were asked for, from the last attention on.
//!
//! In prefill this drops the head, and the last feed-forward layer, for all tokens but one.

use std::collections::HashMap;

use crate::{Dim, Graph, GraphError, Node, Op, ValueId};

pub(super) fn run(graph: &mut Graph) -> Result<usize, GraphError> {
    if graph.ty(graph.output()).rows() != Dim::Tokens {
        return Ok(0);
    }
    // A node may work on the chosen rows if all who read its result do.
    let uses = graph.uses();
    let mut on_rows = vec![false; graph.nodes().len()];
    for at in (0..graph.nodes().len()).rev() {
        let node = &graph.nodes()[at];
        let readers = &uses[node.output.index()];
        let wanted = node.output == graph.output() || !readers.is_empty();
        on_rows[at] = node.op.is_row_wise()
            && !matches!(node.op, Op::Embedding { .. })
            && wanted
            && readers.iter().all(|&reader| on_rows[reader]);
    }
    let producers = graph.producers();
    let all_tokens = |value: ValueId| producers[value.index()].is_none_or(|at: usize| !on_rows[at]);
    let mut selected: HashMap<ValueId, ValueId> = HashMap::new();
    let old = graph.nodes().to_vec();
    let mut nodes = Vec::with_capacity(old.len() + 2);
    for (at, node) in old.iter().enumerate() {
        if on_rows[at] {
            // Rows of all that is there already, also for nodes further on: between a product and what adds
            // a residual to it no unit wants another step.
            let is_there =
                |value: ValueId| producers[value.index()].is_none_or(|producer| producer < at);
            let later = (at..old.len()).filter(|&at| on_rows[at]);
            for &input in later.flat_map(|at| &old[at].inputs) {
                if all_tokens(input) && is_there(input) && !selected.contains_key(&input) {
                    let select = select_rows(graph, input);
                    selected.insert(input, select.output);
                    nodes.push(select);
                }
            }
        }
        let mut node = node.clone();
        if on_rows[at] {
            for input in &mut node.inputs {
                *input = *selected.get(input).unwrap_or(input);
            }
        }
        nodes.push(node);
    }
    if selected.is_empty() {
        let select = select_rows(graph, graph.output());
        graph.output = select.output;
        nodes.push(select);
    }
    graph.rebuild(nodes)?;
    Ok(selected.len().max(1))
}

fn select_rows(graph: &mut Graph, value: ValueId) -> Node {
    let name = format!("{}.rows", graph.values()[value.index()].name);
    let output = graph.new_value(&name);
    Node { name, op: Op::SelectRows, inputs: vec![value], output }
}
