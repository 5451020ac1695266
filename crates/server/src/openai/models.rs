//! `/v1/models`: which models are here.

use std::time::UNIX_EPOCH;

use axum::response::Response;
use schemars::JsonSchema;
use serde::Serialize;

use crate::Result;
use crate::call::{Call, reply};
use crate::models::Installed;
use crate::server::State;
use crate::{ApiError, Kind};

/// All models that are here.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[schemars(rename = "ModelList")]
pub struct List {
    object: &'static str,
    data: Vec<Model>,
}

/// A model that is here.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Model {
    /// Its name.
    id: String,
    object: &'static str,
    /// When it was fetched, in seconds since 1970.
    created: u64,
    owned_by: &'static str,
    /// Tokens that a prompt and its answer have room for together: as the model is loaded, or as it
    /// would be.
    context_length: usize,
    /// Tokens that it was trained for.
    max_context_length: usize,
    /// Whether it is in memory.
    loaded: bool,
    /// What it can do.
    capabilities: Vec<&'static str>,
}

/// What is left of a model.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[schemars(rename = "DeletedModel")]
pub struct Deleted {
    id: String,
    object: &'static str,
    deleted: bool,
}

/// Lists the models.
pub async fn list(call: Call) -> Result<Response> {
    let installed = call.state.models.installed().await?;
    let data = installed.iter().map(|installed| model(&call.state, installed)).collect();
    Ok(reply(&List { object: "list", data }))
}

/// One model.
pub async fn one(call: Call) -> Result<Response> {
    let name = call.path("model")?;
    let installed = find(&call.state, name).await?;
    // Clients compare the name with the one they asked for.
    Ok(reply(&Model { id: name.to_owned(), ..model(&call.state, &installed) }))
}

/// Deletes a model.
pub async fn delete(call: Call) -> Result<Response> {
    let name = call.path("model")?;
    call.state.models.delete(name).await?;
    Ok(reply(&Deleted { id: name.to_owned(), object: "model", deleted: true }))
}

async fn find(state: &State, name: &str) -> Result<Installed> {
    let canonical = state.models.canonical(name)?;
    let installed = state.models.installed().await?;
    installed.into_iter().find(|installed| installed.name == canonical).ok_or_else(|| {
        let message = format!("model {name:?} not found; GET /v1/models lists what is here");
        ApiError { param: Some("model".into()), ..ApiError::new(Kind::NoModel, message) }
    })
}

fn model(state: &State, installed: &Installed) -> Model {
    let running = state.models.running();
    let loaded = running.iter().find(|running| running.loaded.name == installed.name);
    let trained = installed.facts.as_ref().map_or(0, |facts| facts.context_length);
    let wanted = state.models.options().load.context.unwrap_or(trained).min(trained);
    let created = installed.facts.as_ref().and_then(|f| f.modified.duration_since(UNIX_EPOCH).ok());
    Model {
        id: installed.name.clone(),
        object: "model",
        created: created.map_or(0, |time| time.as_secs()),
        owned_by: "baton",
        context_length: loaded.map_or(wanted, |running| running.loaded.context_length()),
        max_context_length: trained,
        loaded: loaded.is_some(),
        capabilities: installed.facts.as_ref().map_or(Vec::new(), |f| f.capabilities.names()),
    }
}
