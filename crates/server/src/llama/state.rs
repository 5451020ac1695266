//! What the server is and does: `/health`, `/metrics`, `/props` and `/slots`.

use std::fmt::Write as _;

use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::Result;
use crate::call::{Call, reply};
use crate::models::Loaded;

/// What a loaded model is.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "LlamaProps")]
pub(super) struct Props {
    default_generation_settings: GenerationSettings,
    /// Answers that can be made at the same time.
    total_slots: usize,
    model_alias: String,
    /// The model's name: where its files are is nobody's business.
    model_path: String,
    chat_template: String,
    bos_token: String,
    eos_token: String,
    modalities: Modalities,
    build_info: String,
    /// Tokens of context that it was trained for.
    n_ctx_train: usize,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "LlamaGenerationSettings")]
struct GenerationSettings {
    /// Tokens of context that it was loaded with.
    n_ctx: usize,
    params: Map<String, Value>,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "LlamaModalities")]
struct Modalities {
    vision: bool,
    audio: bool,
}

/// Room for an answer, and the answer in it if there is one.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "LlamaSlot")]
pub(super) struct Slot {
    id: usize,
    /// Number of the request.
    id_task: i64,
    n_ctx: usize,
    speculative: bool,
    is_processing: bool,
    /// Tokens of its prompt.
    n_prompt_tokens: usize,
    /// Tokens in its cache.
    n_prompt_tokens_cache: usize,
    /// Tokens written so far.
    n_decoded: usize,
}

/// Says that the server is up.
pub(super) async fn health(_: Call) -> Result<Response> {
    Ok(reply(&json!({ "status": "ok" })))
}

/// Tells of a loaded model.
pub(super) async fn props(call: Call) -> Result<Response> {
    let model = call.query("model");
    let lease = call.state.models.lease_usual(model.as_deref()).await?;
    Ok(reply(&Props::new(&lease, call.state.models.options().scheduler.max_running)))
}

/// Tells of the answers that a model is making.
pub(super) async fn slots(call: Call) -> Result<Response> {
    let model = call.query("model");
    let lease = call.state.models.lease_usual(model.as_deref()).await?;
    let load = lease.load();
    let most = call.state.models.options().scheduler.max_running;
    let slot = |id: usize| {
        let running = load.slots.get(id).copied();
        let slot = running.unwrap_or_default();
        Slot {
            id,
            id_task: running.map_or(-1, |slot| i64::try_from(slot.id).unwrap_or(i64::MAX)),
            n_ctx: lease.context_length(),
            speculative: false,
            is_processing: running.is_some(),
            n_prompt_tokens: slot.prompt_tokens,
            n_prompt_tokens_cache: slot.cached_tokens,
            n_decoded: slot.generated_tokens,
        }
    };
    Ok(reply(&(0..most.max(load.slots.len())).map(slot).collect::<Vec<_>>()))
}

impl Props {
    fn new(loaded: &Loaded, total_slots: usize) -> Self {
        let recommended = loaded.facts.parameter_lines();
        let tokenizer = loaded.engine().tokenizer().ok();
        let token = |id: Option<u32>| tokenizer.and_then(|t| t.token(id?)).unwrap_or_default();
        Props {
            default_generation_settings: GenerationSettings {
                n_ctx: loaded.context_length(),
                params: recommended.into_iter().collect(),
            },
            total_slots,
            model_alias: loaded.name.clone(),
            model_path: loaded.name.clone(),
            chat_template: loaded.facts.template.clone().unwrap_or_default(),
            bos_token: token(tokenizer.and_then(|t| t.bos())),
            eos_token: token(tokenizer.and_then(|t| t.eos())),
            modalities: Modalities { vision: false, audio: false },
            build_info: format!("baton {}", env!("CARGO_PKG_VERSION")),
            n_ctx_train: loaded.facts.context_length,
        }
    }
}

/// Counters of the models in memory, each with the model's name as a label.
pub(super) async fn metrics(call: Call) -> Result<Response> {
    let running = call.state.models.running();
    let loads = running.iter().map(|one| (one.loaded.name.as_str(), one.loaded.load()));
    let loads: Vec<_> = loads.collect();
    let mut text = String::new();
    for metric in METRICS {
        let Metric { name, kind, help, .. } = metric;
        let _ = writeln!(text, "# HELP llamacpp:{name} {help}\n# TYPE llamacpp:{name} {kind}");
        for (model, load) in &loads {
            let model = model.replace('\\', "\\\\").replace('"', "\\\"");
            let value = (metric.value)(load);
            let _ = writeln!(text, "llamacpp:{name}{{model=\"{model}\"}} {value}");
        }
    }
    let content_type = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    Ok(([(header::CONTENT_TYPE, content_type)], text).into_response())
}

struct Metric {
    name: &'static str,
    kind: &'static str,
    help: &'static str,
    value: fn(&baton_engine::Load) -> f64,
}

const METRICS: [Metric; 11] = [
    Metric {
        name: "prompt_tokens_total",
        kind: "counter",
        help: "Number of prompt tokens processed.",
        value: |load| load.totals.prefilled_tokens as f64,
    },
    Metric {
        name: "prompt_seconds_total",
        kind: "counter",
        help: "Prompt process time.",
        value: |load| load.totals.prefill.as_secs_f64(),
    },
    Metric {
        name: "tokens_predicted_total",
        kind: "counter",
        help: "Number of generation tokens processed.",
        value: |load| load.totals.generated_tokens as f64,
    },
    Metric {
        name: "tokens_predicted_seconds_total",
        kind: "counter",
        help: "Predict process time.",
        value: |load| load.totals.decode.as_secs_f64(),
    },
    Metric {
        name: "n_decode_total",
        kind: "counter",
        help: "Total number of steps.",
        value: |load| load.totals.steps as f64,
    },
    Metric {
        name: "n_tokens_max",
        kind: "counter",
        help: "Largest observed number of tokens of an answer and its prompt.",
        value: |load| load.totals.most_tokens as f64,
    },
    Metric {
        name: "n_busy_slots_per_decode",
        kind: "gauge",
        help: "Average number of answers in a step.",
        value: |load| ratio(load.totals.busy_slots as f64, load.totals.steps as f64),
    },
    Metric {
        name: "prompt_tokens_seconds",
        kind: "gauge",
        help: "Average prompt throughput in tokens/s.",
        value: |load| ratio(load.totals.prefilled_tokens as f64, load.totals.prefill.as_secs_f64()),
    },
    Metric {
        name: "predicted_tokens_seconds",
        kind: "gauge",
        help: "Average generation throughput in tokens/s.",
        value: |load| ratio(load.totals.generated_tokens as f64, load.totals.decode.as_secs_f64()),
    },
    Metric {
        name: "requests_processing",
        kind: "gauge",
        help: "Number of requests processing.",
        value: |load| load.slots.len() as f64,
    },
    Metric {
        name: "requests_deferred",
        kind: "gauge",
        help: "Number of requests that wait.",
        value: |load| load.waiting as f64,
    },
];

fn ratio(sum: f64, count: f64) -> f64 {
    if count > 0.0 { sum / count } else { 0.0 }
}
