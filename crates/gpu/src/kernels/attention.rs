//! Launches of attention.

use super::{Builder, Preparing, blocks, words};
use crate::kv::Cache;
use crate::launch::{Grid, Launch, Single, Source};
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
    goes_on: false,
    enables: &["f16", "wgpu_cooperative_matrix"],
};

/// The workgroups of decoding: how many query heads each has, and threads for each head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Team {
    pub(super) heads: u32,
    pub(super) threads: u32,
}

impl Team {
    /// One head: more workgroups, which reads keys and values once for each head but leaves less of the device
    /// idle where the past is short.
    pub(super) const NARROW: Team = Team { heads: 1, threads: 256 };

    /// Several heads of a key-value head that so many share, as many as the device has room for.
    pub(super) fn wide(gpu: &Gpu, group: usize) -> Team {
        let limits = gpu.limits();
        let team = |heads| Team { heads, threads: 128 };
        let fits = |team: &Team| {
            team.heads * team.threads <= limits.max_compute_invocations_per_workgroup
                && team.bytes() <= limits.max_compute_workgroup_storage_size
        };
        let wanted = (group.next_power_of_two() as u32).min(LONE_HEADS);
        let several = [4, 2].into_iter().filter(|&heads| heads <= wanted).map(team);
        several.into_iter().find(fits).unwrap_or(team(1))
    }

    /// Threads that have the same token of a page.
    fn sides(self) -> u32 {
        self.threads / PAGE as u32
    }

    /// Vectors of workgroup memory for heads as they come, with a new key and value, and for half of the
    /// sums of values.
    fn room(self) -> u32 {
        (64 * (self.heads + 2)).max((self.threads + 32) * self.heads)
    }

    /// All workgroup memory: besides these, products, weights, the largest scores, the new key and value,
    /// squares, and what integers take.
    pub(super) fn bytes(self) -> u32 {
        let products = 4 * PAGE as u32 * self.sides();
        16 * self.room()
            + self.heads * (products + 256 + 64)
            + 1024
            + 3 * 4 * self.threads * self.heads
    }

    /// The constants of its kernels, for a cache with so many runs of 8 features.
    fn constants(self, chunks: usize) -> [(&'static str, Constant); 5] {
        let number = |name, n: usize| (name, Constant::from(n as u32));
        [
            ("HEADS", self.heads.into()),
            ("TEAM", self.threads.into()),
            ("ROOM", self.room().into()),
            // Keys and values of a page that a thread reads at once.
            number("KEY_LOADS", chunks.div_ceil(self.sides() as usize).min(8)),
            number("LOADS", (PAGE * chunks).div_ceil(self.threads as usize).min(8)),
        ]
    }
}

/// Query heads that one workgroup of decoding takes at most.
const LONE_HEADS: u32 = 4;
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
    ) -> Result<[Launch; 5], GpuError> {
        let group = step.heads / step.kv_heads;
        let wide = Team::wide(self.gpu, group);
        // Workgroups that share a key-value head.
        let shares = |team: Team| group.div_ceil(team.heads as usize);
        let workgroups = |team: Team| (step.kv_heads * shares(team)) as u32;
        let Cache { keys, values, shape } = &self.caches.layers[step.cache];
        let Preparing { pairs, interleaved, normed, floats, gains, angles } =
            self.preparing(heads_step)?;
        let [raw, key, value] = &step.raw;
        let params_of = |q: &View, shares: usize| {
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
            params.extend([Constant::from(step.scale), step.softcap.unwrap_or(0.0).into()]);
            params.extend(words([key.stride, key.offset, value.stride, value.offset]));
            params.extend(floats);
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
        let params = params_of(&step.q, shares(wide));
        let sinks = self.floats("sinks", &step.sinks)?;
        let Buffers { tables, sums, extremes, .. } = self.buffers;
        let [query, out] = [&step.q, &step.out].map(|view| self.buffers.of(view));
        let joined = self.integers(integers);
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
            &[&common[..], &wide.constants(shape.chunks())].concat(),
            &[tables, query, keys, values, &sinks, sums, extremes, out, joined],
            &params,
            Grid::Parts(workgroups(wide)),
        )?;
        let lone = lone.storing(Height::Tokens, integers);
        let [raw_query, raw_key, raw_value] = [raw, key, value].map(|view| self.buffers.of(view));
        let fused = |team: Team, is_wide| {
            let launch = Launch::new(
                self.gpu,
                &ATTENTION_FUSED,
                &[&common[..], &team.constants(shape.chunks()), &preparing].concat(),
                &[
                    tables, raw_query, raw_key, raw_value, &gains, angles, &sinks, sums, extremes,
                    out, joined, keys, values,
                ],
                &params_of(raw, shares(team)),
                Grid::Single(Single {
                    workgroups: workgroups(team),
                    wide: workgroups(wide),
                    is_wide,
                }),
            )?;
            Ok::<_, GpuError>(launch.storing(Height::Tokens, integers))
        };
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
        Ok([fused(Team::NARROW, false)?, fused(wide, true)?, lone, join, tile])
    }
}
