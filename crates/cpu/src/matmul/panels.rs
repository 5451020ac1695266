//! The order of work that all SIMD kernels share: panels of neighbouring matrix rows against tiles
//! of tokens.
//!
//! With few tokens, a panel is multiplied as it lies in the file. With more, some panels are first
//! rewritten (*packed*) into the order the kernel likes best, as many as stay in the caches near
//! the core, and then meet one tile of tokens after the other.

use baton_weights::DType;

use super::formats::{BLOCK, Format, Row};
use super::scratch::Scratch;
use super::work::Work;

/// Bytes of packed panels that are used together: what the caches near the core hold.
const PACKED_BYTES: usize = 24 << 10;
/// Most rows that a panel has, and most tokens that a tile has.
const MOST_ROWS: usize = 16;
const MOST_TOKENS: usize = 8;

const NO_ROW: Row<'static> =
    Row { data: &[], scales: &[], biases: &[], scale_type: DType::F32, group: 0 };

/// What a family of kernels does with one panel of a format.
///
/// # Safety
/// All functions need the instruction set that the kernel is made for.
pub(super) trait Kernel<F: Format> {
    /// Rows of a panel, at most 16.
    const ROWS: usize;
    /// Tokens that meet a packed panel together, at most 8.
    const TILE: usize;
    /// Most tokens for which panels are not packed.
    const MOST_DIRECT: usize;
    /// Whether a row's values are wanted as [`Format::values`] writes them, not as in the file.
    const LINEAR: bool;

    /// [`Format::values`].
    unsafe fn values(row: &Row<'_>, out: &mut [u8]);
    /// The scales, and minima if there are any, of `ROWS` rows: `ROWS` for each group.
    unsafe fn scales(rows: &[Row<'_>], scale: &mut [f32], min: &mut [f32]);
    /// Multiplies the panel that starts at matrix row `row` with all tokens of the work.
    unsafe fn direct(work: &Work<'_>, row: usize, panel: Panel<'_>);
    /// Rewrites the values of rows of `blocks` blocks.
    unsafe fn pack(rows: &[*const u8], blocks: usize, out: &mut [u8]);
    /// Multiplies the packed panel that starts at matrix row `row` with `tokens`, the work's tokens
    /// from number `first` on.
    unsafe fn tile(work: &Work<'_>, row: usize, panel: Packed<'_>, first: usize, tokens: &[Token]);
}

/// A panel as it lies in the file (or, for `LINEAR`, in scratch memory).
#[derive(Clone, Copy)]
pub(super) struct Panel<'a> {
    /// Start of each row's values; all have the length of the activation rows.
    pub(super) rows: &'a [*const u8],
    pub(super) scales: PanelScales<'a>,
}

/// A panel in the kernel's own order.
#[derive(Clone, Copy)]
pub(super) struct Packed<'a> {
    pub(super) values: &'a [u8],
    pub(super) scales: PanelScales<'a>,
}

/// `ROWS` scales for each group, and as many minima for formats that have them.
#[derive(Clone, Copy)]
pub(super) struct PanelScales<'a> {
    pub(super) scale: &'a [f32],
    pub(super) min: &'a [f32],
}

/// Where the parts of one activation row lie.
#[derive(Clone, Copy)]
pub(super) struct Token {
    /// An integer for each column.
    pub(super) values: *const i8,
    /// A scale for each block.
    pub(super) scale: *const f32,
    /// The integers' sum for each group of the weights' format.
    pub(super) sum: *const f32,
    /// The same times the scale.
    pub(super) scaled: *const f32,
}

impl Token {
    /// The parts of the work's token `token`.
    #[inline(always)]
    pub(super) fn new<F: Format>(work: &Work<'_>, token: usize) -> Token {
        let x = work.x.quantized.expect("checked before");
        let (row, cols) = (work.job.tokens.row(token), work.x.cols);
        let (sum, scaled) =
            if F::GROUP == BLOCK { (&x.sum32, &x.scaled32) } else { (&x.sum16, &x.scaled16) };
        let groups = row * (cols / F::GROUP)..(row + 1) * (cols / F::GROUP);
        Token {
            values: x.values[row * cols..(row + 1) * cols].as_ptr(),
            scale: x.scale[row * (cols / BLOCK)..(row + 1) * (cols / BLOCK)].as_ptr(),
            sum: sum[groups.clone()].as_ptr(),
            scaled: scaled[groups].as_ptr(),
        }
    }
}

/// Does the work.
///
/// # Safety
/// The machine must have the kernel's instruction set.
pub(super) unsafe fn run<F: Format, K: Kernel<F>>(work: &Work<'_>, scratch: &mut Scratch) {
    let (tokens, cols) = (work.job.tokens.len(), work.x.cols);
    let direct = tokens <= K::MOST_DIRECT;
    // Bytes of packed values, and scales, of a panel.
    let (size, scales) = (K::ROWS * cols, K::ROWS * (cols / F::GROUP));
    let together = if direct { 1 } else { (PACKED_BYTES / size).max(1) };
    let Scratch { linear, packed, scale, min } = scratch;
    let linear = linear.bytes(if K::LINEAR { size } else { 0 });
    let packed = packed.bytes(if direct { 0 } else { together * size });
    let scale = scale.floats(together * scales);
    let min = min.floats(if F::MIN { together * scales } else { 0 });

    for first in work.rows.clone().step_by(together * K::ROWS) {
        let last = (first + together * K::ROWS).min(work.rows.end);
        let starts = || (first..last).step_by(K::ROWS).enumerate();
        let part = |i: usize| if F::MIN { i * scales..(i + 1) * scales } else { 0..0 };
        for (i, row) in starts() {
            let scale = &mut scale[i * scales..(i + 1) * scales];
            let min = &mut min[part(i)];
            // Rows past the end repeat the last; their products are dropped.
            let rows: [Row<'_>; MOST_ROWS] = std::array::from_fn(|i| {
                if i < K::ROWS {
                    work.job.matrix.row((row + i).min(work.rows.end - 1))
                } else {
                    NO_ROW
                }
            });
            let mut starts = rows.map(|row| row.data.as_ptr());
            // SAFETY: the caller's machine has the instructions. `starts` are of whole rows.
            unsafe {
                K::scales(&rows[..K::ROWS], scale, min);
                if K::LINEAR {
                    for (row, values) in rows.iter().zip(linear.chunks_exact_mut(cols)) {
                        K::values(row, values);
                    }
                    for (start, values) in starts.iter_mut().zip(linear.chunks_exact(cols)) {
                        *start = values.as_ptr();
                    }
                }
                let rows = &starts[..K::ROWS];
                if direct {
                    K::direct(work, row, Panel { rows, scales: PanelScales { scale, min } });
                } else {
                    K::pack(rows, cols / BLOCK, &mut packed[i * size..(i + 1) * size]);
                }
            }
        }
        if direct {
            continue;
        }
        for token in (0..tokens).step_by(K::TILE) {
            let count = (tokens - token).min(K::TILE);
            let last = token + count - 1;
            let tile: [Token; MOST_TOKENS] =
                std::array::from_fn(|t| Token::new::<F>(work, (token + t).min(last)));
            for (i, row) in starts() {
                let scale = &scale[i * scales..(i + 1) * scales];
                let scales = PanelScales { scale, min: &min[part(i)] };
                let panel = Packed { values: &packed[i * size..(i + 1) * size], scales };
                // SAFETY: the caller's machine has the instructions.
                unsafe { K::tile(work, row, panel, token, &tile[..count]) };
            }
        }
    }
}
