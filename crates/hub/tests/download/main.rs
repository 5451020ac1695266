//! Fetching models from a local server that speaks the hub's API, from a stand-in for pip, and in
//! several processes; with everything that goes wrong on the way.
#![forbid(unsafe_code)]

mod broken;
mod disk;
mod hub;
mod processes;
mod pypi;
mod server;

use std::path::Path;
use std::time::Duration;

use baton_hub::{Error, Event, LocalModel, Progress, Result, Settings, Sha256, Store};

/// `len` bytes that look like a GGUF file to a downloader and are different everywhere.
pub(crate) fn gguf(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed;
    let mut next = || {
        // SplitMix64.
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) as u8
    };
    let mut bytes: Vec<u8> = (0..len).map(|_| next()).collect();
    bytes[..4].copy_from_slice(b"GGUF");
    bytes
}

/// A folder for one test, with settings that use nothing outside it and lose no time.
pub(crate) struct Room {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) settings: Settings,
}

impl Room {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut settings = Settings::at(dir.path().join("home"));
        settings.user_catalog = Some(dir.path().join("catalog.toml"));
        settings.hf_cache = Some(dir.path().join("hf"));
        settings.hf_endpoint = "http://127.0.0.1:1".into();
        settings.backoff = Duration::from_millis(10);
        settings.idle_timeout = Duration::from_secs(5);
        Self { dir, settings }
    }

    /// Makes the name `m` stand for `bytes` from these sources.
    pub(crate) fn catalog(&self, bytes: &[u8], sources: &[String]) {
        let text = format!(
            "[models.m]\ntitle = \"Test\"\nfile = \"m.gguf\"\nsize = {}\nsha256 = \"{}\"\nsources = {:?}",
            bytes.len(),
            Sha256::of(bytes),
            sources
        );
        std::fs::write(self.dir.path().join("catalog.toml"), text).unwrap();
    }

    pub(crate) fn store(&self) -> Store {
        Store::with_settings(self.settings.clone()).unwrap()
    }

    /// Gets a model and what was said meanwhile.
    pub(crate) fn get(&self, reference: &str) -> (Result<LocalModel>, Vec<String>) {
        let mut told = Told::default();
        let store = self.store();
        let model = store.resolve(reference).and_then(|found| store.get(&found, &mut told));
        (model, told.lines)
    }

    pub(crate) fn parts(&self) -> Vec<(String, u64)> {
        let entries = std::fs::read_dir(self.settings.home.join("partial"));
        let mut parts: Vec<_> = entries
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| {
                (entry.file_name().into_string().unwrap(), entry.metadata().unwrap().len())
            })
            .filter(|(name, _)| name.ends_with(".part"))
            .collect();
        parts.sort();
        parts
    }
}

/// Notes the events that matter as short lines.
#[derive(Default)]
pub(crate) struct Told {
    pub(crate) lines: Vec<String>,
    /// Ask for an end once so many bytes are here.
    pub(crate) cancel_at: Option<u64>,
    done: u64,
}

impl Progress for Told {
    fn event(&mut self, event: Event<'_>) {
        match event {
            Event::Started { resumed_at, .. } => self.lines.push(format!("from {resumed_at}")),
            Event::SourceFailed { error, .. } => self.lines.push(format!("failed: {error}")),
            Event::Retrying { error, .. } => self.lines.push(format!("retry: {error}")),
            Event::WaitingForLock { .. } => self.lines.push("waiting".into()),
            Event::Done { size, .. } => self.lines.push(format!("done {size}")),
            Event::Bytes { done, .. } => self.done = done,
            _ => {}
        }
    }

    fn cancelled(&self) -> bool {
        self.cancel_at.is_some_and(|at| self.done >= at)
    }
}

/// The model is there, and is `bytes`.
#[track_caller]
pub(crate) fn holds(model: &Result<LocalModel>, bytes: &[u8]) {
    let model = model.as_ref().unwrap_or_else(|error| panic!("{error}"));
    assert!(model.complete);
    assert!(std::fs::read(&model.path).unwrap() == bytes, "other bytes than expected");
}

#[track_caller]
pub(crate) fn fails(result: Result<LocalModel>) -> Error {
    result.expect_err("this should have failed")
}

pub(crate) fn read(path: &Path) -> String {
    String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).into_owned()
}
