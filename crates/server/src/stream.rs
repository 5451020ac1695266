//! Answers in pieces: what they consist of is written as it comes, in the words of an interface.

use std::io::Write;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderName, HeaderValue, header};
use axum::response::Response;
use bytes::Bytes;
use serde::Serialize;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};

use crate::ApiError;
use crate::chat::{Answer, Part};
use crate::routes::Stream;

/// While nothing comes, a remark that has no meaning is sent this often, so that nobody between
/// takes the connection for dead.
const QUIET: Duration = Duration::from_secs(15);

/// How an interface tells of answers. Of several the first has index 0.
pub trait Script: Send + 'static {
    /// Before anything else.
    fn begin(&mut self, _out: &mut Frames) {}
    /// What comes next of an answer.
    fn part(&mut self, index: usize, part: Part, out: &mut Frames);
    /// An answer failed; nothing comes after that.
    fn fail(&mut self, error: &ApiError, out: &mut Frames);
    /// All answers are complete.
    fn end(&mut self, _out: &mut Frames) {}
}

/// What is about to be sent.
#[derive(Debug)]
pub struct Frames {
    form: Stream,
    bytes: Vec<u8>,
}

impl Frames {
    /// Nothing yet.
    pub fn new(form: Stream) -> Self {
        Frames { form, bytes: Vec::new() }
    }

    /// Forgets everything that was not sent.
    pub fn clear(&mut self) {
        self.bytes.clear();
    }

    /// A value: as an event without a name, or as a line.
    pub fn data(&mut self, value: &impl Serialize) {
        match self.form {
            Stream::Events => self.event_data(value),
            Stream::Lines => {
                self.json(value);
                self.bytes.push(b'\n');
            }
        }
    }

    /// An event with a name.
    pub fn event(&mut self, name: &str, value: &impl Serialize) {
        self.text(&["event: ", name, "\n"]);
        self.event_data(value);
    }

    /// An event of plain text, such as `[DONE]`.
    pub fn mark(&mut self, text: &str) {
        self.text(&["data: ", text, "\n\n"]);
    }

    fn event_data(&mut self, value: &impl Serialize) {
        self.text(&["data: "]);
        self.json(value);
        self.text(&["\n\n"]);
    }

    fn json(&mut self, value: &impl Serialize) {
        // JSON has no line breaks outside of strings, and in them it escapes them.
        serde_json::to_writer(&mut self.bytes, value).expect("replies can be written as JSON");
    }

    fn text(&mut self, pieces: &[&str]) {
        for piece in pieces {
            self.bytes.write_all(piece.as_bytes()).expect("a vector takes everything");
        }
    }
}

/// A reply that consists of `answers`, told by `script`. If the client goes away, they end.
pub fn reply(form: Stream, answers: Vec<Answer>, script: impl Script) -> Response {
    let mut quiet = interval_at(Instant::now() + QUIET, QUIET);
    quiet.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let answers = answers.into_iter().map(Some).collect();
    let mut play = Play { answers, script, out: Frames::new(form), quiet, over: false };
    play.script.begin(&mut play.out);
    let pieces = futures_util::stream::poll_fn(move |context| play.poll(context));
    let mut reply = Response::new(Body::from_stream(pieces));
    let headers = reply.headers_mut();
    let content_type = HeaderValue::from_static(form.content_type());
    headers.insert(header::CONTENT_TYPE, content_type);
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // Proxies that collect replies leave those alone that say so.
    let buffering = HeaderName::from_static("x-accel-buffering");
    headers.insert(buffering, HeaderValue::from_static("no"));
    reply
}

struct Play<S> {
    answers: Vec<Option<Answer>>,
    script: S,
    out: Frames,
    quiet: Interval,
    over: bool,
}

type Piece = Result<Bytes, std::convert::Infallible>;

impl<S: Script> Play<S> {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Piece>> {
        self.collect(context);
        if !self.over && self.answers.iter().all(Option::is_none) {
            self.script.end(&mut self.out);
            self.over = true;
        }
        if self.out.bytes.is_empty() && !self.over {
            let remarks = self.out.form == Stream::Events;
            while self.quiet.poll_tick(context).is_ready() {
                if remarks {
                    self.out.text(&[": still at work\n\n"]);
                }
            }
        } else {
            self.quiet.reset();
        }
        match (self.out.bytes.is_empty(), self.over) {
            (false, _) => Poll::Ready(Some(Ok(std::mem::take(&mut self.out.bytes).into()))),
            (true, true) => Poll::Ready(None),
            (true, false) => Poll::Pending,
        }
    }

    /// Writes everything that has come.
    fn collect(&mut self, context: &mut Context<'_>) {
        for index in 0..self.answers.len() {
            while let Some(answer) = &mut self.answers[index] {
                match answer.poll_next(context) {
                    Poll::Pending => break,
                    Poll::Ready(Some(Ok(part))) => self.script.part(index, part, &mut self.out),
                    Poll::Ready(None) => self.answers[index] = None,
                    Poll::Ready(Some(Err(error))) => {
                        self.script.fail(&error, &mut self.out);
                        self.answers.clear();
                        self.over = true;
                        return;
                    }
                }
            }
        }
    }
}
