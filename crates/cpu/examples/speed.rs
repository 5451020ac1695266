//! Times prefill and decode of a model file:
//! `cargo run --release -p baton-cpu --example speed -- MODEL.gguf [--threads N] [--prefill N] [--decode N]
//! [--context N] [--reps N] [--batch N]`.
//!
//! Passes alone: no tokenizer, no sampling. Prints the best and the median repetition in tokens per
//! second, and the processor time that a token took. `BATON_TIMING=1` adds a table of steps.

use std::time::Instant;

use baton_cpu::{Cpu, CpuOptions};
use baton_graph::Unit;
use baton_models::testing::Speed;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let speed = Speed::from_arguments(&["--threads"])?;
    let start = Instant::now();
    let (graph, weights) = speed.build()?;
    let cpu = Cpu::new(CpuOptions { threads: speed.own("--threads"), ..CpuOptions::default() })?;
    let mut executor = cpu.compile(&graph, &weights, speed.limits())?;
    println!("{} on {} threads, {}", graph.name(), cpu.threads(), cpu.isa());
    println!("loaded in {:.2?}", start.elapsed());
    speed.run(&mut *executor, graph.vocab())
}
