//! What a step of several rows of one sequence costs, compared with a step of one:
//! `cargo run --release --example rows -- MODEL [DEPTH] [THREADS]`.

use std::time::Instant;

use baton_engine::{Compiled, LoadOptions, compile_model};
use baton_graph::{Batch, Rows, SeqId};
use baton_models::Model;

const SEQ: SeqId = SeqId(0);
const ROUNDS: usize = 15;
const SIZES: [usize; 8] = [1, 2, 3, 4, 6, 8, 12, 16];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let path = args.next().ok_or("a model's path is missing")?;
    let depth: usize = args.next().map_or(Ok(64), |n| n.parse())?;
    let threads = args.next().map(|n| n.parse()).transpose()?;
    let model = Model::open(path)?;
    let context = Some(depth + 16);
    let options = LoadOptions { context, threads, ..LoadOptions::default() };
    let Compiled { mut executor, .. } = compile_model(&model, &options)?;
    let tokens = |n: usize| -> Vec<u32> { (0..n as u32).map(|i| 5 + i * 7 % 900).collect() };
    for chunk in tokens(depth).chunks(executor.limits().batch_tokens) {
        executor.forward(&Batch::one(SEQ, chunk.to_vec(), Rows::None))?;
    }
    // In turns, so that all sizes see the same disturbances.
    let mut times = SIZES.map(|_| Vec::new());
    for _ in 0..ROUNDS {
        for (rows, times) in SIZES.iter().zip(&mut times) {
            let batch = Batch::one(SEQ, tokens(*rows), Rows::All);
            let started = Instant::now();
            executor.forward(&batch)?;
            times.push(started.elapsed().as_secs_f64() * 1e3);
            executor.truncate(SEQ, depth)?;
        }
    }
    let medians = times.map(|mut times| {
        times.sort_by(f64::total_cmp);
        times[ROUNDS / 2]
    });
    println!("rows  ms      times one row");
    for (rows, median) in SIZES.iter().zip(medians) {
        println!("{rows:4}  {median:6.2}  {:.2}", median / medians[0]);
    }
    Ok(())
}
