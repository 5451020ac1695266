//! Running a product often enough to know how long it takes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use baton_gpu::{Activations, Clock, Cooperative, Gpu, Matrix, Part, Product, Tuning, Use, View};
use baton_weights::{Affine, DType, Tensor};

use crate::Outcome;

/// Weights that no cache holds.
const ROTATED: usize = 600 << 20;

/// Type, outputs and inputs of a matrix.
type Shape = (DType, usize, usize);

pub struct Bench {
    pub gpu: Arc<Gpu>,
    pub quick: bool,
    /// The last matrix and its copies, since it is mostly measured more than once.
    matrices: Option<(Shape, Vec<Arc<Matrix>>)>,
}

/// How long one product takes.
pub struct Run {
    seconds: f64,
    bytes: usize,
    operations: f64,
    /// The processor's time for each product.
    encoding: Duration,
}

impl Run {
    pub fn print_bytes(&self, what: &str, ceiling: f64) {
        let rate = self.bytes as f64 / self.seconds / 1e9;
        let share = 100.0 * rate / ceiling;
        let (seconds, encoding) = (self.seconds * 1e6, self.encoding.as_secs_f64() * 1e6);
        println!(
            "{what}: {seconds:.1} µs, {rate:.0} GB/s, {share:.0} % (encoding {encoding:.1} µs)"
        );
    }

    pub fn print_operations(&self, what: &str) {
        let rate = self.operations / self.seconds / 1e12;
        println!("{what}: {:.0} µs, {rate:.1} TFLOP/s", self.seconds * 1e6);
    }
}

impl Bench {
    pub fn new(gpu: &Arc<Gpu>, quick: bool) -> Bench {
        Bench { gpu: Arc::clone(gpu), quick, matrices: None }
    }

    /// Runs `body` and prints an error where it fails, so that the rest is measured.
    pub fn or_report<T>(
        &mut self,
        what: &str,
        body: impl FnOnce(&mut Bench) -> Outcome<T>,
    ) -> Option<T> {
        body(self).map_err(|error| println!("{what}: ERROR {error}")).ok()
    }

    /// The time of one product with `tokens` rows of activations.
    pub fn measure(
        &mut self,
        dtype: DType,
        rows: usize,
        cols: usize,
        tokens: usize,
        tuning: Tuning,
    ) -> Outcome<Run> {
        let rotated = if self.quick { 0 } else { ROTATED };
        let matrices = self.matrices(dtype, rows, cols, rotated)?;
        let gpu = Arc::clone(&self.gpu);
        let x = activations(&gpu, cols, tokens)?;
        let y = gpu.buffer("y", (tokens * rows * 4) as u64, Use::Storage)?;
        let mut products = Vec::new();
        for matrix in &matrices {
            let mut product = Product::new(&gpu, matrix, &x, View::whole(&y), rows)?;
            product.tune(tuning)?;
            products.push(product);
        }
        let reading = products[0].reading(tokens);
        gpu.submit("activations", |pass| x.encode(pass, tokens, reading))?;
        let clock = Clock::new(&gpu, 1)?;
        let mut encoding = Duration::ZERO;
        let mut once = |runs: usize| -> Outcome<f64> {
            let start = Instant::now();
            let outcome = gpu.guard("products", || {
                let mut encoder = gpu.device().create_command_encoder(&Default::default());
                clock.note(&mut encoder, 0);
                let mut pass = encoder.begin_compute_pass(&Default::default());
                let count = products.len();
                let outcome = (0..runs)
                    .try_for_each(|run| products[run % count].encode(&mut pass, tokens, false));
                drop(pass);
                clock.note(&mut encoder, 1);
                clock.resolve(&mut encoder);
                gpu.queue().submit([encoder.finish()]);
                outcome
            })?;
            outcome?;
            encoding = start.elapsed() / runs as u32;
            Ok(clock.read(&gpu)?[0].as_secs_f64() / runs as f64)
        };
        // The first run compiles. A device that was idle takes a while to reach its full speed.
        let count = matrices.len();
        let mut one = once(count)?;
        let start = Instant::now();
        while !self.quick && start.elapsed() < Duration::from_secs(2) {
            let before = one;
            one = once(((0.02 / one) as usize).clamp(1, 1000))?;
            if start.elapsed() > Duration::from_millis(250) && one > 0.98 * before {
                break;
            }
        }
        let wanted = if self.quick { 0.0 } else { 0.02 };
        let runs = ((wanted / one) as usize).clamp(1, 2000).next_multiple_of(count);
        let mut best = f64::INFINITY;
        for _ in 0..3 {
            best = best.min(once(runs)?);
        }
        let operations = 2.0 * (rows * cols * tokens) as f64;
        Ok(Run { seconds: best, bytes: matrices[0].bytes(), operations, encoding })
    }

    /// The largest difference between cooperative and plain kernels, and that divided by the largest
    /// result.
    pub fn compare(
        &mut self,
        dtype: DType,
        rows: usize,
        cols: usize,
        tokens: usize,
        division: Cooperative,
    ) -> Outcome<(f32, f32)> {
        let matrix = Arc::clone(&self.matrices(dtype, rows, cols, 0)?[0]);
        let gpu = &self.gpu;
        let x = activations(gpu, cols, tokens)?;
        let y = gpu.buffer("y", (tokens * rows * 4) as u64, Use::Storage)?;
        let mut results = Vec::new();
        for tiled in [true, false] {
            let mut product = Product::new(gpu, &matrix, &x, View::whole(&y), rows)?;
            let cooperative = Some(division);
            product.tune(Tuning { tiled, cooperative, ..Default::default() })?;
            let mut outcome = Ok(());
            gpu.submit("a product", |pass| {
                x.encode(pass, tokens, product.reading(tokens));
                outcome = product.encode(pass, tokens, false);
            })?;
            outcome?;
            results.push(gpu.read::<f32>(&y, 0..tokens * rows)?);
        }
        let pairs = results[0].iter().zip(&results[1]);
        // A NaN is the largest difference there is.
        let largest = |most: f32, v: f32| if v.is_nan() || v > most { v } else { most };
        let difference = pairs.map(|(a, b)| (a - b).abs()).fold(0.0, largest);
        let size = results[0].iter().map(|v| v.abs()).fold(0.0, f32::max);
        Ok((difference, difference / size))
    }

    /// A matrix, as often as to fill `bytes`.
    fn matrices(
        &mut self,
        dtype: DType,
        rows: usize,
        cols: usize,
        bytes: usize,
    ) -> Outcome<Vec<Arc<Matrix>>> {
        let key = (dtype, rows, cols);
        let known =
            self.matrices.as_ref().filter(|(k, of)| *k == key && of[0].bytes() * of.len() >= bytes);
        if let Some((_, matrices)) = known {
            return Ok(matrices.clone());
        }
        self.matrices = None;
        self.gpu.wait()?;
        let weights = tensor(dtype, rows, cols)?;
        let start = Instant::now();
        let first = Arc::new(Matrix::upload(&self.gpu, &[Part { weights, bias: None }])?);
        if first.bytes() > 1 << 25 {
            let rate = first.bytes() as f64 / start.elapsed().as_secs_f64() / 1e9;
            println!("{dtype} {rows}x{cols}: upload {rate:.2} GB/s");
        }
        let mut matrices = vec![first];
        while matrices[0].bytes() * matrices.len() < bytes {
            matrices.push(Arc::new(matrices[0].duplicate(&self.gpu)?));
        }
        self.matrices = Some((key, matrices.clone()));
        Ok(matrices)
    }
}

fn activations(gpu: &Arc<Gpu>, cols: usize, tokens: usize) -> Outcome<Arc<Activations>> {
    // Values that halves hold, so that only the rounding of weights differs.
    let x: Vec<f32> = (0..tokens * cols).map(|i| round((i as f32 * 0.7).sin())).collect();
    let x = gpu.buffer_of("x", &x)?;
    let bytes = Activations::scratch_bytes(gpu, cols, tokens);
    let scratch = View::whole(&gpu.buffer("scratch", bytes, Use::Storage)?);
    Ok(Arc::new(Activations::new(gpu, View::whole(&x), cols, cols, scratch)?))
}

/// A multiple of 1/128, which every type of floats holds.
fn round(value: f32) -> f32 {
    (value * 128.0).round() / 128.0
}

/// Weights whose bytes make sane numbers in whatever place of a block they are.
fn tensor(dtype: DType, rows: usize, cols: usize) -> baton_weights::Result<Tensor> {
    let bytes = |n: usize| -> Vec<u8> {
        let mut state = 1u32;
        let next = |_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            0x22 + (state >> 24) as u8 % 11
        };
        (0..n).map(next).collect()
    };
    let groups = rows * cols / dtype.block_len();
    let mut data = bytes(groups * dtype.block_bytes());
    match dtype {
        DType::MxFp4 => data.iter_mut().step_by(17).for_each(|e| *e = 0x78),
        // Signs alternate, so that sums stay small.
        DType::F16 => data.iter_mut().skip(1).step_by(4).for_each(|b| *b |= 0x80),
        DType::BF16 | DType::F32 => {
            let size = dtype.block_bytes();
            for (i, value) in data.chunks_exact_mut(size).enumerate() {
                let of = round((i as f32 * 0.37).sin()).to_le_bytes();
                value.copy_from_slice(&of[4 - size..]);
            }
        }
        _ => {}
    }
    if let DType::Affine { .. } = dtype {
        let (scales, biases) = (bytes(2 * groups).into(), bytes(2 * groups).into());
        let affine = Affine { dtype: DType::F16, scales, biases };
        return Tensor::with_affine("w", dtype, &[rows, cols], data.into(), affine);
    }
    Tensor::new("w", dtype, &[rows, cols], data.into())
}
