//! Elementary functions on vectors, good to about 1e-7 relative.

use super::{ROUND, Simd};

/// `e^x`: 0 below -87.3, and no more than 2.4e38. NaN stays NaN.
#[inline(always)]
pub(crate) fn exp<S: Simd>(s: S, x: S::V) -> S::V {
    let lowest = s.splat(-87.3);
    let clamped = s.min(s.splat(88.37), s.max(lowest, x));
    // x = n ln 2 + r with |r| <= ln(2) / 2; ln 2 in two parts, so that r is exact enough.
    let rounded = s.mul_add(clamped, s.splat(std::f32::consts::LOG2_E), s.splat(ROUND));
    let n = s.sub(rounded, s.splat(ROUND));
    let r = s.mul_add(n, s.splat(-0.693_359_4), clamped);
    let r = s.mul_add(n, s.splat(2.121_944_4e-4), r);
    // Taylor to r^7 / 5040: the next term is below 5.2e-9 of the result.
    let mut sum = s.splat(1.0 / 5040.0);
    for factor in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        sum = s.mul_add(sum, r, s.splat(factor));
    }
    s.select_lt(x, lowest, s.splat(0.0), s.mul(sum, s.pow2(rounded)))
}

/// `1 / (1 + e^-x)`.
#[inline(always)]
pub(crate) fn sigmoid<S: Simd>(s: S, x: S::V) -> S::V {
    let one = s.splat(1.0);
    s.div(one, s.add(one, exp(s, s.sub(s.splat(0.0), x))))
}

/// The hyperbolic tangent.
#[inline(always)]
pub(crate) fn tanh<S: Simd>(s: S, x: S::V) -> S::V {
    let zero = s.splat(0.0);
    let magnitude = s.max(s.sub(zero, x), x);
    let one = s.splat(1.0);
    let large = exp(s, s.add(magnitude, magnitude));
    let large = s.sub(one, s.div(s.splat(2.0), s.add(large, one)));
    let large = s.select_lt(x, zero, s.sub(zero, large), large);
    // Near zero the difference above cancels: a Taylor series in x^2 instead.
    let square = s.mul(x, x);
    let mut sum = s.splat(-1382.0 / 155_925.0);
    for factor in [62.0 / 2835.0, -17.0 / 315.0, 2.0 / 15.0, -1.0 / 3.0, 1.0] {
        sum = s.mul_add(sum, square, s.splat(factor));
    }
    s.select_lt(magnitude, s.splat(0.35), s.mul(sum, x), large)
}

/// `1 - erf(x)` for `x >= 0`: a Chebyshev fit in `1 / (1 + x / 2)`, good to 1.2e-7 relative.
#[inline(always)]
pub(crate) fn erfc<S: Simd>(s: S, x: S::V) -> S::V {
    let one = s.splat(1.0);
    let t = s.div(one, s.mul_add(x, s.splat(0.5), one));
    let mut sum = s.splat(0.170_872_77);
    for factor in [
        -0.822_152_2,
        1.488_515_9,
        -1.135_204,
        0.278_868_07,
        -0.186_288_06,
        0.096_784_18,
        0.374_091_96,
        1.000_023_7,
        -1.265_512_2,
    ] {
        sum = s.mul_add(sum, t, s.splat(factor));
    }
    let exponent = s.sub(sum, s.mul(x, x));
    s.mul(t, exp(s, exponent))
}
