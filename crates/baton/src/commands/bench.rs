//! `baton bench`: how fast a model runs here.

mod spelling;

use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use anyhow::Context;
use baton_hub::{Reference, Store};

use crate::bench::against::{self, Ours, Rival, Terms};
use crate::bench::numbers::{Numbers, Pair};
use crate::bench::output::{Format, Printer};
use crate::bench::plan::{self, Lists, Plan};
use crate::bench::plot;
use crate::bench::subject::{Caches, Subject};
use crate::failure::usage;
use crate::packing::{self, Packing};
use crate::{bench, format, models};
use baton_models::shape::Wanted;

pub use spelling::respelled;

/// Shown below the help.
pub const EXAMPLES: &str = "\
Examples:
  baton bench                              the default model: pp512 and tg128
  baton bench ./model.gguf -p 128-1024*2   several lengths of prompt
  baton bench -n 64 -d 0,1024 -t 1,2       decode in an empty and in a filled cache, by threads
  baton bench --workloads                  also 448 tokens in and 64 out, and 64 in and 448 out
  baton bench --shape llama-3.1-8b:q4_0    a model that is not here, with random weights
  baton bench --plot roof.svg              an image: results under what the machine could do
  baton bench ./model.gguf --against http://localhost:8080
                                           whole requests, to us and to another server in turn
  baton bench -o json | jq '.[].avg_ts'

Flags, rows and fields are those of llama-bench. ppN is the evaluation of a prompt of N tokens, tgN
that of N tokens one by one, \"@ dN\" means that N tokens are in the cache before. Tokens are random
and none is sampled. A flag may be given several times, or a list 1,2, a range FIRST-LAST,
FIRST-LAST+STEP or FIRST-LAST*FACTOR.";

/// Arguments of `baton bench`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The model (default: the default model)
    #[arg(value_name = "MODEL", conflicts_with = "models")]
    name: Option<String>,
    /// A model; may be given several times
    #[arg(long = "model", short, value_name = "MODEL")]
    models: Vec<String>,
    /// No file, but random weights in the shape of a model, such as llama-3.1-8b:q4_k_m; may be given
    /// several times. An unknown name lists all
    #[arg(long = "shape", value_name = "SHAPE[:TYPE]", conflicts_with_all = ["name", "models"])]
    shapes: Vec<Wanted>,
    /// Tokens of a prompt that is evaluated at once; 0 for no such test
    #[arg(long = "n-prompt", short = 'p', value_name = "N", default_value = "512")]
    prompts: Vec<Numbers>,
    /// Tokens that are evaluated one by one; 0 for no such test
    #[arg(long = "n-gen", short = 'n', value_name = "N", default_value = "128")]
    generated: Vec<Numbers>,
    /// A prompt and tokens after it, in one test; also -pg
    #[arg(long = "pg", value_name = "PP,TG")]
    pairs: Vec<Pair>,
    /// Two tests more: 448 tokens in and 64 out, 64 in and 448 out
    #[arg(long)]
    workloads: bool,
    /// Tokens in the cache before the clock runs
    #[arg(long = "n-depth", short = 'd', value_name = "N", default_value = "0")]
    depths: Vec<Numbers>,
    /// Tokens handed over at once
    #[arg(long = "batch-size", short = 'b', value_name = "N", default_value = "2048")]
    batches: Vec<Numbers>,
    /// Tokens of one pass, at most those handed over; also -ub
    #[arg(long = "ubatch-size", value_name = "N", default_value = "512")]
    ubatches: Vec<Numbers>,
    /// Threads to compute with (default: one for each core)
    #[arg(long, short, value_name = "N")]
    threads: Vec<Numbers>,
    /// Repetitions of each test
    #[arg(long, short, value_name = "N", default_value_t = 5)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=10_000))]
    repetitions: u32,
    /// Seconds of rest before each measurement
    #[arg(long, value_name = "SECONDS", default_value_t = 0.0, value_parser = seconds)]
    delay: f64,
    /// Do not run each test once before it is measured
    #[arg(long)]
    no_warmup: bool,
    /// Do not take the model's files out of the system's memory to time a cold load
    #[arg(long)]
    no_cold_load: bool,
    /// Also measure how fast memory is read and integers are multiplied, and say which share of that
    /// is reached
    #[arg(long)]
    roofline: bool,
    /// Draw results under the roofline, as an SVG image
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
    /// Send whole requests to us and in turn to the server at this address, which has OpenAI's
    /// interface: the --pg tests, or else both workloads
    #[arg(long, value_name = "URL", conflicts_with_all = ["shapes", "depths", "plot", "roofline"])]
    against: Option<String>,
    /// The server's model (default: the first that it lists)
    #[arg(long, value_name = "NAME", requires = "against")]
    against_model: Option<String>,
    /// The server's key
    #[arg(long, value_name = "KEY", env = "BATON_AGAINST_KEY")]
    #[arg(hide_env_values = true)]
    against_key: Option<String>,
    #[command(flatten)]
    packing: Packing,
    /// How results are printed
    #[arg(long, short, value_name = "FORMAT", default_value = "md")]
    output: Format,
}

/// Opens a model when its turn comes.
type Opening<'a> = Box<dyn FnOnce() -> anyhow::Result<Subject> + 'a>;

/// Measures and prints.
///
/// # Errors
/// If a flag makes no sense, or a model cannot be had, loaded or run.
pub fn execute(args: &Args) -> anyhow::Result<()> {
    if let Some(url) = &args.against {
        return args.requests(url);
    }
    let plan = args.plan()?;
    let subjects = args.subjects()?;
    let mut out = format::stdout();
    let mut printer = Printer::new(args.output, &mut out);
    let mut result = Ok(());
    for subject in subjects {
        result = subject().and_then(|subject| bench::run(&subject, &plan, &mut printer));
        if result.is_err() {
            break;
        }
    }
    // What was measured before a failure is worth printing.
    let records = printer.finish()?;
    if let Some(path) = args.plot.as_ref().filter(|_| !records.is_empty()) {
        std::fs::write(path, plot::svg(&records))
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    result
}

impl Args {
    fn plan(&self) -> anyhow::Result<Plan> {
        let mut pairs = self.pairs.clone();
        if self.workloads {
            pairs.extend(plan::WORKLOADS);
        }
        let lists = Lists {
            prompts: Numbers::all(&self.prompts),
            generated: Numbers::all(&self.generated),
            pairs,
            depths: Numbers::all(&self.depths),
        };
        let tests = lists.tests();
        if tests.is_empty() {
            return Err(usage("there is nothing to measure: all tests have 0 tokens"));
        }
        let batches = in_range("batch-size", Numbers::all(&self.batches), 1 << 20)?;
        let ubatches = in_range("ubatch-size", Numbers::all(&self.ubatches), 1 << 20)?;
        Ok(Plan {
            settings: plan::settings(&batches, &ubatches, &self.thread_counts()?),
            tests,
            repetitions: self.repetitions as usize,
            warmup: !self.no_warmup,
            delay: Duration::from_secs_f64(self.delay),
            cold_load: !self.no_cold_load,
            roofline: self.roofline || self.plot.is_some(),
        })
    }

    fn thread_counts(&self) -> anyhow::Result<Vec<usize>> {
        let threads = Numbers::all(&self.threads);
        if threads.is_empty() {
            return Ok(vec![baton_cpu::Cpu::new(baton_cpu::CpuOptions::default())?.threads()]);
        }
        in_range("threads", threads, 1024)
    }

    /// The models, each opened when its turn comes.
    fn subjects(&self) -> anyhow::Result<Vec<Opening<'_>>> {
        if !self.shapes.is_empty() {
            let make = |wanted| -> Opening<'_> { Box::new(move || Subject::make(wanted)) };
            return Ok(self.shapes.iter().map(make).collect());
        }
        let store = Rc::new(models::store()?);
        let open = |reference| -> Opening<'_> {
            let store = Rc::clone(&store);
            let caches = self.caches(&store);
            Box::new(move || Subject::open(&models::get(&store, &reference)?.path, caches))
        };
        Ok(self.references(&store)?.into_iter().map(open).collect())
    }

    fn caches(&self, store: &Store) -> Caches {
        let compiled = Some(packing::compiled(store));
        Caches { packed: self.packing.cache(store), compiled }
    }

    /// What the models that were named are.
    fn references(&self, store: &Store) -> anyhow::Result<Vec<Reference>> {
        let mut names: Vec<&str> =
            self.name.iter().chain(&self.models).map(String::as_str).collect();
        if names.is_empty() {
            names.push(store.catalog().default_model());
        }
        names.into_iter().map(|name| models::resolve(store, name)).collect()
    }

    /// Measures requests to us and to the server at `url`.
    fn requests(&self, url: &str) -> anyhow::Result<()> {
        let workloads =
            if self.pairs.is_empty() { plan::WORKLOADS.to_vec() } else { self.pairs.clone() };
        if workloads.iter().any(|pair| pair.prompt == 0 || pair.generated < 2) {
            return Err(usage("--against needs prompts of 1 token and answers of 2 at least"));
        }
        let store = models::store()?;
        let references = self.references(&store)?;
        let (&[threads], [reference]) = (&self.thread_counts()?[..], &references[..]) else {
            return Err(usage("--against takes one model and one number of threads"));
        };
        let path = models::get(&store, reference)?.path;
        let batch = in_range("ubatch-size", Numbers::all(&self.ubatches), 1 << 20)?[0];
        let context = workloads.iter().map(|pair| pair.prompt + pair.generated).max();
        let context = context.unwrap_or(0) + 1;
        let caches = self.caches(&store);
        let mut ours = Ours::load(&path, threads, batch, context, caches)?;
        let rival = Rival {
            url: url.to_owned(),
            model: self.against_model.clone(),
            key: self.against_key.clone(),
        };
        let terms = Terms {
            repetitions: self.repetitions as usize,
            delay: Duration::from_secs_f64(self.delay),
            warmup: !self.no_warmup,
        };
        let mut out = format::stdout();
        let mut printer = Printer::new(self.output, &mut out);
        let result = against::run(&mut ours, &rival, &workloads, &terms, &mut printer);
        printer.finish()?;
        result
    }
}

fn in_range(flag: &str, values: Vec<usize>, most: usize) -> anyhow::Result<Vec<usize>> {
    match values.iter().find(|value| !(1..=most).contains(*value)) {
        Some(value) => Err(usage(format_args!("--{flag} {value}: from 1 to {most} are possible"))),
        None => Ok(values),
    }
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (0.0..=86_400.0).contains(&seconds) => Ok(seconds),
        _ => Err("from 0 to 86400 seconds are possible".into()),
    }
}
