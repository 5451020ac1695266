//! Matrix products: weights on the device in their quantized blocks, and kernels for few and for
//! many rows of activations.
//!
//! A [`Matrix`] holds the weights of one linear operation, [`Activations`] its input, a [`Product`]
//! computes one from the other:
//!
//! | tokens | weights | kernel | activations |
//! |---|---|---|---|
//! | 1 to 8 | quantized | `matvec.wgsl` | integers of 8 bits |
//! | 1 to 8 | floats | `matvec_float.wgsl` | single precision |
//! | more | any | `matmul_coop.wgsl`, where there are cooperative matrices | half precision |
//! | more | any | `matmul_tiled.wgsl` | single precision |
//!
//! Of few tokens a product may do the work of the step behind it as well: see `fold`.

mod activations;
mod blocks;
mod experts;
mod fold;
mod form;
mod kernels;
mod lookup;
mod matrix;
mod mixture;
mod planes;
mod probe;
mod product;
#[cfg(test)]
mod tests;
mod text;
mod together;
mod variant;

pub(crate) use activations::Integers;
pub use activations::{Activations, Reading, View};
pub(crate) use fold::Fold;
pub use lookup::Rows;
pub use matrix::{Matrix, Part};
pub use mixture::{Mixture, MixtureRoom, MixtureWeights};
pub(crate) use probe::check_cooperative;
pub(crate) use product::Folded;
pub use product::{Product, Tuning};
pub(crate) use text::unroll;
pub use variant::{Cooperative, Vector};

/// Tokens up to which kernels for few are used.
pub const FEW: usize = 8;

/// A grid of that many workgroups and layers, in the two dimensions that they need.
fn grid(workgroups: u32, layers: u32) -> [u32; 3] {
    // The limit that every device has.
    let across = workgroups.clamp(1, 32_768);
    [across, workgroups.div_ceil(across), layers]
}
