//! Fetching one file over HTTP into a [`Part`]: resuming, retrying, verifying.

use std::io::Read;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::http::{Answer, Client, bad_response, dropped};
use crate::part::{Part, ensure_space};
use crate::{Error, Event, Progress, Result, Sha256};

/// How often a transfer reports its bytes.
pub(crate) const REPORT_EVERY: Duration = Duration::from_millis(100);

/// A file to be fetched, and what is known about it beforehand.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Want<'a> {
    /// Its name in the store.
    pub file: &'a str,
    /// The source, as people know it.
    pub origin: &'a str,
    /// Size in bytes, where stated.
    pub size: Option<u64>,
    /// Digest, where stated.
    pub sha256: Option<Sha256>,
}

/// A file to be fetched, from where and by whom.
#[derive(Clone, Copy)]
pub(crate) struct Download<'a> {
    /// Who asks.
    pub client: &'a Client,
    /// Where the file is.
    pub url: &'a str,
    /// What is known about it.
    pub want: &'a Want<'a>,
    /// The folder that must have room for it.
    pub store: &'a Path,
}

/// Fetches a file into `part`, going on where it stands, and verifies the result.
pub(crate) fn download(
    from: Download<'_>,
    part: &mut Part,
    progress: &mut dyn Progress,
) -> Result<()> {
    let Download { url, want, .. } = from;
    let same_file = part.note.origin == url && part.note.etag.is_some();
    let too_long = want.size.is_some_and(|size| part.len() > size);
    if part.len() > 0 && (too_long || (want.sha256.is_none() && !same_file)) {
        part.truncate(0)?;
    }
    if part.note.origin != url {
        part.note = crate::part::Note { origin: url.into(), ..Default::default() };
    }
    part.catch_up(want.file, progress)?;
    let resumed = part.len() > 0;
    transfer(from, part, progress)?;
    match verify(want, part) {
        Err(Error::WrongHash { .. }) if resumed => {
            // The old bytes may be the damaged ones: once more from the start.
            transfer(from, part, progress)?;
            verify(want, part)
        }
        other => other,
    }
}

/// Checks a complete part against what is known about the file, and empties it if it is another one.
pub(crate) fn verify(want: &Want<'_>, part: &mut Part) -> Result<()> {
    let checked = check(want, part);
    if checked.is_err() {
        part.truncate(0)?;
    }
    checked
}

fn check(want: &Want<'_>, part: &mut Part) -> Result<()> {
    let (file, origin) = (want.file.to_owned(), want.origin.to_owned());
    match (want.size, want.sha256) {
        (Some(expected), _) if expected != part.len() => {
            Err(Error::WrongSize { file, origin, expected, actual: part.len() })
        }
        (_, Some(expected)) if expected != part.digest() => {
            Err(Error::WrongHash { file, origin, expected, actual: part.digest() })
        }
        (_, None) if file.to_ascii_lowercase().ends_with(".gguf") && part.magic()? != b"GGUF" => {
            Err(Error::NotGguf { file, origin })
        }
        _ => Ok(()),
    }
}

fn transfer(from: Download<'_>, part: &mut Part, progress: &mut dyn Progress) -> Result<()> {
    let want = from.want;
    let mut attempts = from.client.attempts();
    let mut reached = false;
    loop {
        let before = part.len();
        if want.size == Some(before) {
            return Ok(());
        }
        let result = attempt(from, part, progress);
        if part.len() > before {
            attempts.progressed();
            reached = true;
        }
        match result {
            // A server that has just delivered and cannot be reached now may come back.
            Err(error) if error.is_transient() || (reached && is_unreachable(&error)) => {
                attempts.wait(error, want.file, progress)?;
            }
            other => return other,
        }
    }
}

fn is_unreachable(error: &Error) -> bool {
    matches!(error, Error::Unreachable { .. })
}

/// One request; whatever it brings is in `part` when it returns, with or without an error.
fn attempt(from: Download<'_>, part: &mut Part, progress: &mut dyn Progress) -> Result<()> {
    let Download { client, url, want, store } = from;
    let range = format!("bytes={}-", part.len());
    let mut headers = Vec::new();
    if part.len() > 0 {
        headers.push(("Range", range.as_str()));
        // With a known digest any source of the file may go on; else it must be the same file.
        if let Some(etag) = part.note.etag.as_deref().filter(|_| want.sha256.is_none()) {
            headers.push(("If-Range", etag));
        }
    }
    let what = format!("{} at {}", want.file, want.origin);
    let answer = client.get(url, &headers, &what)?;
    let total = place(&answer, want, part)?.or(want.size);
    if let Some(total) = total {
        ensure_space(store, total.saturating_sub(part.len()), want.file)?;
    }
    part.note.etag = answer.header("etag").filter(|tag| tag.starts_with('"')).map(str::to_owned);
    part.save_note()?;
    progress.event(Event::Started { file: want.file, total, resumed_at: part.len() });
    receive(answer, want, total, part, progress)
}

/// Decides from the status and headers where the body goes in the file, shortens `part` to there, and
/// returns the whole file's size if the server states it. A file of another size than wanted is an
/// error and leaves the part alone: what came from elsewhere may still be right.
fn place(answer: &Answer, want: &Want<'_>, part: &mut Part) -> Result<Option<u64>> {
    let number = |text: &str| text.trim().parse::<u64>().ok();
    let wanted = |total: Option<u64>| match (want.size, total) {
        (Some(expected), Some(actual)) if expected != actual => {
            let (file, origin) = (want.file.into(), want.origin.into());
            Err(Error::WrongSize { file, origin, expected, actual })
        }
        _ => Ok(total),
    };
    match answer.status {
        206 => {
            let range = answer.header("content-range").and_then(|text| text.strip_prefix("bytes "));
            let (span, total) = range.and_then(|range| range.split_once('/')).unwrap_or(("", ""));
            let start = span.split_once('-').and_then(|(start, _)| number(start));
            if start != Some(part.len()) {
                // Whatever this is, it does not fit; begin again next time.
                part.truncate(0)?;
                let (url, received) = (answer.url.clone(), 0);
                let reason = "the server sent another range than asked".into();
                return Err(Error::Dropped { url, received, reason });
            }
            wanted(number(total))
        }
        416 if part.len() > 0 => {
            part.truncate(0)?;
            let reason = format!("the server has a shorter {} than we have already", want.file);
            Err(Error::Dropped { url: answer.url.clone(), received: 0, reason })
        }
        416 => Err(bad_response(&answer.url, "it refuses a range that was not asked for")),
        // The whole file, whatever was asked.
        _ => {
            let total = wanted(answer.header("content-length").and_then(number))?;
            part.truncate(0)?;
            Ok(total)
        }
    }
}

fn receive(
    answer: Answer,
    want: &Want<'_>,
    total: Option<u64>,
    part: &mut Part,
    progress: &mut dyn Progress,
) -> Result<()> {
    let (file, url) = (want.file, answer.url);
    let mut reader = answer.body.into_reader();
    let mut buffer = vec![0; 256 << 10];
    let mut reported = Instant::now();
    loop {
        if progress.cancelled() {
            return Err(Error::Cancelled);
        }
        let n = match reader.read(&mut buffer) {
            Ok(0) => break,
            Ok(n) => n,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(dropped(&url, part.len(), &error)),
        };
        let done = part.len() + n as u64;
        if let Some(expected) = total.filter(|total| done > *total) {
            part.truncate(0)?;
            let (file, origin) = (file.into(), want.origin.into());
            return Err(Error::WrongSize { file, origin, expected, actual: done });
        }
        part.append(&buffer[..n], total.map(|total| total - part.len()))?;
        if reported.elapsed() >= REPORT_EVERY {
            progress.event(Event::Bytes { file, done, total });
            reported = Instant::now();
        }
    }
    progress.event(Event::Bytes { file, done: part.len(), total });
    match total {
        Some(total) if part.len() < total => {
            let reason = format!("the server stopped early, {total} bytes were announced");
            Err(Error::Dropped { url, received: part.len(), reason })
        }
        _ => Ok(()),
    }
}
