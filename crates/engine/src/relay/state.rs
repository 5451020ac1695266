//! The relay at work: what goes where, and what is taken over when.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use baton_graph::{
    Batch, ExecError, Executor, LogitRow, Logits, Readiness, Rows, SeqId, Span, Usage, Waker,
};

use super::RelayOptions;
use super::prefiller::{Gone, Order, Outcome, Prefiller, Ticket};
use super::tracks::{Announced, Pending, Track};

/// Chunks that the prefill unit has to do at most: the one that it is at, and the next.
const DEPTH: usize = 2;
/// What a part-filled page may have room for: units have no larger pages.
const PAGE: usize = 64;

pub(super) struct State {
    pub(super) decode: Box<dyn Executor>,
    prefiller: Prefiller,
    options: RelayOptions,
    pub(super) tracks: HashMap<SeqId, Track>,
    clock: u64,
    next_id: u64,
    /// Orders whose outcome was not seen yet.
    outstanding: usize,
    /// The prefill unit failed and is left alone until then.
    paused: Option<Instant>,
    /// The prefill unit's thread is no more.
    gone: bool,
}

impl State {
    pub(super) fn new(
        decode: Box<dyn Executor>,
        prefiller: Prefiller,
        options: RelayOptions,
    ) -> Self {
        State {
            decode,
            prefiller,
            options,
            tracks: HashMap::new(),
            clock: 0,
            next_id: 0,
            outstanding: 0,
            paused: None,
            gone: false,
        }
    }

    pub(super) fn len(&self, seq: SeqId) -> usize {
        self.tracks.get(&seq).map_or(0, Track::len)
    }

    pub(super) fn handed_over(&self, seq: SeqId, range: Range<usize>) -> usize {
        self.tracks.get(&seq).map_or(0, |track| track.handed_over(&range))
    }

    pub(super) fn on_progress(&self, wake: Waker) {
        self.prefiller.on_progress(wake);
    }

    pub(super) fn usage(&self) -> Usage {
        let (decode, prefill) = (self.decode.usage(), self.prefiller.usage());
        let behind: usize = self.tracks.values().map(|track| track.behind.len()).sum();
        Usage {
            weight_bytes: decode.weight_bytes + prefill.weight_bytes,
            kv_bytes: decode.kv_bytes + prefill.kv_bytes,
            scratch_bytes: decode.scratch_bytes + prefill.scratch_bytes,
            kv_tokens: (decode.kv_tokens + behind).min(decode.kv_capacity),
            kv_capacity: decode.kv_capacity,
        }
    }

    pub(super) fn prepare(&mut self, seq: SeqId, new: usize) -> Readiness {
        self.collect();
        let (usable, crossover) = (self.is_usable(), self.options.crossover);
        let track = self.tracks.entry(seq).or_default();
        let end = track.len() + new;
        // The end of a prompt goes where its beginning went.
        let begun = track.announced.is_some_and(|before| before.relayed && before.end == end);
        let relayed = usable && new > 1 && (new > crossover || begun);
        track.announced = Some(Announced { end, relayed });
        // Part of a copy of what is being computed, which nobody has asked for yet.
        let absent = !track.behind.is_empty() && track.pending.is_empty() && !track.refused;
        if !relayed && absent && track.ahead > track.held && self.outstanding < DEPTH {
            self.fetch(seq);
        }
        let track = self.tracks.entry(seq).or_default();
        match relayed {
            true if self.outstanding < DEPTH => {
                Readiness::Background((new - 1).min(self.options.chunk))
            }
            false if track.pending.is_empty() => Readiness::Now,
            _ => Readiness::Later,
        }
    }

    /// As [`Executor::forward`], but after an error some spans may have been begun.
    pub(super) fn forward(&mut self, batch: &Batch, vocab: usize) -> Result<Logits, ExecError> {
        self.collect();
        let mut relayed: Vec<usize> = batch.spans.iter().map(|span| self.relayed(span)).collect();
        self.check_room(batch, &relayed)?;
        for (span, relayed) in batch.spans.iter().zip(&mut relayed) {
            if *relayed > 0 && !self.queue(span.seq, &span.tokens[..*relayed])? {
                *relayed = 0;
            }
        }
        let (mut spans, mut origins) = (Vec::new(), Vec::new());
        for (index, (span, &relayed)) in batch.spans.iter().zip(&relayed).enumerate() {
            if relayed < span.tokens.len() {
                self.settle(span.seq)?;
                let tokens = span.tokens[relayed..].to_vec();
                spans.push(Span { tokens, ..span.clone() });
                origins.push((index, relayed));
            }
        }
        if spans.is_empty() {
            return Ok(Logits { vocab, ..Logits::default() });
        }
        let batch = Batch { spans };
        let mut logits = self.decode.forward(&batch)?;
        for span in &batch.spans {
            self.touch(span.seq).held += span.tokens.len();
        }
        for row in &mut logits.rows {
            let (span, relayed) = origins[row.span];
            *row = LogitRow { span, token: relayed + row.token };
        }
        Ok(logits)
    }

    /// How many of a span's tokens go to the prefill unit.
    fn relayed(&self, span: &Span) -> usize {
        let most = match span.rows {
            Rows::None => span.tokens.len(),
            Rows::Last | Rows::Best(_) => span.tokens.len() - 1,
            Rows::All => 0,
        };
        if !self.is_usable() {
            return 0;
        }
        let (len, track) = (self.len(span.seq), self.tracks.get(&span.seq));
        match track.and_then(|track| track.announced).filter(|announced| announced.end > len) {
            Some(Announced { relayed: false, .. }) => 0,
            Some(Announced { end, .. }) => most.min(end - 1 - len),
            // Of a long prompt a caller that announces nothing gives as much as a batch may have.
            None if most >= self.options.crossover.min(self.options.chunk) => most,
            None => 0,
        }
    }

    /// Refuses what the decode unit will have no room for. It cannot be known exactly: a block that
    /// finds no room after all stays with the prefill unit until there is some.
    fn check_room(&self, batch: &Batch, relayed: &[usize]) -> Result<(), ExecError> {
        if relayed.iter().all(|&n| n == 0) {
            return Ok(());
        }
        let usage = self.usage();
        let mut free = usage.kv_capacity - usage.kv_tokens;
        for (span, &new) in batch.spans.iter().zip(relayed) {
            let spare = self.len(span.seq).next_multiple_of(PAGE) - self.len(span.seq);
            let needed = new.saturating_sub(spare);
            if needed > free {
                let needed = needed - free;
                return Err(ExecError::OutOfPages { needed, free, page_tokens: 1 });
            }
            free -= needed;
        }
        Ok(())
    }

    /// Gives tokens to the prefill unit; false if it cannot take them.
    fn queue(&mut self, seq: SeqId, tokens: &[u32]) -> Result<bool, ExecError> {
        if !self.make_room(seq, tokens.len()) || !self.give_back(seq)? {
            return Ok(false);
        }
        for chunk in tokens.chunks(self.options.chunk) {
            while self.outstanding >= DEPTH {
                self.wait();
            }
            let (ticket, usable) = (self.ticket(seq), self.is_usable());
            let track = self.touch(seq);
            let at = track.len();
            track.behind.extend(chunk);
            // If an earlier chunk failed meanwhile, the decode unit computes the rest.
            if usable && track.ahead == at {
                track.ahead = track.len();
                let end = track.ahead;
                track.pending.push_back(Pending { ticket: ticket.clone(), at, end });
                self.order(Order::Run { ticket, at, tokens: chunk.to_vec() });
            }
        }
        Ok(true)
    }

    /// Gives the prefill unit what only the decode unit has of a sequence; false if that cannot be.
    fn give_back(&mut self, seq: SeqId) -> Result<bool, ExecError> {
        if self.touch(seq).ahead < self.len(seq) {
            self.settle(seq)?;
            let (at, len) = (self.touch(seq).ahead, self.len(seq));
            let block = match self.decode.export_kv(seq, at..len) {
                Ok(block) => block,
                Err(error) => {
                    tracing::debug!(%seq, %error, "the cache cannot go back to the prefill unit");
                    return Ok(false);
                }
            };
            self.touch(seq).ahead = len;
            self.send(Order::Take { seq, at, block });
        }
        Ok(!self.gone)
    }

    /// Makes room for `new` tokens of a sequence, and what the prefill unit lacks of it, in the
    /// prefill unit, where other sequences are only kept because they may be continued.
    fn make_room(&mut self, seq: SeqId, new: usize) -> bool {
        let limits = *self.prefiller.limits();
        let needed = self.len(seq) + new;
        if needed > limits.context {
            return false;
        }
        loop {
            let others = self.tracks.iter().filter(|(other, _)| **other != seq);
            let used: usize = others.map(|(_, track)| track.ahead.next_multiple_of(PAGE)).sum();
            if used + needed <= limits.kv_tokens {
                return true;
            }
            let idle = self.tracks.iter().filter(|(other, track)| {
                **other != seq
                    && track.ahead > 0
                    && track.pending.is_empty()
                    && track.ahead <= track.held
            });
            let Some((&oldest, _)) = idle.min_by_key(|(_, track)| track.used) else {
                return false;
            };
            self.touch(oldest).ahead = 0;
            self.send(Order::Free { seq: oldest });
        }
    }

    /// Makes the decode unit hold all of a sequence: waits for blocks on their way, asks for what
    /// the prefill unit has besides, and computes what is then still missing.
    pub(super) fn settle(&mut self, seq: SeqId) -> Result<(), ExecError> {
        self.wait_for(seq);
        if self.tracks.get(&seq).is_none_or(|track| track.behind.is_empty()) {
            return Ok(());
        }
        self.fetch(seq);
        self.wait_for(seq);
        let most = self.decode.limits().batch_tokens;
        while let Some(track) = self.tracks.get_mut(&seq).filter(|track| !track.behind.is_empty()) {
            let tokens = track.behind[..track.behind.len().min(most)].to_vec();
            let n = tokens.len();
            tracing::debug!(%seq, tokens = n, "computed by the decode unit instead");
            self.decode.forward(&Batch::one(seq, tokens, Rows::None))?;
            track.caught_up(n);
        }
        Ok(())
    }

    /// Asks the prefill unit for what it has of a sequence and the decode unit has not.
    fn fetch(&mut self, seq: SeqId) {
        let ticket = self.ticket(seq);
        let track = self.touch(seq);
        if track.ahead > track.held {
            let (at, end) = (track.held, track.ahead);
            track.pending.push_back(Pending { ticket: ticket.clone(), at, end });
            self.order(Order::Fetch { ticket, range: at..end });
        }
    }

    fn wait_for(&mut self, seq: SeqId) {
        while self.tracks.get(&seq).is_some_and(|track| !track.pending.is_empty()) {
            self.wait();
        }
    }

    /// Waits for one outcome.
    fn wait(&mut self) {
        match self.prefiller.outcome() {
            Ok(outcome) => self.take_over(outcome),
            Err(Gone) => self.lost(),
        }
    }

    /// Takes over what is there already.
    fn collect(&mut self) {
        while !self.gone {
            match self.prefiller.try_outcome() {
                Ok(Some(outcome)) => self.take_over(outcome),
                Ok(None) => return,
                Err(Gone) => self.lost(),
            }
        }
    }

    fn take_over(&mut self, outcome: Outcome) {
        self.outstanding = self.outstanding.saturating_sub(1);
        let Outcome { id, seq, block, held, .. } = outcome;
        let Some(track) = self.tracks.get_mut(&seq) else { return };
        // One that was taken back is not waited for.
        let Some(pending) = track.next_block(id) else { return };
        match block {
            Ok(block) if pending.at == track.held => {
                match self.decode.import_kv(seq, pending.at, &block) {
                    Ok(()) => track.took_over(block.tokens),
                    Err(error) => {
                        track.refused = true;
                        tracing::debug!(%seq, %error, "a block was not taken over");
                    }
                }
            }
            // One before it was not taken over; they come again, together.
            Ok(_) => {}
            Err(error) => {
                track.refused = true;
                track.ahead = track.ahead.min(held);
                let expected = held == pending.at;
                self.failed(&error, expected);
            }
        }
    }

    /// The prefill unit did not do what it was told, though it was where it was `expected` to be, or
    /// holds nothing any more.
    fn failed(&mut self, error: &ExecError, expected: bool) {
        let is_fault = match error {
            ExecError::Lost(_) => true,
            ExecError::OutOfPages { .. } => false,
            _ => expected,
        };
        // What fails while it rests was ordered before.
        if !is_fault || !self.is_usable() {
            tracing::debug!(%error, "the prefill unit could not compute a part of a prompt");
            return;
        }
        tracing::warn!(
            "the prefill unit failed: {error}; prompts are computed by the decode unit for {} s",
            self.options.pause.as_secs()
        );
        self.paused = Instant::now().checked_add(self.options.pause);
    }

    /// Goes on without the prefill unit.
    fn lost(&mut self) {
        if !self.gone {
            tracing::error!("the prefill unit's thread is gone; the decode unit computes all");
        }
        self.gone = true;
        self.outstanding = 0;
        for track in self.tracks.values_mut() {
            track.pending.clear();
            track.ahead = 0;
        }
    }

    fn is_usable(&self) -> bool {
        !self.gone && self.paused.is_none_or(|until| Instant::now() >= until)
    }

    /// Gives an order that has an outcome.
    fn order(&mut self, order: Order) {
        self.outstanding += 1;
        self.send(order);
    }

    pub(super) fn send(&mut self, order: Order) {
        if !self.gone && !self.prefiller.send(order) {
            self.lost();
        }
    }

    fn ticket(&mut self, seq: SeqId) -> Ticket {
        self.next_id += 1;
        Ticket { id: self.next_id, seq, cancelled: Arc::new(AtomicBool::new(false)) }
    }

    pub(super) fn touch(&mut self, seq: SeqId) -> &mut Track {
        self.clock += 1;
        let track = self.tracks.entry(seq).or_default();
        track.used = self.clock;
        track
    }
}
