//! Where results of passes come down to the host: all logits, or the best tokens of each row.

use crate::best::Finder;
use crate::memory::Buffers;
use crate::plan::Plan;
use crate::step::{Room, Sizes};
use crate::{Gpu, GpuError, Use};

/// Passes that are submitted together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Order {
    /// The sizes of each.
    pub(crate) sizes: Sizes,
    /// How many there are. Those behind the first go on with the best tokens of the one before.
    pub(crate) passes: usize,
    /// Which of both places their best tokens come to.
    pub(crate) place: usize,
}

/// Passes under way.
#[derive(Debug)]
pub(crate) struct Flight {
    pub(crate) done: wgpu::SubmissionIndex,
    pub(crate) order: Order,
}

/// Buffers that the host reads.
#[derive(Debug)]
pub(crate) struct Landing {
    result: wgpu::Buffer,
    cols: usize,
    found: Option<wgpu::Buffer>,
    logits: wgpu::Buffer,
    /// Two, since passes may be under way behind those that are waited for.
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
        let bytes = finder.map_or(0, |finder| finder.found.size());
        let best = || gpu.buffer("best tokens for the host", bytes, Use::Readback);
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

    /// Encodes the way of the results of passes, behind them.
    pub(crate) fn copy(&self, encoder: &mut wgpu::CommandEncoder, order: &Order) {
        let (from, to) = match &self.found {
            Some(found) if order.sizes.best => (found, &self.best[order.place]),
            _ => (&self.result, &self.logits),
        };
        let bytes = self.bytes_of(order);
        if bytes > 0 {
            encoder.copy_buffer_to_buffer(from, 0, to, 0, bytes);
        }
    }

    /// Bytes of the results of passes.
    fn bytes_of(&self, order: &Order) -> u64 {
        let rows = order.sizes.wanted as usize;
        match order.sizes.best {
            true => order.passes as u64 * Finder::bytes_of(rows),
            false => 4 * (rows * self.cols) as u64,
        }
    }

    /// Waits for a pass and appends its logits.
    ///
    /// # Errors
    /// If the device is lost.
    pub(crate) fn logits(
        &self,
        gpu: &Gpu,
        flight: Flight,
        logits: &mut Vec<f32>,
    ) -> Result<(), GpuError> {
        let bytes = self.bytes_of(&flight.order);
        if bytes == 0 {
            return Ok(());
        }
        gpu.map_with(
            &self.logits,
            bytes,
            Some(flight.done),
            |mapped| match bytemuck::try_cast_slice(mapped) {
                Ok(floats) => logits.extend_from_slice(floats),
                Err(_) => logits.extend(bytemuck::pod_collect_to_vec::<u8, f32>(mapped)),
            },
        )
    }

    /// Waits for passes and gives the words of what each has found, of the first one first.
    ///
    /// # Errors
    /// If the device is lost.
    pub(crate) fn best(
        &self,
        gpu: &Gpu,
        flight: Flight,
    ) -> Result<impl Iterator<Item = Vec<u32>> + use<>, GpuError> {
        let Flight { done, order } = flight;
        let (from, bytes) = (&self.best[order.place], self.bytes_of(&order));
        let words: Vec<u32> =
            gpu.map_with(from, bytes, Some(done), bytemuck::pod_collect_to_vec)?;
        let each = words.len() / order.passes;
        Ok((0..order.passes).map(move |pass| words[pass * each..][..each].to_vec()))
    }
}
