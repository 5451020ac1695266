//! Products of chosen experts' matrices.

use std::collections::HashMap;
use std::sync::Arc;

use super::FEW;
use super::activations::{Activations, Reading, View, bind};
use super::fold::{self, Fold};
use super::kernels;
use super::matrix::Matrix;
use super::product::{cooperative, is_even, parameters, reading, vector};
use super::variant::{Cooperative, Finish, Runs, TOKENS, Tokens, Variant};
use crate::{Access, Gpu, GpuError, Kernel, Use};

/// Choices of experts on the device: which, with what share, and sorted for many tokens.
#[derive(Debug)]
pub(super) struct Choices {
    pub(super) top_k: usize,
    pub(super) chosen: wgpu::Buffer,
    pub(super) shares: wgpu::Buffer,
    groups: wgpu::Buffer,
    /// Where in `groups` the tiles begin, in words, and for how many there is room.
    tiles_at: usize,
    tiles: usize,
    sort: (Arc<Kernel>, wgpu::BindGroup),
    experts: usize,
}

impl Choices {
    pub(super) fn new(
        gpu: &Gpu,
        experts: usize,
        top_k: usize,
        tokens: usize,
    ) -> Result<Choices, GpuError> {
        let choices = tokens * top_k;
        // The smallest tile that any kernel has.
        let tiles = choices.div_ceil(32) + experts;
        let words = |what: &str, n: usize| gpu.buffer(what, 4 * n as u64, Use::Storage);
        let chosen = words("chosen experts", choices)?;
        let groups = words("sorted choices", choices + 3 * tiles)?;
        let kernel = kernels::of_mixture(
            gpu,
            include_str!("../shaders/group.wgsl"),
            &[Access::Read, Access::Write],
            4,
            &[("EXPERTS", (experts as u32).into())],
        )?;
        let group = bind(gpu, &kernel, &[&View::whole(&chosen), &View::whole(&groups)])?;
        Ok(Choices {
            top_k,
            chosen,
            shares: words("shares of experts", choices)?,
            groups,
            tiles_at: choices,
            tiles,
            sort: (kernel, group),
            experts,
        })
    }

    pub(super) fn bytes(&self) -> u64 {
        self.chosen.size() + self.shares.size() + self.groups.size()
    }

    /// Choices of that many tokens that an expert gets on average.
    fn each(&self, tokens: usize) -> usize {
        tokens * self.top_k / self.experts
    }

    /// Sorts the choices of that many tokens, if a product of them wants it.
    pub(super) fn sort(&self, gpu: &Gpu, pass: &mut wgpu::ComputePass<'_>, tokens: usize) {
        if tokens <= FEW {
            return;
        }
        let tile = division(gpu, self.each(tokens)).map_or(64, |shape| shape.tile().1 as usize);
        let p = [tokens * self.top_k, tile, self.tiles_at, self.tiles].map(|n| n as u32);
        let (kernel, group) = &self.sort;
        kernel.dispatch(pass, group, bytemuck::cast_slice(&p), [1, 1, 1]);
    }
}

/// How cooperative matrices divide the work where each expert gets about so many tokens. There are
/// many experts' tiles in any case.
fn division(gpu: &Gpu, each: usize) -> Option<Cooperative> {
    cooperative(gpu, 1 << 20, each)
}

/// `y[choice] = W[expert] x[token] + b[expert]`.
#[derive(Debug)]
pub(super) struct ExpertProduct {
    gpu: Arc<Gpu>,
    matrix: Matrix,
    choices: Arc<Choices>,
    x: Arc<Activations>,
    /// Choices that read the same row of activations.
    share: usize,
    y: View,
    y_at: usize,
    y_stride: usize,
    /// The gate behind it, for few tokens.
    fold: Option<Fold>,
    runs: Runs,
}

impl ExpertProduct {
    pub(super) fn new(
        gpu: &Arc<Gpu>,
        matrix: Matrix,
        choices: &Arc<Choices>,
        (x, share): (&Arc<Activations>, usize),
        (y, y_at, y_stride): (View, usize, usize),
    ) -> ExpertProduct {
        let (gpu, choices, x) = (Arc::clone(gpu), Arc::clone(choices), Arc::clone(x));
        let (fold, runs) = (None, HashMap::new());
        ExpertProduct { gpu, matrix, choices, x, share, y, y_at, y_stride, fold, runs }
    }

    /// Gives it the work of the gate behind it where tokens are few, if it can do that: integers for
    /// `next` are stored instead of results.
    pub(super) fn fold_gate(&mut self, next: &Activations, words: [u32; 3]) {
        self.fold = Fold::gate(&self.gpu, &self.matrix, next, words);
    }

    /// Whether it does the gate's work for that many tokens.
    pub(super) fn is_folded(&self, tokens: usize) -> bool {
        self.fold.is_some() && tokens <= FEW
    }

    pub(super) fn bytes(&self) -> usize {
        self.matrix.bytes()
    }

    /// The form of the activations that [`encode`](ExpertProduct::encode) reads.
    pub(super) fn reading(&self, tokens: usize) -> Reading {
        let segment = &self.matrix.segments[0];
        reading(segment, self.variant(0, tokens))
    }

    fn variant(&self, segment: usize, tokens: usize) -> Variant {
        let segment = &self.matrix.segments[segment];
        if tokens <= FEW {
            let even = is_even(segment, &self.x);
            let layers = (tokens * self.choices.top_k) as u32;
            let apart = self.fold.as_ref().and_then(|fold| {
                let finish = fold.finish();
                Some((fold::vector(&self.gpu, &self.matrix, finish, 1, layers)?, finish))
            });
            let (vector, finish) = apart.unwrap_or_else(|| {
                (vector(&self.gpu, None, segment.outputs, segment, 1), Finish::Store)
            });
            Variant::Vector(vector, Tokens::Chosen, finish, even)
        } else if let Some(shape) = division(&self.gpu, self.choices.each(tokens)) {
            Variant::Cooperative(shape, Tokens::Chosen)
        } else {
            Variant::Tiled(Tokens::Chosen)
        }
    }

    /// Encodes it for the choices of that many tokens, sorted where they are many.
    pub(super) fn encode(
        &mut self,
        pass: &mut wgpu::ComputePass<'_>,
        tokens: usize,
    ) -> Result<(), GpuError> {
        let choices = tokens * self.choices.top_k;
        for at in 0..self.matrix.segments.len() {
            let variant = self.variant(at, tokens);
            let segment = &self.matrix.segments[at];
            let rows = segment.outputs as u32;
            // Each expert's last tile may be part-filled.
            let tiles = |size: usize| {
                let tiles = choices.div_ceil(size) + self.choices.experts.min(choices);
                tiles.min(self.choices.tiles) as u32
            };
            let (list, grid) = match variant {
                Variant::Vector(vector, ..) => {
                    let workgroups = rows.div_ceil(vector.outputs());
                    (&self.choices.chosen, super::grid(workgroups, choices as u32))
                }
                Variant::Cooperative(shape, _) => {
                    let (r, t) = shape.tile();
                    (&self.choices.groups, [rows.div_ceil(r), tiles(t as usize), 1])
                }
                _ => (&self.choices.groups, [rows.div_ceil(64), tiles(64), 1]),
            };
            let (x, x_stride) = self.x.read(reading(segment, variant));
            let mut p = parameters(segment);
            p[TOKENS] = if tokens <= FEW { 1 } else { choices as u32 };
            (p[3], p[4], p[5]) = (x_stride as u32, self.y_at as u32, self.y_stride as u32);
            (p[11], p[14]) = (self.matrix.inputs() as u32, self.share as u32);
            p[15] = self.choices.tiles_at as u32;
            let fold = self.fold.as_ref().filter(|_| tokens <= FEW);
            if let Some(fold) = fold {
                fold.set(&mut p);
            }
            let key = (at, variant, variant.fixed(&p));
            if !self.runs.contains_key(&key) {
                let kernel = kernels::kernel(&self.gpu, segment.planes.form, variant, &p)?;
                let own = [View::whole(&segment.buffer), x.clone(), self.y.clone()];
                let buffers = fold.into_iter().flat_map(Fold::buffers).chain([list]);
                let views: Vec<View> = own.into_iter().chain(buffers.map(View::whole)).collect();
                let group = bind(&self.gpu, &kernel, &views.iter().collect::<Vec<_>>())?;
                self.runs.insert(key, (kernel, group));
            }
            let (kernel, group) = &self.runs[&key];
            kernel.dispatch(pass, group, variant.immediates(&p), grid);
        }
        Ok(())
    }
}
