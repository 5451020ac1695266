//! What models there are, and what each is: `/api/tags`, `/api/ps` and `/api/show`.

use std::fmt::Write as _;
use std::time::SystemTime;

use axum::response::Response;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::call::{Call, reply};
use crate::fields::Refused;
use crate::models::name::tagged;
use crate::models::{Facts, Installed, Running};
use crate::{ApiError, Result};

/// The models on this machine.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "OllamaTags")]
pub(super) struct Tags {
    models: Vec<Tag>,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "OllamaTag")]
struct Tag {
    name: String,
    model: String,
    modified_at: String,
    size: u64,
    /// SHA-256 of the file.
    digest: String,
    details: Details,
    capabilities: Vec<&'static str>,
}

/// What a model is, in short.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "OllamaDetails")]
struct Details {
    parent_model: String,
    format: &'static str,
    family: String,
    families: Vec<String>,
    parameter_size: String,
    quantization_level: String,
    /// Tokens of context that it was trained for.
    context_length: usize,
    embedding_length: usize,
}

/// The models in memory.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "OllamaProcesses")]
pub(super) struct Processes {
    models: Vec<Process>,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "OllamaProcess")]
struct Process {
    name: String,
    model: String,
    /// Bytes of memory that it was expected to need.
    size: u64,
    digest: String,
    details: Details,
    /// When it will be unloaded if nobody uses it.
    expires_at: String,
    /// Bytes of it in a GPU's own memory.
    size_vram: u64,
    /// Tokens of context that it was loaded with.
    context_length: usize,
}

/// Which model to show.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "OllamaShowRequest")]
pub(super) struct ShowRequest {
    /// The model.
    model: Option<String>,
    /// As `model`.
    name: Option<String>,
    /// Whether to show lists such as the vocabulary, and every tensor.
    verbose: Option<bool>,
    /// What is shown is the model as it is.
    #[serde(default, rename = "system")]
    _system: Refused,
    /// The model's own template is used.
    #[serde(default, rename = "template")]
    _template: Refused,
    /// What is shown is the model as it is.
    #[serde(default, rename = "options")]
    _options: Refused,
}

/// Everything of a model.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "OllamaShown")]
pub(super) struct Shown {
    #[serde(skip_serializing_if = "Option::is_none")]
    license: Option<String>,
    modelfile: String,
    /// Parameters that are set or recommended, one on each line.
    #[serde(skip_serializing_if = "String::is_empty")]
    parameters: String,
    /// Instructions for conversations that have none.
    #[serde(skip_serializing_if = "Option::is_none")]
    system: Option<String>,
    /// The chat template, in Jinja.
    #[serde(skip_serializing_if = "Option::is_none")]
    template: Option<String>,
    details: Details,
    model_info: Map<String, Value>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tensors: Vec<Value>,
    capabilities: Vec<&'static str>,
    modified_at: String,
}

/// Lists the models on this machine, the latest first.
pub(super) async fn tags(call: Call) -> Result<Response> {
    let mut installed = call.state.models.installed().await?;
    installed
        .sort_by_key(|model| std::cmp::Reverse(model.facts.as_ref().map(|facts| facts.modified)));
    Ok(reply(&Tags { models: installed.iter().filter_map(Tag::new).collect() }))
}

/// Lists the models in memory.
pub(super) async fn ps(call: Call) -> Result<Response> {
    let running = call.state.models.running();
    Ok(reply(&Processes { models: running.iter().map(Process::new).collect() }))
}

/// Shows one model.
pub(super) async fn show(call: Call) -> Result<Response> {
    let request: ShowRequest = call.json()?;
    let name = named(request.model, request.name)?;
    let models = &call.state.models;
    let facts = models.facts(&name).await?;
    let verbose = request.verbose == Some(true);
    let details = models.details(&name, verbose).await?;
    Ok(reply(&Shown {
        license: facts.license.clone(),
        modelfile: modelfile(&name, &facts),
        parameters: parameters(&facts, ""),
        system: facts.defaults.system.clone(),
        template: facts.template.clone(),
        details: Details::new(&facts),
        model_info: details.info,
        tensors: if verbose { details.tensors } else { Vec::new() },
        capabilities: facts.capabilities.names(),
        modified_at: timestamp(facts.modified),
    }))
}

/// The model that a request names by `model`, or by `name` as older clients do.
///
/// # Errors
/// If it names none.
pub(super) fn named(model: Option<String>, name: Option<String>) -> Result<String> {
    let given = model.filter(|name| !name.is_empty()).or(name).filter(|name| !name.is_empty());
    given.ok_or_else(|| ApiError::invalid("model", "model is required"))
}

impl Tag {
    /// `None` for files that Baton does not understand.
    fn new(installed: &Installed) -> Option<Self> {
        let facts = installed.facts.as_ref()?;
        let name = tagged(&installed.name);
        Some(Tag {
            model: name.clone(),
            name,
            modified_at: timestamp(facts.modified),
            size: facts.size,
            digest: facts.digest.clone(),
            details: Details::new(facts),
            capabilities: facts.capabilities.names(),
        })
    }
}

impl Process {
    fn new(running: &Running) -> Self {
        let loaded = &running.loaded;
        let name = tagged(&loaded.name);
        Process {
            model: name.clone(),
            name,
            size: loaded.memory().total(),
            digest: loaded.facts.digest.clone(),
            details: Details::new(&loaded.facts),
            expires_at: match running.expires {
                Some(at) => timestamp(at),
                // Far away, as Ollama writes it.
                None => "2318-01-01T00:00:00Z".into(),
            },
            size_vram: 0,
            context_length: loaded.context_length(),
        }
    }
}

impl Details {
    fn new(facts: &Facts) -> Self {
        Details {
            parent_model: String::new(),
            format: facts.format,
            family: facts.architecture.clone(),
            families: vec![facts.architecture.clone()],
            parameter_size: facts.parameter_size(),
            quantization_level: facts.quantization.clone(),
            context_length: facts.context_length,
            embedding_length: facts.embedding_length,
        }
    }
}

fn parameters(facts: &Facts, prefix: &str) -> String {
    let mut lines = String::new();
    for (name, value) in facts.parameter_lines() {
        let line_break = if lines.is_empty() { "" } else { "\n" };
        let _ = write!(lines, "{line_break}{prefix}{name:<30} {value}");
    }
    lines
}

/// A Modelfile that would make this model.
fn modelfile(name: &str, facts: &Facts) -> String {
    let mut text = format!("# Modelfile generated by \"baton\"\nFROM {}\n", tagged(name));
    if let Some(template) = &facts.template {
        text += &format!("TEMPLATE \"\"\"{template}\"\"\"\n");
    }
    if let Some(system) = &facts.defaults.system {
        text += &format!("SYSTEM \"\"\"{system}\"\"\"\n");
    }
    let lines = parameters(facts, "PARAMETER ");
    if !lines.is_empty() {
        text += &format!("{lines}\n");
    }
    if let Some(license) = &facts.license {
        text += &format!("LICENSE \"\"\"{license}\"\"\"\n");
    }
    text
}

fn timestamp(time: SystemTime) -> String {
    jiff::Timestamp::try_from(time).unwrap_or(jiff::Timestamp::UNIX_EPOCH).to_string()
}
