//! Chains of norm and rotation between projections and an attention: one kernel does them all and
//! stores keys and values.

use std::collections::HashMap;

use baton_graph::{Graph, Op, RmsNorm, Rope, ValueId};

/// What an attention's operand is made of: a source, then norm, then rotation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chain<'a> {
    pub(super) source: ValueId,
    pub(super) norm: Option<&'a RmsNorm>,
    pub(super) rope: Option<&'a Rope>,
}

/// The chains of all attentions: by operand, and the results of nodes that chains do instead.
pub(super) struct Chains<'a> {
    pub(super) of: HashMap<ValueId, Chain<'a>>,
    pub(super) skipped: Vec<bool>,
}

impl<'a> Chains<'a> {
    /// Chains of nodes that nobody else reads. The two rotated operands of an attention must rotate
    /// alike.
    pub(super) fn of(graph: &'a Graph) -> Self {
        let mut uses = vec![0; graph.values().len()];
        let mut producer = vec![None; graph.values().len()];
        for node in graph.nodes() {
            node.inputs.iter().for_each(|input| uses[input.index()] += 1);
            producer[node.output.index()] = Some(node);
        }
        uses[graph.output().index()] += 1;
        let mut chains = Chains { of: HashMap::new(), skipped: vec![false; graph.values().len()] };
        for node in graph.nodes() {
            let Op::Attention(attention) = &node.op else { continue };
            let mut rotation: Option<&Rope> = None;
            for &input in &node.inputs[..2] {
                let mut chain = Chain { source: input, norm: None, rope: None };
                let own =
                    |value: ValueId| producer[value.index()].filter(|_| uses[value.index()] == 1);
                if let Some(node) = own(chain.source)
                    && let Op::Rope(rope) = &node.op
                    && rope.head_dim == attention.head_dim
                    && rotation.is_none_or(|other| other == rope)
                {
                    rotation = Some(rope);
                    chain.rope = Some(rope);
                    chains.skipped[chain.source.index()] = true;
                    chain.source = node.inputs[0];
                }
                if let Some(node) = own(chain.source)
                    && let Op::RmsNorm(norm) = &node.op
                    && norm.group == attention.head_dim
                {
                    chain.norm = Some(norm);
                    chains.skipped[chain.source.index()] = true;
                    chain.source = node.inputs[0];
                }
                chains.of.insert(input, chain);
            }
        }
        chains
    }
}
