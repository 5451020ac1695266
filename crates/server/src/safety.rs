//! Who may ask, and how much: host names, origins, keys, sizes and times.
//!
//! The server listens on this machine, where the user's browser runs the programs of strangers. A
//! page can send requests here in two ways. By its own address, which it then names in `Origin`:
//! that is refused unless the address is allowed. Or by a name of its own that it makes point here:
//! then `Host` has that name, and only names that no stranger can own are taken.

use std::net::IpAddr;
use std::sync::Arc;

use axum::body::{Body, HttpBody, to_bytes};
use axum::extract::{Request, State as Shared};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use subtle::ConstantTimeEq;

use crate::api::Api;
use crate::server::{ServeOptions, State};
use crate::{ApiError, Kind, Result};

/// Seconds for which a browser may remember what it was allowed.
const PREFLIGHT_AGE: &str = "600";

/// Lets a request through that may come in, and adds what browsers want to read in the reply.
pub(crate) async fn guard(
    Shared(state): Shared<Arc<State>>,
    request: Request,
    next: Next,
) -> Response {
    let api = Api::of_path(request.uri().path());
    let admitted = check_host(&state.options, &request)
        .and_then(|host| check_origin(&state.options, &request, host.as_deref()));
    let (mut reply, origin) = match admitted {
        Err(error) => (api.failure(&error), None),
        Ok(Some(origin)) if is_preflight(&request) => {
            let wanted = request.headers().get(header::ACCESS_CONTROL_REQUEST_HEADERS).cloned();
            (preflight(wanted), Some(origin))
        }
        Ok(origin) => (next.run(request).await, origin),
    };
    let headers = reply.headers_mut();
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    if let Some(origin) = origin {
        headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        headers.append(header::VARY, HeaderValue::from_static("origin"));
    }
    reply
}

/// Checks the name by which the client knows the server, and gives it with its port.
fn check_host(options: &ServeOptions, request: &Request) -> Result<Option<String>> {
    let header = request.headers().get(header::HOST).map(HeaderValue::to_str);
    let host = match (request.uri().authority(), header) {
        (Some(authority), _) => authority.as_str().to_owned(),
        (None, Some(Ok(host))) => host.to_owned(),
        (None, Some(Err(_))) => {
            return Err(ApiError::new(Kind::Forbidden, "the Host header is not text"));
        }
        // Only programs ask without; every browser names the host.
        (None, None) => return Ok(None),
    };
    if is_own_name(options, host_name(&host)) {
        return Ok(Some(host));
    }
    let message = format!(
        "requests for the host {host:?} are not taken, as a web page could send them; \
         start the server with --allowed-hosts if the name is yours"
    );
    Err(ApiError::new(Kind::Forbidden, message))
}

/// The host without its port, and an IPv6 address without its brackets.
fn host_name(host: &str) -> &str {
    match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, _)) => address,
        None => host.rsplit_once(':').map_or(host, |(name, _)| name),
    }
}

/// Whether no stranger can make a name of his own point here by this name: addresses are no names,
/// and those below `localhost` and `internal` are not in the public directory.
fn is_own_name(options: &ServeOptions, name: &str) -> bool {
    let name = name.trim_end_matches('.').to_ascii_lowercase();
    let private = ["localhost", "internal"];
    name.parse::<IpAddr>().is_ok()
        || private.iter().any(|top| {
            name.strip_suffix(top).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
        })
        || options.allowed_hosts.iter().any(|own| own == "*" || own.eq_ignore_ascii_case(&name))
}

/// Checks the page that a browser says the request is from. Gives it if the page is another's, to be
/// named in the reply.
fn check_origin(
    options: &ServeOptions,
    request: &Request,
    host: Option<&str>,
) -> Result<Option<HeaderValue>> {
    let Some(origin) = request.headers().get(header::ORIGIN) else { return Ok(None) };
    let text = origin.to_str().unwrap_or_default();
    let own = text.split_once("://").map(|(_, authority)| authority);
    if own.is_some() && own == host {
        return Ok(None);
    }
    if options.cors_origins.iter().any(|allowed| allowed == "*" || allowed == text) {
        return Ok(Some(origin.clone()));
    }
    let message = format!(
        "pages from {text:?} may not use this server; start it with --cors {text} to allow that"
    );
    Err(ApiError::new(Kind::Forbidden, message))
}

fn is_preflight(request: &Request) -> bool {
    let asks = request.headers().contains_key(header::ACCESS_CONTROL_REQUEST_METHOD);
    request.method() == Method::OPTIONS && asks
}

fn preflight(headers: Option<HeaderValue>) -> Response {
    let mut reply = StatusCode::NO_CONTENT.into_response();
    let methods = HeaderValue::from_static("GET, HEAD, POST, DELETE");
    reply.headers_mut().insert(header::ACCESS_CONTROL_ALLOW_METHODS, methods);
    let age = HeaderValue::from_static(PREFLIGHT_AGE);
    reply.headers_mut().insert(header::ACCESS_CONTROL_MAX_AGE, age);
    if let Some(headers) = headers {
        reply.headers_mut().insert(header::ACCESS_CONTROL_ALLOW_HEADERS, headers);
    }
    reply
}

/// Checks the key, if the server has one. How long that takes tells nothing of the key but its
/// length.
pub(crate) fn authorize(options: &ServeOptions, headers: &HeaderMap) -> Result<()> {
    let Some(wanted) = &options.api_key else { return Ok(()) };
    let bearer = headers.get(header::AUTHORIZATION).map(HeaderValue::as_bytes);
    let bearer = bearer.and_then(|value| {
        let (scheme, key) = value.split_at_checked("Bearer ".len())?;
        scheme.eq_ignore_ascii_case(b"Bearer ").then(|| key.trim_ascii())
    });
    let plain = headers.get("x-api-key").map(HeaderValue::as_bytes);
    let fits = |key: Option<&[u8]>| key.is_some_and(|key| key.ct_eq(wanted.as_bytes()).into());
    if fits(bearer) | fits(plain) {
        return Ok(());
    }
    let message = match bearer.or(plain) {
        None => "this server wants an API key, as `Authorization: Bearer KEY` or `x-api-key: KEY`",
        Some(_) => "the API key is wrong",
    };
    Err(ApiError::new(Kind::Unauthorized, message))
}

/// Reads a body, if it is not too large and comes in time.
pub(crate) async fn read_body(options: &ServeOptions, body: Body) -> Result<Bytes> {
    // A length that is too much is refused before the client is told to go on and send it.
    if body.size_hint().lower() > options.max_body as u64 {
        return Err(too_large(options));
    }
    let whole = to_bytes(body, options.max_body);
    match tokio::time::timeout(options.body_timeout, whole).await {
        Ok(Ok(body)) => Ok(body),
        Ok(Err(error)) => Err(unread(options, &error)),
        Err(_) => {
            let seconds = options.body_timeout.as_secs();
            let message = format!("the body did not come within {seconds} s");
            Err(ApiError::new(Kind::Timeout, message))
        }
    }
}

fn unread(options: &ServeOptions, error: &axum::Error) -> ApiError {
    let mut cause: Option<&dyn std::error::Error> = Some(error);
    while let Some(error) = cause {
        // Its type is that of a crate that axum keeps to itself.
        if error.to_string().contains("length limit exceeded") {
            return too_large(options);
        }
        cause = error.source();
    }
    ApiError::new(Kind::Invalid, format!("the body cannot be read: {error}"))
}

fn too_large(options: &ServeOptions) -> ApiError {
    ApiError::new(Kind::TooLarge, format!("the body is larger than {} bytes", options.max_body))
}

#[cfg(test)]
mod tests;
