//! How a download and other waiting is shown: bars on a terminal, a few plain lines elsewhere.

use std::time::{Duration, Instant};

use baton_hub::{Event, Progress};
use console::style;
use indicatif::{ProgressBar, ProgressStyle};

use crate::failure::{eprintln_quietly, prefixed};
use crate::format;
use crate::interrupt;

/// Time between two plain lines.
const PLAIN_EVERY: Duration = Duration::from_secs(5);

const BYTES: &str = "{msg} {wide_bar:.cyan/dim} {percent:>3}% {decimal_bytes:>9}/{decimal_total_bytes} \
    {decimal_bytes_per_sec} {eta}";
const BYTES_OF_UNKNOWN: &str = "{msg} {spinner} {decimal_bytes} {decimal_bytes_per_sec}";

/// Shows the events of a download on standard error.
pub struct Download {
    on_terminal: bool,
    bar: Option<ProgressBar>,
    last_line: Instant,
    resumes: bool,
    scope: interrupt::Scope,
}

impl Download {
    /// Shows nothing yet. While it lives, Ctrl-C stops the download instead of the program.
    pub fn new() -> Self {
        Self {
            on_terminal: console::Term::stderr().is_term(),
            bar: None,
            last_line: Instant::now(),
            resumes: true,
            scope: interrupt::Scope::enter(),
        }
    }

    /// Whether what was being fetched goes on where it stopped, if it is stopped.
    pub fn resumes(&self) -> bool {
        self.resumes
    }

    /// Takes a bar away.
    pub fn clear(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }

    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        self.last_line = Instant::now();
        match &self.bar {
            Some(bar) => bar.suspend(|| eprintln_quietly(line)),
            None => eprintln_quietly(line),
        }
    }

    /// Shows that `done` of `total` bytes of `file` are dealt with.
    fn advance(&mut self, doing: &str, file: &str, done: u64, total: Option<u64>) {
        if self.on_terminal {
            let message = format!("{doing} {}", shortened(&format::in_line(file)));
            let bar = self.bar.get_or_insert_with(|| {
                let bar = match total {
                    Some(total) => ProgressBar::new(total).with_style(template(BYTES)),
                    None => ProgressBar::new_spinner().with_style(template(BYTES_OF_UNKNOWN)),
                };
                bar.set_position(done);
                bar.reset_eta();
                bar
            });
            if bar.message() != message {
                bar.set_message(message);
            }
            bar.set_position(done);
        } else if self.last_line.elapsed() >= PLAIN_EVERY {
            let done_text = format::bytes(done);
            match total.filter(|&total| total > 0) {
                Some(total) => {
                    let percent = (done as f64 / total as f64 * 100.0).floor();
                    let total = format::bytes(total);
                    self.line(format_args!("{doing} {file}: {percent} % ({done_text} of {total})"));
                }
                None => self.line(format_args!("{doing} {file}: {done_text}")),
            }
        }
    }
}

impl Progress for Download {
    fn event(&mut self, event: Event<'_>) {
        match event {
            Event::TryingSource { source } => {
                self.resumes = !source.starts_with("pypi:");
                self.line(format_args!("trying {source}"));
            }
            Event::SourceFailed { source, error } => {
                self.clear();
                prefixed(style("failed:").yellow(), format_args!("{source}: {error}"));
            }
            Event::WaitingForLock { what } => {
                self.line(format_args!("waiting for another process that fetches {what}"));
            }
            Event::Started { file, total, resumed_at } => {
                self.clear();
                if resumed_at > 0 {
                    let here = format::bytes(resumed_at);
                    self.line(format_args!("going on with {file}: {here} are here already"));
                } else if !self.on_terminal {
                    let size = total.map(|n| format!(" ({})", format::bytes(n)));
                    self.line(format_args!("fetching {file}{}", size.unwrap_or_default()));
                }
                if self.on_terminal {
                    self.advance("fetching", file, resumed_at, total);
                }
            }
            Event::Bytes { file, done, total } => self.advance("fetching", file, done, total),
            Event::Verifying { file, done, total } => {
                self.advance("checking", file, done, Some(total));
            }
            Event::Retrying { file, error, delay } => {
                let wait = format::time(delay);
                self.line(format_args!("{file}: {error}; trying again in {wait}"));
            }
            Event::Done { file, size, verified } => {
                self.clear();
                let size = format::bytes(size);
                let check = if verified { "checksum verified" } else { "no checksum to compare" };
                self.line(format_args!("{file}: {size}, {check}"));
            }
            _ => {}
        }
    }

    fn cancelled(&self) -> bool {
        self.scope.interrupted()
    }
}

impl Drop for Download {
    fn drop(&mut self) {
        self.clear();
    }
}

/// A sign of life on a terminal while something takes its time; goes away when dropped.
pub struct Spinner(ProgressBar);

impl Spinner {
    /// Shows `what` after a short moment.
    pub fn start(what: &str) -> Self {
        // Hidden by itself when standard error is no terminal.
        let bar = ProgressBar::new_spinner().with_message(format::in_line(what).into_owned());
        bar.enable_steady_tick(Duration::from_millis(120));
        Self(bar)
    }
}

impl Drop for Spinner {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

fn template(text: &str) -> ProgressStyle {
    // Our own templates are right; a wrong one would only look plainer.
    ProgressStyle::with_template(text).unwrap_or_else(|_| ProgressStyle::default_bar())
}

/// The end of a long name.
fn shortened(name: &str) -> String {
    const MOST: usize = 40;
    let length = name.chars().count();
    if length <= MOST {
        return name.to_owned();
    }
    format!("…{}", name.chars().skip(length - MOST + 1).collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_are_valid() {
        for text in [BYTES, BYTES_OF_UNKNOWN] {
            assert!(ProgressStyle::with_template(text).is_ok(), "{text}");
        }
    }

    #[test]
    fn long_names_keep_their_end() {
        assert_eq!(shortened("a.gguf"), "a.gguf");
        let long = format!("{}-00001-of-00002.gguf", "é".repeat(50));
        let short = shortened(&long);
        assert_eq!(short.chars().count(), 40);
        assert!(short.starts_with('…') && short.ends_with("-00001-of-00002.gguf"));
    }
}
