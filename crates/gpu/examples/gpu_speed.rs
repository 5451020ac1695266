//! Times prefill and decode of a model file or shape on a GPU:
//! `cargo run --release -p baton-gpu --example gpu_speed -- MODEL.gguf|--shape NAME:TYPE [--prefill N]
//! [--decode N] [--context N] [--reps N] [--batch N]`.
//!
//! Passes alone: no tokenizer, no sampling. Prints the best and the median repetition in tokens per
//! second, and the processor time that a token took. `BATON_TIMING=1` adds a table of steps as the
//! device measures them, `BATON_GPU=plain` leaves out what not every adapter has.

use std::time::Instant;

use baton_gpu::{GpuUnit, Options};
use baton_graph::Unit;
use baton_models::testing::Speed;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let speed = Speed::from_arguments(&[])?;
    let (graph, weights) = speed.build()?;
    let unit = GpuUnit::open(&Options::from_env())?;
    let start = Instant::now();
    let mut executor = unit.compile(&graph, &weights, speed.limits())?;
    println!("{} on {}, {:?}", graph.name(), unit.gpu().name(), unit.gpu().features());
    println!("loaded in {:.2?}", start.elapsed());
    let start = Instant::now();
    if let Some(roof) = unit.roof() {
        let (read, ops) = (roof.read / 1e9, roof.ops.unwrap_or(0.0) / 1e12);
        println!("roof: {read:.0} GB/s, {ops:.1} TFLOP/s, in {:.2?}", start.elapsed());
    }
    speed.run(&mut *executor, graph.vocab())
}
