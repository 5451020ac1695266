//! KV storage: for each layer a buffer of keys and one of values, in pages of [`PAGE`] tokens.
//!
//! Elements are f16, two in a word, so that no adapter needs half-precision arithmetic. A head's
//! features are padded to runs of 8. In a page each key-value head has a block of keys in the order
//! `(runs, PAGE, 8)`, so that neighbouring invocations read neighbouring tokens' keys at once, and
//! one of values in the order `(PAGE, runs * 8)`.

use std::ops::Range;
use std::sync::Arc;

use baton_graph::{ExecError, KvBlock, PageCopy, PageId};
use bytemuck::cast_slice;

use crate::plan::CacheShape;
use crate::step::PAGE;
use crate::{Access, Gpu, GpuError, Kernel, Shader, Use};

/// Bytes of all layers that are moved between host and device at once.
const TRANSFER: usize = 32 << 20;

/// Keys and values of one layer.
#[derive(Debug)]
pub(crate) struct Cache {
    pub(crate) keys: wgpu::Buffer,
    pub(crate) values: wgpu::Buffer,
    pub(crate) shape: CacheShape,
}

impl CacheShape {
    /// Runs of 8 features that a head has.
    pub(crate) fn chunks(&self) -> usize {
        self.head_dim.div_ceil(8)
    }

    /// Words of a page's keys, and of its values.
    fn words(&self) -> usize {
        4 * self.kv_heads * self.chunks() * PAGE
    }
}

/// The caches of one executor.
#[derive(Debug)]
pub(crate) struct Caches {
    gpu: Arc<Gpu>,
    pub(crate) layers: Vec<Cache>,
    /// How many of the layers outlive a pass.
    kept: usize,
    copy: Arc<Kernel>,
    transfer: Arc<Kernel>,
}

impl Caches {
    /// Storage for `pages` pages, the first `kept` layers of which outlive a pass.
    ///
    /// # Errors
    /// If a layer is larger than the device can bind, or memory is short.
    pub(crate) fn new(
        gpu: &Arc<Gpu>,
        shapes: &[CacheShape],
        kept: usize,
        pages: usize,
    ) -> Result<Caches, ExecError> {
        let most = gpu.limits().max_storage_buffer_binding_size;
        let layer = |&shape: &CacheShape| {
            let bytes = (4 * shape.words() as u64).saturating_mul(pages as u64);
            if bytes > most {
                return Err(ExecError::Invalid(format!(
                    "the keys of a layer for {} tokens take {bytes} bytes, of which this GPU can \
                     address {most}; lower the context or the number of parallel sequences",
                    pages * PAGE
                )));
            }
            let [keys, values] =
                ["keys", "values"].map(|what| gpu.buffer(what, bytes, Use::Storage));
            Ok(Cache { keys: keys?, values: values?, shape })
        };
        let layers = shapes.iter().map(layer).collect::<Result<_, _>>()?;
        let shader = |name, source, bindings, immediates| Shader {
            name,
            source,
            bindings,
            immediates,
            // The host makes indices of pages that it has, and of shapes that buffers are made for.
            unchecked: true,
            ..Shader::default()
        };
        use Access::{Read, Write};
        let step = include_str!("shaders/step.wgsl");
        let copy = format!("{step}{}", include_str!("shaders/kv_copy.wgsl"));
        let copy = gpu.kernel(&shader("kv_copy", copy.into(), &[Read, Write, Write], 12))?;
        let transfer = include_str!("shaders/kv_transfer.wgsl").into();
        let bindings = &[Read, Write, Write, Write];
        let transfer = gpu.kernel(&shader("kv_transfer", transfer, bindings, 24))?;
        Ok(Caches { gpu: Arc::clone(gpu), layers, kept, copy, transfer })
    }

    /// Bytes on the device.
    pub(crate) fn bytes(&self) -> usize {
        self.layers.iter().map(|l| (l.keys.size() + l.values.size()) as usize).sum()
    }

    /// Encodes copies of pages.
    pub(crate) fn copy(
        &self,
        pass: &mut wgpu::ComputePass<'_>,
        copies: &[PageCopy],
        tables: &wgpu::Buffer,
    ) {
        for layer in &self.layers[..self.kept] {
            let buffers =
                [tables, &layer.keys, &layer.values].map(|b| b.as_entire_buffer_binding());
            let group = self.copy.bind(&self.gpu, &buffers);
            let words = layer.shape.words() as u32;
            for PageCopy { from, to, .. } in copies {
                let params = [from.0, to.0, words];
                self.copy.dispatch(pass, &group, cast_slice(&params), [words.div_ceil(256), 1, 1]);
            }
        }
    }

    /// Copies positions `range` of the sequence with these pages out to a block.
    ///
    /// # Errors
    /// If memory is short or the device is lost.
    pub(crate) fn export(
        &self,
        table: &[PageId],
        range: Range<usize>,
        block: &mut KvBlock,
    ) -> Result<(), GpuError> {
        let Some(moves) = self.moves(table, &range, block)? else { return Ok(()) };
        // New memory is dear for the host: there is one buffer for all parts, and halves go from there to the
        // block with no copy between.
        let most = self.kept as u64 * moves.bytes(moves.most);
        let staging = self.gpu.buffer("exported keys and values", most, Use::Readback)?;
        for part in moves.parts(&range) {
            let bytes = moves.bytes(part.len());
            self.gpu.guard("an export of keys and values", || {
                let mut encoder = self.gpu.device().create_command_encoder(&Default::default());
                for (at, layer) in self.layers[..self.kept].iter().enumerate() {
                    moves.encode(self, &mut encoder, layer, &part, false);
                    encoder.copy_buffer_to_buffer(
                        &moves.block,
                        0,
                        &staging,
                        at as u64 * bytes,
                        bytes,
                    );
                }
                self.gpu.queue().submit([encoder.finish()]);
            })?;
            let all = self.kept as u64 * bytes;
            self.gpu.map_with(&staging, all, None, |mapped| {
                match bytemuck::try_cast_slice(mapped) {
                    Ok(halves) => moves.scatter(block, &range, &part, halves),
                    Err(_) => {
                        let halves: Vec<half::f16> = bytemuck::pod_collect_to_vec(mapped);
                        moves.scatter(block, &range, &part, &halves);
                    }
                }
            })?;
        }
        Ok(())
    }

    /// Copies a block to the positions from `at` on of the sequence with these pages.
    ///
    /// # Errors
    /// If memory is short or the device is lost.
    pub(crate) fn import(
        &self,
        table: &[PageId],
        at: usize,
        block: &KvBlock,
    ) -> Result<(), GpuError> {
        let range = at..at + block.tokens;
        let Some(moves) = self.moves(table, &range, block)? else { return Ok(()) };
        for part in moves.parts(&range) {
            for (index, layer) in self.layers[..self.kept].iter().enumerate() {
                let halves = moves.gather(block, &range, &part, index);
                self.gpu.guard("an import of keys and values", || {
                    self.gpu.queue().write_buffer(&moves.block, 0, cast_slice(&halves));
                    let mut encoder = self.gpu.device().create_command_encoder(&Default::default());
                    moves.encode(self, &mut encoder, layer, &part, true);
                    self.gpu.queue().submit([encoder.finish()]);
                })?;
            }
        }
        Ok(())
    }

    fn moves(
        &self,
        table: &[PageId],
        range: &Range<usize>,
        block: &KvBlock,
    ) -> Result<Option<Moves>, GpuError> {
        if range.is_empty() || block.layers == 0 {
            return Ok(None);
        }
        let pages: Vec<u32> = table[..range.end.div_ceil(PAGE)].iter().map(|page| page.0).collect();
        let per_token = 4 * block.kv_heads * block.head_dim;
        let most = (TRANSFER / per_token / block.layers).clamp(1, 1 << 15).min(range.len());
        let bytes = (most * per_token) as u64;
        Ok(Some(Moves {
            table: self.gpu.buffer_of("pages of a sequence", &pages)?,
            block: self.gpu.buffer("keys and values under way", bytes, Use::Storage)?,
            per_token,
            most,
        }))
    }
}

/// What a transfer works with.
struct Moves {
    table: wgpu::Buffer,
    /// One layer's keys and values of some tokens.
    block: wgpu::Buffer,
    /// Bytes of a token in one layer.
    per_token: usize,
    /// Tokens at once.
    most: usize,
}

impl Moves {
    fn parts(&self, range: &Range<usize>) -> impl Iterator<Item = Range<usize>> + use<> {
        let (most, end) = (self.most, range.end);
        range.clone().step_by(most).map(move |first| first..end.min(first + most))
    }

    fn bytes(&self, tokens: usize) -> u64 {
        (tokens * self.per_token) as u64
    }

    fn encode(
        &self,
        caches: &Caches,
        encoder: &mut wgpu::CommandEncoder,
        layer: &Cache,
        part: &Range<usize>,
        store: bool,
    ) {
        let shape = layer.shape;
        let params = [
            shape.kv_heads,
            shape.head_dim,
            shape.chunks(),
            part.len(),
            part.start,
            usize::from(store),
        ];
        let buffers = [&self.table, &self.block, &layer.keys, &layer.values];
        let buffers = buffers.map(|buffer| buffer.as_entire_buffer_binding());
        let group = caches.transfer.bind(&caches.gpu, &buffers);
        let grid = [(4 * shape.chunks()).div_ceil(64), part.len(), shape.kv_heads];
        let mut pass = encoder.begin_compute_pass(&Default::default());
        let params = params.map(|n| n as u32);
        caches.transfer.dispatch(&mut pass, &group, cast_slice(&params), grid.map(|n| n as u32));
    }

    /// Where tokens `part` of a head of a layer lie in a block that holds `range`.
    fn place(
        block: &KvBlock,
        range: &Range<usize>,
        part: &Range<usize>,
        layer: usize,
        head: usize,
    ) -> Range<usize> {
        let first = block.offset(layer, head, part.start - range.start);
        first..first + part.len() * block.head_dim
    }

    fn scatter(
        &self,
        block: &mut KvBlock,
        range: &Range<usize>,
        part: &Range<usize>,
        halves: &[half::f16],
    ) {
        let run = part.len() * block.head_dim;
        let mut runs = halves.chunks_exact(run);
        for layer in 0..block.layers {
            for kind in 0..2 {
                for head in 0..block.kv_heads {
                    let to = Self::place(block, range, part, layer, head);
                    let to = match kind {
                        0 => &mut block.keys[to],
                        _ => &mut block.values[to],
                    };
                    to.copy_from_slice(runs.next().expect("as many as were copied"));
                }
            }
        }
    }

    fn gather(
        &self,
        block: &KvBlock,
        range: &Range<usize>,
        part: &Range<usize>,
        layer: usize,
    ) -> Vec<half::f16> {
        let mut out = Vec::with_capacity(self.bytes(part.len()) as usize / 2);
        for kind in [&block.keys, &block.values] {
            for head in 0..block.kv_heads {
                out.extend_from_slice(&kind[Self::place(block, range, part, layer, head)]);
            }
        }
        out
    }
}
