//! Launches of attention.

use super::{Builder, Preparing, blocks, words};
use crate::kv::Cache;
use crate::launch::{Grid, Launch, Source};
use crate::matmul::Integers;
use crate::memory::Buffers;
use crate::plan::{AttentionStep, HeadsStep, Height, Plan, View};
use crate::step::PAGE;
use crate::{Constant, Gpu, GpuError};

source!(ATTENTION_LONE, 4, 4, "attention", "attention_part", "attention_lone", "integers");
source!(
    ATTENTION_FUSED,
    6,
    6,
    "half",
    "attention",
    "attention_part",
    "attention_fused",
    "integers"
);
source!(ATTENTION_JOIN, 4, 2, "attention", "attention_join", "integers");
source!(ATTENTION_TILE, 4, 1, "attention", "attention_tile");

/// As [`ATTENTION_TILE`], through cooperative matrices.
pub(super) const ATTENTION_COOP: Source = Source {
    name: "ATTENTION_COOP",
    files: &[
        include_str!("../shaders/attention.wgsl"),
        include_str!("../shaders/attention_coop.wgsl"),
    ],
    reads: 4,
    writes: 1,
    enables: &["f16", "wgpu_cooperative_matrix"],
};

/// Query heads that one workgroup of decoding takes at most, and threads for each.
const LONE_HEADS: u32 = 4;
const LONE_TEAM: u32 = 128;
/// Queries of a tile where cooperative matrices are used.
const COOP_TILE: usize = 64;

/// Whether attention of tiles goes through cooperative matrices: there are such of the size that the
/// kernel is written for, and registers and workgroup memory suffice for the plan's widest heads.
fn cooperates(gpu: &Gpu, plan: &Plan) -> bool {
    gpu.features().cooperative == Some(16)
        && gpu.features().subgroups == Some((32, 32))
        && plan.widest_head() <= 128
        && gpu.limits().max_compute_workgroup_storage_size >= 48 << 10
}

/// Query heads of a workgroup of decoding, where so many share a key-value head.
fn lone_heads(gpu: &Gpu, group: usize) -> u32 {
    let limits = gpu.limits();
    let fits = |heads: u32| {
        heads * LONE_TEAM <= limits.max_compute_invocations_per_workgroup
            && lone_bytes(heads) <= limits.max_compute_workgroup_storage_size
    };
    let wanted = (group.next_power_of_two() as u32).min(LONE_HEADS);
    [4, 2].into_iter().find(|&heads| heads <= wanted && fits(heads)).unwrap_or(1)
}

/// Vectors of workgroup memory for heads as they come, with a new key and value, and for half of the sums
/// of values.
fn lone_room(heads: u32) -> u32 {
    (64 * (heads + 2)).max((LONE_TEAM + 32) * heads)
}

/// All workgroup memory of attention to single tokens: besides products, weights, the largest scores, the
/// new key and value, squares, and what integers take.
pub(super) fn lone_bytes(heads: u32) -> u32 {
    16 * lone_room(heads) + heads * (512 + 256 + 64) + 1024 + 3 * 4 * LONE_TEAM * heads
}

/// Queries of a tile.
pub(crate) fn tile(gpu: &Gpu, plan: &Plan) -> usize {
    match plan.widest_head() {
        _ if cooperates(gpu, plan) => COOP_TILE,
        0..=128 => 32,
        _ => 16,
    }
}

impl Builder<'_> {
    /// Attention of what `heads` prepares: of single tokens, of a few of a sequence, joining their
    /// parts, and of tiles.
    pub(crate) fn attention(
        &self,
        step: &AttentionStep,
        heads_step: &HeadsStep,
        integers: Option<&Integers>,
    ) -> Result<[Launch; 4], GpuError> {
        let group = step.heads / step.kv_heads;
        let heads = lone_heads(self.gpu, group);
        let shares = group.div_ceil(heads as usize);
        let Cache { keys, values, shape } = &self.caches.layers[step.cache];
        let Preparing { pairs, interleaved, normed, floats, gains, angles } =
            self.preparing(heads_step)?;
        let [raw, key, value] = &step.raw;
        let params_of = |q: &View| {
            let mut params = words([
                step.heads,
                step.kv_heads,
                q.stride,
                q.offset,
                step.out.stride,
                step.out.offset,
                step.window.unwrap_or(0).min(1 << 30),
                shares,
            ]);
            params.extend([step.scale.to_bits(), step.softcap.unwrap_or(0.0).to_bits()]);
            params.extend(words([key.stride, key.offset, value.stride, value.offset]));
            params.extend(floats);
            params.push(0);
            params
        };
        let number = |name, n: usize| (name, Constant::from(n as u32));
        let common = [
            number("HEAD_DIM", step.head_dim),
            number("CHUNKS", shape.chunks()),
            ("WINDOWED", step.window.is_some().into()),
            ("BOTH_WAYS", step.both_ways.into()),
            ("CAPPED", step.softcap.is_some_and(|cap| cap != 0.0).into()),
            ("SINKS", (!step.sinks.is_empty()).into()),
        ];
        let params = params_of(&step.q);
        let sinks = self.floats("sinks", &step.sinks)?;
        let Buffers { tables, sums, extremes, .. } = self.buffers;
        let [query, out] = [&step.q, &step.out].map(|view| self.buffers.of(view));
        let joined = self.integers(integers);
        let parts = [
            ("HEADS", heads.into()),
            ("ROOM", lone_room(heads).into()),
            // Keys and values of a page that a thread reads at once.
            number("KEY_LOADS", shape.chunks().div_ceil(2).min(8)),
            number("LOADS", (PAGE * shape.chunks()).div_ceil(LONE_TEAM as usize).min(8)),
        ];
        let preparing = [
            number("Q_PAIRS", pairs[0]),
            number("K_PAIRS", pairs[1]),
            ("INTERLEAVED", interleaved.into()),
            ("Q_NORM", normed[0].into()),
            ("K_NORM", normed[1].into()),
        ];
        let lone = Launch::new(
            self.gpu,
            &ATTENTION_LONE,
            &[&common[..], &parts].concat(),
            &[tables, query, keys, values, &sinks, sums, extremes, out, joined],
            &params,
            Grid::Parts((step.kv_heads * shares) as u32, false),
        )?;
        let lone = lone.storing(Height::Tokens, integers);
        let [raw_query, raw_key, raw_value] = [raw, key, value].map(|view| self.buffers.of(view));
        let fused = Launch::new(
            self.gpu,
            &ATTENTION_FUSED,
            &[&common[..], &parts, &preparing].concat(),
            &[
                tables, raw_query, raw_key, raw_value, &gains, angles, &sinks, sums, extremes, out,
                joined, keys, values,
            ],
            &params_of(raw),
            Grid::Parts((step.kv_heads * shares) as u32, true),
        )?;
        let fused = fused.storing(Height::Tokens, integers);
        let join = Launch::new(
            self.gpu,
            &ATTENTION_JOIN,
            &common,
            &[tables, query, sums, extremes, &sinks, out, joined],
            &params,
            Grid::Joined(step.heads as u32),
        )?;
        let join = join.storing(Height::Tokens, integers);
        let (source, own) = if self.tile == COOP_TILE {
            (&ATTENTION_COOP, vec![("FRAGS", blocks(step.head_dim, 16).into())])
        } else {
            let threads = (4 * self.tile as u32).into();
            let quads = blocks(step.head_dim, 64).into();
            (&ATTENTION_TILE, vec![("THREADS", threads), ("QUADS", quads)])
        };
        let tile = Launch::new(
            self.gpu,
            source,
            &[&common[..], &own].concat(),
            &[tables, query, keys, values, &sinks, out],
            &params,
            Grid::Tiles(step.heads as u32),
        )?;
        Ok([fused, lone, join, tile])
    }
}
