//! `POST /slots/{id}`: a model's cache saved to disk, restored, forgotten.
//!
//! llama.cpp's server has one conversation in each slot and saves that. Here all answers share one
//! cache, so whatever the slot, all of it is meant.

use std::path::{Path, PathBuf};
use std::time::Instant;

use axum::response::Response;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::call::{Call, reply};
use crate::chat::blocking;
use crate::{ApiError, Kind, Result};

/// Most bytes of a file's name.
const MAX_NAME: usize = 128;

/// Which file.
#[derive(Deserialize, JsonSchema)]
#[schemars(rename = "LlamaSavedRequest")]
#[serde(deny_unknown_fields)]
pub(super) struct SavedRequest {
    /// Letters, digits, `.`, `_` and `-`; it lies in the folder that the server was started with.
    filename: Option<String>,
}

/// What was done.
#[derive(Default, Serialize, JsonSchema)]
#[schemars(rename = "LlamaSaved")]
pub(super) struct Saved {
    id_slot: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    filename: Option<String>,
    /// Tokens that were saved.
    #[serde(skip_serializing_if = "Option::is_none")]
    n_saved: Option<usize>,
    /// Bytes of the file.
    #[serde(skip_serializing_if = "Option::is_none")]
    n_written: Option<u64>,
    /// Tokens that were restored.
    #[serde(skip_serializing_if = "Option::is_none")]
    n_restored: Option<usize>,
    /// Bytes of the file.
    #[serde(skip_serializing_if = "Option::is_none")]
    n_read: Option<u64>,
    /// Tokens that were forgotten.
    #[serde(skip_serializing_if = "Option::is_none")]
    n_erased: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    timings: Option<Times>,
}

#[derive(Default, Serialize, JsonSchema)]
#[schemars(rename = "LlamaSavedTimes")]
struct Times {
    #[serde(skip_serializing_if = "Option::is_none")]
    save_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    restore_ms: Option<f64>,
}

enum Action {
    Save(PathBuf),
    Restore(PathBuf),
    Erase,
}

/// Saves, restores or forgets the cache.
pub(super) async fn act(call: Call) -> Result<Response> {
    let id_slot: usize = match call.path("id")?.parse() {
        Ok(id) if id < call.state.models.options().scheduler.max_running => id,
        _ => return Err(ApiError::invalid("id", "there is no such slot; GET /slots lists them")),
    };
    let SavedRequest { filename } = call.json()?;
    let folder = call.state.models.options().cache_folder.as_deref();
    let file = |name: &Option<String>| path_of(folder, name.as_deref());
    let action = match call.query("action").as_deref() {
        Some("save") => Action::Save(file(&filename)?),
        Some("restore") => Action::Restore(file(&filename)?),
        Some("erase") => Action::Erase,
        _ => return Err(ApiError::invalid("action", "action must be save, restore or erase")),
    };
    let lease = call.state.models.lease_usual(call.query("model").as_deref()).await?;
    let saved = blocking(move || {
        let engine = lease.engine()?;
        let started = Instant::now();
        let took = || Some(started.elapsed().as_secs_f64() * 1e3);
        let done = Saved { id_slot, filename, ..Saved::default() };
        Ok(match action {
            Action::Save(path) => {
                let saved = engine.save_cache(&path)?;
                let timings = Some(Times { save_ms: took(), ..Times::default() });
                let (n_saved, n_written) = (Some(saved.tokens), Some(saved.bytes));
                Saved { n_saved, n_written, timings, ..done }
            }
            Action::Restore(path) => {
                let restored = engine.restore_cache(&path).map_err(unreadable)?;
                let timings = Some(Times { restore_ms: took(), ..Times::default() });
                let (n_restored, n_read) = (Some(restored.tokens), Some(restored.bytes));
                Saved { n_restored, n_read, timings, ..done }
            }
            Action::Erase => {
                let before = engine.usage()?.kv_tokens;
                engine.clear_cache()?;
                let n_erased = Some(before - engine.usage()?.kv_tokens.min(before));
                Saved { n_erased, filename: None, ..done }
            }
        })
    });
    Ok(reply(&saved.await?))
}

/// A file in the folder that the server was started with, whatever the client says.
fn path_of(folder: Option<&Path>, name: Option<&str>) -> Result<PathBuf> {
    let Some(folder) = folder else {
        let problem = "caches are not saved here; start the server with --slot-save-path FOLDER";
        return Err(ApiError::new(Kind::Unsupported, problem));
    };
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    match name {
        Some(name)
            if name.chars().all(plain)
                && !name.is_empty()
                && !name.starts_with('.')
                && name.len() <= MAX_NAME =>
        {
            Ok(folder.join(name))
        }
        Some(_) => {
            let wanted = "filename must be of letters, digits, '.', '_' and '-', without a folder";
            Err(ApiError::invalid("filename", wanted))
        }
        None => Err(ApiError::invalid("filename", "filename is missing")),
    }
}

/// What is wrong with a file, without where it lies.
fn unreadable(error: baton_engine::Error) -> ApiError {
    use baton_engine::Error;
    match error {
        Error::Read { source, .. } if source.kind() == std::io::ErrorKind::NotFound => ApiError {
            param: Some("filename".into()),
            ..ApiError::new(Kind::NotFound, "there is no such file")
        },
        Error::Read { source, .. } => ApiError::internal(source),
        Error::SavedCache { .. } | Error::Exec(_) => {
            ApiError::invalid("filename", error.to_string())
        }
        error => error.into(),
    }
}
