//! Operations on single elements and single rows.

use super::{Matrix, Place};
use crate::{Activation, Gate, Pooling, RmsNorm, Rope, RopeLayout};

pub(super) fn select(x: &Matrix, rows: &[usize]) -> Matrix {
    let data = rows.iter().flat_map(|&r| x.row(r).iter().copied()).collect();
    Matrix { cols: x.cols, data }
}

/// One vector for each of `spans`, the rows from one number up to another.
pub(super) fn pool(
    how: Pooling,
    x: &Matrix,
    spans: impl Iterator<Item = (usize, usize)>,
) -> Matrix {
    let mut out = Matrix { cols: x.cols, data: Vec::new() };
    for (first, end) in spans {
        match how {
            Pooling::First => out.data.extend_from_slice(x.row(first)),
            Pooling::Last => out.data.extend_from_slice(x.row(end - 1)),
            Pooling::Mean => out.data.extend((0..x.cols).map(|col| {
                let sum: f64 = (first..end).map(|row| f64::from(x.row(row)[col])).sum();
                (sum / (end - first) as f64) as f32
            })),
        }
    }
    out
}

pub(super) fn slice(x: &Matrix, offset: usize, len: usize) -> Matrix {
    let rows = 0..x.rows();
    let data = rows.flat_map(|r| x.row(r)[offset..offset + len].iter().copied()).collect();
    Matrix { cols: len, data }
}

pub(super) fn zip(a: &Matrix, b: &Matrix, f: impl Fn(f32, f32) -> f32) -> Matrix {
    let data = a.data.iter().zip(&b.data).map(|(&a, &b)| f(a, b)).collect();
    Matrix { cols: a.cols, data }
}

pub(super) fn rms_norm(norm: &RmsNorm, gain: Option<&[f32]>, x: &Matrix) -> Matrix {
    let mut out = x.clone();
    for group in out.data.chunks_exact_mut(norm.group) {
        let sum: f64 = group.iter().map(|&v| f64::from(v) * f64::from(v)).sum();
        let mean = (sum / group.len() as f64) as f32;
        let factor = 1.0 / (mean + norm.eps).sqrt();
        for (i, v) in group.iter_mut().enumerate() {
            *v *= factor * gain.map_or(1.0, |gain| gain[i] + norm.weight_offset);
        }
    }
    out
}

pub(super) fn layer_norm(gain: &[f32], bias: Option<&[f32]>, eps: f32, x: &Matrix) -> Matrix {
    let mut out = x.clone();
    for row in out.data.chunks_exact_mut(x.cols) {
        let n = row.len() as f64;
        let mean = row.iter().map(|&v| f64::from(v)).sum::<f64>() / n;
        let variance = row.iter().map(|&v| (f64::from(v) - mean).powi(2)).sum::<f64>() / n;
        let factor = 1.0 / (variance as f32 + eps).sqrt();
        for (i, v) in row.iter_mut().enumerate() {
            *v = (*v - mean as f32) * factor * gain[i] + bias.map_or(0.0, |bias| bias[i]);
        }
    }
    out
}

pub(super) fn rope(rope: &Rope, x: &Matrix, places: &[Place]) -> Matrix {
    let mut out = x.clone();
    let pairs = rope.inv_freq.len();
    for (row, place) in out.data.chunks_exact_mut(x.cols).zip(places) {
        for head in row.chunks_exact_mut(rope.head_dim) {
            for (i, &frequency) in rope.inv_freq.iter().enumerate() {
                let angle = place.position as f64 * f64::from(frequency);
                let sin = angle.sin() as f32 * rope.magnitude;
                let cos = angle.cos() as f32 * rope.magnitude;
                let (a, b) = match rope.layout {
                    RopeLayout::Half => (i, i + pairs),
                    RopeLayout::Interleaved => (2 * i, 2 * i + 1),
                };
                let (x, y) = (head[a], head[b]);
                head[a] = x * cos - y * sin;
                head[b] = x * sin + y * cos;
            }
        }
    }
    out
}

pub(super) fn activate(kind: Activation, x: f32) -> f32 {
    match kind {
        Activation::Silu => x / (1.0 + (-x).exp()),
        Activation::Gelu => (f64::from(x) * 0.5 * (1.0 + erf(f64::from(x) / 2f64.sqrt()))) as f32,
        Activation::GeluTanh => {
            let inner = (2.0 / std::f32::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
            0.5 * x * (1.0 + inner.tanh())
        }
        Activation::Relu => x.max(0.0),
    }
}

pub(super) fn gate(kind: Gate, gate: f32, up: f32) -> f32 {
    match kind {
        Gate::Plain(activation) => activate(activation, gate) * up,
        Gate::Clamped { alpha, limit } => {
            let gate = gate.min(limit);
            let up = up.clamp(-limit, limit);
            gate / (1.0 + (-alpha * gate).exp()) * (up + 1.0)
        }
    }
}

/// The error function: its Taylor series near zero, the continued fraction of `erfc` elsewhere
/// (Abramowitz and Stegun 7.1.6 and 7.1.14). Good to about 1e-15.
fn erf(x: f64) -> f64 {
    let (a, sign) = (x.abs(), x.signum());
    if a < 2.5 {
        let (mut term, mut sum) = (a, a);
        for n in 1..60 {
            term *= 2.0 * a * a / (2 * n + 1) as f64;
            sum += term;
        }
        return sign * 2.0 / std::f64::consts::PI.sqrt() * (-a * a).exp() * sum;
    }
    let mut fraction = a;
    for n in (1..=60).rev() {
        fraction = a + n as f64 / 2.0 / fraction;
    }
    sign * (1.0 - (-a * a).exp() / fraction / std::f64::consts::PI.sqrt())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn erf_matches_tabulated_values() {
        let table = [
            (0.0, 0.0),
            (0.5, 0.520_499_877_813_046_5),
            (1.0, 0.842_700_792_949_714_9),
            (2.0, 0.995_322_265_018_952_7),
            (3.0, 0.999_977_909_503_001_4),
            (-1.0, -0.842_700_792_949_714_9),
        ];
        for (x, y) in table {
            assert!((erf(x) - y).abs() < 1e-14, "erf({x}) = {} not {y}", erf(x));
        }
    }

    #[test]
    fn rotation_turns_the_pair_that_the_layout_names() {
        let rotate = |layout| {
            let inv_freq = vec![std::f32::consts::FRAC_PI_2, 0.0].into();
            let spec = Rope { head_dim: 5, layout, inv_freq, magnitude: 2.0 };
            let x = Matrix { cols: 5, data: vec![1.0, 2.0, 3.0, 4.0, 5.0] };
            let seq = crate::SeqId(0);
            let place = Place { token: 0, seq, position: 1, rows: (0, 1) };
            rope(&spec, &x, &[place]).data.iter().map(|v| v.round()).collect::<Vec<_>>()
        };
        assert_eq!(rotate(RopeLayout::Half), [-6.0, 4.0, 2.0, 8.0, 5.0]);
        assert_eq!(rotate(RopeLayout::Interleaved), [-4.0, 2.0, 6.0, 8.0, 5.0]);
    }

    #[test]
    fn clamped_gate_bounds_both_sides() {
        let kind = Gate::Clamped { alpha: 1.702, limit: 7.0 };
        assert_eq!(gate(kind, 100.0, 0.5), gate(kind, 7.0, 0.5));
        assert_eq!(gate(kind, 1.0, -100.0), gate(kind, 1.0, -7.0));
        assert_eq!(gate(kind, 1.0, 100.0), gate(kind, 1.0, 7.0));
        assert!((gate(kind, 1.0, 0.0) - 1.0 / (1.0 + (-1.702f32).exp())).abs() < 1e-7);
    }
}
