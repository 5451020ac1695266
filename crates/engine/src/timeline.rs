//! What ran where and when, and the trace that shows it.

mod picture;

use std::io::{self, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// Most slices that are kept; later ones are counted only.
const MOST_SLICES: usize = 1 << 20;

/// What a unit did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Work {
    /// Evaluated parts of prompts.
    Prefill,
    /// Evaluated the last tokens of answers, with the guesses behind them.
    Decode,
    /// Both in one batch.
    Mixed,
    /// Wrote the cache of some tokens to a block.
    Export,
    /// Took the cache of some tokens from a block.
    Import,
}

impl Work {
    /// As it stands in the trace.
    pub fn name(self) -> &'static str {
        match self {
            Work::Prefill => "prefill",
            Work::Decode => "decode",
            Work::Mixed => "prefill and decode",
            Work::Export => "hand-off out",
            Work::Import => "hand-off in",
        }
    }
}

/// One piece of work of one unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slice {
    /// Who did it.
    pub lane: String,
    /// What it was.
    pub work: Work,
    /// When it began, since the timeline did.
    pub start: Duration,
    /// When it ended.
    pub end: Duration,
    /// Tokens that it was about.
    pub tokens: usize,
    /// The sequences that they belong to.
    pub sequences: Vec<u32>,
}

impl Slice {
    /// Whether some time belongs to both.
    pub fn overlaps(&self, other: &Slice) -> bool {
        self.start < other.end && other.start < self.end
    }
}

/// Collects slices from all threads.
#[derive(Debug)]
pub struct Timeline {
    start: Instant,
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    slices: Vec<Slice>,
    /// So many more there were.
    dropped: usize,
}

impl Timeline {
    /// One that starts now.
    pub fn start() -> Arc<Self> {
        Arc::new(Timeline { start: Instant::now(), kept: Mutex::default() })
    }

    /// Adds what `lane` did from `start` until now.
    pub(crate) fn add(
        &self,
        lane: &str,
        work: Work,
        start: Instant,
        tokens: usize,
        sequences: Vec<u32>,
    ) {
        let end = self.start.elapsed();
        let start = start.saturating_duration_since(self.start);
        let mut kept = self.kept();
        match kept.slices.len() {
            MOST_SLICES => kept.dropped += 1,
            _ => kept.slices.push(Slice {
                lane: lane.to_owned(),
                work,
                start,
                end,
                tokens,
                sequences,
            }),
        }
    }

    /// All slices so far, in the order in which they ended.
    pub fn slices(&self) -> Vec<Slice> {
        self.kept().slices.clone()
    }

    /// Writes the slices in Chrome's trace format, which `chrome://tracing` and Perfetto show: a
    /// thread for each lane, times in microseconds.
    ///
    /// # Errors
    /// Those of `to`.
    pub fn write_trace(&self, to: &mut impl Write) -> io::Result<()> {
        let kept = self.kept();
        let lanes = lanes(&kept.slices);
        let mut events: Vec<Value> = Vec::new();
        for slice in &kept.slices {
            let lane = lanes.iter().position(|lane| *lane == slice.lane).unwrap_or_default();
            events.push(json!({
                "name": slice.work.name(),
                "cat": slice.work.name(),
                "ph": "X",
                "pid": 1,
                "tid": lane + 1,
                "ts": micros(slice.start),
                "dur": micros(slice.end.saturating_sub(slice.start)),
                "args": { "tokens": slice.tokens, "sequences": slice.sequences },
            }));
        }
        let named = lanes.iter().enumerate().map(|(at, lane)| {
            let args = json!({ "name": lane });
            json!({ "name": "thread_name", "ph": "M", "pid": 1, "tid": at + 1, "args": args })
        });
        let events: Vec<Value> = named.chain(events).collect();
        let trace = json!({
            "traceEvents": events,
            "displayTimeUnit": "ms",
            "otherData": { "dropped": kept.dropped },
        });
        serde_json::to_writer(&mut *to, &trace)?;
        to.flush()
    }

    /// A panic elsewhere leaves no slice half written.
    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Who did something, in the order in which they first did.
fn lanes(slices: &[Slice]) -> Vec<&str> {
    let mut lanes: Vec<&str> = Vec::new();
    for slice in slices {
        if !lanes.contains(&&*slice.lane) {
            lanes.push(&slice.lane);
        }
    }
    lanes
}

fn micros(time: Duration) -> f64 {
    time.as_nanos() as f64 / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_names_lanes_and_keeps_times() {
        let timeline = Timeline::start();
        let start = Instant::now();
        timeline.add("a", Work::Prefill, start, 512, vec![3]);
        timeline.add("b", Work::Import, start, 512, vec![3]);
        timeline.add("a", Work::Decode, start, 2, vec![3, 4]);
        let slices = timeline.slices();
        assert!(slices[0].overlaps(&slices[1]) && slices[2].overlaps(&slices[0]));
        let mut bytes = Vec::new();
        timeline.write_trace(&mut bytes).unwrap();
        let trace: Value = serde_json::from_slice(&bytes).unwrap();
        let events = trace["traceEvents"].as_array().unwrap();
        assert_eq!(events.len(), 2 + 3);
        assert_eq!((&events[0]["args"]["name"], &events[1]["tid"]), (&json!("a"), &json!(2)));
        let decode = &events[4];
        assert_eq!((&decode["tid"], &decode["ph"]), (&json!(1), &json!("X")));
        assert_eq!(decode["args"], json!({ "tokens": 2, "sequences": [3, 4] }));
        let end = decode["ts"].as_f64().unwrap() + decode["dur"].as_f64().unwrap();
        assert!((end - micros(slices[2].end)).abs() < 1e-3);
        assert_eq!(trace["otherData"]["dropped"], 0);
    }

    #[test]
    fn slices_one_after_the_other_do_not_overlap() {
        let slice = |start, end| Slice {
            lane: "a".into(),
            work: Work::Decode,
            start: Duration::from_millis(start),
            end: Duration::from_millis(end),
            tokens: 1,
            sequences: vec![],
        };
        assert!(!slice(0, 5).overlaps(&slice(5, 9)) && !slice(5, 9).overlaps(&slice(0, 5)));
        assert!(slice(0, 9).overlaps(&slice(3, 4)) && slice(3, 4).overlaps(&slice(0, 9)));
    }
}
