//! A slice that several threads fill at once, each its own parts.

use std::marker::PhantomData;
use std::ops::Range;

/// A mutable slice shared between the tasks of one run.
pub(crate) struct Disjoint<'a, T> {
    start: *mut T,
    len: usize,
    lifetime: PhantomData<&'a mut [T]>,
}

// SAFETY: threads get parts as of a `&mut [T]`, for which `T` is `Send` and which `part` demands not
// to overlap, and with `read` shared parts as of a `&[T]`, for which `T` is `Sync`.
unsafe impl<T: Send + Sync> Sync for Disjoint<'_, T> {}
// SAFETY: as a `&mut [T]`.
unsafe impl<T: Send> Send for Disjoint<'_, T> {}

impl<'a, T> Disjoint<'a, T> {
    pub(crate) fn new(slice: &'a mut [T]) -> Self {
        Disjoint { start: slice.as_mut_ptr(), len: slice.len(), lifetime: PhantomData }
    }

    /// The elements of that range.
    ///
    /// # Safety
    /// No other part that overlaps it may be alive.
    ///
    /// # Panics
    /// If the range is out of bounds.
    #[allow(clippy::mut_from_ref)]
    #[inline(always)]
    pub(crate) unsafe fn part(&self, range: Range<usize>) -> &mut [T] {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} of {}", self.len);
        // SAFETY: inside the slice that this was made of, which is borrowed for 'a; the caller
        // sees to it that nobody else has these elements.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.len()) }
    }

    /// The elements of that range, to be read.
    ///
    /// # Safety
    /// No mutable part that overlaps it may be alive.
    ///
    /// # Panics
    /// If the range is out of bounds.
    #[inline(always)]
    pub(crate) unsafe fn read(&self, range: Range<usize>) -> &[T] {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} of {}", self.len);
        // SAFETY: inside the slice that this was made of, which is borrowed for 'a; the caller
        // sees to it that nobody changes these elements.
        unsafe { std::slice::from_raw_parts(self.start.add(range.start), range.len()) }
    }
}
