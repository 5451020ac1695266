//! Where results of passes come down to the host: all logits, or the best tokens of each row.

use baton_graph::{Best, Logits};

use crate::best::{self, Finder};
use crate::memory::Buffers;
use crate::plan::Plan;
use crate::step::{Room, Sizes};
use crate::{Gpu, GpuError, Use};

/// A pass under way.
#[derive(Debug)]
pub(crate) struct Flight {
    pub(crate) done: wgpu::SubmissionIndex,
    pub(crate) sizes: Sizes,
    /// Which of both places its best tokens come to.
    pub(crate) place: usize,
}

/// Buffers that the host reads.
#[derive(Debug)]
pub(crate) struct Landing {
    result: wgpu::Buffer,
    cols: usize,
    found: Option<wgpu::Buffer>,
    logits: wgpu::Buffer,
    /// Two, since two passes may be under way.
    best: [wgpu::Buffer; 2],
}

impl Landing {
    /// For the result of a plan, of whose rows a finder may find the best tokens.
    ///
    /// # Errors
    /// If memory is short.
    pub(crate) fn new(
        gpu: &Gpu,
        plan: &Plan,
        buffers: &Buffers,
        finder: Option<&Finder>,
        room: &Room,
    ) -> Result<Landing, GpuError> {
        let rows = if finder.is_some() { room.wanted } else { 0 };
        let best = || gpu.buffer("best tokens for the host", Finder::bytes_of(rows), Use::Readback);
        let bytes = 4 * (room.wanted * plan.result.cols) as u64;
        Ok(Landing {
            result: buffers.of(&plan.result).clone(),
            cols: plan.result.cols,
            found: finder.map(|finder| finder.found.clone()),
            logits: gpu.buffer("logits for the host", bytes, Use::Readback)?,
            best: [best()?, best()?],
        })
    }

    /// Bytes of the host's memory.
    pub(crate) fn bytes(&self) -> usize {
        let [a, b] = &self.best;
        [&self.logits, a, b].into_iter().map(|buffer| buffer.size() as usize).sum()
    }

    /// Bytes of a pass's results.
    fn bytes_of(&self, sizes: &Sizes) -> u64 {
        match (sizes.best, sizes.wanted as usize) {
            (true, rows) => Finder::bytes_of(rows),
            (false, rows) => 4 * (rows * self.cols) as u64,
        }
    }

    /// Encodes the way of a pass's results, behind it.
    pub(crate) fn copy(&self, encoder: &mut wgpu::CommandEncoder, sizes: &Sizes, place: usize) {
        let bytes = self.bytes_of(sizes);
        let (from, to) = match &self.found {
            Some(found) if sizes.best => (found, &self.best[place]),
            _ => (&self.result, &self.logits),
        };
        if bytes > 0 {
            encoder.copy_buffer_to_buffer(from, 0, to, 0, bytes);
        }
    }

    /// Waits for a pass and appends its logits, or the best tokens of its rows, each cut to a number.
    ///
    /// # Errors
    /// If the device is lost.
    pub(crate) fn land(
        &self,
        gpu: &Gpu,
        flight: Flight,
        numbers: impl Iterator<Item = usize>,
        logits: &mut Logits,
    ) -> Result<(), GpuError> {
        let Flight { done, sizes, place } = flight;
        let bytes = self.bytes_of(&sizes);
        if bytes == 0 {
            return Ok(());
        }
        let from = if sizes.best { &self.best[place] } else { &self.logits };
        gpu.map_with(from, bytes, Some(done), |mapped| {
            if sizes.best {
                let words: Vec<u32> = bytemuck::pod_collect_to_vec(mapped);
                logits.best.extend::<Vec<Best>>(best::read(&words, numbers));
            } else if let Ok(floats) = bytemuck::try_cast_slice(mapped) {
                logits.values.extend_from_slice(floats);
            } else {
                logits.values.extend(bytemuck::pod_collect_to_vec::<u8, f32>(mapped));
            }
        })
    }
}
