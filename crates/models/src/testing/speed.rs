//! Passes of a model against the clock, for the examples of units: no tokenizer, no sampling.

use std::time::{Duration, Instant};

use baton_graph::testing::random_tokens;
use baton_graph::{Batch, ExecError, Executor, Graph, Limits, Logits, Rows, SeqId};
use baton_weights::Weights;

use crate::{BuildOptions, Model};

const SEQ: SeqId = SeqId(0);

type Failure = Box<dyn std::error::Error>;

/// What is to be timed, from the command line: `MODEL.gguf`, or `--shape NAME:TYPE` for random weights
/// where that is compiled in; `--prefill N`, `--context N` (each any number of times), `--decode N`,
/// `--reps N`, `--batch N`.
#[derive(Debug, Default)]
pub struct Speed {
    model: Option<Model>,
    prefill: Vec<usize>,
    contexts: Vec<usize>,
    decode: usize,
    reps: usize,
    batch: usize,
    /// Values of the flags that only one unit has.
    own: Vec<(String, usize)>,
}

impl Speed {
    /// Reads the arguments of the process. Flags in `own` take a number as the others do.
    ///
    /// # Errors
    /// If a flag is not known or its value is no number, or the model cannot be opened.
    pub fn from_arguments(own: &[&str]) -> Result<Speed, Failure> {
        let mut speed = Speed { decode: 64, reps: 5, batch: 2048, ..Speed::default() };
        let mut arguments = std::env::args().skip(1);
        while let Some(argument) = arguments.next() {
            if !argument.starts_with("--") {
                speed.model = Some(Model::open(&argument)?);
                continue;
            }
            let value = arguments.next().ok_or_else(|| format!("{argument} wants a value"))?;
            if argument == "--shape" {
                speed.model = Some(shape(&value)?);
                continue;
            }
            let number: usize = value.parse()?;
            match argument.as_str() {
                "--prefill" => speed.prefill.push(number),
                "--context" => speed.contexts.push(number),
                "--decode" => speed.decode = number,
                "--reps" => speed.reps = number.max(1),
                "--batch" => speed.batch = number.max(1),
                other if own.contains(&other) => speed.own.push((argument, number)),
                other => return Err(format!("there is no flag {other}").into()),
            }
        }
        if speed.prefill.is_empty() {
            speed.prefill = vec![512, 2048];
        }
        if speed.contexts.is_empty() {
            speed.contexts = vec![0, 1024];
        }
        Ok(speed)
    }

    /// The value of a unit's own flag.
    pub fn own(&self, flag: &str) -> Option<usize> {
        self.own.iter().rev().find(|(name, _)| name == flag).map(|(_, value)| *value)
    }

    /// Tokens that the longest test needs room for.
    fn room(&self) -> usize {
        let longest = self.prefill.iter().copied().max().unwrap_or(0);
        longest.max(self.contexts.iter().map(|context| context + self.decode).max().unwrap_or(0))
    }

    /// The limits to compile for.
    pub fn limits(&self) -> Limits {
        let room = self.room();
        Limits { context: room, kv_tokens: room, batch_tokens: self.batch.min(room) }
    }

    /// The graph and weights of the model.
    ///
    /// # Errors
    /// If none is named, or it cannot be built.
    pub fn build(&self) -> Result<(Graph, Weights), Failure> {
        let model = self.model.as_ref().ok_or("which model? give a file or --shape")?;
        Ok(model.build(&BuildOptions { context: self.room() })?)
    }

    /// Times prefill of each length and decoding at each context, of all logits, of the 40 best tokens and
    /// of a text that goes on with the best, and prints the best and the median
    /// repetition in tokens per second, and the processor time of a token.
    ///
    /// # Errors
    /// If a pass fails.
    pub fn run(&self, executor: &mut dyn Executor, vocab: usize) -> Result<(), Failure> {
        let tokens = random_tokens(self.room(), vocab, 1);
        for &prefill in &self.prefill {
            self.measure(&format!("prefill {prefill}"), prefill, || {
                executor.free(SEQ);
                self.fill(executor, &tokens[..prefill], Rows::Last)
            })?;
        }
        for &held in &self.contexts {
            executor.free(SEQ);
            self.fill(executor, &tokens[..held], Rows::None)?;
            for (name, rows) in [("decode", Rows::Last), ("top 40", Rows::Best(40))] {
                self.measure(&format!("{name} at {held}"), self.decode, || {
                    executor.truncate(SEQ, held)?;
                    for token in &tokens[held..held + self.decode] {
                        executor.forward(&Batch::one(SEQ, vec![*token], rows))?;
                    }
                    Ok(())
                })?;
            }
            self.measure(&format!("greedy at {held}"), self.decode, || {
                executor.truncate(SEQ, held)?;
                let mut token = tokens[held];
                for _ in 0..self.decode {
                    let batch = Batch::one(SEQ, vec![token], Rows::Best(1));
                    token = most_likely(&executor.forward(&batch)?);
                }
                Ok(())
            })?;
        }
        println!("{:?}", executor.usage());
        Ok(())
    }

    fn fill(
        &self,
        executor: &mut dyn Executor,
        tokens: &[u32],
        rows: Rows,
    ) -> Result<(), ExecError> {
        let parts = tokens.chunks(self.batch);
        let last = parts.len();
        for (i, part) in parts.enumerate() {
            let rows = if i + 1 == last { rows } else { Rows::None };
            executor.forward(&Batch::one(SEQ, part.to_vec(), rows))?;
        }
        Ok(())
    }

    fn measure(
        &self,
        name: &str,
        tokens: usize,
        mut run: impl FnMut() -> Result<(), ExecError>,
    ) -> Result<(), ExecError> {
        let mut times = Vec::new();
        let mut busy = Vec::new();
        for _ in 0..self.reps {
            let (start, cpu) = (Instant::now(), processor_time());
            run()?;
            times.push(start.elapsed());
            busy.push(processor_time().saturating_sub(cpu));
        }
        times.sort();
        busy.sort();
        let rate = |time: Duration| tokens as f64 / time.as_secs_f64();
        println!(
            "{name:>16}: best {:9.1} tok/s, median {:9.1} tok/s, processor {:.3} ms per token",
            rate(times[0]),
            rate(times[times.len() / 2]),
            busy[0].as_secs_f64() * 1e3 / tokens as f64
        );
        Ok(())
    }
}

fn most_likely(logits: &Logits) -> u32 {
    if let Some(best) = logits.best_of(0) {
        return best.tokens.first().map_or(0, |&(id, _)| id);
    }
    let ids = logits.row(0).iter().zip(0..);
    ids.max_by(|a, b| a.0.total_cmp(b.0)).map_or(0, |(_, id)| id)
}

#[cfg(feature = "shapes")]
fn shape(text: &str) -> Result<Model, Failure> {
    Ok(text.parse::<crate::shape::Wanted>()?.make()?)
}

#[cfg(not(feature = "shapes"))]
fn shape(_: &str) -> Result<Model, Failure> {
    Err("shapes are not compiled in".into())
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
