//! From the steps of a plan to launches: which shader, which buffers, which parameters.

use std::sync::Arc;

use baton_graph::{Pooling, RopeLayout};

use crate::kv::{Cache, Caches};
use crate::launch::{Grid, Launch, Source};
use crate::memory::Buffers;
use crate::plan::{
    AttentionStep, HeadsStep, Height, NormStep, Part, Plan, PointStep, Rotation, View,
};
use crate::{Gpu, GpuError};

macro_rules! source {
    ($name:ident, $reads:literal, $writes:literal, $($file:literal),+) => {
        const $name: Source = Source {
            name: stringify!($name),
            files: &[$(include_str!(concat!("shaders/", $file, ".wgsl"))),+],
            reads: $reads,
            writes: $writes,
            enables: &[],
        };
    };
}

source!(POINTWISE, 2, 2, "activate", "pointwise", "integers");
source!(NORM, 3, 2, "norm", "integers");
source!(HEADS, 5, 3, "half", "heads");
source!(POOL, 1, 1, "pool");
source!(ATTENTION_LONE, 3, 2, "attention", "attention_part", "attention_lone");
source!(ATTENTION_FUSED, 5, 4, "half", "attention", "attention_part", "attention_fused");
source!(ATTENTION_JOIN, 4, 2, "attention", "attention_join", "integers");
source!(ATTENTION_TILE, 4, 1, "attention", "attention_tile");

/// As [`ATTENTION_TILE`], through cooperative matrices.
const ATTENTION_COOP: Source = Source {
    name: "ATTENTION_COOP",
    files: &[include_str!("shaders/attention.wgsl"), include_str!("shaders/attention_coop.wgsl")],
    reads: 4,
    writes: 1,
    enables: &["f16", "wgpu_cooperative_matrix"],
};

/// Query heads that one workgroup of decoding takes at most.
const LONE_HEADS: usize = 8;
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

/// What the kernels take that prepare heads.
struct Preparing<'a> {
    /// Rotated pairs of queries and of keys.
    pairs: [usize; 2],
    interleaved: usize,
    /// Whether queries and keys are normalised.
    normed: [usize; 2],
    /// Added to the mean squares of both, and the magnitude of the rotation.
    floats: [u32; 3],
    gains: wgpu::Buffer,
    angles: &'a wgpu::Buffer,
}

/// Builds launches.
pub(crate) struct Builder<'a> {
    pub(crate) gpu: &'a Arc<Gpu>,
    pub(crate) buffers: &'a Buffers,
    pub(crate) caches: &'a Caches,
    pub(crate) rotations: &'a [Rotation],
    pub(crate) tile: usize,
}

fn words<const N: usize>(numbers: [usize; N]) -> Vec<u32> {
    numbers.map(|n| n as u32).to_vec()
}

fn blocks(cols: usize, each: usize) -> u32 {
    cols.div_ceil(each) as u32
}

impl Builder<'_> {
    fn floats(&self, what: &str, values: &[f32]) -> Result<wgpu::Buffer, GpuError> {
        let one = [0.0];
        self.gpu.buffer_of(what, if values.is_empty() { &one } else { values })
    }

    /// Where integers are stored, if they are.
    fn integers(&self, integers: Option<u32>) -> &wgpu::Buffer {
        match integers {
            Some(_) => &self.buffers.scratch,
            None => &self.buffers.nothing[0],
        }
    }

    /// A function of single elements. With `integers` the result of few rows is stored in that form
    /// too, a row of so many words; so with the other kernels that take it.
    pub(crate) fn point(
        &self,
        step: &PointStep,
        height: Height,
        integers: Option<u32>,
    ) -> Result<Launch, GpuError> {
        let PointStep { f, a, b, out, gather } = step;
        let b = b.as_ref().unwrap_or(a);
        let mut params = words([
            f.op as usize,
            usize::from(*gather),
            out.cols,
            a.stride,
            a.offset,
            b.stride,
            b.offset,
            out.stride,
            out.offset,
        ]);
        params.extend([f.x.to_bits(), f.y.to_bits(), 0]);
        let buffers = [
            &self.buffers.tables,
            self.buffers.of(a),
            self.buffers.of(b),
            self.buffers.of(out),
            self.integers(integers),
        ];
        let grid = Grid::Rows(blocks(out.cols, 1024), height);
        let launch = Launch::new(self.gpu, &POINTWISE, &[], &buffers, &params, grid)?;
        Ok(launch.storing(height, integers))
    }

    /// A norm.
    pub(crate) fn norm(
        &self,
        step: &NormStep,
        height: Height,
        integers: Option<u32>,
    ) -> Result<Launch, GpuError> {
        let NormStep { x, out, residual, group, centred, eps, gain, bias } = step;
        let weight = self.floats("gain and bias", &[&gain[..], bias].concat())?;
        let other = residual.as_ref().unwrap_or(x);
        let mut params = words([
            *group,
            usize::from(*centred),
            usize::from(!gain.is_empty()),
            usize::from(!bias.is_empty()),
            usize::from(residual.is_some()),
            x.stride,
            x.offset,
            other.stride,
            other.offset,
            out.stride,
            out.offset,
        ]);
        params.extend([eps.to_bits(), 0]);
        let buffers = [
            &self.buffers.tables,
            self.buffers.of(x),
            &weight,
            self.buffers.of(other),
            self.buffers.of(out),
            self.integers(integers),
        ];
        let grid = Grid::Rows((x.cols / group) as u32, height);
        let most = self.gpu.limits().max_compute_invocations_per_workgroup as usize;
        let threads = group.div_ceil(4).next_power_of_two().clamp(256, most.clamp(256, 1024));
        let constants = [
            ("THREADS", (threads as u32).into()),
            ("RUNS", (group.div_ceil(4 * threads) as u32).into()),
        ];
        let launch = Launch::new(self.gpu, &NORM, &constants, &buffers, &params, grid)?;
        Ok(launch.storing(height, integers))
    }

    /// What the norm and rotation of heads needs.
    fn preparing(&self, step: &HeadsStep) -> Result<Preparing<'_>, GpuError> {
        let HeadsStep { head_dim, rotation, query, stored, .. } = step;
        let key = stored.as_ref().map(|stored| &stored.key);
        let rotation = rotation.map(|at| (&self.rotations[at], &self.buffers.rotations[at]));
        let pairs = rotation.map_or(0, |(rotation, _)| rotation.inv_freq.len());
        let pairs_of = |part: &Part| if part.rotated { pairs } else { 0 };
        let interleaved = rotation.is_some_and(|(r, _)| r.layout == RopeLayout::Interleaved);
        let norms = [query.norm.as_ref(), key.and_then(|key| key.norm.as_ref())];
        let mut gains = Vec::new();
        for norm in norms {
            match norm {
                Some(norm) => gains.extend_from_slice(&norm.gain),
                None => gains.resize(gains.len() + head_dim, 1.0),
            }
        }
        let eps = norms.map(|norm| norm.map_or(0.0, |norm| norm.eps).to_bits());
        let magnitude = rotation.map_or(1.0, |(rotation, _)| rotation.magnitude).to_bits();
        Ok(Preparing {
            pairs: [pairs_of(query), key.map_or(0, pairs_of)],
            interleaved: usize::from(interleaved),
            normed: norms.map(|norm| usize::from(norm.is_some())),
            floats: [eps[0], eps[1], magnitude],
            gains: self.floats("gains of heads", &gains)?,
            angles: rotation.map_or(&self.buffers.nothing[0], |(_, buffer)| buffer),
        })
    }

    /// Norm and rotation of heads, and storing.
    pub(crate) fn heads(&self, step: &HeadsStep, height: Height) -> Result<Launch, GpuError> {
        let HeadsStep { head_dim, query, out, stored, .. } = step;
        let none = Part { heads: 0, ..query.clone() };
        let (key, value) = match stored {
            Some(stored) => (&stored.key, &stored.value),
            None => (&none, &none),
        };
        let cache: Option<&Cache> = stored.as_ref().map(|stored| &self.caches.layers[stored.cache]);
        let Preparing { pairs, interleaved, normed, floats, gains, angles } =
            self.preparing(step)?;
        let mut params = words([
            query.heads,
            key.heads,
            *head_dim,
            head_dim.div_ceil(8),
            pairs[0],
            pairs[1],
            interleaved,
            usize::from(height == Height::Wanted),
            normed[0],
            normed[1],
            query.x.stride,
            query.x.offset,
            key.x.stride,
            key.x.offset,
            value.x.stride,
            value.x.offset,
            out.stride,
            out.offset,
        ]);
        params.extend(floats);
        let [_, spare_keys, spare_values] = &self.buffers.nothing;
        let buffers = [
            &self.buffers.tables,
            self.buffers.of(&query.x),
            self.buffers.of(&key.x),
            self.buffers.of(&value.x),
            &gains,
            angles,
            self.buffers.of(out),
            cache.map_or(spare_keys, |cache| &cache.keys),
            cache.map_or(spare_values, |cache| &cache.values),
        ];
        let all = (query.heads + key.heads + value.heads) as u32;
        let grid = match stored {
            // Passes of single tokens do it with the attention.
            Some(_) => Grid::NotSingle(all),
            None => Grid::Rows(all, height),
        };
        Launch::new(self.gpu, &HEADS, &[], &buffers, &params, grid)
    }

    /// Attention of what `heads` prepares: of single tokens, of a few of a sequence, joining their
    /// parts, and of tiles.
    pub(crate) fn attention(
        &self,
        step: &AttentionStep,
        heads_step: &HeadsStep,
        integers: Option<u32>,
    ) -> Result<[Launch; 4], GpuError> {
        let group = step.heads / step.kv_heads;
        let heads = group.next_power_of_two().min(LONE_HEADS);
        let shares = group.div_ceil(heads);
        let Cache { keys, values, shape } = &self.caches.layers[step.cache];
        let Preparing { pairs, interleaved, normed, floats, gains, angles } =
            self.preparing(heads_step)?;
        let raw = &heads_step.query.x;
        let stored = heads_step.stored.as_ref();
        let [key, value] = [stored.map(|s| &s.key.x), stored.map(|s| &s.value.x)];
        let [key, value] = [key, value].map(|view| view.unwrap_or(raw));
        let params_of = |q: &View| {
            let mut params = words([
                step.heads,
                step.kv_heads,
                step.head_dim,
                shape.chunks(),
                q.stride,
                q.offset,
                step.out.stride,
                step.out.offset,
                step.window.unwrap_or(0).min(1 << 30),
                usize::from(step.both_ways),
                usize::from(!step.sinks.is_empty()),
                shares,
            ]);
            params.extend([step.scale.to_bits(), step.softcap.unwrap_or(0.0).to_bits()]);
            let key_value = [key.stride, key.offset, value.stride, value.offset];
            params.extend(words(key_value));
            params.extend(words([pairs[0], pairs[1], interleaved, normed[0], normed[1]]));
            params.extend(floats);
            params.push(0);
            params
        };
        let params = params_of(&step.q);
        let sinks = self.floats("sinks", &step.sinks)?;
        let Buffers { tables, sums, extremes, .. } = self.buffers;
        let [query, out] = [&step.q, &step.out].map(|view| self.buffers.of(view));
        let lone = Launch::new(
            self.gpu,
            &ATTENTION_LONE,
            &[("HEADS", (heads as u32).into())],
            &[tables, query, keys, values, sums, extremes],
            &params,
            Grid::Parts((step.kv_heads * shares) as u32, false),
        )?;
        let [raw_query, raw_key, raw_value] = [raw, key, value].map(|view| self.buffers.of(view));
        let fused = Launch::new(
            self.gpu,
            &ATTENTION_FUSED,
            &[("HEADS", (heads as u32).into()), ("ALL", (heads as u32 + 2).into())],
            &[tables, raw_query, raw_key, raw_value, &gains, angles, sums, extremes, keys, values],
            &params_of(raw),
            Grid::Parts((step.kv_heads * shares) as u32, true),
        )?;
        let join = Launch::new(
            self.gpu,
            &ATTENTION_JOIN,
            &[],
            &[tables, query, sums, extremes, &sinks, out, self.integers(integers)],
            &params,
            Grid::Lone(step.heads as u32),
        )?;
        let join = join.storing(Height::Tokens, integers);
        let (source, constants) = if self.tile == COOP_TILE {
            (&ATTENTION_COOP, vec![("FRAGS", blocks(step.head_dim, 16).into())])
        } else {
            let threads = (4 * self.tile as u32).into();
            let quads = blocks(step.head_dim, 64).into();
            (&ATTENTION_TILE, vec![("THREADS", threads), ("QUADS", quads)])
        };
        let tile = Launch::new(
            self.gpu,
            source,
            &constants,
            &[tables, query, keys, values, &sinks, out],
            &params,
            Grid::Tiles(step.heads as u32),
        )?;
        Ok([fused, lone, join, tile])
    }

    /// Pooling.
    pub(crate) fn pool(&self, how: Pooling, x: &View, out: &View) -> Result<Launch, GpuError> {
        let how = match how {
            Pooling::Mean => 0,
            Pooling::First => 1,
            Pooling::Last => 2,
        };
        let params = words([how, out.cols, x.stride, x.offset, out.stride, out.offset]);
        let buffers = [&self.buffers.tables, self.buffers.of(x), self.buffers.of(out)];
        let grid = Grid::Rows(blocks(out.cols, 64), Height::Wanted);
        Launch::new(self.gpu, &POOL, &[], &buffers, &params, grid)
    }
}

#[cfg(test)]
mod tests;
