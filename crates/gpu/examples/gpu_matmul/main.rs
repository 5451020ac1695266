//! Speed of the matrix kernels: `cargo run --release --example gpu_matmul -- [WORD..]`.
//!
//! Prints what one pass over memory reaches on this device, then for each type and shape gigabytes
//! of weights per second with few tokens, and trillions of operations per second with many. Words:
//!
//! * `check` compares kernels with each other first;
//! * `sweep` tries how work may be divided;
//! * `quick` takes small shapes, for a renderer in software;
//! * a type's name, such as `Q4_K`, leaves out the others.
//!
//! `BATON_GPU` names the adapter.

mod bench;
mod ceiling;
mod host;

use std::error::Error;

use baton_gpu::{Cooperative, Gpu, Options, Tuning};
use baton_weights::DType;
use bench::Bench;

type Outcome<T> = Result<T, Box<dyn Error>>;

/// Outputs and inputs of the matrices of an 8B and a 1B model; the first is the head of the 8B.
const SHAPES: [(usize, usize); 8] = [
    (128_256, 4096),
    (4096, 4096),
    (14_336, 4096),
    (4096, 14_336),
    (1024, 4096),
    (2048, 2048),
    (8192, 2048),
    (2048, 8192),
];
const QUICK: [(usize, usize); 2] = [(512, 1024), (256, 512)];
const PREFILL: [(usize, usize); 4] = [(4096, 4096), (14_336, 4096), (4096, 14_336), (2048, 2048)];

const TYPES: [DType; 10] = [
    DType::Q8_0,
    DType::Q4_K,
    DType::Q6_K,
    DType::Q4_0,
    DType::Q5_K,
    DType::MxFp4,
    DType::Affine { bits: 4, group_size: 64 },
    DType::F16,
    DType::BF16,
    DType::F32,
];

fn main() -> Outcome<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let has = |word: &str| words.iter().any(|w| w == word);
    let quick = has("quick");
    let gpu = Gpu::open(&Options::from_env())?;
    println!("{} {:?}", gpu.name(), gpu.features());
    if let Some(problem) = gpu.refused() {
        println!("cooperative matrices are not used: {problem}");
    }
    let mut bench = Bench::new(&gpu, quick);
    let ceiling = bench.or_report("ceiling", |bench| ceiling::measure(bench)).unwrap_or(f64::NAN);
    let named = |dtype: &DType| words.iter().any(|w| *w == dtype.to_string().replace(' ', "_"));
    bench.or_report("host", host::measure);
    let any_named = TYPES.iter().any(named);
    let types: Vec<DType> = TYPES.into_iter().filter(|t| !any_named || named(t)).collect();
    if has("check") {
        check(&mut bench, &types);
    }
    if has("sweep") {
        sweep(&mut bench, ceiling);
    }
    few(&mut bench, &types, ceiling);
    many(&mut bench, &types);
    Ok(())
}

/// Ways to divide work among cooperative matrices; none if the device has none.
fn divisions(gpu: &Gpu) -> Vec<Cooperative> {
    let Some(edge) = gpu.features().cooperative else { return Vec::new() };
    let shape = |(sub_rows, sub_tokens, rows, columns, vectors): (_, _, u32, u32, _)| Cooperative {
        edge,
        sub_rows,
        sub_tokens,
        rows: rows * 16 / edge,
        columns: columns * 16 / edge,
        vectors,
    };
    let divisions = [
        (2, 2, 4, 4, true),
        (4, 2, 2, 4, true),
        (2, 2, 2, 4, true),
        (2, 2, 2, 2, true),
        (2, 1, 2, 2, true),
        (4, 4, 4, 2, true),
        (4, 2, 4, 4, true),
        (2, 2, 4, 4, false),
    ];
    divisions.map(shape).into()
}

/// Cooperative kernels against the plain ones.
fn check(bench: &mut Bench, types: &[DType]) {
    println!(
        "\ncooperative against plain kernels: largest difference, and that by the largest result"
    );
    let (rows, cols, tokens) = (300, 768, 200);
    for &dtype in types {
        for division in divisions(&bench.gpu) {
            let what = format!("{dtype} {rows}x{cols} tokens {tokens} {division:?}");
            bench.or_report(&what, |bench| {
                let (difference, relative) = bench.compare(dtype, rows, cols, tokens, division)?;
                // Quantized weights are rounded to halves, floats here are halves.
                let bound = if dtype.is_float() { 2e-5 } else { 2e-3 };
                let verdict = if relative < bound { "good" } else { "WRONG" };
                println!("{what}: {difference:.2e} {relative:.2e} {verdict}");
                Ok(())
            });
        }
    }
}

fn sweep(bench: &mut Bench, ceiling: f64) {
    println!("\nfew tokens: lanes and outputs of a group");
    for dtype in [DType::Q8_0, DType::Q4_K, DType::Q6_K, DType::Q4_0] {
        for (rows, cols) in bench.shapes(&[(14_336, 4096), (4096, 14_336), (4096, 4096)]) {
            for (threads, each) in [(32, 1), (32, 2), (64, 1), (128, 1)] {
                let tuning = Tuning { vector: Some((threads, each)), ..Default::default() };
                let what = format!("{dtype} {rows}x{cols} lanes {threads} rows {each}");
                bench.or_report(&what, |bench| {
                    let run = bench.measure(dtype, rows, cols, 1, tuning)?;
                    run.print_bytes(&what, ceiling);
                    Ok(())
                });
            }
        }
    }
    println!("\nmany tokens: subgroups and their matrices, along outputs and tokens");
    for (rows, cols) in bench.shapes(&[(4096, 4096), (14_336, 4096), (4096, 14_336)]) {
        for tokens in [2048, 512, 64] {
            for cooperative in divisions(&bench.gpu) {
                let (r, t) = cooperative.tile();
                let what =
                    format!("Q4_K {rows}x{cols} tokens {tokens} tile {r}x{t} {cooperative:?}");
                let tuning = Tuning { cooperative: Some(cooperative), ..Default::default() };
                bench.or_report(&what, |bench| {
                    let run = bench.measure(DType::Q4_K, rows, cols, tokens, tuning)?;
                    run.print_operations(&what);
                    Ok(())
                });
            }
        }
    }
}

fn few(bench: &mut Bench, types: &[DType], ceiling: f64) {
    println!("\nfew tokens, weights from memory, each run after the one before");
    for &dtype in types {
        for (rows, cols) in bench.shapes(&SHAPES) {
            // Making a head of full floats takes longer than all else.
            if rows > 100_000 && matches!(dtype, DType::BF16 | DType::F32) {
                continue;
            }
            // Only the wide shapes of two types show how more tokens cost.
            let more = rows == 14_336 && matches!(dtype, DType::Q8_0 | DType::Q4_K);
            for &tokens in if more { &[1, 2, 4, 8][..] } else { &[1] } {
                let what = format!("{dtype} {rows}x{cols} tokens {tokens}");
                bench.or_report(&what, |bench| {
                    let run = bench.measure(dtype, rows, cols, tokens, Tuning::default())?;
                    run.print_bytes(&what, ceiling);
                    Ok(())
                });
            }
        }
    }
}

fn many(bench: &mut Bench, types: &[DType]) {
    println!("\nmany tokens");
    for &dtype in types {
        for (rows, cols) in bench.shapes(&PREFILL) {
            for tokens in [2048, 512, 64] {
                for tiled in [false, true] {
                    // The plain kernel, ten times slower, is seen with one size.
                    if tiled && (tokens != 2048 || rows != 4096) {
                        continue;
                    }
                    let tokens = bench.tokens(tokens);
                    let kind = if tiled { "plain" } else { "best" };
                    let what = format!("{dtype} {rows}x{cols} tokens {tokens} {kind}");
                    bench.or_report(&what, |bench| {
                        let tuning = Tuning { tiled, ..Default::default() };
                        let run = bench.measure(dtype, rows, cols, tokens, tuning)?;
                        run.print_operations(&what);
                        Ok(())
                    });
                }
            }
        }
    }
}

impl Bench {
    /// The shapes to measure.
    fn shapes(&self, shapes: &[(usize, usize)]) -> Vec<(usize, usize)> {
        if self.quick { QUICK.to_vec() } else { shapes.to_vec() }
    }

    /// How many tokens to measure.
    fn tokens(&self, tokens: usize) -> usize {
        if self.quick { tokens.min(64) } else { tokens }
    }
}
