//! Stacks linear layers that read the same value into one product, and slices its result.

use std::collections::{HashMap, HashSet};

use crate::{Graph, GraphError, Linear, Node, Op, ValueId};

/// Stacks query, key and value projections.
pub(super) fn fuse_qkv(graph: &mut Graph) -> Result<usize, GraphError> {
    let producers = graph.producers();
    let mut groups = Vec::new();
    for node in graph.nodes() {
        if let Op::Attention(_) = node.op {
            let sources: Vec<usize> = node
                .inputs
                .iter()
                .filter_map(|&input| linear_behind(graph, &producers, input))
                .collect();
            groups.push(sources);
        }
    }
    stack(graph, &groups, "qkv")
}

/// Stacks gate and up projections, and lets the gated activation read the stacked result.
pub(super) fn fuse_gate_up(graph: &mut Graph) -> Result<usize, GraphError> {
    let producers = graph.producers();
    let linear = |value: ValueId| {
        producers[value.index()].filter(|&at| matches!(graph.nodes()[at].op, Op::Linear(_)))
    };
    let groups: Vec<Vec<usize>> = graph
        .nodes()
        .iter()
        .filter(|node| matches!(node.op, Op::GatedActivation(_)) && node.inputs.len() == 2)
        .filter_map(|node| Some(vec![linear(node.inputs[0])?, linear(node.inputs[1])?]))
        .collect();
    let stacked = stack(graph, &groups, "gate_up")?;
    join_halves(graph)?;
    Ok(stacked)
}

/// The linear layer from which `value` comes through norms and rotations alone.
fn linear_behind(graph: &Graph, producers: &[Option<usize>], value: ValueId) -> Option<usize> {
    let at = producers[value.index()]?;
    match graph.nodes()[at].op {
        Op::Linear(_) => Some(at),
        Op::RmsNorm(_) | Op::Rope(_) => {
            linear_behind(graph, producers, graph.nodes()[at].inputs[0])
        }
        _ => None,
    }
}

/// Replaces each group of linear nodes by one stacked node and slices. Groups whose members do not
/// read the same value, or are fewer than two, are left alone.
fn stack(graph: &mut Graph, groups: &[Vec<usize>], name: &str) -> Result<usize, GraphError> {
    let mut stacked = HashMap::new();
    let mut members = HashSet::new();
    for group in groups {
        let inputs = group.first().map(|&at| &graph.nodes()[at].inputs);
        let same_input = group.iter().all(|&at| Some(&graph.nodes()[at].inputs) == inputs);
        let distinct: HashSet<usize> = group.iter().copied().collect();
        let fresh = distinct.is_disjoint(&members) && distinct.len() == group.len();
        if group.len() >= 2 && same_input && fresh {
            members.extend(distinct);
            stacked.insert(group.iter().min().copied(), group);
        }
    }
    let mut nodes = Vec::with_capacity(graph.nodes().len() + 2 * stacked.len());
    for (at, node) in graph.nodes().to_vec().into_iter().enumerate() {
        let Some(group) = stacked.get(&Some(at)) else {
            if !members.contains(&at) {
                nodes.push(node);
            }
            continue;
        };
        let group: Vec<Node> = group.iter().map(|&i| graph.nodes()[i].clone()).collect();
        nodes.extend(stack_group(graph, &group, name));
    }
    let count = stacked.len();
    graph.rebuild(nodes)?;
    Ok(count)
}

fn stack_group(graph: &mut Graph, group: &[Node], name: &str) -> Vec<Node> {
    let prefix = group[0].name.rsplit_once('.').map_or("", |(prefix, _)| prefix);
    let name = format!("{prefix}.{name}");
    let output = graph.new_value(&name);
    let mut parts = Vec::new();
    let mut slices = Vec::new();
    let mut offset = 0;
    for node in group {
        let Op::Linear(linear) = &node.op else { unreachable!("groups hold linear nodes") };
        parts.extend(linear.parts.iter().copied());
        let len = graph.ty(node.output).features();
        let op = Op::Slice { offset, len };
        slices.push(Node { op, inputs: vec![output], ..node.clone() });
        offset += len;
    }
    let op = Op::Linear(Linear { parts });
    let inputs = group[0].inputs.clone();
    std::iter::once(Node { name, op, inputs, output }).chain(slices).collect()
}

/// `gated(slice(x, 0, n), slice(x, n, n))` becomes `gated(x)`; slices that nobody reads any more go.
fn join_halves(graph: &mut Graph) -> Result<(), GraphError> {
    let producers = graph.producers();
    let mut nodes = graph.nodes().to_vec();
    let half = |nodes: &[Node], value: ValueId, second: bool| -> Option<ValueId> {
        let node = &nodes[producers[value.index()]?];
        let Op::Slice { offset, len } = node.op else { return None };
        let whole = graph.ty(node.inputs[0]).features();
        let fits = 2 * len == whole && offset == if second { len } else { 0 };
        fits.then_some(node.inputs[0])
    };
    for at in 0..nodes.len() {
        if let (Op::GatedActivation(_), &[gate, up]) = (&nodes[at].op, &nodes[at].inputs[..]) {
            match (half(&nodes, gate, false), half(&nodes, up, true)) {
                (Some(x), Some(y)) if x == y => nodes[at].inputs = vec![x],
                _ => {}
            }
        }
    }
    let read: HashSet<ValueId> =
        nodes.iter().flat_map(|n| n.inputs.iter().copied()).chain([graph.output()]).collect();
    nodes.retain(|n| !matches!(n.op, Op::Slice { .. }) || read.contains(&n.output));
    graph.rebuild(nodes)
}
