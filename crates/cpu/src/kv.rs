//! KV storage: pages of keys and values of all layers, allocated when first used.
//!
//! In a page each layer and key-value head has one run of [`PAGE`] tokens. Values lie token by
//! token, `(PAGE, stride)`, `stride` being `head_dim` rounded up to whole pairs of vectors. Keys lie
//! feature by feature, `(head_dim, PAGE)`: a query's scores of neighbouring tokens then fill a
//! vector without any sum across it. Elements are f16, or [quantized](quant).

pub(crate) mod quant;

use std::ops::Range;

use baton_graph::{Graph, KvBlock, KvType, PageCopy, PageId, StateSpec};
use half::f16;
use half::slice::{HalfBitsSliceExt, HalfFloatSliceExt};

use crate::disjoint::Disjoint;
use crate::isa::Isa;
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
    /// Empty until used.
    pages: Vec<Box<[u16]>>,
}

impl KvPages {
    /// Storage for `pages` pages of a graph's state, kept as `kind`.
    pub(crate) fn new(graph: &Graph, kind: KvType, pages: usize) -> Self {
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
        KvPages { layers, page_len: start, pages: vec![Box::default(); pages] }
    }

    /// Layout of layer `layer`.
    pub(crate) fn layer(&self, layer: usize) -> LayerLayout {
        self.layers[layer]
    }

    /// Bytes allocated.
    pub(crate) fn bytes(&self) -> usize {
        2 * self.pages.iter().map(|page| page.len()).sum::<usize>()
    }

    /// Makes sure that the memory of these pages exists.
    pub(crate) fn allocate(&mut self, pages: &[PageId]) {
        for page in pages {
            let page = &mut self.pages[page.0 as usize];
            if page.is_empty() {
                *page = vec![0; self.page_len].into_boxed_slice();
            }
        }
    }

    /// Copies the first tokens of a page.
    pub(crate) fn copy(&mut self, copy: PageCopy) {
        self.allocate(&[copy.to]);
        let [from, to] = [copy.from.0 as usize, copy.to.0 as usize];
        let [from, to] = self.pages.get_disjoint_mut([from, to]).expect("a copy has two pages");
        to.copy_from_slice(from);
    }

    /// One head of one layer in a page.
    #[inline]
    pub(crate) fn head(&self, page: PageId, layer: &LayerLayout, head: usize) -> HeadPage<'_> {
        let all = &self.pages[page.0 as usize][layer.head(head)];
        let (keys, values) = all.split_at(layer.lens()[0]);
        HeadPage { keys, values }
    }

    /// The pages, to be written by several threads.
    pub(crate) fn share(&mut self) -> SharedPages<'_> {
        SharedPages { pages: Disjoint::new(&mut self.pages) }
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
                        for d in 0..dim {
                            block.keys[to + d] = f16::from_f32(keys[d * PAGE + at]);
                            block.values[to + d] = f16::from_f32(values[at * stride + d]);
                        }
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
        self.allocate(&[page]);
        for (index, layer) in self.layers.iter().enumerate() {
            for head in 0..layer.kv_heads {
                let to = &mut self.pages[page.0 as usize][layer.head(head)];
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
    pages: Disjoint<'a, Box<[u16]>>,
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
        let page = page.0 as usize;
        // SAFETY: the caller's promise.
        let page = &mut unsafe { self.pages.part(page..page + 1) }[0];
        assert!(at + rows.len() <= PAGE);
        for head in 0..layer.kv_heads {
            let (keys, values) = page[layer.head(head)].split_at_mut(layer.lens()[0]);
            dispatch(isa, Write { layer, head, at, rows: rows.clone(), new, keys, values });
        }
    }
}

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
        for row in rows {
            let at = at + row - first;
            let key = &new.keys[row * new.key_stride + head * dim..][..dim];
            let value = &new.values[row * new.value_stride + head * dim..][..dim];
            if layer.kind != KvType::F16 {
                quant::put(layer.kind, Order::Features, at, key, keys);
                quant::put(layer.kind, Order::Tokens, at, value, values);
                continue;
            }
            narrow(s, value, &mut values[at * layer.stride..][..dim]);
            for (part, key) in key.chunks(16).enumerate() {
                let mut bits = [0; 16];
                narrow(s, key, &mut bits[..key.len()]);
                for (i, &bits) in bits[..key.len()].iter().enumerate() {
                    keys[(part * 16 + i) * PAGE + at] = bits;
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
