//! Kernels for everything but matrix products: safe functions over rows of f32, written once for
//! all instruction sets.

pub(crate) mod attention;
pub(crate) mod norm;
pub(crate) mod pointwise;
pub(crate) mod rope;
