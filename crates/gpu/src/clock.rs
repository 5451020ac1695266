//! Times of a pass's steps, as the device measures them.

use std::time::Duration;

use crate::{Gpu, GpuError, Use};

/// Most moments that one pass can note.
const MOST: usize = 4096;

/// Notes moments between the steps of a pass.
#[derive(Debug)]
pub struct Clock {
    queries: wgpu::QuerySet,
    resolved: wgpu::Buffer,
    staging: wgpu::Buffer,
    /// Nanoseconds of a tick.
    period: f64,
    moments: u32,
}

impl Clock {
    /// A clock for passes of `steps` steps.
    ///
    /// # Errors
    /// If the device cannot measure times, or there are too many steps.
    pub fn new(gpu: &Gpu, steps: usize) -> Result<Clock, GpuError> {
        if !gpu.features().timestamps || steps >= MOST {
            let missing = format!("a clock for {steps} steps; unset BATON_TIMING");
            return Err(GpuError::Unsupported { adapter: gpu.name(), missing });
        }
        let moments = steps as u32 + 1;
        let described = wgpu::QuerySetDescriptor {
            label: Some("moments"),
            ty: wgpu::QueryType::Timestamp,
            count: moments,
        };
        let queries = gpu.guard("a clock", || gpu.device().create_query_set(&described))?;
        let bytes = 8 * u64::from(moments);
        let usage = wgpu::BufferUsages::QUERY_RESOLVE | wgpu::BufferUsages::COPY_SRC;
        let described = wgpu::BufferDescriptor {
            label: Some("moments"),
            size: bytes,
            usage,
            mapped_at_creation: false,
        };
        Ok(Clock {
            queries,
            resolved: gpu.guard("a clock", || gpu.device().create_buffer(&described))?,
            staging: gpu.buffer("moments", bytes, Use::Readback)?,
            period: f64::from(gpu.queue().get_timestamp_period()),
            moments,
        })
    }

    /// Notes moment `at`.
    pub fn note(&self, encoder: &mut wgpu::CommandEncoder, at: usize) {
        encoder.write_timestamp(&self.queries, at as u32);
    }

    /// Makes the moments readable, behind all of them.
    pub fn resolve(&self, encoder: &mut wgpu::CommandEncoder) {
        encoder.resolve_query_set(&self.queries, 0..self.moments, &self.resolved, 0);
        let bytes = 8 * u64::from(self.moments);
        encoder.copy_buffer_to_buffer(&self.resolved, 0, &self.staging, 0, bytes);
    }

    /// Waits for the pass and tells how long each step took.
    ///
    /// # Errors
    /// If the device is lost.
    pub fn read(&self, gpu: &Gpu) -> Result<Vec<Duration>, GpuError> {
        let moments: Vec<u64> = bytemuck::pod_collect_to_vec(&gpu.map(&self.staging)?);
        let steps = moments[..self.moments as usize].windows(2);
        let ticks = steps.map(|pair| pair[1].saturating_sub(pair[0]) as f64);
        Ok(ticks.map(|ticks| Duration::from_nanos((ticks * self.period) as u64)).collect())
    }
}
