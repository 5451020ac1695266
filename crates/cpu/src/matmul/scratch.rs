//! Each thread's memory for unpacked panels, kept between products.

use std::cell::RefCell;

#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// A buffer that starts on a cache line and only ever grows.
#[derive(Default)]
pub(super) struct Buffer {
    lines: Vec<Line>,
}

impl Buffer {
    /// `len` bytes, of whatever was there before.
    pub(super) fn bytes(&mut self, len: usize) -> &mut [u8] {
        self.grow(len);
        // SAFETY: the lines are initialized, at least `len` bytes, and borrowed with the result.
        unsafe { std::slice::from_raw_parts_mut(self.lines.as_mut_ptr().cast(), len) }
    }

    /// `len` floats, of whatever was there before.
    pub(super) fn floats(&mut self, len: usize) -> &mut [f32] {
        self.grow(4 * len);
        // SAFETY: as in `bytes`; a line is aligned for f32 and any bits are one.
        unsafe { std::slice::from_raw_parts_mut(self.lines.as_mut_ptr().cast(), len) }
    }

    fn grow(&mut self, bytes: usize) {
        let lines = bytes.div_ceil(64);
        if self.lines.len() < lines {
            self.lines.resize(lines, Line([0; 64]));
        }
    }
}

/// What a kernel may need at once.
#[derive(Default)]
pub(super) struct Scratch {
    /// Integers of unpacked panels.
    pub(super) integers: Buffer,
    /// Scales, or rows of floats.
    pub(super) scale: Buffer,
    /// Minima.
    pub(super) min: Buffer,
    /// What products add up to so far.
    pub(super) totals: Buffer,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// Calls `f` with this thread's scratch memory.
pub(super) fn with_scratch<R>(f: impl FnOnce(&mut Scratch) -> R) -> R {
    SCRATCH.with_borrow_mut(f)
}
