//! Functions of single elements, as `shaders/pointwise.wgsl` numbers them.

use baton_graph::{Activation, Gate};

use super::Function;

impl Function {
    /// The number in `shaders/activate.wgsl` of a gate.
    pub(super) fn gate(&self) -> Option<u32> {
        self.op.checked_sub(GATED)
    }
}

/// A function by its number in `shaders/pointwise.wgsl`.
pub(super) fn function(op: u32) -> Function {
    Function { op, x: 0.0, y: 0.0 }
}

const SCALE: u32 = 0;
pub(super) const SOFTCAP: u32 = 1;
pub(super) const ADD: u32 = 2;
pub(super) const MUL: u32 = 3;
pub(super) const ACTIVATION: u32 = 4;
const GATED: u32 = 8;
const CLAMPED: u32 = 12;

pub(super) fn scale(by: f32) -> Function {
    Function { x: by, ..function(SCALE) }
}

pub(super) fn activation(kind: Activation) -> Option<u32> {
    Some(match kind {
        Activation::Silu => 0,
        Activation::Gelu => 1,
        Activation::GeluTanh => 2,
        Activation::Relu => 3,
        _ => return None,
    })
}

/// The function that joins gate and up.
pub(super) fn gate(kind: Gate) -> Option<Function> {
    match kind {
        Gate::Plain(kind) => activation(kind).map(|n| function(GATED + n)),
        Gate::Clamped { alpha, limit } => Some(Function { op: CLAMPED, x: alpha, y: limit }),
        _ => None,
    }
}
