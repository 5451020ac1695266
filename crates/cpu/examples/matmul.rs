//! Speed of the matrix kernels: `cargo run --release --example matmul -- [THREADS] [quick] [TYPE..]`.
//!
//! Prints, for each type, shape and batch, billions of integer operations and gigabytes of weights
//! per second, beside what one pass over memory reaches on this machine. `BATON_CPU` forces the
//! instruction set.

use std::time::{Duration, Instant};

use baton_cpu::{Epilogue, Isa, Matrix, Pool, QuantizedRows, Rounding, matmul, pack, roof};
use baton_weights::{Affine, DType, Tensor};

/// Matrices of SmolLM2 135M, Gemma 3 270M and Llama 3.2 1B, and one larger than any cache.
const SHAPES: [(usize, usize); 5] =
    [(1536, 576), (640, 2048), (2048, 2048), (2048, 8192), (32_768, 2048)];
const BATCHES: [usize; 4] = [1, 4, 32, 512];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let threads = arguments.next().map_or(Ok(2), |n| n.parse())?;
    let (quick, wanted): (Vec<_>, Vec<_>) = arguments.partition(|word| word == "quick");
    // Short runs find undisturbed moments on a busy machine.
    let most = if quick.is_empty() { 1 << 33 } else { 1 << 25 };
    let pool = Pool::new(threads, Isa::from_env()?)?;
    println!(
        "{} on {} threads, reading memory: {:.1} GB/s",
        pool.isa(),
        threads,
        roof::read_rate(threads)? / 1e9
    );
    println!(
        "{:>14} {:>12} {:>5} {:>10} {:>8} {:>7}",
        "type", "shape", "batch", "µs", "GOPS", "GB/s"
    );
    let affine = |bits, group_size| DType::Affine { bits, group_size };
    let types = [DType::Q4_0, DType::Q4_1, DType::Q5_0, DType::Q5_1, DType::Q8_0, DType::Q2_K]
        .into_iter()
        .chain([DType::Q3_K, DType::Q4_K, DType::Q5_K, DType::Q6_K, DType::Iq4Nl, DType::Iq4Xs])
        .chain([DType::MxFp4, affine(4, 64), affine(8, 64), DType::F16, DType::BF16, DType::F32]);
    for dtype in types {
        if !wanted.is_empty() && !wanted.contains(&dtype.to_string()) {
            continue;
        }
        for (rows, cols) in SHAPES {
            for batch in BATCHES {
                if batch * rows * cols <= most {
                    measure(&pool, dtype, rows, cols, batch)?;
                }
            }
        }
    }
    Ok(())
}

fn measure(
    pool: &Pool,
    dtype: DType,
    rows: usize,
    cols: usize,
    batch: usize,
) -> Result<(), Box<dyn std::error::Error>> {
    if !cols.is_multiple_of(dtype.block_len()) {
        return Ok(());
    }
    let mut matrix = Matrix::new(tensor(dtype, rows, cols)?)?;
    pack(pool, vec![&mut matrix])?;
    let x: Vec<f32> = (0..batch * cols).map(|i| (i as f32 * 0.7).sin()).collect();
    let mut quantized = QuantizedRows::new();
    let x = quantized.quantize(pool, &x, cols, Rounding::Coarse);
    let mut out = vec![0.0; batch * rows];
    let best = fastest(|| matmul(pool, &x, &[&matrix], &mut out, rows, Epilogue::default()));
    let seconds = best.as_secs_f64();
    let operations = 2.0 * (rows * cols * batch) as f64;
    println!(
        "{:>14} {:>12} {batch:>5} {:>10.1} {:>8.1} {:>7.2}",
        dtype.to_string(),
        format!("{rows}×{cols}"),
        seconds * 1e6,
        operations / seconds / 1e9,
        matrix.stored_bytes() as f64 / seconds / 1e9,
    );
    Ok(())
}

/// The shortest of the runs that fit into a fifth of a second, three at least.
fn fastest(mut f: impl FnMut()) -> Duration {
    let start = Instant::now();
    let mut best = Duration::MAX;
    let mut runs = 0;
    while runs < 3 || (start.elapsed() < Duration::from_millis(200) && runs < 2000) {
        let run = Instant::now();
        f();
        best = best.min(run.elapsed());
        runs += 1;
    }
    best
}

/// Weights whose bytes make sane numbers in whatever place of a block they are.
fn tensor(dtype: DType, rows: usize, cols: usize) -> baton_weights::Result<Tensor> {
    let bytes = |n: usize| -> Vec<u8> { (0..n).map(|i| 0x22 + (i * i % 11) as u8).collect() };
    let groups = rows * cols / dtype.block_len();
    let data = bytes(groups * dtype.block_bytes()).into();
    if let DType::Affine { .. } = dtype {
        let (scales, biases) = (bytes(2 * groups).into(), bytes(2 * groups).into());
        let affine = Affine { dtype: DType::F16, scales, biases };
        return Tensor::with_affine("w", dtype, &[rows, cols], data, affine);
    }
    Tensor::new("w", dtype, &[rows, cols], data)
}
