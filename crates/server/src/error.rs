//! What went wrong with a request. Each interface shows it in the shape that its clients expect.

use axum::http::StatusCode;

/// The result of the server's functions.
pub type Result<T, E = ApiError> = std::result::Result<T, E>;

/// Why a request was not answered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ApiError {
    /// What kind of failure it is; decides the status.
    pub kind: Kind,
    /// What is wrong, and what to do instead.
    pub message: String,
    /// The field of the request that is at fault: `messages[2].content`.
    pub param: Option<String>,
}

/// Kinds of failures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// The request makes no sense.
    Invalid,
    /// The prompt does not fit the context.
    TooLong,
    /// The key is missing or wrong.
    Unauthorized,
    /// Requests from there are not taken.
    Forbidden,
    /// There is no such path or thing.
    NotFound,
    /// There is no such model here.
    NoModel,
    /// The path is known, the method is not.
    MethodNotAllowed,
    /// The body did not come in time.
    Timeout,
    /// The body is larger than the server takes.
    TooLarge,
    /// The request is understood, but Baton cannot do this.
    Unsupported,
    /// Too many requests wait.
    Busy,
    /// Not now: there is no memory, or the server is about to end.
    Unavailable,
    /// Another server that is needed failed.
    Upstream,
    /// A fault of ours.
    Internal,
}

impl Kind {
    /// The status that a reply has.
    pub fn status(self) -> StatusCode {
        match self {
            Kind::Invalid | Kind::TooLong => StatusCode::BAD_REQUEST,
            Kind::Unauthorized => StatusCode::UNAUTHORIZED,
            Kind::Forbidden => StatusCode::FORBIDDEN,
            Kind::NotFound | Kind::NoModel => StatusCode::NOT_FOUND,
            Kind::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
            Kind::Timeout => StatusCode::REQUEST_TIMEOUT,
            Kind::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Kind::Unsupported => StatusCode::NOT_IMPLEMENTED,
            Kind::Busy => StatusCode::TOO_MANY_REQUESTS,
            Kind::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
            Kind::Upstream => StatusCode::BAD_GATEWAY,
            Kind::Internal => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    /// Seconds after which to try again, for what may pass.
    pub fn retry_after(self) -> Option<u32> {
        matches!(self, Kind::Busy | Kind::Unavailable).then_some(1)
    }
}

impl ApiError {
    /// A failure that no field is to blame for.
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        ApiError { kind, message: message.into(), param: None }
    }

    /// A request that makes no sense because of a field.
    pub fn invalid(param: impl Into<String>, message: impl Into<String>) -> Self {
        let param = Some(param.into());
        ApiError { kind: Kind::Invalid, message: message.into(), param }
    }

    /// A field that is known and that Baton does not do. It is refused like one that makes no
    /// sense: clients repeat what failed with a status of 500 or more.
    pub fn unsupported(param: impl Into<String>, instead: &str) -> Self {
        let param = param.into();
        ApiError::invalid(param.clone(), format!("{param:?} is not supported; {instead}"))
    }

    /// A failure of ours; the request is not to blame.
    pub fn internal(cause: impl std::fmt::Display) -> Self {
        ApiError::new(Kind::Internal, cause.to_string())
    }
}

impl From<baton_engine::Error> for ApiError {
    fn from(error: baton_engine::Error) -> Self {
        use baton_engine::Error;
        let (kind, param) = match &error {
            Error::PromptTooLong { .. } => (Kind::TooLong, None),
            Error::EmptyPrompt => (Kind::Invalid, Some("prompt")),
            Error::TextTooLong { .. } => (Kind::TooLong, Some("input")),
            Error::EmptyText { .. } => (Kind::Invalid, Some("input")),
            Error::Dimensions { .. } => (Kind::Invalid, Some("dimensions")),
            Error::NoEmbeddingModel { .. } => (Kind::Invalid, Some("model")),
            Error::Option { name, .. } => (Kind::Invalid, Some(*name)),
            Error::Grammar { .. } | Error::Vocabulary { .. } => {
                (Kind::Invalid, Some(crate::chat::FORM))
            }
            Error::Text(baton_text::Error::BadStop { .. }) => (Kind::Invalid, Some("stop")),
            Error::Text(_) => (Kind::Invalid, None),
            Error::Busy { .. } => (Kind::Busy, None),
            Error::CacheFull { .. } | Error::Memory { .. } => (Kind::Unavailable, None),
            _ => (Kind::Internal, None),
        };
        ApiError { kind, message: error.to_string(), param: param.map(str::to_owned) }
    }
}
