//! Rotary position embedding.

use baton_graph::RopeLayout;

use crate::isa::Isa;
use crate::simd::{Kernel, Simd, dispatch};

/// Writes cosines, then sines, of a position's angles, times `magnitude`, to `out`, which holds two
/// values for each of `inv_freq`.
pub(crate) fn angles(position: usize, inv_freq: &[f32], magnitude: f32, out: &mut [f32]) {
    let (cos, sin) = out.split_at_mut(inv_freq.len());
    for ((cos, sin), &frequency) in cos.iter_mut().zip(sin).zip(inv_freq) {
        // Angles reach 10^5: in single precision they would be off by a hundredth.
        let (s, c) = (position as f64 * f64::from(frequency)).sin_cos();
        *cos = c as f32 * magnitude;
        *sin = s as f32 * magnitude;
    }
}

/// Rotates the first `angles.len()` features of each head of `row` in place.
///
/// # Panics
/// If a head has fewer features than there are angles.
pub(crate) fn rotate(
    isa: Isa,
    layout: RopeLayout,
    head_dim: usize,
    angles: &[f32],
    row: &mut [f32],
) {
    assert!(head_dim > 0 && angles.len() <= head_dim);
    dispatch(isa, Rotate { layout, head_dim, angles, row });
}

struct Rotate<'a> {
    layout: RopeLayout,
    head_dim: usize,
    angles: &'a [f32],
    row: &'a mut [f32],
}

impl Kernel for Rotate<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let pairs = self.angles.len() / 2;
        let (cos, sin) = self.angles.split_at(pairs);
        for head in self.row.chunks_exact_mut(self.head_dim) {
            let head = &mut head[..2 * pairs];
            match self.layout {
                RopeLayout::Half => rotate_halves(s, cos, sin, head),
                RopeLayout::Interleaved => {
                    let pairs = head.as_chunks_mut::<2>().0;
                    for ((pair, cos), sin) in pairs.iter_mut().zip(cos).zip(sin) {
                        let [x, y] = *pair;
                        *pair = [x * cos - y * sin, x * sin + y * cos];
                    }
                }
            }
        }
    }
}

#[inline(always)]
fn rotate_halves<S: Simd>(s: S, cos: &[f32], sin: &[f32], head: &mut [f32]) {
    let (first, second) = head.split_at_mut(cos.len());
    let mut i = 0;
    while i + S::LANES <= cos.len() {
        let (x, y) = (s.load(&first[i..]), s.load(&second[i..]));
        let (c, n) = (s.load(&cos[i..]), s.load(&sin[i..]));
        s.store(&mut first[i..], s.sub(s.mul(x, c), s.mul(y, n)));
        s.store(&mut second[i..], s.mul_add(x, n, s.mul(y, c)));
        i += S::LANES;
    }
    for i in i..cos.len() {
        let (x, y) = (first[i], second[i]);
        first[i] = x * cos[i] - y * sin[i];
        second[i] = x * sin[i] + y * cos[i];
    }
}
