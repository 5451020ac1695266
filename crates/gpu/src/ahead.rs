//! What the next passes are likely to be, so that the device can be at them before they are asked for.
//!
//! Where the best tokens of a pass are found on the device, a pass that goes on with them needs nothing of
//! the host. It is submitted behind the one whose result is being waited for, and if the next call asks
//! for just that, its result is there or under way. Between two submissions the device stands still for
//! some hundredths of a millisecond, so that where the best tokens came again and again, several passes
//! are one submission, and their results come down together.
//!
//! It changes nothing that anybody can see: it writes behind the ends of sequences, into the pages that
//! they have, and whatever is submitted later writes over it. Every other call forgets it.

use std::collections::VecDeque;
use std::time::Duration;

use baton_graph::{Batch, Logits, Rows, SeqId};

use crate::best::MOST_TOGETHER;
use crate::landing::Flight;

/// So many times in a row the best token must have been what came next, where only that was asked for: then
/// it is what will come, unless the answer ends.
const SURE: u32 = 1;
/// The same where more tokens are asked for, among which one is drawn. A pass for nothing costs as much
/// as many right ones gain.
const LIKELY: u32 = 8;
/// How long passes of one submission take, about: less than a picture stays on a screen, so that nobody sees
/// that tokens come together, and whoever asks for something else does not wait for long.
const TOGETHER: Duration = Duration::from_millis(12);

/// Where the results of an expected pass are.
#[derive(Debug)]
pub(crate) enum Ahead {
    /// They came down with those of a pass before.
    Landed(Vec<u32>),
    /// Its pass is the first of these under way, which find so many best tokens.
    Flight(Flight, usize),
}

/// What is expected, and the passes for it.
#[derive(Debug)]
pub(crate) struct Foresight {
    /// The sequences of the last pass in their order, with the best token of each.
    expected: Vec<(SeqId, u32)>,
    /// How many passes in a row were what was expected.
    right: u32,
    /// What the next passes have found, and the number of best tokens of it.
    landed: (VecDeque<Vec<u32>>, usize),
    /// The passes that are expected behind those, with the number of best tokens that they find.
    pub(crate) flight: Option<(Flight, usize)>,
    /// How long the last pass took that was waited for from its submission on.
    pass: Duration,
    /// How long passes of one submission may take.
    pub(crate) together: Duration,
}

impl Default for Foresight {
    fn default() -> Foresight {
        Foresight {
            expected: Vec::new(),
            right: 0,
            landed: Default::default(),
            flight: None,
            pass: Duration::MAX,
            together: TOGETHER,
        }
    }
}

impl Foresight {
    /// Takes note of a batch that is asked for, with the number of best tokens that is enough for it. Where
    /// its results are, if it is what was expected.
    pub(crate) fn meet(&mut self, batch: &Batch, best: Option<usize>) -> Option<Ahead> {
        let came = best.is_some()
            && batch.spans.len() == self.expected.len()
            && batch.spans.iter().zip(&self.expected).all(|(span, (seq, token))| {
                (span.seq, &span.tokens[..]) == (*seq, std::slice::from_ref(token))
                    && matches!(span.rows, Rows::Best(_))
            });
        self.right = if came { self.right.saturating_add(1) } else { 0 };
        let is_enough = |found: usize| came && best.is_some_and(|best| best <= found);
        if is_enough(self.landed.1)
            && let Some(found) = self.landed.0.pop_front()
        {
            return Some(Ahead::Landed(found));
        }
        let is_next = self.landed.0.is_empty();
        self.landed.0.clear();
        let (flight, found) = self.flight.take()?;
        (is_next && is_enough(found)).then_some(Ahead::Flight(flight, found))
    }

    /// How many passes that go on with the best tokens are worth submitting together when behind a batch, the
    /// last that was met, so many `more` were what was expected. Those `before` them were submitted
    /// together too.
    pub(crate) fn passes(&self, batch: &Batch, best: usize, before: usize, more: usize) -> usize {
        let right = self.right as usize + more;
        let enough = if best == 1 { SURE } else { LIKELY };
        let is_single =
            |(rows, tokens): (Rows, usize)| matches!(rows, Rows::Best(_)) && tokens == 1;
        let all_single = || batch.spans.iter().all(|s| is_single((s.rows, s.tokens.len())));
        if right < enough as usize || !all_single() {
            return 0;
        }
        if best > 1 {
            return 1;
        }
        let fit = self.together.as_secs_f64() / self.pass.as_secs_f64().max(1e-9);
        // Twice as many as before are encoded while those run, and no more of them can be for nothing than
        // came true.
        let most = (2 * before).min(right / 2).min(MOST_TOGETHER);
        (fit as usize).min(most).max(1)
    }

    /// A pass took so long from its submission on.
    pub(crate) fn took(&mut self, time: Duration) {
        self.pass = time;
    }

    /// Passes for what is expected are under way, and find so many best tokens.
    pub(crate) fn submitted(&mut self, flight: Flight, best: usize) {
        self.flight = Some((flight, best));
    }

    /// What passes have found that are expected next, with the number of best tokens.
    pub(crate) fn landed(&mut self, found: impl Iterator<Item = Vec<u32>>, best: usize) {
        self.landed = (found.collect(), best);
    }

    /// Expects the best tokens of these results.
    pub(crate) fn expect(&mut self, batch: &Batch, logits: &Logits) {
        self.expected.clear();
        if logits.best.len() == batch.spans.len() {
            let best = logits.best.iter().map_while(|best| best.tokens.first());
            self.expected.extend(batch.spans.iter().zip(best).map(|(s, &(id, _))| (s.seq, id)));
        }
    }

    /// Something else was done than expected.
    pub(crate) fn forget(&mut self) {
        if self.is_ahead() {
            self.landed.0.clear();
            self.flight = None;
            self.right = 0;
        }
    }

    /// Whether a pass is done or under way that nobody has asked for yet.
    pub(crate) fn is_ahead(&self) -> bool {
        self.flight.is_some() || !self.landed.0.is_empty()
    }
}
