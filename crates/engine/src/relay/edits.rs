//! What changes sequences without computing anything, on both units alike.

use std::ops::Range;

use baton_graph::{ExecError, KvBlock, SeqId};

use super::prefiller::Order;
use super::state::State;

impl State {
    pub(super) fn truncate(&mut self, seq: SeqId, len: usize) -> Result<(), ExecError> {
        let held = self.len(seq);
        if len > held {
            let text = format!("sequence {seq} holds {held} tokens, not {len}");
            return Err(ExecError::Invalid(text));
        }
        if len == 0 {
            self.free(seq);
        }
        let Some(track) = self.tracks.get_mut(&seq) else { return Ok(()) };
        if len < track.held {
            self.decode.truncate(seq, len)?;
            track.cut(len);
        }
        track.behind.truncate(len - track.held);
        track.forget_pending_beyond(len);
        track.announced = None;
        if track.ahead > len {
            track.ahead = len;
            self.send(Order::Truncate { seq, len });
        }
        Ok(())
    }

    pub(super) fn copy(&mut self, from: SeqId, to: SeqId, len: usize) -> Result<(), ExecError> {
        let held = self.len(from);
        if len > held || from == to {
            let text = format!("cannot copy {len} tokens of {from}, which holds {held}, to {to}");
            return Err(ExecError::Invalid(text));
        }
        self.free(to);
        let Some(source) = self.tracks.get(&from).filter(|_| len > 0) else { return Ok(()) };
        let (held, ahead) = (source.held.min(len), source.ahead.min(len));
        let behind = source.behind[..len - held].to_vec();
        let handed = source.handed_before(held);
        if held > 0 {
            self.decode.copy(from, to, held)?;
        }
        if ahead > 0 {
            self.send(Order::Copy { from, to, len: ahead });
        }
        let track = self.touch(to);
        track.set_held(held, handed);
        (track.behind, track.ahead) = (behind, ahead);
        Ok(())
    }

    pub(super) fn free(&mut self, seq: SeqId) {
        let Some(mut track) = self.tracks.remove(&seq) else { return };
        track.forget_pending_beyond(0);
        self.decode.free(seq);
        if track.ahead > 0 {
            self.send(Order::Free { seq });
        }
    }

    pub(super) fn export(&mut self, seq: SeqId, range: Range<usize>) -> Result<KvBlock, ExecError> {
        let held = self.tracks.get(&seq).map_or(0, |track| track.held);
        if range.end > held && range.end <= self.len(seq) {
            self.settle(seq)?;
        }
        self.decode.export_kv(seq, range)
    }

    pub(super) fn import(
        &mut self,
        seq: SeqId,
        at: usize,
        block: &KvBlock,
    ) -> Result<(), ExecError> {
        KvBlock::check_position(at, self.len(seq))?;
        self.settle(seq)?;
        self.decode.import_kv(seq, at, block)?;
        self.touch(seq).held += block.tokens;
        Ok(())
    }
}
