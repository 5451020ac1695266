//! What the next pass is likely to be, so that the device can be at it before it is asked for.
//!
//! Where the best tokens of a pass are found on the device, a pass that goes on with them needs nothing of
//! the host but tables. It is submitted behind the one whose result is being waited for, and if the
//! next call asks for just that, its result is there or under way. It changes nothing that anybody
//! can see: it writes behind the ends of sequences, into the pages that they have, and whatever is
//! submitted later writes over it. Every other call forgets it.

use baton_graph::{Batch, Logits, Rows, SeqId};

use crate::landing::Flight;

/// So many times in a row the best token must have been what came next, where only that was asked for: then
/// it is what will come, unless the answer ends.
const SURE: u32 = 1;
/// The same where more tokens are asked for, among which one is drawn. A pass for nothing costs as much
/// as many right ones gain.
const LIKELY: u32 = 8;

/// What is expected, and the pass for it.
#[derive(Debug, Default)]
pub(crate) struct Foresight {
    /// The sequences of the last pass in their order, with the best token of each.
    expected: Vec<(SeqId, u32)>,
    /// How many passes in a row were what was expected.
    right: u32,
    /// The pass that is expected, with the number of best tokens that it finds.
    pub(crate) flight: Option<(Flight, usize)>,
}

impl Foresight {
    /// Takes note of a batch that is asked for, with the number of best tokens that is enough for it. The
    /// pass for it, if it is under way.
    pub(crate) fn meet(&mut self, batch: &Batch, best: Option<usize>) -> Option<Flight> {
        let flight = self.flight.take();
        let came = best.is_some()
            && batch.spans.len() == self.expected.len()
            && batch.spans.iter().zip(&self.expected).all(|(span, (seq, token))| {
                (span.seq, &span.tokens[..]) == (*seq, std::slice::from_ref(token))
                    && matches!(span.rows, Rows::Best(_))
            });
        self.right = if came { self.right.saturating_add(1) } else { 0 };
        let (flight, found) = flight.filter(|_| came)?;
        best.is_some_and(|best| best <= found).then_some(flight)
    }

    /// Whether what comes behind a batch, the last that was met, is likely to be its best tokens.
    pub(crate) fn is_likely(&self, batch: &Batch, best: Option<usize>) -> bool {
        let enough = match best {
            None => return false,
            Some(1) => SURE,
            Some(_) => LIKELY,
        };
        let is_single =
            |(rows, tokens): (Rows, usize)| matches!(rows, Rows::Best(_)) && tokens == 1;
        self.right >= enough
            && batch.spans.iter().all(|span| is_single((span.rows, span.tokens.len())))
    }

    /// The pass for what is expected is under way, and finds so many best tokens.
    pub(crate) fn submitted(&mut self, flight: Flight, best: usize) {
        self.flight = Some((flight, best));
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
        if self.flight.take().is_some() {
            self.right = 0;
        }
    }
}
