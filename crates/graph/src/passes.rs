//! Rewrites of a graph that keep what it computes.
//!
//! Each pass has a name by which it can be switched off, so that a wrong answer can be bisected.

mod fuse_linears;
mod output_rows;

use crate::{Graph, GraphError};

/// A rewrite.
#[derive(Clone, Copy)]
pub struct Pass {
    /// Its name.
    pub name: &'static str,
    /// What it does, in a sentence.
    pub about: &'static str,
    run: fn(&mut Graph) -> Result<usize, GraphError>,
}

/// All passes, in the order in which they run.
pub const ALL: &[Pass] = &[
    Pass {
        name: "fuse_qkv",
        about: "one stacked product for the projections that feed an attention",
        run: fuse_linears::fuse_qkv,
    },
    Pass {
        name: "fuse_gate_up",
        about: "one stacked product for the two projections of a gated feed-forward layer",
        run: fuse_linears::fuse_gate_up,
    },
    Pass {
        name: "output_rows",
        about: "drops rows nobody asked for as soon as no other row needs them",
        run: output_rows::run,
    },
];

/// Runs all passes but those named in `disabled`.
///
/// # Errors
/// If `disabled` names no pass, or a rewrite does not fit together (a fault of the pass).
pub fn run(graph: &mut Graph, disabled: &[&str]) -> Result<(), GraphError> {
    if let Some(unknown) = disabled.iter().find(|name| ALL.iter().all(|p| p.name != **name)) {
        let known: Vec<&str> = ALL.iter().map(|p| p.name).collect();
        let problem = format!("there is no such pass; there are {}", known.join(", "));
        return Err(GraphError::new(*unknown, problem));
    }
    for pass in ALL.iter().filter(|pass| !disabled.contains(&pass.name)) {
        let rewrites = (pass.run)(graph)?;
        tracing::debug!(pass = pass.name, rewrites, nodes = graph.nodes().len(), "pass");
    }
    Ok(())
}

#[cfg(test)]
mod tests;
