//! The memory of intermediate values.

use std::ops::Range;

use crate::disjoint::Disjoint;
use crate::pages::Floats;
use crate::plan::{LOGITS, View};

/// One run of floats for all slots, and the logits, which are handed out.
///
/// Slots lie as close as the rows of the current pass allow, so that decoding stays in the cache
/// however large the batches are that there is room for.
#[derive(Debug, Default)]
pub(crate) struct Arena {
    data: Floats,
    /// Sum of the widths of the slots before each.
    starts: Vec<usize>,
    rows: usize,
    pub(crate) logits: Vec<f32>,
}

impl Arena {
    /// An arena of slots of these widths over `data`.
    pub(crate) fn new(data: Floats, widths: &[usize]) -> Self {
        let before = |start: &mut usize, width: &usize| {
            *start += width;
            Some(*start - width)
        };
        let starts = widths.iter().scan(0, before).collect();
        Arena { data, starts, rows: 0, logits: Vec::new() }
    }

    /// Lays the slots out for `rows` rows.
    pub(crate) fn set_rows(&mut self, rows: usize) {
        self.rows = rows;
    }

    pub(crate) fn bytes(&self) -> usize {
        4 * self.data.len()
    }

    /// The slots, for threads that fill them together.
    pub(crate) fn share(&mut self) -> Slots<'_> {
        let Arena { data, starts, rows, logits } = self;
        Slots { data: Disjoint::new(data), logits: Disjoint::new(logits), starts, rows: *rows }
    }
}

/// All slots of an arena.
pub(crate) struct Slots<'a> {
    data: Disjoint<'a, f32>,
    logits: Disjoint<'a, f32>,
    starts: &'a [usize],
    rows: usize,
}

impl Slots<'_> {
    /// The run that a slot is in, and where in it `range` of the slot lies.
    #[inline]
    fn locate(&self, slot: usize, range: Range<usize>) -> (&Disjoint<'_, f32>, Range<usize>) {
        if slot == LOGITS {
            return (&self.logits, range);
        }
        let start = self.starts[slot] * self.rows;
        (&self.data, start + range.start..start + range.end)
    }

    /// The columns of a view in row `row`.
    ///
    /// # Safety
    /// Nobody else may have them.
    #[allow(clippy::mut_from_ref)]
    #[inline]
    pub(crate) unsafe fn row(&self, view: &View, row: usize) -> &mut [f32] {
        let start = row * view.stride + view.offset;
        let (run, range) = self.locate(view.slot, start..start + view.cols);
        // SAFETY: the caller's promise.
        unsafe { run.part(range) }
    }

    /// As [`Slots::row`], for reading.
    ///
    /// # Safety
    /// Nobody may write to them.
    #[inline]
    pub(crate) unsafe fn read_row(&self, view: &View, row: usize) -> &[f32] {
        let start = row * view.stride + view.offset;
        let (run, range) = self.locate(view.slot, start..start + view.cols);
        // SAFETY: the caller's promise.
        unsafe { run.read(range) }
    }

    /// Everything from the view's first element to its last in `rows` rows: rows are a stride
    /// apart, and columns of other views may lie between.
    ///
    /// # Safety
    /// Nobody else may have elements of it.
    #[allow(clippy::mut_from_ref)]
    #[inline]
    pub(crate) unsafe fn all(&self, view: &View, rows: usize) -> &mut [f32] {
        let (run, range) = self.locate(view.slot, extent(view, rows));
        // SAFETY: the caller's promise.
        unsafe { run.part(range) }
    }

    /// As [`Slots::all`], for reading.
    ///
    /// # Safety
    /// Nobody may write to elements of it.
    #[inline]
    pub(crate) unsafe fn read(&self, view: &View, rows: usize) -> &[f32] {
        let (run, range) = self.locate(view.slot, extent(view, rows));
        // SAFETY: the caller's promise.
        unsafe { run.read(range) }
    }
}

fn extent(view: &View, rows: usize) -> Range<usize> {
    let len = rows.checked_sub(1).map_or(0, |last| last * view.stride + view.cols);
    view.offset..view.offset + len
}
