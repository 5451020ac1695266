//! Vectors as arrays, for any machine.

use super::{ROUND, Simd};

const N: usize = 8;

#[derive(Clone, Copy)]
pub(super) struct Plain;

#[inline(always)]
fn zip(a: [f32; N], b: [f32; N], f: impl Fn(f32, f32) -> f32) -> [f32; N] {
    let mut out = [0.0; N];
    for i in 0..N {
        out[i] = f(a[i], b[i]);
    }
    out
}

impl Simd for Plain {
    const LANES: usize = N;
    const REGISTERS: usize = 16;
    type V = [f32; N];

    #[inline(always)]
    fn splat(self, x: f32) -> [f32; N] {
        [x; N]
    }
    #[inline(always)]
    fn add(self, a: [f32; N], b: [f32; N]) -> [f32; N] {
        zip(a, b, |a, b| a + b)
    }
    #[inline(always)]
    fn sub(self, a: [f32; N], b: [f32; N]) -> [f32; N] {
        zip(a, b, |a, b| a - b)
    }
    #[inline(always)]
    fn mul(self, a: [f32; N], b: [f32; N]) -> [f32; N] {
        zip(a, b, |a, b| a * b)
    }
    #[inline(always)]
    fn div(self, a: [f32; N], b: [f32; N]) -> [f32; N] {
        zip(a, b, |a, b| a / b)
    }
    #[inline(always)]
    fn mul_add(self, a: [f32; N], b: [f32; N], c: [f32; N]) -> [f32; N] {
        // Where the target has no fused operation, `f32::mul_add` calls a slow function.
        if cfg!(target_arch = "aarch64") {
            let mut out = [0.0; N];
            for i in 0..N {
                out[i] = a[i].mul_add(b[i], c[i]);
            }
            return out;
        }
        self.add(self.mul(a, b), c)
    }
    #[inline(always)]
    fn max(self, a: [f32; N], b: [f32; N]) -> [f32; N] {
        zip(a, b, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    fn min(self, a: [f32; N], b: [f32; N]) -> [f32; N] {
        zip(a, b, |a, b| if a < b { a } else { b })
    }
    #[inline(always)]
    fn select_lt(self, a: [f32; N], b: [f32; N], yes: [f32; N], no: [f32; N]) -> [f32; N] {
        let mut out = [0.0; N];
        for i in 0..N {
            out[i] = if a[i] < b[i] { yes[i] } else { no[i] };
        }
        out
    }
    #[inline(always)]
    fn pow2(self, rounded: [f32; N]) -> [f32; N] {
        debug_assert!(rounded.iter().all(|r| r.is_nan() || (r - ROUND).abs() <= 127.0));
        rounded.map(|r| f32::from_bits((r.to_bits() << 23).wrapping_add(1f32.to_bits())))
    }
    #[inline(always)]
    fn sum(self, a: [f32; N]) -> f32 {
        ((a[0] + a[4]) + (a[2] + a[6])) + ((a[1] + a[5]) + (a[3] + a[7]))
    }
    #[inline(always)]
    fn greatest(self, a: [f32; N]) -> f32 {
        a.into_iter().fold(f32::NEG_INFINITY, f32::max)
    }
    #[inline(always)]
    unsafe fn load_at(self, from: *const f32) -> [f32; N] {
        // SAFETY: the caller's promise.
        unsafe { from.cast::<[f32; N]>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn store_at(self, to: *mut f32, a: [f32; N]) {
        // SAFETY: the caller's promise.
        unsafe { to.cast::<[f32; N]>().write_unaligned(a) }
    }
    #[inline(always)]
    unsafe fn load_half_at(self, from: *const u16) -> [f32; N] {
        // SAFETY: the caller's promise.
        unsafe { from.cast::<[u16; N]>().read_unaligned() }.map(widen)
    }
    #[inline(always)]
    unsafe fn store_half_at(self, to: *mut u16, a: [f32; N]) {
        // SAFETY: the caller's promise.
        unsafe { to.cast::<[u16; N]>().write_unaligned(a.map(narrow)) }
    }
}

/// Single precision of half-precision bits, without a branch.
#[inline(always)]
fn widen(bits: u16) -> f32 {
    let magnitude = f32::from_bits(u32::from(bits & 0x7fff) << 13);
    // Moves the exponent's bias from 15 to 127; exact for subnormals too.
    let value = (magnitude * f32::from_bits(0x7780_0000)).to_bits();
    let special = if bits & 0x7c00 == 0x7c00 { 0x7f80_0000 } else { 0 };
    f32::from_bits(value | special | u32::from(bits & 0x8000) << 16)
}

fn narrow(x: f32) -> u16 {
    half::f16::from_f32(x).to_bits()
}
