//! Weights in the order in which the kernels read them.
//!
//! A matrix is packed once, when it is loaded, into *panels* of neighbouring rows. A panel has the
//! same bits as the file, sorted anew:
//!
//! ```text
//! codes    block by block (32 columns of all rows); see below
//! scale    group by group, one for each row
//! min      likewise, if the format has minima
//! factor   super-block by super-block, if scales are bytes to be multiplied with one
//! ```
//!
//! The codes of a block, a byte each, would lie so that a kernel's vector holds `run` neighbouring
//! columns of each row, row after row. These bytes, in eight equal *chunks*, are squeezed into bit
//! planes: chunk `i` of a plane of `P` bits a code lies in the plane's chunk `i % P`, shifted by
//! `P * (i / P)`. Codes of 3, 5 and 6 bits have a low plane of 2 or 4 bits and a high one.

mod sort;

use std::io;
use std::sync::Arc;

use baton_weights::DType;
use memmap2::Mmap;

use super::formats::{Format, Row, ScaleKind, ScaleSizes};
use crate::isa::Isa;

/// Chunks of a block.
pub(super) const CHUNKS: usize = 8;

/// How far ahead of their use panels are asked for, in bytes. One after the other they are a long
/// run of memory, but of three streams, which processors do not foresee well.
pub(super) const AHEAD: usize = 4096;

/// The shape of an instruction set's panels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    /// Rows of a panel.
    pub(super) rows: usize,
    /// Neighbouring columns of a row that lie together.
    pub(super) run: usize,
}

impl Layout {
    pub(super) fn of(isa: Isa) -> Layout {
        match isa {
            Isa::Avx512 => Layout { rows: 32, run: 4 },
            Isa::NeonI8mm => Layout { rows: 8, run: 8 },
            _ => Layout { rows: 8, run: 4 },
        }
    }
}

/// Bits of a code's low plane.
pub(super) const fn low_bits<F: Format>() -> usize {
    match F::BITS {
        2 | 3 => 2,
        8 => 8,
        _ => 4,
    }
}

/// Bits of a code's high plane.
pub(super) const fn high_bits<F: Format>() -> usize {
    F::BITS - low_bits::<F>()
}

/// The panels of a matrix, in memory that it shares with the model's other matrices.
#[derive(Clone, Debug)]
pub(super) struct Packed {
    memory: Arc<Mmap>,
    start: usize,
    shape: Shape,
}

/// What the panels of a matrix consist of.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    layout: Layout,
    kind: ScaleKind,
    panels: usize,
    /// Bytes of the codes and the scales of a panel, and of the whole of it.
    codes: usize,
    scales: ScaleSizes,
    panel: usize,
}

impl Shape {
    /// That of a matrix of `rows` rows of `cols` columns; `row` is one of them.
    pub(super) fn new<F: Format>(layout: Layout, rows: usize, cols: usize, row: Row<'_>) -> Shape {
        let kind = F::SCALES.unwrap_or(match row.scale_type {
            DType::F16 => ScaleKind::Half,
            DType::BF16 => ScaleKind::Brain,
            _ => ScaleKind::Single,
        });
        let codes = layout.rows * cols * F::BITS / 8;
        let scales = ScaleSizes::new::<F>(kind, layout.rows, cols);
        // Panels start on cache lines.
        let panel = (codes + scales.scale + scales.min + scales.factor).next_multiple_of(64);
        Shape { layout, kind, panels: rows.div_ceil(layout.rows), codes, scales, panel }
    }

    /// Bytes of all panels.
    pub(super) fn bytes(&self) -> usize {
        self.panels * self.panel
    }
}

/// A panel as it is kept.
#[derive(Clone, Copy)]
pub(super) struct Panel<'a> {
    pub(super) codes: &'a [u8],
    pub(super) scale: &'a [u8],
    pub(super) min: &'a [u8],
    pub(super) factor: &'a [u8],
    kind: ScaleKind,
}

impl Panel<'_> {
    /// How the scales are kept.
    #[inline(always)]
    pub(super) fn kind<F: Format>(&self) -> ScaleKind {
        match F::SCALES {
            Some(kind) => kind,
            None => self.kind,
        }
    }
}

/// Where each of the panels of matrices of these shapes starts in the memory that they share, and
/// how much that is.
///
/// # Errors
/// If no machine has so much.
pub(super) fn arrange(shapes: &[Shape]) -> io::Result<(Vec<usize>, usize)> {
    let mut total = 0usize;
    let mut starts = Vec::with_capacity(shapes.len());
    for shape in shapes {
        starts.push(total);
        total = total.checked_add(shape.bytes()).ok_or(io::ErrorKind::OutOfMemory)?;
    }
    Ok((starts, total))
}

impl Packed {
    /// The panels that were packed into `memory` from byte `start` on.
    pub(super) fn new(memory: Arc<Mmap>, start: usize, shape: Shape) -> Packed {
        Packed { memory, start, shape }
    }

    /// Rows of a panel.
    pub(super) fn rows(&self) -> usize {
        self.shape.layout.rows
    }

    /// Bytes of all panels.
    pub(super) fn bytes(&self) -> usize {
        self.shape.bytes()
    }

    /// Panel number `i`.
    pub(super) fn panel(&self, i: usize) -> Panel<'_> {
        let Shape { codes, scales, panel, kind, .. } = self.shape;
        let start = self.start + i * panel;
        let (codes, rest) = self.memory[start..start + panel].split_at(codes);
        let (scale, rest) = rest.split_at(scales.scale);
        let (min, rest) = rest.split_at(scales.min);
        Panel { codes, scale, min, factor: &rest[..scales.factor], kind }
    }
}

/// So many ones.
#[inline(always)]
pub(super) const fn mask(bits: usize) -> u8 {
    ((1u16 << bits) - 1) as u8
}

#[cfg(test)]
mod tests;
