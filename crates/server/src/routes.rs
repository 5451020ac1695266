//! The one table of routes. The router, the OpenAPI page and the documentation are made from it.

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{RawPathParams, Request};
use axum::http::Method;
use axum::response::Response;
use axum::routing::{MethodFilter, on};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use schemars::{JsonSchema, Schema, SchemaGenerator};

use crate::api::Api;
use crate::call::Call;
use crate::server::State;
use crate::{ApiError, Kind, Result, safety};

/// One endpoint.
#[derive(Clone)]
pub struct Route {
    /// Its method. What answers `GET` answers `HEAD` too.
    pub method: Method,
    /// Its path; `{name}` stands for a part, `{*name}` for all the rest.
    pub path: &'static str,
    /// The interface that it belongs to, which decides what its failures look like.
    pub api: Api,
    /// What it does, in one line.
    pub summary: &'static str,
    /// It needs no key.
    pub public: bool,
    /// How the answer comes if it comes in pieces.
    pub stream: Option<Stream>,
    /// The schema of its request.
    pub request: Option<fn(&mut SchemaGenerator) -> Schema>,
    /// The schema of its reply.
    pub response: Option<fn(&mut SchemaGenerator) -> Schema>,
    handler: Handler,
}

/// How an answer in pieces is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// Server-sent events.
    Events,
    /// One JSON object on each line.
    Lines,
}

impl Stream {
    /// Its content type.
    pub fn content_type(self) -> &'static str {
        match self {
            Stream::Events => "text/event-stream",
            Stream::Lines => "application/x-ndjson",
        }
    }
}

type Handler = Arc<dyn Fn(Call) -> BoxFuture<'static, Result<Response>> + Send + Sync>;

impl Route {
    /// A route that takes no body.
    pub fn get<F, R>(api: Api, path: &'static str, summary: &'static str, handler: F) -> Route
    where
        F: Fn(Call) -> R + Send + Sync + 'static,
        R: Future<Output = Result<Response>> + Send + 'static,
    {
        Route::new(Method::GET, api, path, summary, handler)
    }

    /// A route that takes a body.
    pub fn post<F, R>(api: Api, path: &'static str, summary: &'static str, handler: F) -> Route
    where
        F: Fn(Call) -> R + Send + Sync + 'static,
        R: Future<Output = Result<Response>> + Send + 'static,
    {
        Route::new(Method::POST, api, path, summary, handler)
    }

    /// A route of any method.
    pub fn new<F, R>(
        method: Method,
        api: Api,
        path: &'static str,
        summary: &'static str,
        handler: F,
    ) -> Route
    where
        F: Fn(Call) -> R + Send + Sync + 'static,
        R: Future<Output = Result<Response>> + Send + 'static,
    {
        let handler: Handler = Arc::new(move |call| handler(call).boxed());
        Route {
            method,
            path,
            api,
            summary,
            public: false,
            stream: None,
            request: None,
            response: None,
            handler,
        }
    }

    /// Says what its body is.
    #[must_use]
    pub fn takes<T: JsonSchema>(mut self) -> Route {
        self.request = Some(|generator| generator.subschema_for::<T>());
        self
    }

    /// Says what its reply is.
    #[must_use]
    pub fn gives<T: JsonSchema>(mut self) -> Route {
        self.response = Some(|generator| generator.subschema_for::<T>());
        self
    }

    /// Says that the answer can come in pieces.
    #[must_use]
    pub fn streams(mut self, stream: Stream) -> Route {
        self.stream = Some(stream);
        self
    }

    /// Says that it needs no key.
    #[must_use]
    pub fn public(mut self) -> Route {
        self.public = true;
        self
    }
}

impl fmt::Debug for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.method, self.path)
    }
}

/// Every route of the server.
pub fn all() -> Vec<Route> {
    [
        crate::openai::routes(),
        crate::anthropic::routes(),
        crate::ollama::routes(),
        crate::llama::routes(),
        crate::baton::routes(),
        crate::page::routes(),
        crate::openapi::routes(),
    ]
    .concat()
}

/// The router over `routes`.
pub(crate) fn router(routes: Vec<Route>, state: &Arc<State>) -> Router {
    let mut router = Router::new();
    for route in routes {
        let filter = MethodFilter::try_from(route.method.clone());
        let filter = filter.expect("the table has methods of HTTP only");
        let (path, state) = (route.path, Arc::clone(state));
        let route = Arc::new(route);
        let handler = move |params: RawPathParams, request: Request| {
            answer(Arc::clone(&route), Arc::clone(&state), params, request)
        };
        router = router.route(path, on(filter, handler));
    }
    let guard = axum::middleware::from_fn_with_state(Arc::clone(state), safety::guard);
    router.fallback(not_found).method_not_allowed_fallback(wrong_method).layer(guard)
}

async fn answer(
    route: Arc<Route>,
    state: Arc<State>,
    params: RawPathParams,
    request: Request,
) -> Response {
    let api = route.api;
    let outcome = AssertUnwindSafe(run(route, state, params, request)).catch_unwind().await;
    let outcome = outcome.unwrap_or_else(|_| {
        let message = "the server has a bug; its log says more";
        Err(ApiError::new(Kind::Internal, message))
    });
    outcome.unwrap_or_else(|error| {
        if error.kind == Kind::Internal {
            tracing::error!("{error}");
        }
        api.failure(&error)
    })
}

async fn run(
    route: Arc<Route>,
    state: Arc<State>,
    params: RawPathParams,
    request: Request,
) -> Result<Response> {
    let (parts, body) = request.into_parts();
    if !route.public {
        safety::authorize(&state.options, &parts.headers)?;
    }
    let body = safety::read_body(&state.options, body).await?;
    let owned = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
    let path = params.iter().map(owned).collect();
    (route.handler)(Call { state, parts, path, body }).await
}

async fn not_found(request: Request<Body>) -> Response {
    let path = request.uri().path();
    let message = format!("there is no {path} here; GET /openapi.json lists what there is");
    Api::of_path(path).failure(&ApiError::new(Kind::NotFound, message))
}

async fn wrong_method(request: Request<Body>) -> Response {
    let (method, path) = (request.method(), request.uri().path());
    let message = format!("{path} does not take {method}");
    Api::of_path(path).failure(&ApiError::new(Kind::MethodNotAllowed, message))
}
