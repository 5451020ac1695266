//! Measures how fast a model runs on each unit, in bounded time.

use std::time::{Duration, Instant};

use baton_graph::{Batch, Executor, Rows, SeqId};
use baton_models::Model;

use crate::load::compile_model;
use crate::{LoadOptions, Result, Speeds, UnitChoice, UnitKind};

/// Prompts that are measured, as far as time and context allow.
const LENGTHS: [usize; 6] = [16, 64, 128, 256, 512, 1024];
/// Tokens written one by one.
const DECODED: usize = 24;
/// Each length is measured so often; the best counts, since other programs only make it slower.
const REPETITIONS: usize = 3;
/// What choosing a token by the usual options asks for.
const SAMPLED: Rows = Rows::Best(40);
const SEQ: SeqId = SeqId(0);
const COPY: SeqId = SeqId(1);

/// How to measure.
#[derive(Clone, Debug)]
pub struct TuneOptions {
    /// The units.
    pub units: Vec<UnitKind>,
    /// Time for all of it, loading the model left out.
    pub budget: Duration,
}

impl Default for TuneOptions {
    fn default() -> Self {
        TuneOptions { units: UnitKind::available(), budget: Duration::from_secs(40) }
    }
}

/// Measures each unit with a model that is loaded as `load` says. `tell` hears of each result; a unit
/// that fails does not keep others from being measured.
pub fn tune(
    model: &Model,
    load: &LoadOptions,
    options: &TuneOptions,
    mut tell: impl FnMut(UnitKind, &str),
) -> Vec<(UnitKind, Result<Speeds>)> {
    let share = options.budget / u32::try_from(options.units.len().max(1)).unwrap_or(u32::MAX);
    let mut measure = |unit: UnitKind| {
        let context = model.config().context_length.min(2 * LENGTHS[LENGTHS.len() - 1]);
        let longest = LENGTHS[LENGTHS.len() - 1].min(context);
        let one = LoadOptions {
            choice: Some(UnitChoice {
                prefill: Some(unit),
                decode: Some(unit),
                ..UnitChoice::default()
            }),
            remote: None,
            draft: None,
            context: Some(context),
            kv_tokens: Some(2 * context),
            batch_tokens: longest,
            timeline: None,
            ..load.clone()
        };
        let mut executor = compile_model(model, &one)?.executor;
        let mut bench = Bench {
            executor: &mut *executor,
            vocab: model.config().vocab,
            deadline: Instant::now() + share,
        };
        bench.speeds(unit, |line| tell(unit, line))
    };
    options.units.iter().map(|&unit| (unit, measure(unit))).collect()
}

struct Bench<'e> {
    executor: &'e mut dyn Executor,
    vocab: usize,
    deadline: Instant,
}

impl Bench<'_> {
    fn speeds(&mut self, unit: UnitKind, mut tell: impl FnMut(&str)) -> Result<Speeds> {
        // Memory is there and clocks are up after that.
        let first = self.prompt(LENGTHS[0])?;
        let decode = self.decode()?;
        tell(&format!("{:.1} tokens/s of answers", 1.0 / decode));
        let mut prefill = Vec::new();
        let mut before = (LENGTHS[0], first);
        let most = self.executor.limits().context;
        for n in LENGTHS.into_iter().filter(|&n| n <= most) {
            let expected = before.1.mul_f64(n as f64 / before.0 as f64);
            if !prefill.is_empty() && Instant::now() + expected > self.deadline {
                tell(&format!("prompts of {n} tokens and more would take too long"));
                break;
            }
            let mut best = self.prompt(n)?;
            for _ in 1..REPETITIONS {
                if Instant::now() + best > self.deadline {
                    break;
                }
                best = best.min(self.prompt(n)?);
            }
            tell(&format!("{:.0} tokens/s of a prompt of {n}", n as f64 / best.as_secs_f64()));
            prefill.push((n, best.as_secs_f64()));
            before = (n, best);
        }
        let handoff = self.handoff()?;
        tell(&format!(
            "{:.1} µs to hand over a token, {:.1} µs to take it over",
            1e6 * handoff.0,
            1e6 * handoff.1
        ));
        Ok(Speeds { unit: unit.name().into(), device: unit.device(), prefill, decode, handoff })
    }

    fn tokens(&self, n: usize) -> Vec<u32> {
        // Any will do, as long as experts differ.
        (0..n).map(|i| ((i * 7919 + 13) % self.vocab) as u32).collect()
    }

    fn prompt(&mut self, n: usize) -> Result<Duration> {
        self.executor.free(SEQ);
        let (tokens, most) = (self.tokens(n), self.executor.limits().batch_tokens);
        let start = Instant::now();
        let mut parts = tokens.chunks(most).peekable();
        while let Some(part) = parts.next() {
            let rows = if parts.peek().is_none() { Rows::Last } else { Rows::None };
            self.executor.forward(&Batch::one(SEQ, part.to_vec(), rows))?;
        }
        Ok(start.elapsed())
    }

    /// Seconds for a token behind those that are there.
    fn decode(&mut self) -> Result<f64> {
        let mut best = Duration::MAX;
        for token in self.tokens(DECODED) {
            let start = Instant::now();
            self.executor.forward(&Batch::one(SEQ, vec![token], SAMPLED))?;
            best = best.min(start.elapsed());
            if Instant::now() > self.deadline {
                break;
            }
        }
        Ok(best.as_secs_f64())
    }

    /// Seconds for each token of what the last prompt left.
    fn handoff(&mut self) -> Result<(f64, f64)> {
        let n = self.executor.len(SEQ);
        let (mut out, mut into) = (Duration::MAX, Duration::MAX);
        for _ in 0..REPETITIONS {
            let start = Instant::now();
            let block = self.executor.export_kv(SEQ, 0..n)?;
            out = out.min(start.elapsed());
            self.executor.free(COPY);
            let start = Instant::now();
            self.executor.import_kv(COPY, 0, &block)?;
            into = into.min(start.elapsed());
        }
        self.executor.free(COPY);
        self.executor.free(SEQ);
        let each = |time: Duration| time.as_secs_f64() / n as f64;
        Ok((each(out), each(into)))
    }
}
