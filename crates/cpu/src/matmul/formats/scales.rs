//! How the scales and minima of a panel are kept: as exactly and as narrowly as in the file.

use super::Format;
use super::kquants::SUPER;

/// How one scale, or one minimum, is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ScaleKind {
    /// A half-precision number.
    Half,
    /// The upper half of a single-precision number (bf16).
    Brain,
    /// A single-precision number.
    Single,
    /// A signed byte, to be multiplied by a half-precision factor of its super-block.
    Super,
}

impl ScaleKind {
    /// Bytes for each group.
    pub(crate) fn bytes(self) -> usize {
        match self {
            ScaleKind::Half | ScaleKind::Brain => 2,
            ScaleKind::Single => 4,
            ScaleKind::Super => 1,
        }
    }
}

/// Bytes of the parts of one panel.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ScaleSizes {
    /// The scales, and the minima if the format has them.
    pub(crate) scale: usize,
    pub(crate) min: usize,
    /// The factors of the scales and of the minima.
    pub(crate) factor: usize,
}

impl ScaleSizes {
    /// Those of panels of `rows` rows with `cols` columns.
    pub(crate) fn new<F: Format>(kind: ScaleKind, rows: usize, cols: usize) -> ScaleSizes {
        let scale = rows * (cols / F::GROUP) * kind.bytes();
        let parts = if F::MIN { 2 } else { 1 };
        let supers = if kind == ScaleKind::Super { cols.div_ceil(SUPER) } else { 0 };
        ScaleSizes { scale, min: (parts - 1) * scale, factor: rows * supers * 2 * parts }
    }
}

/// Where a format writes the scales of one row of a panel. A value for each row of the panel lies
/// side by side, group after group; factors likewise, those of the minima after those of the
/// scales.
pub(crate) struct Scales<'a> {
    pub(crate) scale: &'a mut [u8],
    /// Empty for formats without minima, as for `factor`'s second half.
    pub(crate) min: &'a mut [u8],
    pub(crate) factor: &'a mut [u8],
    /// Rows of the panel, and which of them this is.
    pub(crate) rows: usize,
    pub(crate) row: usize,
}

impl Scales<'_> {
    /// 16 bits each, for [`ScaleKind::Half`] and [`ScaleKind::Brain`].
    #[inline(always)]
    pub(crate) fn halves(&mut self, group: usize, scale: u16, min: u16) {
        self.put(group, scale.to_le_bytes(), min.to_le_bytes());
    }

    /// 32 bits each, for [`ScaleKind::Single`].
    #[inline(always)]
    pub(crate) fn singles(&mut self, group: usize, scale: u32, min: u32) {
        self.put(group, scale.to_le_bytes(), min.to_le_bytes());
    }

    /// For [`ScaleKind::Super`].
    #[inline(always)]
    pub(crate) fn bytes(&mut self, group: usize, scale: i8, min: i8) {
        self.put(group, scale.to_le_bytes(), min.to_le_bytes());
    }

    /// The half-precision factors of super-block `block`.
    #[inline(always)]
    pub(crate) fn factors(&mut self, block: usize, scale: u16, min: u16) {
        let parts = if self.min.is_empty() { 1 } else { 2 };
        let at = 2 * (block * parts * self.rows + self.row);
        self.factor[at..at + 2].copy_from_slice(&scale.to_le_bytes());
        if parts == 2 {
            let at = at + 2 * self.rows;
            self.factor[at..at + 2].copy_from_slice(&min.to_le_bytes());
        }
    }

    #[inline(always)]
    fn put<const N: usize>(&mut self, group: usize, scale: [u8; N], min: [u8; N]) {
        let at = (group * self.rows + self.row) * N;
        self.scale[at..at + N].copy_from_slice(&scale);
        if !self.min.is_empty() {
            self.min[at..at + N].copy_from_slice(&min);
        }
    }
}

/// Which of the two that a group may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Scale,
    Min,
}

/// Where the factors of a group's super-block start among a panel's.
#[inline(always)]
pub(crate) fn factor_at<F: Format>(part: Part, rows: usize, group: usize) -> usize {
    let block = group / (SUPER / F::GROUP);
    match (F::MIN, part) {
        (false, _) => 2 * rows * block,
        (true, Part::Scale) => 4 * rows * block,
        (true, Part::Min) => 4 * rows * block + 2 * rows,
    }
}
