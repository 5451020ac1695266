//! The model that is measured: what it is, and how long it takes to load.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use baton_engine::{
    Compiled, CompiledCache, LoadOptions, PackedCache, PassWork, compile_model, open_model,
};
use baton_graph::Executor;
use baton_models::shape::{Need, Wanted};
use baton_models::{Model, Source};
use baton_weights::Value;

use super::plan::Setting;
use super::roofline::Work;
use crate::format;

/// A model to be measured.
pub struct Subject {
    origin: Origin,
    facts: Facts,
    vocab: usize,
    work: Work,
}

/// Where it comes from.
enum Origin {
    /// Files, which every loading opens anew, and where what is made of them is kept.
    Files(PathBuf, Caches),
    /// Random weights in memory.
    Made(Box<Model>),
}

/// Where weights are kept in the order of the processor, and packages that Core ML has compiled.
#[derive(Clone, Debug, Default)]
pub struct Caches {
    /// Of weights.
    pub packed: Option<PackedCache>,
    /// Of packages.
    pub compiled: Option<CompiledCache>,
}

/// What results say of a model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// Its file, or what stands for one.
    pub filename: String,
    /// Architecture, size and type in one line, such as `Llama 135M Q4_1`.
    pub kind: String,
    /// Bytes of all tensors.
    pub bytes: u64,
    /// Parameters.
    pub parameters: u64,
}

/// A model in memory.
pub struct Loaded {
    /// It.
    pub executor: Box<dyn Executor>,
    /// The unit that it runs on.
    pub unit: &'static str,
    /// How long that took.
    pub times: LoadTimes,
}

/// How long a model takes from its files to the first pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadTimes {
    /// With the files in the system's memory.
    pub warm: Duration,
    /// With no copy of the files in memory, or why that is not known.
    pub cold: Result<Duration, String>,
}

impl Subject {
    /// The model at `path`, with the folders for what is made of it.
    ///
    /// # Errors
    /// If it cannot be opened.
    pub fn open(path: &Path, caches: Caches) -> anyhow::Result<Subject> {
        let model = open_model(path)?;
        let filename = path.display().to_string();
        Ok(Subject {
            origin: Origin::Files(path.to_owned(), caches),
            facts: Facts::of(&model, filename),
            vocab: model.config().vocab,
            work: Work(PassWork::of(&model)?),
        })
    }

    /// A model of this shape with random weights.
    ///
    /// # Errors
    /// If it does not fit into memory.
    pub fn make(wanted: &Wanted) -> anyhow::Result<Subject> {
        if let Some(available) = baton_engine::available_memory() {
            check(&wanted.to_string(), wanted.need(), available)?;
        }
        let model = wanted.make()?;
        let facts = Facts::of(&model, format!("shape {wanted}"));
        let (vocab, work) = (model.config().vocab, Work(PassWork::of(&model)?));
        Ok(Subject { origin: Origin::Made(Box::new(model)), facts, vocab, work })
    }

    /// What it is.
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// Tokens that it knows.
    pub fn vocab(&self) -> usize {
        self.vocab
    }

    /// What its passes consist of.
    pub fn work(&self) -> &Work {
        &self.work
    }

    /// Loads it for sequences of `context` tokens; twice if `cold`, the first time from files that
    /// were taken out of the system's memory.
    ///
    /// # Errors
    /// If it cannot be loaded.
    pub fn load(&self, setting: &Setting, context: usize, cold: bool) -> anyhow::Result<Loaded> {
        let (path, caches) = match &self.origin {
            Origin::Made(model) => {
                let none = Caches::default();
                let (compiled, warm) = timed(|| compile(model, setting, context, &none))?;
                let cold = Err("the weights were made in memory".into());
                return Ok(Loaded::new(compiled, LoadTimes { warm, cold }));
            }
            Origin::Files(path, caches) => (path, caches),
        };
        let load = || compile(&open_model(path)?, setting, context, caches);
        if caches.packed.is_some() {
            // The first time ever weights are packed and written; every other time they are there.
            drop(load()?);
        }
        let cold = match cold {
            true => forget_all(path, caches.packed.as_ref())?.map_or_else(
                |reason| Ok(Err(reason)),
                |()| timed(load).map(|(_, cold)| Ok(cold)),
            )?,
            false => Err(NOT_AGAIN.into()),
        };
        let (compiled, warm) = timed(load)?;
        Ok(Loaded::new(compiled, LoadTimes { warm, cold }))
    }
}

impl Loaded {
    fn new(Compiled { executor, lanes, .. }: Compiled, times: LoadTimes) -> Loaded {
        Loaded { executor, unit: lanes.decode.unit(), times }
    }
}

const NOT_AGAIN: &str = "not asked for, or measured with another setting";

/// Takes a model's files, and all packed weights, out of the system's memory, or says why not.
fn forget_all(path: &Path, packed: Option<&PackedCache>) -> anyhow::Result<Result<(), String>> {
    let mut files: Vec<PathBuf> = {
        let model = open_model(path)?;
        match model.source() {
            Source::Gguf(file) => file.paths().map(Path::to_owned).collect(),
            Source::Checkpoint { files, .. } => files.paths().map(Path::to_owned).collect(),
            _ => Vec::new(),
        }
        // No page that is mapped can be taken out, so the model is closed here.
    };
    if let Some(packed) = packed {
        files.extend(packed.list()?.into_iter().map(|file| file.path));
    }
    Ok(files.iter().try_for_each(|file| forget(file)))
}

fn timed<T>(work: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<(T, Duration)> {
    let start = Instant::now();
    let result = work()?;
    Ok((result, start.elapsed()))
}

fn compile(
    model: &Model,
    setting: &Setting,
    context: usize,
    caches: &Caches,
) -> anyhow::Result<Compiled> {
    let options = LoadOptions {
        // The engine wants room for a prompt and an answer.
        context: Some(context.max(2)),
        batch_tokens: setting.ubatch,
        threads: Some(setting.threads),
        packed: caches.packed.clone(),
        compiled: caches.compiled.clone(),
        ..LoadOptions::default()
    };
    Ok(compile_model(model, &options)?)
}

/// Takes a file out of the system's memory.
#[cfg(target_os = "linux")]
fn forget(file: &Path) -> Result<(), String> {
    let problem = |error: &dyn std::fmt::Display| {
        format!("{} cannot be taken out of the system's memory: {error}", file.display())
    };
    let open = std::fs::File::open(file).map_err(|error| problem(&error))?;
    // What is not on the disk yet stays in memory.
    open.sync_all().map_err(|error| problem(&error))?;
    // No length means all of it.
    rustix::fs::fadvise(&open, 0, None, rustix::fs::Advice::DontNeed)
        .map_err(|error| problem(&error))
}

#[cfg(not(target_os = "linux"))]
fn forget(_: &Path) -> Result<(), String> {
    Err("this system has no call to take files out of memory".into())
}

impl Facts {
    /// Of this model, which is called `filename`.
    pub fn of(model: &Model, filename: String) -> Facts {
        let (bytes, parameters) = (model.stored_bytes(), model.parameters());
        let size = format::count(parameters);
        let kind = match model.packaged() {
            // Neither parameters nor types are known.
            Some(packaged) => format!("{} {}", packaged.name, packaged.layout),
            None => format!("{} {size} {}", model.architecture(), file_type(model)),
        };
        Facts { filename, kind, bytes, parameters }
    }
}

/// The type of a model's weights: as a GGUF file names it, else that of most bytes.
fn file_type(model: &Model) -> String {
    let told = match model.source() {
        Source::Gguf(file) => file.metadata().get("general.file_type").and_then(Value::as_u64),
        _ => None,
    };
    let mixture = match told {
        Some(10) => Some("Q2_K - Medium"),
        Some(11) => Some("Q3_K - Small"),
        Some(12) => Some("Q3_K - Medium"),
        Some(13) => Some("Q3_K - Large"),
        Some(14) => Some("Q4_K - Small"),
        Some(15) => Some("Q4_K - Medium"),
        Some(16) => Some("Q5_K - Small"),
        Some(17) => Some("Q5_K - Medium"),
        _ => None,
    };
    if let Some(name) = mixture {
        return name.to_owned();
    }
    let mut kinds: Vec<(String, usize)> = Vec::new();
    for kind in model.quantization() {
        match kinds.iter_mut().find(|(dtype, _)| *dtype == kind.dtype) {
            Some((_, bytes)) => *bytes = bytes.saturating_add(kind.bytes),
            None => kinds.push((kind.dtype, kind.bytes)),
        }
    }
    kinds.into_iter().max_by_key(|(_, bytes)| *bytes).map_or_else(String::new, |(dtype, _)| dtype)
}

fn check(name: &str, need: Need, available: u64) -> anyhow::Result<()> {
    let all = need.weights.saturating_add(need.source);
    if all <= available {
        return Ok(());
    }
    Err(crate::failure::hinted(
        format_args!(
            "{name} does not fit into memory: it needs {}, {} are available",
            format::memory(all),
            format::memory(available)
        ),
        "a smaller shape, or a type of fewer bits, may fit",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_refused_with_both_numbers() {
        let need = "llama-3.1-70b:q4_k_m".parse::<Wanted>().unwrap().need();
        let error = check("llama-3.1-70b:q4_k_m", need, 16 << 30).unwrap_err().to_string();
        assert!(
            error.contains("16.0 GiB are available") && error.contains("it needs 4"),
            "{error}"
        );
        assert!(check("x", Need { weights: 5, source: 2 }, 7).is_ok());
    }
}
