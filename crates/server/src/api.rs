//! The interfaces that the server speaks, and how each shows a failure.

use axum::http::{HeaderValue, header};
use axum::response::Response;
use serde_json::{Value, json};

use crate::call::reply_with;
use crate::{ApiError, Kind};

/// An interface that clients know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Api {
    /// OpenAI's, below `/v1`.
    OpenAi,
    /// Anthropic's, `/v1/messages`.
    Anthropic,
    /// Ollama's, below `/api`.
    Ollama,
    /// That of llama.cpp's server.
    Llama,
    /// Baton's own: the web page and what it needs.
    Baton,
}

impl Api {
    /// All, in the order of the documentation.
    #[cfg(test)]
    pub const ALL: [Api; 5] = [Api::OpenAi, Api::Anthropic, Api::Ollama, Api::Llama, Api::Baton];

    /// Its name for people.
    pub fn title(self) -> &'static str {
        match self {
            Api::OpenAi => "OpenAI",
            Api::Anthropic => "Anthropic",
            Api::Ollama => "Ollama",
            Api::Llama => "llama-server",
            Api::Baton => "Baton",
        }
    }

    /// The interface that a client means who asks for a path that there is not.
    pub fn of_path(path: &str) -> Api {
        if path.starts_with("/api/baton") {
            Api::Baton
        } else if path.starts_with("/api") {
            Api::Ollama
        } else if path.starts_with("/v1/messages") {
            Api::Anthropic
        } else if path.starts_with("/v1") {
            Api::OpenAi
        } else {
            Api::Llama
        }
    }

    /// The body that tells a client of this interface of a failure.
    pub fn failure_body(self, error: &ApiError) -> Value {
        let (message, status) = (&error.message, error.kind.status().as_u16());
        match self {
            Api::Ollama => json!({ "error": message }),
            Api::Anthropic => {
                let kind = anthropic_kind(error.kind);
                json!({ "type": "error", "error": { "type": kind, "message": message } })
            }
            Api::Llama => {
                let kind = llama_kind(error.kind);
                json!({ "error": { "code": status, "message": message, "type": kind } })
            }
            Api::OpenAi | Api::Baton => {
                let (kind, code) = openai_kind(error.kind);
                let param = &error.param;
                let error =
                    json!({ "message": message, "type": kind, "param": param, "code": code });
                json!({ "error": error })
            }
        }
    }

    /// The reply that tells of a failure.
    pub fn failure(self, error: &ApiError) -> Response {
        let mut reply = reply_with(error.kind.status(), &self.failure_body(error));
        if let Some(seconds) = error.kind.retry_after() {
            reply.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if error.kind == Kind::Unauthorized {
            let scheme = HeaderValue::from_static("Bearer");
            reply.headers_mut().insert(header::WWW_AUTHENTICATE, scheme);
        }
        reply
    }
}

fn openai_kind(kind: Kind) -> (&'static str, Option<&'static str>) {
    let invalid = "invalid_request_error";
    match kind {
        Kind::Invalid | Kind::MethodNotAllowed | Kind::Timeout => (invalid, None),
        Kind::TooLong => (invalid, Some("context_length_exceeded")),
        Kind::Unauthorized => (invalid, Some("invalid_api_key")),
        Kind::Forbidden => (invalid, Some("forbidden")),
        Kind::NotFound => (invalid, Some("not_found")),
        Kind::NoModel => (invalid, Some("model_not_found")),
        Kind::TooLarge => (invalid, Some("request_too_large")),
        Kind::Unsupported => (invalid, Some("not_supported")),
        Kind::Busy => ("rate_limit_error", Some("rate_limit_exceeded")),
        Kind::Unavailable => ("server_error", Some("unavailable")),
        Kind::Upstream | Kind::Internal => ("server_error", None),
    }
}

fn anthropic_kind(kind: Kind) -> &'static str {
    match kind {
        Kind::Invalid | Kind::TooLong | Kind::MethodNotAllowed | Kind::Timeout => {
            "invalid_request_error"
        }
        Kind::Unsupported => "invalid_request_error",
        Kind::Unauthorized => "authentication_error",
        Kind::Forbidden => "permission_error",
        Kind::NotFound | Kind::NoModel => "not_found_error",
        Kind::TooLarge => "request_too_large",
        Kind::Busy => "rate_limit_error",
        Kind::Unavailable => "overloaded_error",
        Kind::Upstream | Kind::Internal => "api_error",
    }
}

fn llama_kind(kind: Kind) -> &'static str {
    match kind {
        Kind::Invalid | Kind::MethodNotAllowed | Kind::Timeout | Kind::TooLarge => {
            "invalid_request_error"
        }
        Kind::TooLong => "exceed_context_size_error",
        Kind::Unauthorized => "authentication_error",
        Kind::Forbidden => "permission_error",
        Kind::NotFound | Kind::NoModel => "not_found_error",
        Kind::Unsupported => "not_supported_error",
        Kind::Busy | Kind::Unavailable => "unavailable_error",
        Kind::Upstream | Kind::Internal => "server_error",
    }
}
