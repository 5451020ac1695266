//! The ways in which a product may be computed, and the parameters of a matrix.

use std::collections::HashMap;
use std::sync::Arc;

use crate::{Constant, Gpu, Kernel};

/// Words of the parameters in `shaders/matmul_params.wgsl`.
pub(super) const PARAMETERS: usize = 21;
/// A matrix's parameters in this order.
pub(super) type Parameters = [u32; PARAMETERS];
/// The one that says how many tokens there are.
pub(super) const TOKENS: usize = 2;
/// Those that are floats.
const FLOATS: [usize; 3] = [17, 19, 20];

/// Kernels with their bindings, by the segment of the matrix and what they are made with.
pub(super) type Runs =
    HashMap<(usize, Variant, Option<Parameters>), (Arc<Kernel>, wgpu::BindGroup)>;

/// What a kernel makes of the activations' tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Tokens {
    /// All are multiplied with the one matrix.
    All,
    /// Each row of results is of one chosen expert; of many tokens, sorted by expert.
    Chosen,
}

/// How a product is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Variant {
    /// Few tokens; whether two chunks of each row, or with floats four activations, can be read at
    /// once.
    Vector(Vector, Tokens, Finish, bool),
    /// Many tokens, single precision.
    Tiled(Tokens),
    /// Many tokens, cooperative matrices.
    Cooperative(Cooperative, Tokens),
    /// Rows by their numbers.
    Lookup,
}

/// What becomes of the sums of few tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Finish {
    /// They are stored.
    Store,
    /// They are stored, and again as the integers that a product behind an RMS norm reads.
    Norm,
    /// Halves of gate and up are joined, by a gate of `shaders/activate.wgsl`, and stored as the integers
    /// that the next product reads.
    Gate(u32),
}

/// How the work of few tokens is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Vector {
    /// Lanes that share a group of outputs: a power of two.
    pub threads: u32,
    /// Outputs of a group.
    pub rows: u32,
    /// Tokens: 1, 2, 4 or 8.
    pub columns: u32,
    /// Lanes of a workgroup, a multiple of `threads`.
    pub size: u32,
    /// How many groups of outputs a group of lanes takes one after another.
    pub turns: u32,
}

impl Vector {
    /// Outputs of a workgroup.
    pub(super) fn outputs(&self) -> u32 {
        self.size / self.threads * self.rows * self.turns
    }

    /// Bytes of workgroup memory, where subgroups have that many lanes at least or there are none.
    pub(super) fn workgroup_bytes(&self, subgroup: Option<u32>, finish: Finish) -> u32 {
        let values = self.rows * self.columns;
        let sums = match subgroup {
            Some(least) => self.size / least * (self.turns * values + self.columns),
            None => self.size * values + self.turns * self.size / self.threads * values,
        };
        let finishing = match finish {
            Finish::Store => 0,
            Finish::Gate(_) => 2 * self.size + 32 * self.columns,
            Finish::Norm => 3 * self.size + 32 * self.columns,
        };
        4 * (sums + finishing)
    }
}

/// How the work is divided among cooperative matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cooperative {
    /// The edge of a matrix: 16 or 8.
    pub edge: u32,
    /// Subgroups along outputs.
    pub sub_rows: u32,
    /// Subgroups along tokens.
    pub sub_tokens: u32,
    /// Matrices of a subgroup along outputs.
    pub rows: u32,
    /// Matrices of a subgroup along tokens.
    pub columns: u32,
    /// Whether workgroup memory is written as vectors.
    pub vectors: bool,
}

impl Cooperative {
    /// Outputs and tokens of a workgroup's tile.
    pub fn tile(&self) -> (u32, u32) {
        (self.edge * self.sub_rows * self.rows, self.edge * self.sub_tokens * self.columns)
    }

    /// Bytes of workgroup memory.
    fn workgroup_bytes(&self) -> u32 {
        let (rows, tokens) = self.tile();
        (rows + tokens) * 40 * 2 + self.sub_rows * self.sub_tokens * self.edge * self.edge * 4
    }

    /// Whether the lanes of a workgroup, of subgroups of that size, bring a tile in whole turns.
    pub(super) fn divides(&self, subgroup: u32) -> bool {
        let (rows, tokens) = self.tile();
        let size = self.sub_rows * self.sub_tokens * subgroup;
        (rows * 2).is_multiple_of(size) && (tokens * 4).is_multiple_of(size)
    }

    /// Whether the device can divide work so.
    pub(super) fn fits(&self, gpu: &Gpu) -> bool {
        let (features, limits) = (gpu.features(), gpu.limits());
        let Some((subgroup, _)) = features.subgroups else { return false };
        let counts = [self.sub_rows, self.sub_tokens, self.rows, self.columns];
        features.cooperative == Some(self.edge)
            && counts.iter().all(|count| (1..=64).contains(count))
            && self.divides(subgroup)
            && self.sub_rows * self.sub_tokens * subgroup
                <= limits
                    .max_compute_invocations_per_workgroup
                    .min(limits.max_compute_workgroup_size_x)
            && self.workgroup_bytes() <= limits.max_compute_workgroup_storage_size
    }
}

impl Variant {
    /// Whether the parameters, but for the number of tokens, are constants of its kernel. Where tokens are few
    /// the way to the first weights takes much of the time, and it is shorter where nothing of it is
    /// to be computed.
    fn is_fixed(self) -> bool {
        matches!(self, Variant::Vector(..) | Variant::Lookup)
    }

    /// What of the parameters its kernel is made with.
    pub(super) fn fixed(self, p: &Parameters) -> Option<Parameters> {
        let mut fixed = *p;
        fixed[TOKENS] = 0;
        self.is_fixed().then_some(fixed)
    }

    /// What of the parameters its kernel is given.
    pub(super) fn immediates(self, p: &Parameters) -> &[u8] {
        let given = if self.is_fixed() { &p[TOKENS..=TOKENS] } else { p };
        bytemuck::cast_slice(given)
    }
}

/// The WGSL of parameters that are constants.
pub(super) fn constant(name: &str, p: &Parameters) -> String {
    let words = p.iter().enumerate().map(|(at, &word)| match at {
        _ if FLOATS.contains(&at) => Constant::Float(word).literal(),
        _ => Constant::Uint(word).literal(),
    });
    format!("const {name} = Params({});\n", words.collect::<Vec<_>>().join(", "))
}
