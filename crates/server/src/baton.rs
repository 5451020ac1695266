//! Baton's own interface: what the web page wants to know and no other interface tells.

use axum::response::Response;
use baton_engine::{available_memory, process_memory};
use schemars::JsonSchema;
use serde::Serialize;

use crate::Result;
use crate::api::Api;
use crate::call::{Call, reply};
use crate::models::Running;
use crate::routes::Route;

/// Every endpoint.
pub fn routes() -> Vec<Route> {
    vec![
        Route::get(Api::Baton, "/api/baton/catalog", "The models that can be fetched", catalog)
            .gives::<Catalog>(),
        Route::get(Api::Baton, "/api/baton/status", "What the server does and needs", status)
            .gives::<Status>(),
    ]
}

/// The models that can be fetched by name.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "BatonCatalog")]
struct Catalog {
    models: Vec<Offer>,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "BatonOffer")]
struct Offer {
    name: String,
    /// One line that says what it is.
    title: String,
    license: Option<String>,
    /// Bytes to fetch, if known.
    size: Option<u64>,
    /// Whether it is on this machine.
    installed: bool,
}

/// What the server does and needs.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "BatonStatus")]
struct Status {
    version: &'static str,
    memory: Memory,
    /// The models in memory.
    models: Vec<Loaded>,
}

/// Bytes, where the system tells.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "BatonMemory")]
struct Memory {
    /// In use by the server, mapped files included.
    process_bytes: Option<u64>,
    /// That the system can still give.
    available_bytes: Option<u64>,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "BatonLoaded")]
struct Loaded {
    name: String,
    units: Units,
    /// Tokens that a prompt and its answer have room for together.
    context_length: usize,
    /// Answers that are being made.
    running: usize,
    /// Requests that wait for their turn.
    waiting: usize,
}

/// The compute unit of each phase.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "BatonUnits")]
struct Units {
    prefill: &'static str,
    decode: &'static str,
}

async fn catalog(call: Call) -> Result<Response> {
    let models = &call.state.models;
    let installed = models.installed().await?;
    let offer = |entry: &baton_hub::Entry| Offer {
        name: entry.name.clone(),
        title: entry.title.clone(),
        license: entry.license.clone(),
        size: entry.size,
        installed: installed.iter().any(|model| model.name == entry.name),
    };
    Ok(reply(&Catalog { models: models.catalog().entries().map(offer).collect() }))
}

async fn status(call: Call) -> Result<Response> {
    let models = &call.state.models;
    let unit = models.options().load.unit.name();
    let loaded = |running: &Running| {
        let load = running.loaded.load();
        Loaded {
            name: running.loaded.name.clone(),
            units: Units { prefill: unit, decode: unit },
            context_length: running.loaded.context_length(),
            running: load.slots.len(),
            waiting: load.waiting,
        }
    };
    Ok(reply(&Status {
        version: env!("CARGO_PKG_VERSION"),
        memory: Memory { process_bytes: process_memory(), available_bytes: available_memory() },
        models: models.running().iter().map(loaded).collect(),
    }))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::testing::{CONTEXT, Home, ask};

    #[tokio::test]
    async fn the_page_learns_what_there_is_and_what_goes_on() {
        let home = Home::new();
        let models = home.with_catalog().await;
        let installed = async || {
            let catalog = ask(&models, "GET", "/api/baton/catalog", Value::Null).await.json();
            let all = catalog["models"].as_array().unwrap();
            let tiny = all.iter().find(|model| model["name"] == "tiny").unwrap();
            assert_eq!((&tiny["title"], &tiny["license"]), (&json!("A tiny model"), &json!("MIT")));
            assert!(tiny["size"].as_u64().unwrap() > 1000 && all.len() > 5);
            tiny["installed"].as_bool().unwrap()
        };
        assert!(!installed().await);
        let body = json!({ "model": "tiny", "stream": false });
        ask(&models, "POST", "/api/pull", body).await.json();
        assert!(installed().await);

        let _lease = models.lease("tiny", None).await.unwrap();
        let status = ask(&models, "GET", "/api/baton/status", Value::Null).await.json();
        let expected = json!([{
            "name": "tiny", "units": { "prefill": "cpu", "decode": "cpu" },
            "context_length": CONTEXT, "running": 0, "waiting": 0,
        }]);
        assert_eq!(status["models"], expected);
        assert!(status["memory"]["available_bytes"].as_u64().unwrap() > 1 << 20);
        if cfg!(target_os = "linux") {
            assert!(status["memory"]["process_bytes"].as_u64().unwrap() > 1 << 20);
        }
    }
}
