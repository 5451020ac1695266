//! Vectors of f32 for kernels that are written once for every instruction set.
//!
//! A kernel is a type that implements [`Kernel`]: its `run` is generic over [`Simd`] and inlined
//! into a function compiled for the instruction set at hand. AArch64 uses the plain arrays, which
//! the compiler turns into NEON.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod math;
mod plain;

pub(crate) use math::{erfc, exp, sigmoid, tanh};

use crate::isa::Isa;

/// Added to a float below 2^22, it leaves the nearest integer in the low bits of the sum.
pub(crate) const ROUND: f32 = 12_582_912.0;

/// Vector operations. A value of the type exists only where the machine has the instructions.
///
/// The methods that take slices read or write the first [`Simd::LANES`] elements.
pub(crate) trait Simd: Copy {
    /// Elements of a vector.
    const LANES: usize;
    /// How many vectors there are registers for.
    const REGISTERS: usize;
    /// A vector.
    type V: Copy;

    fn splat(self, x: f32) -> Self::V;
    fn add(self, a: Self::V, b: Self::V) -> Self::V;
    fn sub(self, a: Self::V, b: Self::V) -> Self::V;
    fn mul(self, a: Self::V, b: Self::V) -> Self::V;
    fn div(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a * b + c`.
    fn mul_add(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// The greater; `b` if one is NaN.
    fn max(self, a: Self::V, b: Self::V) -> Self::V;
    /// The lesser; `b` if one is NaN.
    fn min(self, a: Self::V, b: Self::V) -> Self::V;
    /// `yes` where `a < b`, else `no`.
    fn select_lt(self, a: Self::V, b: Self::V, yes: Self::V, no: Self::V) -> Self::V;
    /// `2^n` for `rounded = n + ROUND` with an integer `n` in -126..=127.
    fn pow2(self, rounded: Self::V) -> Self::V;
    /// Sum of the elements.
    fn sum(self, a: Self::V) -> f32;
    /// Greatest of the elements.
    fn greatest(self, a: Self::V) -> f32;

    /// Asks for what is at `at`, which may be nothing, to be brought into the caches. Where there is no
    /// such instruction nothing happens.
    #[inline(always)]
    fn prefetch(self, at: *const u8) {
        let _ = at;
    }

    /// # Safety
    /// `from` is valid for reads of `LANES` floats.
    unsafe fn load_at(self, from: *const f32) -> Self::V;
    /// # Safety
    /// `to` is valid for writes of `LANES` floats.
    unsafe fn store_at(self, to: *mut f32, a: Self::V);
    /// Widens half-precision bits.
    ///
    /// # Safety
    /// `from` is valid for reads of `LANES` elements.
    unsafe fn load_half_at(self, from: *const u16) -> Self::V;
    /// Rounds to half-precision bits, to nearest even.
    ///
    /// # Safety
    /// `to` is valid for writes of `LANES` elements.
    unsafe fn store_half_at(self, to: *mut u16, a: Self::V);

    #[inline(always)]
    fn load(self, from: &[f32]) -> Self::V {
        assert!(from.len() >= Self::LANES);
        // SAFETY: long enough.
        unsafe { self.load_at(from.as_ptr()) }
    }

    #[inline(always)]
    fn store(self, to: &mut [f32], a: Self::V) {
        assert!(to.len() >= Self::LANES);
        // SAFETY: long enough.
        unsafe { self.store_at(to.as_mut_ptr(), a) }
    }
}

/// A computation that is compiled once for each instruction set. `run` is to be marked
/// `#[inline(always)]`, as is everything that it calls in a loop.
pub(crate) trait Kernel {
    /// What it returns.
    type Output;
    /// Does it.
    fn run<S: Simd>(self, s: S) -> Self::Output;
}

/// Runs a kernel with the instructions of `isa`.
///
/// # Panics
/// If the machine lacks them.
#[inline]
pub(crate) fn dispatch<K: Kernel>(isa: Isa, kernel: K) -> K::Output {
    assert!(isa.is_available(), "this machine has no {isa}");
    match isa {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: just checked.
        Isa::Avx2 => unsafe { avx2::run(kernel) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: just checked.
        Isa::Avx512 => unsafe { avx512::run(kernel) },
        _ => kernel.run(plain::Plain),
    }
}

/// `out[i] = f(x[i])`, where no `x` means `out` itself: a full vector at a time, the rest padded.
pub(crate) trait Map {
    fn call<S: Simd>(&self, s: S, x: S::V) -> S::V;
}

#[inline(always)]
pub(crate) fn map<S: Simd>(s: S, f: &impl Map, x: Option<&[f32]>, out: &mut [f32]) {
    if let Some(x) = x {
        out.copy_from_slice(x);
    }
    let mut parts = out.chunks_exact_mut(S::LANES);
    for part in &mut parts {
        let y = f.call(s, s.load(part));
        s.store(part, y);
    }
    let rest = parts.into_remainder();
    let mut padded = [0f32; 16];
    padded[..rest.len()].copy_from_slice(rest);
    let y = f.call(s, s.load(&padded));
    s.store(&mut padded, y);
    rest.copy_from_slice(&padded[..rest.len()]);
}

#[cfg(test)]
mod tests;
