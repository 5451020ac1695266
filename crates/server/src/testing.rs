//! Models for the tests of this crate: tiny ones whose answers are known, in a store of their own.

use std::path::PathBuf;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::Request;
use axum::routing::get;
use baton_engine::LoadOptions;
use baton_hub::{Settings, Store};
use baton_models::testing::Successors;
use serde_json::{Value, json};
use tempfile::TempDir;
use tower::ServiceExt;

use crate::{ModelOptions, Models, ServeOptions, Server};

/// What [`Home::models`]' model `sky` answers.
pub const ANSWER: &str = "Sky blue!";
/// Context that they are loaded with.
pub const CONTEXT: usize = 256;

/// A folder with a store.
pub struct Home {
    dir: TempDir,
}

impl Home {
    /// An empty one.
    pub fn new() -> Home {
        Home { dir: tempfile::tempdir().unwrap() }
    }

    /// A path in it.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Its store; `catalog` is what the catalog has besides the built-in one.
    pub fn store(&self, catalog: &str) -> Store {
        let user_catalog = self.path("catalog.toml");
        std::fs::write(&user_catalog, catalog).unwrap();
        let mut settings = Settings::at(self.path("home"));
        settings.user_catalog = Some(user_catalog);
        settings.retries = 0;
        Store::with_settings(settings).unwrap()
    }

    /// Models that it has nothing of but what is given by path: `sky`, which answers [`ANSWER`], and
    /// `endless`, which does not end.
    pub async fn models(&self) -> Models {
        self.models_with(options()).await
    }

    /// As [`Home::models`], with other options.
    pub async fn models_with(&self, options: ModelOptions) -> Models {
        let models = Models::new(self.store(""), options).unwrap();
        self.give(&models, "sky", &Successors::answering(ANSWER)).await;
        self.give(&models, "endless", &Successors::endless()).await;
        models
    }

    /// Gives a further model by its path.
    pub async fn give(&self, models: &Models, name: &str, model: &Successors) {
        let path = self.path(&format!("{name}.gguf"));
        model.write(&path);
        assert_eq!(models.give(path).await.unwrap(), name);
    }

    /// Models of a store with `tiny` in its catalog, to be had from a server that runs as long as the
    /// test; nothing is installed.
    pub async fn with_catalog(&self) -> Models {
        let file = self.path("tiny.gguf");
        Successors::answering(ANSWER).write(&file);
        let bytes = Bytes::from(std::fs::read(file).unwrap());
        let size = bytes.len();
        let router = Router::new().route("/tiny.gguf", get(|| async move { bytes }));
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move { axum::serve(listener, router).await });
        let catalog = format!(
            "[models.tiny]\ntitle = \"A tiny model\"\nlicense = \"MIT\"\nsize = {size}\n\
             sources = [\"http://{address}/tiny.gguf\"]\n\
             [models.absent]\ntitle = \"None\"\nsources = [\"http://{address}/absent.gguf\"]\n"
        );
        Models::new(self.store(&catalog), options()).unwrap()
    }
}

/// Options for models as small as these.
pub fn options() -> ModelOptions {
    let load = LoadOptions { context: Some(CONTEXT), threads: Some(1), ..LoadOptions::default() };
    ModelOptions { load, ..ModelOptions::default() }
}

/// A request to answer a greeting.
pub fn hello(model: &str) -> Value {
    json!({ "model": model, "messages": [{ "role": "user", "content": "Hello" }] })
}

/// A request with more fields.
pub fn with(mut body: Value, more: Value) -> Value {
    let more = more.as_object().unwrap().clone();
    body.as_object_mut().unwrap().extend(more);
    body
}

/// A server's reply, read to its end.
#[derive(Debug)]
pub struct Reply {
    /// Its status.
    pub status: u16,
    /// Its content type.
    pub content_type: String,
    /// Its body.
    pub text: String,
}

impl Reply {
    /// Its body as JSON; the request must have been answered.
    pub fn json(&self) -> Value {
        assert_eq!(self.status, 200, "{self:?}");
        serde_json::from_str(&self.text).unwrap()
    }

    /// The lines of JSON that its body consists of; the request must have been answered.
    pub fn lines(&self) -> Vec<Value> {
        assert_eq!(self.status, 200, "{self:?}");
        assert_eq!(self.content_type, "application/x-ndjson");
        self.text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// The events that its body consists of, as names and data; the request must have been answered.
    pub fn events(&self) -> Vec<(String, Value)> {
        assert_eq!(self.status, 200, "{self:?}");
        assert_eq!(self.content_type, "text/event-stream");
        let events = self.text.split("\n\n").filter(|event| !event.is_empty());
        let events = events.filter(|event| !event.starts_with(':'));
        let event = |text: &str| {
            let of = |field: &str| text.lines().find_map(|line| line.strip_prefix(field));
            let name = of("event: ").unwrap_or_default().to_owned();
            (name, serde_json::from_str(of("data: ").unwrap()).unwrap())
        };
        events.map(event).collect()
    }

    /// Its body as JSON; the request must have been refused with this status.
    pub fn failed(&self, status: u16) -> Value {
        assert_eq!(self.status, status, "{self:?}");
        serde_json::from_str(&self.text).unwrap()
    }
}

/// Asks a server of these models.
pub async fn ask(models: &Models, method: &str, path: &str, body: Value) -> Reply {
    let router = Server::new(models.clone(), ServeOptions::default()).router();
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let request = Request::builder().method(method).uri(path).header("host", "localhost");
    let request = request.body(Body::from(body)).unwrap();
    let reply = router.oneshot(request).await.unwrap();
    let status = reply.status().as_u16();
    let content_type = reply.headers().get("content-type").map(|value| value.to_str().unwrap());
    let content_type = content_type.unwrap_or_default().to_owned();
    let bytes = axum::body::to_bytes(reply.into_body(), 1 << 24).await.unwrap();
    Reply { status, content_type, text: String::from_utf8(bytes.to_vec()).unwrap() }
}
