//! Whole requests, ours and another server's in turn: `baton bench --against URL`.
//!
//! Here a request is what a user waits for: sampling and text are in it, and of the other side HTTP.
//! Both get prompts of the same length that nobody has seen before, and write answers of the same
//! length, greedily and past any end of the answer where the server can.

mod client;
mod exchange;
mod ours;
mod prompt;
mod table;

use std::thread;
use std::time::Duration;

use client::Client;
pub use exchange::{Exchange, Side};
pub use ours::Ours;
use prompt::Prompts;

use super::numbers::Pair;
use super::output::Printer;

/// The server to measure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rival {
    /// Its address, with or without `/v1`.
    pub url: String,
    /// The model to ask; the first that it lists, if none is named.
    pub model: Option<String>,
    /// What it wants as proof of who asks.
    pub key: Option<String>,
}

/// How requests are made.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Terms {
    /// Repetitions of each.
    pub repetitions: usize,
    /// Rest before each.
    pub delay: Duration,
    /// Whether each side gets one request before it is measured.
    pub warmup: bool,
}

/// What one request took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Tokens of the answer.
    pub tokens: usize,
    /// Until its first token.
    pub first: Duration,
    /// Until its last.
    pub last: Duration,
}

/// Sends each workload to both sides in turn.
///
/// # Errors
/// If one of them fails.
pub fn run(
    ours: &mut Ours,
    rival: &Rival,
    workloads: &[Pair],
    terms: &Terms,
    printer: &mut Printer<'_, Exchange>,
) -> anyhow::Result<()> {
    let mut client = Client::connect(rival)?;
    let mut prompts = Prompts::new();
    for workload in workloads {
        let words =
            prompts.calibrate(workload.prompt, |text| Ok(client.ask(text, 1)?.prompt_tokens))?;
        if terms.warmup {
            ours.ask(*workload)?;
            client.ask(&prompts.next(words), workload.generated.min(8))?;
        }
        let (mut mine, mut theirs) = (Vec::new(), Vec::new());
        for _ in 0..terms.repetitions {
            thread::sleep(terms.delay);
            mine.push(ours.ask(*workload)?);
            thread::sleep(terms.delay);
            theirs.push(client.ask(&prompts.next(words), workload.generated)?);
        }
        let of =
            |side, model: &str, answers: &[Answer]| Exchange::new(side, model, *workload, answers);
        printer.row(&of(Side::Baton, ours.name(), &mine))?;
        printer.row(&of(Side::Server(rival.url.clone()), client.model(), &theirs))?;
    }
    Ok(())
}
