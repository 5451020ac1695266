//! Getting models and giving them away: `/api/pull`, `/api/delete` and `/api/copy`.

use axum::body::Body;
use axum::http::{HeaderValue, header};
use axum::response::Response;
use bytes::Bytes;
use futures_util::stream::unfold;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::done;
use super::models::named;
use crate::call::{Call, reply};
use crate::fields::{Ignored, Refused};
use crate::models::Pulling;
use crate::routes::Stream;
use crate::{ApiError, Result};

/// Pieces of progress that wait for a client that reads slowly; it misses what comes beyond.
const WAITING: usize = 32;

/// Which model to fetch.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "OllamaPullRequest")]
pub(super) struct PullRequest {
    /// A name of the catalog, or `hf.co/ORG/REPO:QUANT`.
    model: Option<String>,
    /// As `model`.
    name: Option<String>,
    /// Whether progress is told; yes if not said.
    stream: Option<bool>,
    /// Certificates are always checked.
    #[serde(default, rename = "insecure")]
    _insecure: Refused,
    /// Nothing is fetched by name and password.
    #[serde(default, rename = "username")]
    _username: Ignored,
    /// Nothing is fetched by name and password.
    #[serde(default, rename = "password")]
    _password: Ignored,
}

/// How far something is.
#[derive(Default, Serialize, JsonSchema)]
#[schemars(rename = "OllamaProgress")]
pub(super) struct Progress {
    status: String,
    /// What the numbers are of: the name of a file.
    #[serde(skip_serializing_if = "Option::is_none")]
    digest: Option<String>,
    /// Bytes in all.
    #[serde(skip_serializing_if = "Option::is_none")]
    total: Option<u64>,
    /// Bytes that are here.
    #[serde(skip_serializing_if = "Option::is_none")]
    completed: Option<u64>,
}

/// Which model to delete.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "OllamaDeleteRequest")]
pub(super) struct DeleteRequest {
    /// The model.
    model: Option<String>,
    /// As `model`.
    name: Option<String>,
}

/// Which model gets which further name.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "OllamaCopyRequest")]
pub(super) struct CopyRequest {
    /// The model.
    source: String,
    /// The further name.
    destination: String,
}

/// Fetches a model. If the client goes away the download stops, and the next one goes on from there.
pub(super) async fn pull(call: Call) -> Result<Response> {
    let request: PullRequest = call.json()?;
    let name = named(request.model, request.name)?;
    let models = call.state.models.clone();
    let (progress, mut events) = mpsc::channel(WAITING);
    let outcome = tokio::spawn(async move { models.pull(&name, progress).await.map(drop) });
    if request.stream == Some(false) {
        // Dropped with this future, which ends the download.
        while events.recv().await.is_some() {}
        finished(outcome.await)?;
        return Ok(reply(&Progress::new("success")));
    }
    // What fails at once has a status of its own.
    let first = events.recv().await;
    let end = match first {
        Some(_) => End::Running(outcome),
        None => {
            finished(outcome.await)?;
            End::Success
        }
    };
    let manifest = Progress::new("pulling manifest");
    let steps = Steps { ready: line(&manifest), first, events, end: Some(end) };
    let lines = unfold(steps, |mut steps| async move {
        let bytes = steps.next().await?;
        Some((Ok::<Bytes, std::convert::Infallible>(bytes), steps))
    });
    let mut response = Response::new(Body::from_stream(lines));
    let content_type = HeaderValue::from_static(Stream::Lines.content_type());
    response.headers_mut().insert(header::CONTENT_TYPE, content_type);
    Ok(response)
}

/// Deletes a model.
pub(super) async fn delete(call: Call) -> Result<Response> {
    let request: DeleteRequest = call.json()?;
    call.state.models.delete(&named(request.model, request.name)?).await?;
    Ok(done())
}

/// Gives a model a further name.
pub(super) async fn copy(call: Call) -> Result<Response> {
    let request: CopyRequest = call.json()?;
    call.state.models.copy(&request.source, &request.destination).await?;
    Ok(done())
}

/// A download as a stream of lines.
struct Steps {
    /// A line to be sent before anything else is waited for.
    ready: Bytes,
    first: Option<Pulling>,
    events: mpsc::Receiver<Pulling>,
    /// Taken when it is over.
    end: Option<End>,
}

enum End {
    /// It will be known when there are no more events.
    Running(JoinHandle<Result<()>>),
    Success,
}

impl Steps {
    async fn next(&mut self) -> Option<Bytes> {
        let ready = std::mem::take(&mut self.ready);
        if !ready.is_empty() {
            return Some(ready);
        }
        let event = match self.first.take() {
            Some(event) => Some(event),
            None => self.events.recv().await,
        };
        if let Some(event) = event {
            return Some(line(&Progress::of(event)));
        }
        let outcome = match self.end.take()? {
            End::Running(outcome) => finished(outcome.await),
            End::Success => Ok(()),
        };
        Some(match outcome {
            Ok(()) => line(&Progress::new("success")),
            Err(error) => line(&json!({ "error": error.message })),
        })
    }
}

fn finished(outcome: Result<Result<()>, tokio::task::JoinError>) -> Result<()> {
    outcome.map_err(ApiError::internal)?
}

pub(super) fn line(value: &impl Serialize) -> Bytes {
    let mut line = serde_json::to_vec(value).expect("replies can be written as JSON");
    line.push(b'\n');
    line.into()
}

impl Progress {
    pub(super) fn new(status: impl Into<String>) -> Self {
        Progress { status: status.into(), ..Progress::default() }
    }

    fn of(event: Pulling) -> Self {
        match event {
            Pulling::Note { text } => Progress::new(text),
            Pulling::Trying { source } => Progress::new(format!("trying {source}")),
            Pulling::Failed { problem, retry: None } => Progress::new(problem),
            Pulling::Failed { problem, retry: Some(delay) } => {
                Progress::new(format!("{problem}; trying again in {} s", delay.as_secs()))
            }
            Pulling::Waiting { what } => Progress::new(format!("waiting for {what}")),
            Pulling::Bytes { file, done, total } => {
                let status = format!("pulling {file}");
                Progress { digest: Some(file), total, completed: Some(done), status }
            }
            Pulling::Verifying { .. } => Progress::new("verifying sha256 digest"),
            Pulling::Done { file, size } => Progress {
                status: format!("pulling {file}"),
                digest: Some(file),
                total: Some(size),
                completed: Some(size),
            },
        }
    }
}
