//! A graph as text and as a Graphviz drawing.

use std::fmt::{self, Write};

use crate::{Graph, Lookup, Node, Op, Scope};

impl fmt::Display for Graph {
    /// One line a node: `name: type = op(inputs) {attributes}`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "graph {}", self.name)?;
        for (i, state) in self.states.iter().enumerate() {
            let [heads, context, dim] = state.shape();
            writeln!(f, "  state {i}: kv[{heads}, {context}, {dim}]")?;
        }
        let tokens = &self.values[self.tokens.index()];
        writeln!(f, "  input {}: {}", tokens.name, tokens.ty)?;
        for node in &self.nodes {
            let inputs: Vec<&str> =
                node.inputs.iter().map(|i| self.values[i.index()].name.as_str()).collect();
            write!(f, "  {}: {} = ", node.name, self.ty(node.output))?;
            write!(f, "{}({})", node.op.name(), inputs.join(", "))?;
            let attributes = self.attributes(node);
            if !attributes.is_empty() {
                write!(f, " {{{attributes}}}")?;
            }
            writeln!(f)?;
        }
        writeln!(f, "  output {}", self.values[self.output.index()].name)
    }
}

impl Graph {
    /// The graph in Graphviz's language: `dot -Tsvg` draws it.
    pub fn to_dot(&self) -> String {
        let mut out = String::new();
        self.write_dot(&mut out).expect("a string takes every write");
        out
    }

    fn write_dot(&self, out: &mut String) -> fmt::Result {
        let id = |text: &str| text.replace('\\', "\\\\").replace('"', "\\\"");
        writeln!(out, "digraph \"{}\" {{", id(&self.name))?;
        writeln!(out, "  node [shape=box, fontname=\"Helvetica\", fontsize=10];")?;
        writeln!(out, "  \"{}\" [shape=ellipse];", id(&self.values[self.tokens.index()].name))?;
        for node in &self.nodes {
            let (name, op) = (id(&node.name), node.op.name());
            writeln!(out, "  \"{name}\" [label=\"{name}\\n{op} {}\"];", self.ty(node.output))?;
            for input in &node.inputs {
                let from = id(&self.values[input.index()].name);
                writeln!(out, "  \"{from}\" -> \"{name}\";")?;
            }
        }
        writeln!(out, "}}")
    }

    fn attributes(&self, node: &Node) -> String {
        let mut list: Vec<String> = node
            .op
            .weights()
            .iter()
            .map(|w| {
                let spec = &self.weights[w.index()];
                format!("{} {:?}", spec.name, spec.shape)
            })
            .collect();
        match &node.op {
            Op::Embedding { scale, lookup, .. } => {
                if *scale != 1.0 {
                    list.push(format!("scale {scale}"));
                }
                match lookup {
                    Lookup::Token => {}
                    Lookup::Position => list.push("by position".into()),
                    Lookup::Row(row) => list.push(format!("row {row}")),
                }
            }
            Op::RmsNorm(norm) => {
                list.push(format!("eps {:e}, group {}", norm.eps, norm.group));
                if norm.weight_offset != 0.0 {
                    list.push(format!("weight + {}", norm.weight_offset));
                }
            }
            Op::LayerNorm { eps, .. } => list.push(format!("eps {eps:e}")),
            Op::Slice { offset, len } => list.push(format!("{offset}..{}", offset + len)),
            Op::Rope(rope) => list.push(format!(
                "{:?}, head_dim {}, {} features rotate, magnitude {}",
                rope.layout,
                rope.head_dim,
                rope.inv_freq.len() * 2,
                rope.magnitude
            )),
            Op::Attention(a) => {
                list.push(match a.scope {
                    Scope::Past(state) => format!("state {}", state.index()),
                    Scope::Text => "both directions".into(),
                });
                list.push(format!(
                    "{} heads of {} over {}, scale {}",
                    a.heads, a.head_dim, a.kv_heads, a.scale
                ));
                list.extend(a.window.map(|w| format!("window {w}")));
                list.extend(a.softcap.map(|c| format!("softcap {c}")));
            }
            Op::Scale(by) => list.push(by.to_string()),
            Op::Pool(how) => list.push(format!("{how:?}")),
            Op::Softcap(cap) => list.push(cap.to_string()),
            Op::Activation(activation) => list.push(format!("{activation:?}")),
            Op::GatedActivation(gate) => list.push(format!("{gate:?}")),
            Op::Moe(moe) => list.push(format!(
                "{} of {} experts, {:?}, {:?}",
                moe.top_k, moe.experts, moe.routing, moe.activation
            )),
            _ => {}
        }
        list.join("; ")
    }
}
