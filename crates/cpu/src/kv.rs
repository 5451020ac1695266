//! KV storage: pages of keys and values of all layers, whose memory is taken when they are first used.
//!
//! In a page each layer and key-value head has one run of [`PAGE`] tokens. Values lie token by
//! token, `(PAGE, stride)`, `stride` being `head_dim` rounded up to whole pairs of vectors. Keys lie
//! feature by feature, `(head_dim, PAGE)`: a query's scores of neighbouring tokens then fill a
//! vector without any sum across it. Elements are f16, or [quantized](quant).

pub(crate) mod quant;

use std::ops::Range;

use baton_graph::{ExecError, Graph, KvBlock, KvType, PageCopy, PageId, StateSpec};
use half::f16;
use half::slice::{HalfBitsSliceExt, HalfFloatSliceExt};

use crate::disjoint::Disjoint;
use crate::isa::Isa;
use crate::pages::Numbers;
use crate::simd::{Kernel, Simd, dispatch};
use quant::Order;

/// Tokens of a page.
pub(crate) const PAGE: usize = 64;

/// Floats or elements from one token's values to the next one's: whole pairs of vectors.
pub(crate) fn padded(head_dim: usize) -> usize {
    head_dim.next_multiple_of(32)
}

/// Where one layer's keys and values lie in a page.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LayerLayout {
    /// Element of the page at which the layer starts.
    start: usize,
    pub(crate) kv_heads: usize,
    pub(crate) head_dim: usize,
    /// Elements from one token's values to the next one's.
    pub(crate) stride: usize,
    pub(crate) kind: KvType,
}

impl LayerLayout {
    /// 16-bit units of a head's keys and of its values.
    fn lens(&self) -> [usize; 2] {
        match self.kind {
            KvType::F16 => [PAGE * self.head_dim, PAGE * self.stride],
            kind => [quant::units(kind, self.stride / KvType::BLOCK); 2],
        }
    }

    fn head_len(&self) -> usize {
        self.lens().iter().sum()
    }

    fn head(&self, head: usize) -> Range<usize> {
        assert!(head < self.kv_heads);
        let start = self.start + head * self.head_len();
        start..start + self.head_len()
    }
}

/// Keys `(head_dim, PAGE)` and values `(PAGE, stride)` of one head in one page: f16 bits, or what
/// [`quant`] makes of them.
#[derive(Clone, Copy)]
pub(crate) struct HeadPage<'a> {
    pub(crate) keys: &'a [u16],
    pub(crate) values: &'a [u16],
}

/// The pages of one executor.
#[derive(Debug)]
pub(crate) struct KvPages {
    layers: Vec<LayerLayout>,
    page_len: usize,
    /// Page after page.
    memory: Numbers<u16>,
    /// Which pages have been used.
    used: Vec<bool>,
}

impl KvPages {
    /// Storage for `pages` pages of a graph's state, kept as `kind`.
    ///
    /// # Errors
    /// If there are not even addresses for it.
    pub(crate) fn new(graph: &Graph, kind: KvType, pages: usize) -> Result<Self, ExecError> {
        let mut start = 0;
        let mut layers = Vec::new();
        for state in graph.states() {
            let (kv_heads, head_dim) = match *state {
                StateSpec::Kv { kv_heads, head_dim, .. } => (kv_heads, head_dim),
                _ => unreachable!("the plan refuses other state"),
            };
            let stride = padded(head_dim);
            let layer = LayerLayout { start, kv_heads, head_dim, stride, kind };
            start += kv_heads * layer.head_len();
            layers.push(layer);
        }
        let memory = start.checked_mul(pages).and_then(|len| Numbers::zeroed(len).ok());
        let memory = memory.ok_or_else(|| {
            let tokens = pages.saturating_mul(PAGE);
            ExecError::Invalid(format!(
                "no memory for a cache of {tokens} tokens; lower the context"
            ))
        })?;
        Ok(KvPages { layers, page_len: start, memory, used: vec![false; pages] })
    }

    /// Layout of layer `layer`.
    pub(crate) fn layer(&self, layer: usize) -> LayerLayout {
        self.layers[layer]
    }

    /// Bytes of the pages that have been used.
    pub(crate) fn bytes(&self) -> usize {
        2 * self.page_len * self.used.iter().filter(|&&used| used).count()
    }

    /// Where a page lies.
    fn place(&self, page: PageId) -> Range<usize> {
        let page = page.0 as usize;
        page * self.page_len..(page + 1) * self.page_len
    }

    /// Notes that these pages are used from now on.
    pub(crate) fn mark(&mut self, pages: &[PageId]) {
        for page in pages {
            self.used[page.0 as usize] = true;
        }
    }

    /// Copies a page.
    pub(crate) fn copy(&mut self, copy: PageCopy) {
        self.mark(&[copy.to]);
        let (from, to) = (self.place(copy.from), self.place(copy.to));
        self.memory.copy_within(from, to.start);
    }

    /// One head of one layer in a page.
    #[inline]
    pub(crate) fn head(&self, page: PageId, layer: &LayerLayout, head: usize) -> HeadPage<'_> {
        let all = &self.memory[self.place(page)][layer.head(head)];
        let (keys, values) = all.split_at(layer.lens()[0]);
        HeadPage { keys, values }
    }

    /// The pages, to be written by several threads.
    pub(crate) fn share(&mut self) -> SharedPages<'_> {
        SharedPages { page_len: self.page_len, memory: Disjoint::new(&mut self.memory) }
    }

    /// Copies positions out to a block: its token `token`, and as many more as the range has,
    /// from `range` of page `page`.
    pub(crate) fn export(
        &self,
        page: PageId,
        range: Range<usize>,
        block: &mut KvBlock,
        token: usize,
    ) {
        for (index, layer) in self.layers.iter().enumerate() {
            for head in 0..layer.kv_heads {
                let from = self.head(page, layer, head);
                let (dim, stride) = (layer.head_dim, layer.stride);
                if layer.kind != KvType::F16 {
                    let (mut keys, mut values) = (vec![0.0; dim * PAGE], vec![0.0; PAGE * stride]);
                    quant::keys(layer.kind, from.keys, range.end, &mut keys);
                    quant::values(layer.kind, from.values, range.clone(), stride, &mut values);
                    for (i, at) in range.clone().enumerate() {
                        let to = block.offset(index, head, token + i);
                        let mut key: Vec<f32> = (0..dim).map(|d| keys[d * PAGE + at]).collect();
                        let value = &mut values[at * stride..][..dim];
                        quant::turn(&mut key);
                        quant::turn(value);
                        block.keys[to..to + dim].convert_from_f32_slice(&key);
                        block.values[to..to + dim].convert_from_f32_slice(value);
                    }
                    continue;
                }
                for (i, at) in range.clone().enumerate() {
                    let to = block.offset(index, head, token + i);
                    for d in 0..dim {
                        block.keys[to + d] = f16::from_bits(from.keys[d * PAGE + at]);
                    }
                    let values = &from.values[at * stride..][..dim];
                    block.values[to..to + dim].copy_from_slice(values.reinterpret_cast::<f16>());
                }
            }
        }
    }

    /// The reverse of [`KvPages::export`].
    pub(crate) fn import(
        &mut self,
        page: PageId,
        range: Range<usize>,
        block: &KvBlock,
        token: usize,
    ) {
        self.mark(&[page]);
        let place = self.place(page);
        for (index, layer) in self.layers.iter().enumerate() {
            for head in 0..layer.kv_heads {
                let to = &mut self.memory[place.clone()][layer.head(head)];
                let (keys, values) = to.split_at_mut(layer.lens()[0]);
                for (i, at) in range.clone().enumerate() {
                    let from = block.offset(index, head, token + i);
                    if layer.kind != KvType::F16 {
                        let all = from..from + layer.head_dim;
                        let single = |x: &[f16]| x.iter().map(|x| x.to_f32()).collect::<Vec<f32>>();
                        let (key, value) = (&block.keys[all.clone()], &block.values[all]);
                        quant::put(layer.kind, Order::Features, at, &single(key), keys);
                        quant::put(layer.kind, Order::Tokens, at, &single(value), values);
                        continue;
                    }
                    for d in 0..layer.head_dim {
                        keys[d * PAGE + at] = block.keys[from + d].to_bits();
                    }
                    values[at * layer.stride..][..layer.head_dim].copy_from_slice(
                        block.values[from..from + layer.head_dim].reinterpret_cast(),
                    );
                }
            }
        }
    }
}

/// Pages that several threads write, each its own.
pub(crate) struct SharedPages<'a> {
    page_len: usize,
    memory: Disjoint<'a, u16>,
}

/// Rows of new keys and values: row `r` starts at `r * stride`.
#[derive(Clone, Copy)]
pub(crate) struct NewRows<'a> {
    pub(crate) keys: &'a [f32],
    pub(crate) key_stride: usize,
    pub(crate) values: &'a [f32],
    pub(crate) value_stride: usize,
}

impl SharedPages<'_> {
    /// Writes `rows` of new keys and values of a layer to a page, from position `at` in it on.
    ///
    /// # Safety
    /// Nobody else uses the page at the time.
    pub(crate) unsafe fn write(
        &self,
        isa: Isa,
        page: PageId,
        layer: &LayerLayout,
        at: usize,
        rows: Range<usize>,
        new: &NewRows<'_>,
    ) {
        let start = page.0 as usize * self.page_len;
        // SAFETY: the caller's promise.
        let page = unsafe { self.memory.part(start..start + self.page_len) };
        assert!(at + rows.len() <= PAGE);
        for head in 0..layer.kv_heads {
            let (keys, values) = page[layer.head(head)].split_at_mut(layer.lens()[0]);
            dispatch(isa, Write { layer, head, at, rows: rows.clone(), new, keys, values });
        }
    }
}

/// Tokens and features of a block of keys that is turned at once: what was one token's beside each other is one
/// feature's then.
const TURNED: usize = 16;

struct Write<'a> {
    layer: &'a LayerLayout,
    head: usize,
    at: usize,
    rows: Range<usize>,
    new: &'a NewRows<'a>,
    keys: &'a mut [u16],
    values: &'a mut [u16],
}

impl Kernel for Write<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Write { layer, head, at, rows, new, keys, values } = self;
        let dim = layer.head_dim;
        let first = rows.start;
        let key_of = |row: usize| &new.keys[row * new.key_stride + head * dim..][..dim];
        // Of these, several tokens' keys are turned at once.
        let turned = match layer.kind {
            KvType::F16 => rows.len() - rows.len() % TURNED,
            _ => 0,
        };
        for from in (0..turned).step_by(TURNED) {
            for part in 0..dim / TURNED {
                let mut bits = [[0; TURNED]; TURNED];
                for (i, bits) in bits.iter_mut().enumerate() {
                    narrow(s, &key_of(first + from + i)[part * TURNED..][..TURNED], bits);
                }
                let features = keys[part * TURNED * PAGE..].chunks_exact_mut(PAGE);
                for (feature, to) in features.take(TURNED).enumerate() {
                    let to = &mut to[at + from..][..TURNED];
                    to.iter_mut().zip(&bits).for_each(|(to, bits)| *to = bits[feature]);
                }
            }
        }
        for row in rows {
            let at = at + row - first;
            let key = key_of(row);
            let value = &new.values[row * new.value_stride + head * dim..][..dim];
            if layer.kind != KvType::F16 {
                quant::put(layer.kind, Order::Features, at, key, keys);
                quant::put(layer.kind, Order::Tokens, at, value, values);
                continue;
            }
            narrow(s, value, &mut values[at * layer.stride..][..dim]);
            let done = if row - first < turned { dim / TURNED } else { 0 };
            for (part, key) in key.chunks(TURNED).enumerate().skip(done) {
                let mut bits = [0; TURNED];
                narrow(s, key, &mut bits[..key.len()]);
                for (i, &bits) in bits[..key.len()].iter().enumerate() {
                    keys[(part * TURNED + i) * PAGE + at] = bits;
                }
            }
        }
    }
}

/// Rounds to half precision.
#[inline(always)]
fn narrow<S: Simd>(s: S, from: &[f32], to: &mut [u16]) {
    assert_eq!(from.len(), to.len());
    let mut i = 0;
    while i + S::LANES <= from.len() {
        // SAFETY: LANES elements from i on are within both.
        unsafe { s.store_half_at(to.as_mut_ptr().add(i), s.load_at(from.as_ptr().add(i))) };
        i += S::LANES;
    }
    for i in i..from.len() {
        to[i] = f16::from_f32(from[i]).to_bits();
    }
}
