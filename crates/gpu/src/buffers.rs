//! Buffers: making, filling and reading them.

use std::ops::Range;
use std::sync::mpsc;

use crate::{Gpu, GpuError};

/// What a buffer is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// Read and written by kernels, copied to and from.
    Storage,
    /// Small parameters that kernels read.
    Uniform,
    /// Where results are copied to, to be read by the host.
    Readback,
}

impl Gpu {
    /// A buffer of `bytes`, rounded up to a multiple of 16; what it holds is zero.
    ///
    /// # Errors
    /// If it is larger than the device allows, or memory is short.
    pub fn buffer(&self, what: &str, bytes: u64, usage: Use) -> Result<wgpu::Buffer, GpuError> {
        use wgpu::BufferUsages as U;
        let usage = match usage {
            Use::Storage => U::STORAGE | U::COPY_SRC | U::COPY_DST,
            Use::Uniform => U::UNIFORM | U::COPY_DST,
            Use::Readback => U::MAP_READ | U::COPY_DST,
        };
        let size = bytes.max(1).checked_next_multiple_of(16).unwrap_or(bytes);
        let described =
            wgpu::BufferDescriptor { label: Some(what), size, usage, mapped_at_creation: false };
        self.guard(what, || self.device().create_buffer(&described))
    }

    /// A storage buffer that holds `values`.
    ///
    /// # Errors
    /// As [`Gpu::buffer`].
    pub fn buffer_of<T: bytemuck::NoUninit>(
        &self,
        what: &str,
        values: &[T],
    ) -> Result<wgpu::Buffer, GpuError> {
        let bytes: &[u8] = bytemuck::cast_slice(values);
        let buffer = self.buffer(what, bytes.len() as u64, Use::Storage)?;
        let mut upload = Upload::new(self);
        upload.write(&buffer, 0, bytes)?;
        upload.finish()?;
        Ok(buffer)
    }

    /// Encodes commands into one pass, submits them, and reports what the device finds wrong with
    /// them.
    ///
    /// # Errors
    /// If a command is refused or the device is lost.
    pub fn submit(
        &self,
        what: &str,
        encode: impl FnOnce(&mut wgpu::ComputePass<'_>),
    ) -> Result<wgpu::SubmissionIndex, GpuError> {
        self.guard(what, || {
            let mut encoder = self.device().create_command_encoder(&Default::default());
            encode(&mut encoder.begin_compute_pass(&Default::default()));
            self.queue().submit([encoder.finish()])
        })
    }

    /// Waits until everything submitted is done.
    ///
    /// # Errors
    /// If the device is lost.
    pub fn wait(&self) -> Result<(), GpuError> {
        self.wait_for(None)
    }

    /// Waits until a submission and all before it are done, or everything submitted.
    fn wait_for(&self, submission_index: Option<wgpu::SubmissionIndex>) -> Result<(), GpuError> {
        let waited = self.device().poll(wgpu::PollType::Wait { submission_index, timeout: None });
        self.check()?;
        waited.map(|_| ()).map_err(|e| GpuError::Lost(e.to_string()))
    }

    /// Waits for all work and copies the elements `range` of a buffer.
    ///
    /// # Errors
    /// If memory is short or the device is lost.
    pub fn read<T: bytemuck::AnyBitPattern>(
        &self,
        buffer: &wgpu::Buffer,
        range: Range<usize>,
    ) -> Result<Vec<T>, GpuError> {
        let size = size_of::<T>();
        let bytes = (range.len() * size) as u64;
        if bytes == 0 {
            return Ok(Vec::new());
        }
        let start = (range.start * size) as u64;
        // Copies go by four bytes.
        let (from, skip) = (start & !3, (start % 4) as usize);
        let len = (bytes + skip as u64).next_multiple_of(4);
        let staging = self.buffer("results", len, Use::Readback)?;
        self.guard("a copy", || {
            let mut encoder = self.device().create_command_encoder(&Default::default());
            encoder.copy_buffer_to_buffer(buffer, from, &staging, 0, len);
            self.queue().submit([encoder.finish()])
        })?;
        let mapped = self.map(&staging)?;
        let bytes = &mapped[skip..skip + bytes as usize];
        Ok(bytes.chunks_exact(size).map(bytemuck::pod_read_unaligned).collect())
    }

    /// Waits for all work and gives what a readback buffer holds, which is unmapped again.
    ///
    /// # Errors
    /// If the device is lost.
    pub fn map(&self, staging: &wgpu::Buffer) -> Result<Vec<u8>, GpuError> {
        self.map_with(staging, staging.size(), None, <[u8]>::to_vec)
    }

    /// As [`Gpu::map`], for what `read` makes of the first `bytes` where they lie; waits no longer than
    /// until `done`, after which nothing may write to the buffer.
    ///
    /// # Errors
    /// If the device is lost.
    pub fn map_with<R>(
        &self,
        staging: &wgpu::Buffer,
        bytes: u64,
        done: Option<wgpu::SubmissionIndex>,
        read: impl FnOnce(&[u8]) -> R,
    ) -> Result<R, GpuError> {
        let (sender, receiver) = mpsc::channel();
        staging.map_async(wgpu::MapMode::Read, ..bytes, move |result| {
            // Nobody listens only if the wait below has failed.
            let _ = sender.send(result);
        });
        self.wait_for(done)?;
        let lost = |e: &dyn std::fmt::Display| GpuError::Lost(e.to_string());
        receiver.recv().map_err(|e| lost(&e))?.map_err(|e| lost(&e))?;
        let mapped = staging.get_mapped_range(..bytes).map_err(|e| lost(&e))?;
        let result = read(&mapped);
        drop(mapped);
        staging.unmap();
        Ok(result)
    }
}

/// Bytes that go to the device in one piece.
const PIECE: usize = 16 << 20;
/// Bytes under way at most: what uploading takes of the host's memory.
const UNDER_WAY: usize = 4 * PIECE;

/// Fills buffers piece by piece, so that the host never holds more than some pieces beside the
/// source.
pub struct Upload<'a> {
    gpu: &'a Gpu,
    under_way: usize,
}

impl<'a> Upload<'a> {
    /// Nothing is under way yet.
    pub fn new(gpu: &'a Gpu) -> Self {
        Upload { gpu, under_way: 0 }
    }

    /// Writes bytes from byte `at` of a buffer on, a multiple of 4. Up to three more are
    /// overwritten, since copies go by four.
    ///
    /// # Errors
    /// If memory is short or the device is lost.
    pub fn write(&mut self, buffer: &wgpu::Buffer, at: u64, bytes: &[u8]) -> Result<(), GpuError> {
        for (piece, n) in bytes.chunks(PIECE).zip(0..) {
            let at = at + n * PIECE as u64;
            let (words, rest) = piece.split_at(piece.len() & !3);
            self.gpu.guard("an upload", || {
                if !words.is_empty() {
                    self.gpu.queue().write_buffer(buffer, at, words);
                }
                if !rest.is_empty() {
                    let mut last = [0; 4];
                    last[..rest.len()].copy_from_slice(rest);
                    self.gpu.queue().write_buffer(buffer, at + words.len() as u64, &last);
                }
            })?;
            self.under_way += piece.len();
            if self.under_way >= UNDER_WAY {
                self.flush()?;
            }
        }
        Ok(())
    }

    /// Waits for what is under way.
    ///
    /// # Errors
    /// If the device is lost.
    pub fn finish(mut self) -> Result<(), GpuError> {
        self.flush()
    }

    fn flush(&mut self) -> Result<(), GpuError> {
        self.gpu.queue().submit([]);
        self.under_way = 0;
        self.gpu.wait()
    }
}
