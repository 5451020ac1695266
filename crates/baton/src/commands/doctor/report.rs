//! The report: plain data, made by looking at the machine and judging what is found.

use std::path::PathBuf;

use baton_hub::{Settings, Store};
use serde::Serialize;

use super::{machine, online};
use crate::format;

/// A disk with less space than this is nearly full for our purpose.
const LOW_DISK: u64 = 1_000_000_000;
/// Memory below which even small models are tight.
const LOW_MEMORY: u64 = 1 << 30;

/// All that the doctor found.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Our own version.
    pub version: &'static str,
    /// Operating system.
    pub system: System,
    /// Processor and kernels.
    pub cpu: Cpu,
    /// Memory.
    pub memory: Memory,
    /// Compute units.
    pub units: Vec<Unit>,
    /// The folder of models, if there is a place for one.
    pub store: Option<StoreReport>,
    /// Sources of models, if asked for.
    pub sources: Option<Vec<SourceReport>>,
    /// What is wrong.
    pub problems: Vec<Problem>,
}

/// Operating system and architecture.
#[derive(Debug, Serialize)]
pub struct System {
    /// Name and version.
    pub os: String,
    /// What this program was built for.
    pub arch: &'static str,
    /// True if the processor only imitates that architecture (Rosetta).
    pub translated: bool,
}

/// The processor, and what we use of it.
#[derive(Debug, Serialize)]
pub struct Cpu {
    /// Its name.
    pub name: String,
    /// Logical processors that we may use.
    pub cores: usize,
    /// Vector extensions that matter to us.
    pub features: Vec<&'static str>,
    /// The kernels chosen; none if `BATON_CPU` asks for what cannot be.
    pub kernels: Option<String>,
    /// Other kernels that could be chosen.
    pub other_kernels: Vec<String>,
    /// Threads used by default.
    pub threads: usize,
}

impl Cpu {
    /// The kernels in one line.
    pub fn kernels_line(&self) -> String {
        let chosen = self.kernels.as_deref().unwrap_or("none");
        match self.other_kernels.as_slice() {
            [] => chosen.to_owned(),
            others => format!("{chosen} (BATON_CPU can choose {} instead)", others.join(" or ")),
        }
    }
}

/// Memory, in bytes.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Memory {
    /// All.
    pub total_bytes: u64,
    /// What can be had without swapping.
    pub available_bytes: u64,
}

/// A compute unit.
#[derive(Debug, Serialize)]
pub struct Unit {
    /// Its name.
    pub name: &'static str,
    /// True if Baton can use it here.
    pub available: bool,
    /// Why, or why not.
    pub note: String,
}

/// The folder of models.
#[derive(Debug, Serialize)]
pub struct StoreReport {
    /// Where it is.
    pub path: PathBuf,
    /// True if it can be written, or created.
    pub writable: bool,
    /// Number of models in it.
    pub models: usize,
    /// Their bytes.
    pub size_bytes: u64,
    /// Bytes free on its disk.
    pub free_bytes: Option<u64>,
}

/// Whether a source of models answers.
#[derive(Debug, Serialize)]
pub struct SourceReport {
    /// Its name or address.
    pub name: String,
    /// Why it does not answer.
    pub problem: Option<String>,
}

/// How bad a problem is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// Something will not work.
    Error,
    /// Something could be better.
    Warning,
}

/// One thing that is wrong.
#[derive(Debug, Serialize)]
pub struct Problem {
    /// How bad.
    pub level: Level,
    /// What is wrong.
    pub what: String,
    /// What to do.
    pub advice: String,
}

/// Looks at the machine; with `ask_sources`, at the network too.
pub fn make(ask_sources: bool) -> Report {
    let mut problems = Vec::new();
    let system = machine::system();
    if system.translated {
        problems.push(Problem::warning(
            "this program was built for Intel and is translated by Rosetta, which is slow",
            "build or install Baton for Apple silicon: rustup target add aarch64-apple-darwin",
        ));
    }
    let cpu = machine::cpu(&mut problems);
    let memory = machine::memory();
    if memory.available_bytes < LOW_MEMORY {
        let available = format::memory(memory.available_bytes);
        problems.push(Problem::warning(
            format!("only {available} of memory are available"),
            "close other programs, or use a small model such as smollm2",
        ));
    }
    let settings = match Settings::from_env() {
        Ok(settings) => Some(settings),
        Err(error) => {
            problems
                .push(Problem::error(error.to_string(), "set BATON_HOME to a folder for models"));
            None
        }
    };
    if let Some(Err(error)) = settings.as_ref().map(Settings::check_endpoint) {
        problems.push(Problem::error(
            error.to_string(),
            "models of the Hugging Face hub cannot be fetched until then",
        ));
    }
    let store = settings.as_ref().map(|settings| store(settings, &mut problems));
    let sources = settings.as_ref().filter(|_| ask_sources);
    let sources = sources.map(|settings| online::ask(settings, &mut problems));
    Report {
        version: env!("CARGO_PKG_VERSION"),
        units: machine::units(&cpu),
        memory,
        system,
        cpu,
        store,
        sources,
        problems,
    }
}

fn store(settings: &Settings, problems: &mut Vec<Problem>) -> StoreReport {
    let path = settings.home.clone();
    let usable = settings.check_home();
    if let Err(error) = &usable {
        problems.push(Problem::error(error.to_string(), "nothing can be fetched until then"));
    }
    let writable = usable.is_ok();
    let Ok(existing) = settings.nearest_folder() else {
        return StoreReport { path, writable, models: 0, size_bytes: 0, free_bytes: None };
    };
    let free_bytes = fs4::available_space(existing).ok();
    if let Some(free) = free_bytes.filter(|&free| free < LOW_DISK) {
        problems.push(Problem::warning(
            format!("only {} are free on the disk of {}", format::bytes(free), path.display()),
            "remove models with `baton rm`, or set BATON_HOME to another disk",
        ));
    }
    let models = match Store::with_settings(settings.clone()).and_then(|store| store.list()) {
        Ok(models) => models,
        Err(error) => {
            problems.push(Problem::error(error.to_string(), "mend or remove that file"));
            Vec::new()
        }
    };
    for model in models.iter().filter(|model| !model.complete) {
        problems.push(Problem::warning(
            format!("the model {} is damaged or not whole", model.name),
            format!("fetch it again: baton pull {}", model.name),
        ));
    }
    let size_bytes = models.iter().map(|model| model.size).sum();
    StoreReport { path, writable, models: models.len(), size_bytes, free_bytes }
}

impl Problem {
    /// Something will not work.
    pub fn error(what: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { level: Level::Error, what: what.into(), advice: advice.into() }
    }

    /// Something could be better.
    pub fn warning(what: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { level: Level::Warning, what: what.into(), advice: advice.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_that_cannot_be_is_an_error_and_nothing_is_created() {
        let dir = tempfile::tempdir().unwrap();
        let mut problems = Vec::new();
        let fine = store(&Settings::at(dir.path().join("a/b")), &mut problems);
        assert!(fine.writable && problems.iter().all(|p| p.level != Level::Error), "{problems:?}");
        assert!(!dir.path().join("a").exists());

        let file = dir.path().join("file");
        std::fs::write(&file, "").unwrap();
        let bad = store(&Settings::at(file), &mut problems);
        assert!(!bad.writable);
        let errors = problems.iter().filter(|p| p.level == Level::Error);
        assert_eq!(errors.count(), 1, "{problems:?}");
    }
}
