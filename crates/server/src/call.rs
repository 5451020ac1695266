//! One request as a handler gets it.

use std::sync::Arc;

use axum::body::Body;
use axum::http::request::Parts;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;
use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::server::State;
use crate::{ApiError, Kind, Result};

/// A request whose body has come in whole.
pub struct Call {
    /// What all requests share.
    pub state: Arc<State>,
    /// Method, address, headers.
    pub parts: Parts,
    /// The variable parts of the path, by name.
    pub path: Vec<(String, String)>,
    /// The body.
    pub body: Bytes,
}

impl Call {
    /// The body as JSON. It may come with any content type, as `curl` sends it; an empty one is an
    /// empty object.
    ///
    /// # Errors
    /// [`Kind::Invalid`] with the field that is at fault.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T> {
        let body = if self.body.iter().all(u8::is_ascii_whitespace) { b"{}" } else { &*self.body };
        let mut deserializer = serde_json::Deserializer::from_slice(body);
        let value = serde_path_to_error::deserialize(&mut deserializer).map_err(|error| {
            let path = error.path().to_string();
            bad_json(&path, error.inner())
        })?;
        deserializer.end().map_err(|error| bad_json("", &error))?;
        Ok(value)
    }

    /// A variable part of the path.
    ///
    /// # Errors
    /// If the route has no part of that name, which is a fault of the route.
    pub fn path(&self, name: &str) -> Result<&str> {
        let part = self.path.iter().find(|(known, _)| known == name);
        part.map(|(_, value)| value.as_str())
            .ok_or_else(|| ApiError::internal(format!("the route has no part {name:?}")))
    }

    /// A variable of the query behind the path, if it is there and not empty.
    pub fn query(&self, name: &str) -> Option<String> {
        let query = self.parts.uri.query().unwrap_or_default();
        let mut pairs = form_urlencoded::parse(query.as_bytes());
        let value = pairs.find_map(|(known, value)| (known == name).then_some(value))?;
        (!value.is_empty()).then(|| value.into_owned())
    }

    /// A header, if it is there and is text.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.parts.headers.get(name)?.to_str().ok()
    }
}

/// A reply of JSON.
pub fn reply(value: &impl Serialize) -> Response {
    reply_with(StatusCode::OK, value)
}

/// A reply of JSON with a status.
pub fn reply_with(status: StatusCode, value: &impl Serialize) -> Response {
    let body = serde_json::to_vec(value).expect("replies can be written as JSON");
    let mut reply = Response::new(Body::from(body));
    *reply.status_mut() = status;
    let json = HeaderValue::from_static("application/json");
    reply.headers_mut().insert(header::CONTENT_TYPE, json);
    reply
}

fn bad_json(path: &str, error: &serde_json::Error) -> ApiError {
    let message = error.to_string();
    // The path of a field that is not known ends at the object that has it.
    let unknown = message.strip_prefix("unknown field `").and_then(|rest| rest.split_once('`'));
    let mut param = if path == "." { String::new() } else { path.to_owned() };
    if let Some((field, _)) = unknown
        && !param.ends_with(field)
    {
        param = if param.is_empty() { field.to_owned() } else { format!("{param}.{field}") };
    }
    if error.is_syntax() || error.is_eof() {
        let message = format!("the body is not valid JSON: {message}");
        return ApiError::new(Kind::Invalid, message);
    }
    match param.as_str() {
        "" => ApiError::new(Kind::Invalid, message),
        param => ApiError::invalid(param, format!("{param}: {message}")),
    }
}
