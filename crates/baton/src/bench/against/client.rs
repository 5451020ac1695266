//! A client of any server with OpenAI's interface that can stream: `/v1/completions`, or where that
//! is missing `/v1/chat/completions`.

use std::io::{BufRead, BufReader, Read};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use serde_json::{Value, json};
use ureq::http::StatusCode;
use ureq::tls::{RootCerts, TlsConfig};
use ureq::{Agent, Body};

use super::{Answer, Rival};
use crate::failure::hinted;

/// Longest line of a stream, and longest other answer.
const MOST_BYTES: u64 = 1 << 20;
/// Time to connect.
const CONNECT: Duration = Duration::from_secs(10);
/// Time between two parts of an answer: a long prompt on a slow machine takes minutes.
const PATIENCE: Duration = Duration::from_secs(600);

/// A connection to a server.
pub struct Client {
    agent: Agent,
    base: String,
    key: Option<String>,
    model: String,
    chats: bool,
}

impl Client {
    /// Finds the server and the model to ask.
    ///
    /// # Errors
    /// If it does not answer, or lists no model where none is named.
    pub fn connect(rival: &Rival) -> anyhow::Result<Client> {
        let base = base(&rival.url)?;
        let tls = TlsConfig::builder().root_certs(RootCerts::PlatformVerifier).build();
        let mut config = Agent::config_builder()
            .tls_config(tls)
            .http_status_as_error(false)
            .user_agent(concat!("baton/", env!("CARGO_PKG_VERSION")))
            .timeout_resolve(Some(CONNECT))
            .timeout_connect(Some(CONNECT))
            .timeout_recv_response(Some(PATIENCE))
            .timeout_per_read(Some(PATIENCE));
        if ["//localhost", "//127.", "//[::1]"].iter().any(|host| base.contains(host)) {
            // No proxy leads there.
            config = config.proxy(None);
        }
        let agent = config.build().new_agent();
        let (key, model) = (rival.key.clone(), rival.model.clone().unwrap_or_default());
        let mut client = Client { agent, base, key, model, chats: false };
        if client.model.is_empty() {
            client.model = client.first_model()?;
        }
        Ok(client)
    }

    /// The model that is asked.
    pub fn model(&self) -> &str {
        &self.model
    }

    /// Asks for an answer of `tokens` tokens. Without a count from the server there are 0 tokens of
    /// the prompt, and each piece of the answer counts as one.
    ///
    /// # Errors
    /// If the server cannot be reached, refuses, breaks off or sends nonsense.
    pub fn ask(&mut self, prompt: &str, tokens: usize) -> anyhow::Result<Answer> {
        let start = Instant::now();
        let mut response = self.post(prompt, tokens)?;
        let missing =
            [StatusCode::NOT_FOUND, StatusCode::METHOD_NOT_ALLOWED, StatusCode::NOT_IMPLEMENTED];
        if !self.chats && missing.contains(&response.0) {
            self.chats = true;
            return self.ask(prompt, tokens);
        }
        if !response.0.is_success() {
            let text = text_of(&mut response.1);
            bail!("{} answers {}: {}", self.base, response.0, text.trim());
        }
        let read = read_stream(BufReader::new(response.1.into_reader()), start);
        read.with_context(|| format!("the answer of {}", self.base))
    }

    fn post(&self, prompt: &str, tokens: usize) -> anyhow::Result<(StatusCode, Body)> {
        let mut request = json!({
            "model": self.model,
            "max_tokens": tokens,
            "temperature": 0,
            "stream": true,
            "stream_options": { "include_usage": true },
            // Not OpenAI's, but most local servers know it and the others do not mind.
            "ignore_eos": true,
        });
        let path = match self.chats {
            true => {
                request["messages"] = json!([{ "role": "user", "content": prompt }]);
                "chat/completions"
            }
            false => {
                request["prompt"] = prompt.into();
                "completions"
            }
        };
        let url = format!("{}/{path}", self.base);
        let mut post = self.agent.post(&url).header("Content-Type", "application/json");
        if let Some(key) = &self.key {
            post = post.header("Authorization", format!("Bearer {key}"));
        }
        let response = post.send(request.to_string().as_bytes());
        let (parts, body) = response.map_err(|error| unreachable(&url, &error))?.into_parts();
        Ok((parts.status, body))
    }

    fn first_model(&self) -> anyhow::Result<String> {
        let url = format!("{}/models", self.base);
        let mut get = self.agent.get(&url);
        if let Some(key) = &self.key {
            get = get.header("Authorization", format!("Bearer {key}"));
        }
        let response = get.call().map_err(|error| unreachable(&url, &error))?;
        let (parts, mut body) = response.into_parts();
        let text = text_of(&mut body);
        let list: Value = serde_json::from_str(&text).unwrap_or_default();
        match list["data"][0]["id"].as_str() {
            Some(id) => Ok(id.to_owned()),
            None => Err(hinted(
                format_args!("{url} lists no model (it answers {})", parts.status),
                "name the model with --against-model",
            )),
        }
    }
}

/// The address that paths are appended to: `URL/v1`.
fn base(url: &str) -> anyhow::Result<String> {
    let trimmed = url.trim_end_matches('/');
    if !(trimmed.starts_with("http://") || trimmed.starts_with("https://")) {
        return Err(hinted(
            format_args!("{url:?} is no address of a server"),
            "it looks like http://localhost:8080",
        ));
    }
    Ok(if trimmed.ends_with("/v1") { trimmed.to_owned() } else { format!("{trimmed}/v1") })
}

fn unreachable(url: &str, error: &ureq::Error) -> anyhow::Error {
    hinted(format_args!("{url} does not answer: {error}"), "is the server running?")
}

fn text_of(body: &mut Body) -> String {
    let mut bytes = Vec::new();
    // What does not come is not in the message.
    let _ = body.as_reader().take(MOST_BYTES).read_to_end(&mut bytes);
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Reads server-sent events to their end.
fn read_stream(mut stream: impl BufRead, start: Instant) -> anyhow::Result<Answer> {
    let mut answer = Answer::default();
    let mut counted = None;
    loop {
        let mut line = Vec::new();
        stream.by_ref().take(MOST_BYTES).read_until(b'\n', &mut line)?;
        if line.is_empty() {
            bail!("the server broke off after {} tokens", answer.tokens);
        }
        if line.len() as u64 == MOST_BYTES {
            bail!("the server sent a line of {MOST_BYTES} bytes or more");
        }
        let Some(data) = line.strip_prefix(b"data:") else { continue };
        let data = data.trim_ascii();
        if data == b"[DONE]" {
            break;
        }
        let event: Value = serde_json::from_slice(data).context("no proper JSON in the stream")?;
        if let Some(error) = event.get("error").filter(|error| !error.is_null()) {
            bail!("the server failed: {}", error["message"].as_str().unwrap_or(&error.to_string()));
        }
        if brings_text(&event["choices"][0]) {
            answer.last = start.elapsed();
            if answer.tokens == 0 {
                answer.first = answer.last;
            }
            answer.tokens += 1;
        }
        let count = |name: &str| event["usage"][name].as_u64().map(|n| n as usize);
        answer.prompt_tokens = count("prompt_tokens").unwrap_or(answer.prompt_tokens);
        counted = count("completion_tokens").or(counted);
    }
    if answer.tokens == 0 {
        bail!("the server sent no token");
    }
    answer.tokens = counted.filter(|&n| n > 0).unwrap_or(answer.tokens);
    Ok(answer)
}

fn brings_text(choice: &Value) -> bool {
    let delta = &choice["delta"];
    let texts =
        [&choice["text"], &delta["content"], &delta["reasoning_content"], &delta["reasoning"]];
    texts.iter().any(|text| text.as_str().is_some_and(|text| !text.is_empty()))
}

#[cfg(test)]
mod tests;
