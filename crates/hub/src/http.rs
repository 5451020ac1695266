//! HTTP requests: time-outs, redirects that never carry the token to another host, statuses as
//! errors, and when to try again.

use std::io::Read;
use std::time::Duration;

use serde::de::DeserializeOwned;
use ureq::http::{HeaderMap, Uri};
use ureq::tls::{RootCerts, TlsConfig};
use ureq::{Agent, Body};

use crate::error::MAX_WAIT;
use crate::{Error, Event, Progress, Result, Settings, Token};

const MAX_REDIRECTS: usize = 10;
/// A listing of ten thousand files is about 3 MB.
const MAX_JSON: u64 = 32 << 20;

/// Asks servers, as the settings say.
pub(crate) struct Client {
    agent: Agent,
    hub: Option<Origin>,
    token: Option<Token>,
    retries: u32,
    backoff: Duration,
}

/// An answer with status 200, 206 or 416, its body not yet read.
pub(crate) struct Answer {
    /// The address asked first: what people know.
    pub url: String,
    pub status: u16,
    pub headers: HeaderMap,
    pub body: Body,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }
}

/// Scheme, host and port: what a secret may be shown to.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Origin(String, String, u16);

impl Origin {
    fn of(url: &str) -> Option<Self> {
        let uri: Uri = url.parse().ok()?;
        let scheme = uri.scheme_str()?.to_ascii_lowercase();
        let default = match scheme.as_str() {
            "http" => 80,
            "https" => 443,
            _ => return None,
        };
        let host = uri.host().filter(|host| !host.is_empty())?.to_ascii_lowercase();
        Some(Self(scheme, host, uri.port_u16().unwrap_or(default)))
    }

    fn is_this_machine(&self) -> bool {
        let host = self.1.trim_start_matches('[').trim_end_matches(']');
        let address = host.parse::<std::net::IpAddr>();
        host == "localhost" || address.is_ok_and(|address| address.is_loopback())
    }
}

/// Whether `text` is an address that can be asked.
pub(crate) fn is_address(text: &str) -> bool {
    Origin::of(text).is_some()
}

impl Client {
    pub(crate) fn new(settings: &Settings) -> Self {
        let tls = TlsConfig::builder().root_certs(RootCerts::PlatformVerifier).build();
        let config = Agent::config_builder()
            .tls_config(tls)
            .http_status_as_error(false)
            // Followed by hand, to decide about the token at each step.
            .max_redirects(0)
            .max_redirects_will_error(false)
            .user_agent(concat!("baton/", env!("CARGO_PKG_VERSION")))
            // A compressed body would make sizes and ranges meaningless.
            .accept_encoding("identity")
            .timeout_resolve(Some(settings.connect_timeout))
            .timeout_connect(Some(settings.connect_timeout))
            .timeout_send_request(Some(settings.idle_timeout))
            .timeout_recv_response(Some(settings.idle_timeout))
            .timeout_per_read(Some(settings.idle_timeout))
            .build();
        Self {
            agent: config.new_agent(),
            hub: Origin::of(&settings.hf_endpoint),
            token: settings.hf_token.clone(),
            retries: settings.retries,
            backoff: settings.backoff,
        }
    }

    /// Sends one GET and follows redirects; `what` names the thing asked for in errors.
    pub(crate) fn get(&self, url: &str, headers: &[(&str, &str)], what: &str) -> Result<Answer> {
        let mut here = url.to_owned();
        for _ in 0..=MAX_REDIRECTS {
            let origin = Origin::of(&here).ok_or_else(|| bad_response(url, "a broken address"))?;
            let to_hub = Some(&origin) == self.hub.as_ref();
            let mut request = self.agent.get(&here);
            for (name, value) in headers {
                request = request.header(*name, *value);
            }
            if let Some(token) = self.token.as_ref().filter(|_| to_hub) {
                request = request.header("Authorization", format!("Bearer {}", token.expose()));
            }
            if origin.is_this_machine() {
                // No proxy leads there.
                request = request.config().proxy(None).build();
            }
            let answer = request.call().map_err(|error| failure(url, error))?;
            let (parts, body) = answer.into_parts();
            let status = parts.status.as_u16();
            let header = |name: &str| parts.headers.get(name).and_then(|value| value.to_str().ok());
            match status {
                200 | 206 | 416 => {
                    return Ok(Answer { url: url.into(), status, headers: parts.headers, body });
                }
                301 | 302 | 303 | 307 | 308 => {
                    let next = header("location").and_then(|location| join(&here, location));
                    let next = next.ok_or_else(|| bad_response(url, "a redirect to nowhere"))?;
                    if here.starts_with("https:") && !next.starts_with("https:") {
                        return Err(bad_response(
                            url,
                            "a redirect from https to an open connection",
                        ));
                    }
                    here = next;
                }
                401 | 403 if to_hub => {
                    let token_sent = self.token.is_some();
                    return Err(Error::Gated { url: url.into(), status, token_sent });
                }
                404 => return Err(Error::NotFound { what: what.into(), url: url.into() }),
                429 => {
                    let seconds = header("retry-after").and_then(|text| text.trim().parse().ok());
                    let delay = Duration::from_secs(seconds.unwrap_or(10));
                    return Err(Error::RateLimited { url: url.into(), delay });
                }
                _ => return Err(Error::Status { url: url.into(), status }),
            }
        }
        Err(bad_response(url, "too many redirects"))
    }

    /// Gets a JSON document and the answer's headers, trying again where that may help.
    pub(crate) fn get_json<T: DeserializeOwned>(
        &self,
        url: &str,
        what: &str,
        progress: &mut dyn Progress,
    ) -> Result<(T, HeaderMap)> {
        let mut attempts = self.attempts();
        loop {
            let result = self.get(url, &[], what).and_then(|answer| {
                let mut bytes = Vec::new();
                let read = answer.body.into_reader().take(MAX_JSON + 1).read_to_end(&mut bytes);
                read.map_err(|error| dropped(url, bytes.len() as u64, &error))?;
                if bytes.len() as u64 > MAX_JSON {
                    return Err(bad_response(url, "a listing of absurd size"));
                }
                let value = serde_json::from_slice(&bytes)
                    .map_err(|error| bad_response(url, &format!("no proper JSON ({error})")))?;
                Ok((value, answer.headers))
            });
            match result {
                Err(error) if error.is_transient() => attempts.wait(error, what, progress)?,
                other => return other,
            }
        }
    }

    pub(crate) fn attempts(&self) -> Attempts {
        Attempts { left: self.retries, delay: self.backoff, all: self.retries, first: self.backoff }
    }
}

/// Counts retries and waits between them.
pub(crate) struct Attempts {
    left: u32,
    delay: Duration,
    all: u32,
    first: Duration,
}

impl Attempts {
    /// Something new has come: start counting afresh.
    pub(crate) fn progressed(&mut self) {
        self.left = self.all;
        self.delay = self.first;
    }

    /// Waits for the next attempt.
    ///
    /// # Errors
    /// `error` itself when there have been enough attempts; [`Error::Cancelled`].
    pub(crate) fn wait(
        &mut self,
        error: Error,
        file: &str,
        progress: &mut dyn Progress,
    ) -> Result<()> {
        if self.left == 0 {
            return Err(error);
        }
        self.left -= 1;
        let delay = match &error {
            Error::RateLimited { delay, .. } => *delay,
            _ => self.delay,
        };
        self.delay = (self.delay * 2).min(MAX_WAIT);
        progress.event(Event::Retrying { file, error: &error, delay });
        let end = std::time::Instant::now() + delay;
        loop {
            if progress.cancelled() {
                return Err(Error::Cancelled);
            }
            let left = end.saturating_duration_since(std::time::Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            std::thread::sleep(left.min(Duration::from_millis(100)));
        }
    }
}

pub(crate) fn bad_response(url: &str, reason: &str) -> Error {
    Error::BadResponse { url: url.into(), reason: reason.into() }
}

/// The error of a body that could not be read to its end.
pub(crate) fn dropped(url: &str, received: u64, error: &std::io::Error) -> Error {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
    let reason = match inner {
        Some(ureq::Error::Timeout(_)) => "nothing came for too long".into(),
        _ => error.to_string(),
    };
    Error::Dropped { url: url.into(), received, reason }
}

/// A server that cannot be reached is no use waiting for; one that broke off may answer next time.
fn failure(url: &str, error: ureq::Error) -> Error {
    use std::io::ErrorKind as Kind;
    let (url, reason, received) = (url.to_owned(), error.to_string(), 0);
    match error {
        ureq::Error::Timeout(ureq::Timeout::Resolve | ureq::Timeout::Connect) => {
            Error::Unreachable { url, reason: "no connection in time".into() }
        }
        ureq::Error::Timeout(_) => {
            Error::Dropped { url, received, reason: "no answer in time".into() }
        }
        ureq::Error::Io(io) => match io.kind() {
            Kind::ConnectionReset
            | Kind::ConnectionAborted
            | Kind::BrokenPipe
            | Kind::UnexpectedEof
            | Kind::TimedOut
            | Kind::WouldBlock => Error::Dropped { url, received, reason },
            _ => Error::Unreachable { url, reason: io.to_string() },
        },
        ureq::Error::Protocol(_) => Error::BadResponse { url, reason },
        _ => Error::Unreachable { url, reason },
    }
}

/// The address that `location` means when it stands in an answer from `base`.
fn join(base: &str, location: &str) -> Option<String> {
    let (scheme, rest) = base.split_once("://")?;
    let lower = location.to_ascii_lowercase();
    let joined = if lower.starts_with("http://") || lower.starts_with("https://") {
        let (scheme, rest) = location.split_once("://")?;
        format!("{}://{rest}", scheme.to_ascii_lowercase())
    } else if location.starts_with("//") {
        format!("{scheme}:{location}")
    } else if location.split(['/', '?', '#']).next()?.contains(':') {
        return None;
    } else {
        let path_start = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (host, path) = rest.split_at(path_start);
        let path = path.split(['?', '#']).next().unwrap_or("");
        let folder = &path[..path.rfind('/').unwrap_or(0)];
        match location.starts_with('/') {
            true => format!("{scheme}://{host}{location}"),
            false => format!("{scheme}://{host}{folder}/{location}"),
        }
    };
    let joined = joined.split('#').next().unwrap_or(&joined).to_owned();
    Origin::of(&joined).map(|_| joined)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redirects_are_joined() {
        let base = "https://h.org:8/a/b?c#d";
        let table = [
            ("https://x.org/y?z", Some("https://x.org/y?z")),
            ("HTTPS://x.org/y#f", Some("https://x.org/y")),
            ("//x.org/y", Some("https://x.org/y")),
            ("/y", Some("https://h.org:8/y")),
            ("y?z", Some("https://h.org:8/a/y?z")),
            ("ftp://x.org/y", None),
            ("file:///etc/passwd", None),
            ("javascript:x", None),
            ("https://", None),
            ("/a b", None),
        ];
        for (location, expected) in table {
            assert_eq!(join(base, location).as_deref(), expected, "{location}");
        }
        assert_eq!(join("http://h", "y").as_deref(), Some("http://h/y"));
    }

    #[test]
    fn an_origin_is_scheme_host_and_port() {
        let same = |a, b| Origin::of(a) == Origin::of(b);
        assert!(same("https://h.org", "https://H.org:443/x"));
        assert!(!same("https://h.org", "http://h.org"));
        assert!(!same("https://h.org", "https://h.org:444"));
        assert!(!same("https://h.org", "https://x.h.org"));
        assert!(
            ["http://localhost:1", "http://127.0.0.1", "http://[::1]:80"]
                .iter()
                .all(|url| Origin::of(url).unwrap().is_this_machine())
        );
        assert!(!Origin::of("http://127.0.0.1.example.org").unwrap().is_this_machine());
        // What stands before an @ is no host.
        assert!(!same("https://h.org", "https://h.org@evil.org/"));
    }
}
