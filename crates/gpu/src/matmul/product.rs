//! Products of a matrix with activations.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use super::activations::{Activations, Reading, View, bind};
use super::fold::{self, Fold};
use super::kernels;
use super::matrix::{Matrix, Segment};
use super::together::{Around, Together};
use super::variant::{
    Cooperative, Finish, PARAMETERS, Parameters, Runs, TOKENS, Tokens, Variant, Vector,
};
use super::{FEW, grid};
use crate::{Gpu, GpuError};

/// How products are computed where that is not left to the size and the device: for measuring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Tuning {
    /// For few tokens: lanes that share a group of outputs, and outputs of a group.
    pub vector: Option<(u32, u32)>,
    /// For many tokens: how cooperative matrices divide the work.
    pub cooperative: Option<Cooperative>,
    /// Many tokens without cooperative matrices, also where the device has them.
    pub tiled: bool,
    /// Many tokens by the kernels for few, eight at a time: for small matrices of floats, of which
    /// there are too few tiles.
    pub in_eights: bool,
}

/// `y = x W^T + b` with fixed places of `x` and `y`; kernels and bindings are kept from run to run.
#[derive(Debug)]
pub struct Product {
    gpu: Arc<Gpu>,
    matrix: Arc<Matrix>,
    x: Arc<Activations>,
    y: View,
    y_stride: usize,
    tuning: Tuning,
    fold: Option<Fold>,
    runs: Runs,
    /// Of matrices of several forms, by the number of tokens, whether results are added, and what
    /// [`Folded::norm`] is, as bits.
    together: HashMap<(u32, bool, Option<u32>), Together>,
}

impl Product {
    /// Results of a token lie side by side in `y`, `y_stride` floats from one token to the next.
    ///
    /// # Errors
    /// If the activations have another number of inputs than the matrix.
    pub fn new(
        gpu: &Arc<Gpu>,
        matrix: &Arc<Matrix>,
        x: &Arc<Activations>,
        y: View,
        y_stride: usize,
    ) -> Result<Product, GpuError> {
        if x.inputs != matrix.inputs() {
            let problem = format!("has {} inputs, the activations {}", matrix.inputs(), x.inputs);
            return Err(GpuError::Tensor { name: "matrix".to_owned(), problem });
        }
        let (gpu, matrix, x) = (Arc::clone(gpu), Arc::clone(matrix), Arc::clone(x));
        let (tuning, runs, together) = (Tuning::default(), HashMap::new(), HashMap::new());
        Ok(Product { gpu, matrix, x, y, y_stride, tuning, fold: None, runs, together })
    }

    /// The matrix.
    pub(crate) fn matrix(&self) -> &Matrix {
        &self.matrix
    }

    /// Gives it work of the step behind it, for passes of few tokens that are encoded so.
    pub(crate) fn set_fold(&mut self, fold: Fold) {
        self.fold = Some(fold);
    }

    /// Computes it in another way.
    ///
    /// # Errors
    /// If the device cannot divide work so.
    pub fn tune(&mut self, tuning: Tuning) -> Result<(), GpuError> {
        if let Some(shape) = tuning.cooperative.filter(|shape| !shape.fits(&self.gpu)) {
            let missing = format!("what cooperative matrices in {shape:?} need");
            return Err(GpuError::Unsupported { adapter: self.gpu.name(), missing });
        }
        let divides = |(threads, rows): (u32, u32)| {
            threads.is_power_of_two() && threads <= 256 && (1..=8).contains(&rows)
        };
        if let Some(vector) = tuning.vector.filter(|vector| !divides(*vector)) {
            let missing = format!("a way to divide lanes and outputs as {vector:?}");
            return Err(GpuError::Unsupported { adapter: self.gpu.name(), missing });
        }
        self.tuning = tuning;
        self.runs.clear();
        Ok(())
    }

    /// The form of the activations that [`encode`](Product::encode) reads, if besides the floats.
    pub fn reading(&self, tokens: usize) -> Reading {
        if tokens > FEW && !self.in_eights() {
            match self.cooperative(self.matrix.outputs(), tokens) {
                Some(_) => Reading::Halves,
                None => Reading::Floats,
            }
        } else if self.matrix.has_integers() {
            Reading::Integers
        } else {
            Reading::Floats
        }
    }

    /// Encodes the product for the first `tokens` rows, whose [form](Product::reading) has been
    /// made. With `add` it is added to what `y` holds.
    ///
    /// # Errors
    /// If a kernel cannot be compiled.
    pub fn encode(
        &mut self,
        pass: &mut wgpu::ComputePass<'_>,
        tokens: usize,
        add: bool,
    ) -> Result<(), GpuError> {
        self.encode_folded(pass, tokens, add, Folded::default())
    }

    /// The same with work of the steps around it.
    ///
    /// # Errors
    /// If a kernel cannot be compiled.
    pub(crate) fn encode_folded(
        &mut self,
        pass: &mut wgpu::ComputePass<'_>,
        tokens: usize,
        add: bool,
        folded: Folded,
    ) -> Result<(), GpuError> {
        let matrix = Arc::clone(&self.matrix);
        let fold = self.fold.as_ref().filter(|_| folded.after);
        if tokens <= FEW && self.tuning.vector.is_none() && Together::fits(&self.gpu, &matrix) {
            return self.encode_together(pass, tokens, add, folded);
        }
        for (at, segment) in matrix.segments.iter().enumerate() {
            let rows = segment.planes.rows as u32;
            let (variant, grid) = if tokens <= FEW || self.in_eights() {
                let columns = tokens.min(FEW).next_power_of_two() as u32;
                let layers = tokens.div_ceil(FEW) as u32;
                let finish = fold.map_or(Finish::Store, Fold::finish);
                let apart = fold.and_then(|_| fold::vector(&self.gpu, &matrix, finish, columns, 1));
                let vector = apart.unwrap_or_else(|| {
                    vector(&self.gpu, self.tuning.vector, segment.planes.rows, segment, columns)
                });
                let variant =
                    Variant::Vector(vector, Tokens::All, finish, is_even(segment, &self.x));
                (variant, grid(rows.div_ceil(vector.outputs()), layers))
            } else if let Some(shape) = self.cooperative(segment.planes.rows, tokens) {
                let (r, t) = shape.tile();
                (
                    Variant::Cooperative(shape, Tokens::All),
                    [rows.div_ceil(r), (tokens as u32).div_ceil(t), 1],
                )
            } else {
                (Variant::Tiled(Tokens::All), [rows.div_ceil(64), (tokens as u32).div_ceil(64), 1])
            };
            let reading = reading(segment, variant);
            let (x, _) = self.x.read(reading);
            let (y, y_stride) = (&self.y, self.y_stride);
            let around = Around { x: &self.x, y, y_stride, add, norm: folded.norm };
            let mut p = around.parameters(segment, reading);
            p[TOKENS] = tokens as u32;
            if let Some(fold) = fold {
                fold.set(&mut p);
            }
            let key = (at, variant, variant.fixed(&p));
            if !self.runs.contains_key(&key) {
                let form = segment.planes.form;
                let kernel = kernels::kernel(&self.gpu, form, variant, &p)?;
                let buffers = fold.into_iter().flat_map(Fold::buffers).map(View::whole);
                let own = [View::whole(&segment.buffer), x.clone(), self.y.clone()];
                let views: Vec<View> = own.into_iter().chain(buffers).collect();
                let group = bind(&self.gpu, &kernel, &views.iter().collect::<Vec<_>>())?;
                self.runs.insert(key, (kernel, group));
            }
            let (kernel, group) = &self.runs[&key];
            kernel.dispatch(pass, group, variant.immediates(&p), grid);
        }
        Ok(())
    }

    /// All segments in one launch.
    fn encode_together(
        &mut self,
        pass: &mut wgpu::ComputePass<'_>,
        tokens: usize,
        add: bool,
        folded: Folded,
    ) -> Result<(), GpuError> {
        let columns = tokens.next_power_of_two() as u32;
        let key = (columns, add, folded.norm.map(f32::to_bits));
        let together = match self.together.entry(key) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(place) => {
                let (x, y, y_stride) = (&*self.x, &self.y, self.y_stride);
                let around = Around { x, y, y_stride, add, norm: folded.norm };
                place.insert(Together::new(&self.gpu, &self.matrix, &around, columns)?)
            }
        };
        together.encode(pass, tokens);
        Ok(())
    }

    /// Whether many tokens are taken eight at a time.
    fn in_eights(&self) -> bool {
        // Integers are only made of few tokens.
        self.tuning.in_eights && !self.matrix.has_integers()
    }

    /// The tiles for that many tokens, if cooperative matrices are to be used.
    fn cooperative(&self, rows: usize, tokens: usize) -> Option<Cooperative> {
        match self.tuning.tiled {
            true => None,
            false => self.tuning.cooperative.or_else(|| cooperative(&self.gpu, rows, tokens)),
        }
    }
}

/// Work of the steps around a product that it does itself.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Folded {
    /// Its input is still to be divided by its root mean square, to whose square this is added.
    pub(crate) norm: Option<f32>,
    /// Whether it does what [`set_fold`](Product::set_fold) gave it.
    pub(crate) after: bool,
}

/// The form of activations that a kernel reads.
pub(super) fn reading(segment: &Segment, variant: Variant) -> Reading {
    match variant {
        Variant::Vector(..) if !segment.planes.form.is_float() => Reading::Integers,
        Variant::Cooperative(..) => Reading::Halves,
        _ => Reading::Floats,
    }
}

/// How cooperative matrices divide a product of that many outputs and tokens best, if the device has
/// them. Measured on a device of 132 processors, in the order of speed once there are enough tiles to
/// keep them busy; smaller devices are busy with fewer.
pub(super) fn cooperative(gpu: &Gpu, rows: usize, tokens: usize) -> Option<Cooperative> {
    let edge = gpu.features().cooperative?;
    // Subgroups along both sides, outputs and tokens of a subgroup, and the tiles there must be.
    let shapes = [
        (2, 2, 64, 64, 256),
        (4, 2, 32, 64, 100),
        (2, 2, 32, 64, 100),
        (2, 2, 32, 32, 1),
        (2, 1, 32, 32, 1),
    ];
    let shape = |(sub_rows, sub_tokens, rows, tokens, enough): (_, _, u32, u32, _)| {
        let shape = Cooperative {
            edge,
            sub_rows,
            sub_tokens,
            rows: rows / edge,
            columns: tokens / edge,
            // Pointers to vectors are no pointers to halves in Metal's language.
            vectors: edge == 16,
        };
        (shape, enough)
    };
    let fitting = shapes.map(shape).into_iter().filter(|(shape, _)| shape.fits(gpu));
    let is_good = |(shape, enough): &(Cooperative, usize)| {
        let (r, t) = shape.tile();
        let (r, t) = (r as usize, t as usize);
        tokens > t / 2 && rows.div_ceil(r) * tokens.div_ceil(t) >= *enough
    };
    fitting.clone().find(is_good).or(fitting.last()).map(|(shape, _)| shape)
}

/// Whether kernels for few tokens can read what lies in pairs, or floats in fours, in one go.
pub(super) fn is_even(segment: &Segment, x: &Activations) -> bool {
    match segment.planes.form.is_float() {
        true => x.in_fours(),
        false => segment.planes.chunks.is_multiple_of(2),
    }
}

/// The parameters that depend on the matrix alone.
pub(super) fn parameters(segment: &Segment) -> Parameters {
    let planes = &segment.planes;
    let mut p = [0; PARAMETERS];
    (p[0], p[1]) = (segment.outputs as u32, planes.chunks as u32);
    p[4] = segment.first_output as u32;
    for (at, start) in p[7..11].iter_mut().zip(&planes.starts[1..]) {
        *at = (start / 4) as u32;
    }
    if !segment.has_bias {
        p[10] = 0;
    }
    (p[12], p[13]) = (segment.experts.start as u32, segment.experts.len() as u32);
    p
}

/// So many workgroups should be there at least, before they are made larger.
const WORKGROUPS: u32 = 256;

/// How few tokens' work on a segment is divided, of which `rows` outputs are wanted.
pub(super) fn vector(
    gpu: &Gpu,
    wanted: Option<(u32, u32)>,
    rows: usize,
    segment: &Segment,
    columns: u32,
) -> Vector {
    let largest = gpu.features().subgroups.map_or(8, |(_, max)| max);
    // What a lane takes at a time: two chunks, or eight floats.
    let chunks = segment.planes.chunks as u32;
    let turns = if segment.planes.form.is_float() { 4 * chunks } else { chunks.div_ceil(2) };
    // Some turns keep a lane's start and end cheap, but the device wants some 100,000 lanes. A
    // renderer in software needs no more than one group.
    let few = (turns / if segment.planes.form.is_float() { 8 } else { 4 }).next_power_of_two();
    // Each token's activations are read once for all outputs of a group: with many tokens that is
    // what takes the time.
    let each = match columns {
        1 | 2 => 1,
        8 if rows >= 8192 => 4,
        _ => 2,
    };
    let outputs = rows.max(1) as u32;
    let fill = each * (1 << 17) / outputs;
    let threads = if gpu.is_software() { 1 } else { few.max(fill.next_power_of_two()) };
    let threads = threads.min(turns.next_power_of_two()).min(256);
    let (threads, rows) = wanted.unwrap_or((threads, each));
    let threads = threads.max(largest);
    // Few large workgroups begin sooner than many small ones, as long as every processor has some.
    let limits = gpu.limits();
    let most =
        limits.max_compute_invocations_per_workgroup.min(limits.max_compute_workgroup_size_x);
    let is_good = |size: &u32| *size <= most && outputs / rows * threads >= WORKGROUPS * size;
    let large = [512, 256].into_iter().filter(|_| gpu.features().subgroups.is_some());
    let size = large.into_iter().find(is_good).unwrap_or(128).max(threads);
    Vector { threads, rows, columns, size, turns: 1 }
}
