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
    if error.is_syntax() || error.is_eof() {
        return ApiError::new(Kind::Invalid, format!("the body is not valid JSON: {message}"));
    }
    let path = if path == "." { "" } else { path };
    // The path of a field that is not known, or that is not there, may end at its object.
    let below = |field: &str| match path.rsplit('.').next() {
        Some("") => field.to_owned(),
        Some(last) if last == field => path.to_owned(),
        _ => format!("{path}.{field}"),
    };
    let named = |start: &str| message.strip_prefix(start)?.split_once('`').map(|(name, _)| name);
    if let Some(field) = named("unknown field `") {
        let param = below(field);
        let message = format!("{param} is not a field of this request");
        return ApiError::invalid(param, message);
    }
    if let Some(field) = named("missing field `") {
        let param = below(field);
        let message = format!("{param} is missing");
        return ApiError::invalid(param, message);
    }
    match path {
        "" => ApiError::new(Kind::Invalid, message),
        path => ApiError::invalid(path, format!("{path}: {message}")),
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[allow(dead_code)]
    struct Outer {
        inner: Vec<Inner>,
    }

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[allow(dead_code)]
    struct Inner {
        number: u8,
    }

    fn fault(body: &str) -> (Option<String>, String) {
        let mut deserializer = serde_json::Deserializer::from_str(body);
        let error = serde_path_to_error::deserialize::<_, Outer>(&mut deserializer).unwrap_err();
        let error = bad_json(&error.path().to_string(), error.inner());
        (error.param, error.message)
    }

    #[test]
    fn the_field_at_fault_is_named() {
        for (body, param) in [
            ("{}", "inner"),
            (r#"{"x": 1}"#, "x"),
            (r#"{"inner": [{"number": 1}, {}]}"#, "inner[1].number"),
            (r#"{"inner": [{"number": 1, "y": 2}]}"#, "inner[0].y"),
            (r#"{"inner": [{"number": 300}]}"#, "inner[0].number"),
            (r#"{"inner": 5}"#, "inner"),
        ] {
            let (named, message) = fault(body);
            assert_eq!(named.as_deref(), Some(param), "{message}");
            assert!(message.contains(param), "{message}");
        }
        for body in ["", "{", "{\"inner\": [}"] {
            let (named, message) = fault(body);
            assert_eq!(named, None);
            assert!(message.contains("not valid JSON"), "{message}");
        }
    }
}
