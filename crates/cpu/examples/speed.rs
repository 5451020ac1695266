//! Times prefill and decode of a model file:
//! `cargo run --release -p baton-cpu --example speed -- MODEL.gguf [--threads N] [--prefill N] [--decode N]
//! [--context N] [--reps N]`.
//!
//! Prefill of `--prefill` tokens, and `--decode` single tokens, at context 0 and at `--context`, as
//! passes alone: no tokenizer, no sampling. Prints the best and the median repetition in tokens per
//! second, and the processor time that a token took. `BATON_TIMING=1` adds a table of steps.

use std::time::{Duration, Instant};

use baton_cpu::{Cpu, CpuOptions};
use baton_graph::testing::random_tokens;
use baton_graph::{Batch, Executor, Limits, Rows, SeqId, Unit};
use baton_models::{BuildOptions, Model};

const SEQ: SeqId = SeqId(0);

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().ok_or("which model file?")?;
    let (mut threads, mut prefill, mut decode, mut context, mut reps) = (None, 512, 64, 1024, 5);
    while let Some(flag) = arguments.next() {
        let value: usize = arguments.next().ok_or("a flag wants a number")?.parse()?;
        match flag.as_str() {
            "--threads" => threads = Some(value),
            "--prefill" => prefill = value,
            "--decode" => decode = value,
            "--context" => context = value,
            "--reps" => reps = value,
            other => return Err(format!("there is no flag {other}").into()),
        }
    }
    let start = Instant::now();
    let model = Model::open(&path)?;
    let room = context + prefill.max(decode);
    let (graph, weights) = model.build(&BuildOptions { context: room })?;
    let cpu = Cpu::new(CpuOptions { threads, ..CpuOptions::default() })?;
    let limits = Limits { context: room, kv_tokens: room, batch_tokens: prefill.max(512) };
    let mut executor = cpu.compile(&graph, &weights, limits)?;
    println!("{} on {} threads, {}", graph.name(), cpu.threads(), cpu.isa());
    println!("loaded in {:.2?}", start.elapsed());

    let tokens = random_tokens(room, graph.vocab(), 1);
    measure(&format!("prefill {prefill}"), prefill, reps, || {
        executor.free(SEQ);
        fill(&mut *executor, &tokens[..prefill], Rows::Last)
    })?;
    executor.free(SEQ);
    for held in [0, context] {
        executor.truncate(SEQ, 0)?;
        for part in tokens[..held].chunks(512) {
            fill(&mut *executor, part, Rows::None)?;
        }
        measure(&format!("decode at {held}"), decode, reps, || {
            executor.truncate(SEQ, held)?;
            for token in &tokens[held..held + decode] {
                fill(&mut *executor, &[*token], Rows::Last)?;
            }
            Ok(())
        })?;
    }
    println!("{:?}", executor.usage());
    Ok(())
}

fn fill(
    executor: &mut dyn Executor,
    tokens: &[u32],
    rows: Rows,
) -> Result<(), Box<dyn std::error::Error>> {
    executor.forward(&Batch::one(SEQ, tokens.to_vec(), rows))?;
    Ok(())
}

fn measure(
    name: &str,
    tokens: usize,
    reps: usize,
    mut run: impl FnMut() -> Result<(), Box<dyn std::error::Error>>,
) -> Result<(), Box<dyn std::error::Error>> {
    let mut times = Vec::new();
    let mut busy = Vec::new();
    for _ in 0..reps.max(1) {
        let (start, cpu) = (Instant::now(), processor_time());
        run()?;
        times.push(start.elapsed());
        busy.push(processor_time().saturating_sub(cpu));
    }
    times.sort();
    busy.sort();
    let rate = |time: Duration| tokens as f64 / time.as_secs_f64();
    println!(
        "{name:>16}: best {:8.1} tok/s, median {:8.1} tok/s, processor {:.3} ms per token",
        rate(times[0]),
        rate(times[times.len() / 2]),
        busy[0].as_secs_f64() * 1e3 / tokens as f64
    );
    Ok(())
}

/// Processor time of this process so far; zero where the system does not tell.
fn processor_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let after_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let mut fields = after_name.split_whitespace().skip(11).map_while(|f| f.parse::<u64>().ok());
    // In hundredths of a second, on every Linux that there is.
    let ticks = fields.next().unwrap_or(0) + fields.next().unwrap_or(0);
    Duration::from_millis(10 * ticks)
}
