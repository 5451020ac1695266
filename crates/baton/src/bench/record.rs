//! Everything known of one test, under the names that programs read.
//!
//! First come the fields of `llama-bench`, in its order; those that make no sense here are left
//! out. After `samples_ts` come fields of our own. What is not known is null, with the reason in a
//! field beside it.

mod table;

use std::time::{Duration, SystemTime};

use baton_graph::Roof;
use serde::Serialize;

use super::machine::Machine;
use super::passes::Sample;
use super::plan::{Setting, Test};
use super::roofline::{Achieved, Work};
use super::stats::Summary;
use super::subject::{self, LoadTimes};

/// The result of one test.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Record {
    /// The commit that this program was built from.
    pub build_commit: String,
    /// How many commits that is.
    pub build_number: u64,
    /// The processor.
    pub cpu_info: String,
    /// The graphics processor; none is used.
    pub gpu_info: String,
    /// What computed.
    pub backends: String,
    /// The model's file.
    pub model_filename: String,
    /// Architecture, size and type.
    pub model_type: String,
    /// Bytes of its tensors.
    pub model_size: u64,
    /// Its parameters.
    pub model_n_params: u64,
    /// Tokens handed over at once.
    pub n_batch: usize,
    /// Tokens of one pass.
    pub n_ubatch: usize,
    /// Threads.
    pub n_threads: usize,
    /// Type of cached keys.
    pub type_k: String,
    /// Type of cached values.
    pub type_v: String,
    /// Tokens evaluated at once.
    pub n_prompt: usize,
    /// Tokens evaluated one by one.
    pub n_gen: usize,
    /// Tokens in the cache before.
    pub n_depth: usize,
    /// When the test began, in UTC.
    pub test_time: String,
    /// Mean time of a repetition.
    pub avg_ns: u64,
    /// Its standard deviation.
    pub stddev_ns: u64,
    /// Mean of the repetitions' tokens per second.
    pub avg_ts: f64,
    /// Their standard deviation.
    pub stddev_ts: f64,
    /// Time of each repetition.
    pub samples_ns: Vec<u64>,
    /// Tokens per second of each.
    pub samples_ts: Vec<f64>,
    /// Median of the tokens per second.
    pub median_ts: f64,
    /// Mean time to the first token; null without a prompt.
    pub ttft_avg_ns: Option<u64>,
    /// Its standard deviation.
    pub ttft_stddev_ns: Option<u64>,
    /// Mean time of a token after the prompt; null if there is none.
    pub tpot_avg_ns: Option<u64>,
    /// Its standard deviation.
    pub tpot_stddev_ns: Option<u64>,
    /// Time to load the model from files in memory.
    pub load_warm_ns: u64,
    /// Time to load it from files that were not in memory.
    pub load_cold_ns: Option<u64>,
    /// Why that is not known.
    pub load_cold_note: Option<String>,
    /// Most memory that the process used since it began to load.
    pub peak_memory_bytes: Option<u64>,
    /// Joules of the processor for each token.
    pub energy_j_per_token: Option<f64>,
    /// Why that is not known.
    pub energy_note: Option<String>,
    /// Bytes per second that memory is read with; null if that was not measured.
    pub roof_read_bytes_per_s: Option<f64>,
    /// Integer operations per second of the vector units; null if that was not measured.
    pub roof_ops_per_s: Option<f64>,
    /// Operations for each byte that the prompt's passes read.
    pub prompt_ops_per_byte: Option<f64>,
    /// Operations per second of the prompt.
    pub prompt_ops_per_s: Option<f64>,
    /// The share of what memory and vector units allow.
    pub prompt_roof_share: Option<f64>,
    /// Operations for each byte that the passes after the prompt read.
    pub gen_ops_per_byte: Option<f64>,
    /// Operations per second after the prompt.
    pub gen_ops_per_s: Option<f64>,
    /// The share of what memory and vector units allow.
    pub gen_roof_share: Option<f64>,
    /// This program's version.
    pub baton_version: String,
    /// The instruction set of the kernels.
    pub isa: String,
    /// The operating system.
    pub os: String,
    /// The architecture that this program was compiled for.
    pub arch: String,
    /// Processors of the machine.
    pub machine_processors: usize,
    /// Bytes of memory of the machine.
    pub machine_memory_bytes: u64,
}

/// What a record is made from.
pub struct Facts<'a> {
    /// The machine.
    pub machine: &'a Machine,
    /// The unit that computed.
    pub unit: &'static str,
    /// The model.
    pub subject: &'a subject::Facts,
    /// The engine's setting.
    pub setting: &'a Setting,
    /// The test.
    pub test: &'a Test,
    /// How long loading took.
    pub load: &'a LoadTimes,
    /// When the test began.
    pub began: SystemTime,
    /// All repetitions.
    pub samples: &'a [Sample],
    /// Joules of all repetitions, or why they are not known.
    pub energy: Result<f64, String>,
    /// Most memory used, if the system tells.
    pub peak_memory: Option<u64>,
    /// What the model's passes consist of.
    pub work: &'a Work,
    /// The machine's limits, if they were measured.
    pub roof: Option<Roof>,
}

impl Record {
    /// Puts it together.
    pub fn new(facts: Facts<'_>) -> Record {
        let Facts { machine, subject, setting, test, load, samples, .. } = facts;
        let seconds = |time: Duration| time.as_secs_f64().max(1e-9);
        let rate = |sample: &Sample| test.tokens() as f64 / seconds(sample.total());
        let samples_ts: Vec<f64> = samples.iter().map(rate).collect();
        let rates = Summary::of(&samples_ts);
        let of = |time: fn(&Sample) -> Duration, parts: usize| {
            let each: Vec<f64> =
                samples.iter().map(|s| time(s).as_nanos() as f64 / parts as f64).collect();
            Summary::of(&each)
        };
        let total = of(Sample::total, 1);
        let ttft = (test.prompt > 0).then(|| of(|sample| sample.prompt, 1));
        let tpot = (test.generated > 0).then(|| of(|sample| sample.generated, test.generated));
        let mean = |summary: Summary| summary.mean.round() as u64;
        let stddev = |summary: Summary| summary.stddev.round() as u64;
        let tokens = (test.tokens() * samples.len()).max(1);
        let (energy, energy_note) = either(facts.energy);
        let (cold, load_cold_note) = either(load.cold.clone());
        let roof = facts.roof;
        let in_seconds = |summary: Summary| summary.mean / 1e9;
        let prompt = ttft.map(|ttft| facts.work.prompt(test, setting, in_seconds(ttft)));
        let generated =
            tpot.map(|tpot| facts.work.generated(test, in_seconds(tpot) * test.generated as f64));
        let share = |achieved: Achieved| roof.map(|roof| achieved.share(&roof));
        Record {
            build_commit: env!("BATON_COMMIT").to_owned(),
            build_number: env!("BATON_COMMIT_NUMBER").parse().unwrap_or(0),
            cpu_info: machine.cpu.clone(),
            gpu_info: String::new(),
            // As other programs write it.
            backends: if facts.unit == "cpu" { "CPU" } else { facts.unit }.to_owned(),
            model_filename: subject.filename.clone(),
            model_type: subject.kind.clone(),
            model_size: subject.bytes,
            model_n_params: subject.parameters,
            n_batch: setting.batch,
            n_ubatch: setting.ubatch,
            n_threads: setting.threads,
            type_k: "f16".to_owned(),
            type_v: "f16".to_owned(),
            n_prompt: test.prompt,
            n_gen: test.generated,
            n_depth: test.depth,
            test_time: utc(facts.began),
            avg_ns: mean(total),
            stddev_ns: stddev(total),
            avg_ts: rates.mean,
            stddev_ts: rates.stddev,
            samples_ns: samples.iter().map(|s| nanoseconds(s.total())).collect(),
            samples_ts,
            median_ts: rates.median,
            ttft_avg_ns: ttft.map(mean),
            ttft_stddev_ns: ttft.map(stddev),
            tpot_avg_ns: tpot.map(mean),
            tpot_stddev_ns: tpot.map(stddev),
            load_warm_ns: nanoseconds(load.warm),
            load_cold_ns: cold.map(nanoseconds),
            load_cold_note,
            peak_memory_bytes: facts.peak_memory,
            energy_j_per_token: energy.map(|joules| joules / tokens as f64),
            energy_note,
            roof_read_bytes_per_s: roof.map(|roof| roof.read),
            roof_ops_per_s: roof.and_then(|roof| roof.ops),
            prompt_ops_per_byte: prompt.map(|achieved| achieved.ops_per_byte),
            prompt_ops_per_s: prompt.map(|achieved| achieved.ops_per_s),
            prompt_roof_share: prompt.and_then(share),
            gen_ops_per_byte: generated.map(|achieved| achieved.ops_per_byte),
            gen_ops_per_s: generated.map(|achieved| achieved.ops_per_s),
            gen_roof_share: generated.and_then(share),
            baton_version: env!("CARGO_PKG_VERSION").to_owned(),
            isa: machine.isa.clone(),
            os: machine.os.clone(),
            arch: machine.arch.to_owned(),
            machine_processors: machine.processors,
            machine_memory_bytes: machine.memory,
        }
    }

    /// The test.
    pub fn test(&self) -> Test {
        Test { prompt: self.n_prompt, generated: self.n_gen, depth: self.n_depth }
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn either<T>(result: Result<T, String>) -> (Option<T>, Option<String>) {
    match result {
        Ok(value) => (Some(value), None),
        Err(reason) => (None, Some(reason)),
    }
}

/// A point in time as `2026-01-31T12:00:00Z`.
fn utc(time: SystemTime) -> String {
    jiff::Timestamp::try_from(time)
        .map_or_else(|_| "unknown".into(), |time| time.strftime("%FT%TZ").to_string())
}

#[cfg(test)]
pub mod tests;
