//! Where to listen.

use std::convert::Infallible;
use std::str::FromStr;

/// The port of Ollama, which clients try first.
const DEFAULT_PORT: u16 = 11434;

/// A host, and a port if one was given with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    host: String,
    port: Option<u16>,
}

impl Address {
    /// The host and the port: the one given by itself, else the one given with the host.
    pub fn with_port(&self, port: Option<u16>) -> (String, u16) {
        (self.host.clone(), port.or(self.port).unwrap_or(DEFAULT_PORT))
    }
}

impl FromStr for Address {
    type Err = Infallible;

    /// Reads `HOST`, `HOST:PORT`, `:PORT` and both as addresses of web pages. What is no host is
    /// found when it is looked up.
    fn from_str(text: &str) -> Result<Self, Infallible> {
        let text = text.trim();
        let text = text.strip_prefix("http://").unwrap_or(text).trim_end_matches('/');
        let (host, port) = match text.rsplit_once(':') {
            // An IPv6 address has colons of its own, and brackets if a port follows.
            Some((host, _)) if host.contains(':') && !host.ends_with(']') => (text, None),
            Some((host, port)) if port.parse::<u16>().is_ok() => (host, port.parse().ok()),
            _ => (text, None),
        };
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let host = if host.is_empty() { "127.0.0.1" } else { host };
        Ok(Address { host: host.to_owned(), port })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_in_every_form() {
        for (text, host, port) in [
            ("127.0.0.1", "127.0.0.1", 11434),
            ("0.0.0.0:8080", "0.0.0.0", 8080),
            ("http://localhost:1234/", "localhost", 1234),
            (":9000", "127.0.0.1", 9000),
            ("::1", "::1", 11434),
            ("[::1]:80", "::1", 80),
            ("box.internal", "box.internal", 11434),
        ] {
            let address: Address = text.parse().unwrap();
            assert_eq!(address.with_port(None), (host.to_owned(), port), "{text}");
            assert_eq!(address.with_port(Some(5)), (host.to_owned(), 5), "{text}");
        }
    }
}
