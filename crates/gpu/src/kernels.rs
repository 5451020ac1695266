//! From the steps of a plan to launches: which shader, which buffers, which parameters.

use std::sync::Arc;

use baton_graph::{Pooling, RopeLayout};

use crate::kv::{Cache, Caches};
use crate::launch::{Grid, Launch, Source};
use crate::matmul::Integers;
use crate::memory::Buffers;
use crate::plan::{HeadsStep, Height, NormStep, Part, PointStep, Rotation, View};
use crate::{Constant, Gpu, GpuError};

macro_rules! source {
    ($name:ident, $reads:literal, $writes:literal, $($file:literal),+) => {
        const $name: Source = Source {
            name: stringify!($name),
            files: &[$(include_str!(concat!(
                env!("CARGO_MANIFEST_DIR"),
                "/src/shaders/",
                $file,
                ".wgsl"
            ))),+],
            reads: $reads,
            writes: $writes,
            goes_on: false,
            enables: &[],
        };
    };
}

mod attention;

pub(crate) use attention::tile;

source!(POINTWISE, 2, 2, "activate", "pointwise", "integers");
source!(NORM, 3, 2, "norm", "integers");
source!(HEADS, 5, 3, "half", "heads");
source!(POOL, 1, 1, "pool");

/// What the kernels take that prepare heads.
struct Preparing<'a> {
    /// Rotated pairs of queries and of keys.
    pairs: [usize; 2],
    interleaved: bool,
    /// Whether queries and keys are normalised.
    normed: [bool; 2],
    /// Added to the mean squares of both, and the magnitude of the rotation.
    floats: [Constant; 3],
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

fn words<const N: usize>(numbers: [usize; N]) -> Vec<Constant> {
    numbers.map(|n| Constant::from(n as u32)).to_vec()
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
    fn integers<'a>(&'a self, integers: Option<&'a Integers>) -> &'a wgpu::Buffer {
        integers.map_or(&self.buffers.nothing[1], |integers| &integers.buffer)
    }

    /// A function of single elements. With `integers` the result of few rows is stored in that form
    /// too; so with the other kernels that take it.
    pub(crate) fn point(
        &self,
        step: &PointStep,
        height: Height,
        integers: Option<&Integers>,
    ) -> Result<Launch, GpuError> {
        let PointStep { f, a, b, out, gather, picks } = step;
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
        params.extend([Constant::from(f.x), f.y.into()]);
        let buffers = [
            &self.buffers.tables,
            self.buffers.of(a),
            self.buffers.of(b),
            self.buffers.of(out),
            self.integers(integers),
        ];
        let each = blocks(out.cols, 1024);
        let grid = if *picks { Grid::Picked(each) } else { Grid::Rows(each, height) };
        let launch = Launch::new(self.gpu, &POINTWISE, &[], &buffers, &params, grid)?;
        Ok(launch.storing(height, integers))
    }

    /// A norm.
    pub(crate) fn norm(
        &self,
        step: &NormStep,
        height: Height,
        integers: Option<&Integers>,
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
        params.push((*eps).into());
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
        let eps = norms.map(|norm| norm.map_or(0.0, |norm| norm.eps).into());
        let magnitude = rotation.map_or(1.0, |(rotation, _)| rotation.magnitude).into();
        Ok(Preparing {
            pairs: [pairs_of(query), key.map_or(0, pairs_of)],
            interleaved,
            normed: norms.map(|norm| norm.is_some()),
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
            usize::from(interleaved),
            usize::from(height == Height::Wanted),
            usize::from(normed[0]),
            usize::from(normed[1]),
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
