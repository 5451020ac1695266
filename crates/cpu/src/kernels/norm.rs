//! Normalisation of rows.

use crate::isa::Isa;
use crate::simd::{Kernel, Simd, dispatch};

/// Divides each run of `group` elements of a row by its root mean square and multiplies by `gain`,
/// which is as long as a group, or empty for 1. Reads `x`, or `out` itself without one.
///
/// # Panics
/// If the lengths do not fit together.
pub(crate) fn rms_norm(
    isa: Isa,
    x: Option<&[f32]>,
    gain: &[f32],
    eps: f32,
    group: usize,
    out: &mut [f32],
) {
    assert!(group > 0 && out.len().is_multiple_of(group) && x.is_none_or(|x| x.len() == out.len()));
    assert!(gain.is_empty() || gain.len() == group);
    dispatch(isa, RmsNorm { x, gain, eps, group, out });
}

struct RmsNorm<'a> {
    x: Option<&'a [f32]>,
    gain: &'a [f32],
    eps: f32,
    group: usize,
    out: &'a mut [f32],
}

impl Kernel for RmsNorm<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let RmsNorm { x, gain, eps, group, out } = self;
        for (i, out) in out.chunks_exact_mut(group).enumerate() {
            if let Some(x) = x {
                out.copy_from_slice(&x[i * group..(i + 1) * group]);
            }
            let factor = 1.0 / (sum_of_squares(s, out) / group as f32 + eps).sqrt();
            scale(s, out, factor, gain);
        }
    }
}

#[inline(always)]
fn sum_of_squares<S: Simd>(s: S, x: &[f32]) -> f32 {
    let mut sums = [s.splat(0.0); 4];
    let mut blocks = x.chunks_exact(4 * S::LANES);
    for block in &mut blocks {
        for (i, sum) in sums.iter_mut().enumerate() {
            let v = s.load(&block[i * S::LANES..]);
            *sum = s.mul_add(v, v, *sum);
        }
    }
    let mut rest = blocks.remainder().chunks_exact(S::LANES);
    for part in &mut rest {
        let v = s.load(part);
        sums[0] = s.mul_add(v, v, sums[0]);
    }
    let tail: f32 = rest.remainder().iter().map(|v| v * v).sum();
    s.sum(s.add(s.add(sums[0], sums[1]), s.add(sums[2], sums[3]))) + tail
}

/// `x[i] *= factor * gain[i]`.
#[inline(always)]
fn scale<S: Simd>(s: S, x: &mut [f32], factor: f32, gain: &[f32]) {
    if gain.is_empty() {
        x.iter_mut().for_each(|v| *v *= factor);
        return;
    }
    let vector = s.splat(factor);
    let mut parts = x.chunks_exact_mut(S::LANES);
    let mut gains = gain.chunks_exact(S::LANES);
    for (part, gain) in (&mut parts).zip(&mut gains) {
        let scaled = s.mul(s.load(part), s.mul(vector, s.load(gain)));
        s.store(part, scaled);
    }
    let rest = parts.into_remainder().iter_mut().zip(gains.remainder());
    rest.for_each(|(v, gain)| *v *= factor * gain);
}

/// `(x - mean) / sqrt(variance + eps) * gain + bias` over a row; an empty `bias` is 0. Reads `x`,
/// or `out` itself without one.
pub(crate) fn layer_norm(
    isa: Isa,
    x: Option<&[f32]>,
    gain: &[f32],
    bias: &[f32],
    eps: f32,
    out: &mut [f32],
) {
    assert!(gain.len() == out.len() && (bias.is_empty() || bias.len() == out.len()));
    dispatch(isa, LayerNorm { x, gain, bias, eps, out });
}

struct LayerNorm<'a> {
    x: Option<&'a [f32]>,
    gain: &'a [f32],
    bias: &'a [f32],
    eps: f32,
    out: &'a mut [f32],
}

impl Kernel for LayerNorm<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let LayerNorm { x, gain, bias, eps, out } = self;
        if let Some(x) = x {
            out.copy_from_slice(x);
        }
        let n = out.len() as f32;
        let mut sum = s.splat(0.0);
        let mut parts = out.chunks_exact(S::LANES);
        for part in &mut parts {
            sum = s.add(sum, s.load(part));
        }
        let mean = (s.sum(sum) + parts.remainder().iter().sum::<f32>()) / n;
        out.iter_mut().for_each(|v| *v -= mean);
        let factor = 1.0 / (sum_of_squares(s, out) / n + eps).sqrt();
        scale(s, out, factor, gain);
        out.iter_mut().zip(bias).for_each(|(v, bias)| *v += bias);
    }
}
