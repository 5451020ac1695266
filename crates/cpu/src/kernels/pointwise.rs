//! Functions of single elements.

use baton_graph::{Activation, Gate};

use crate::isa::Isa;
use crate::simd::{self, Kernel, Map, Simd, dispatch};

/// A function of one element.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Unary {
    /// The element itself.
    Copy,
    /// Times a constant.
    Scale(f32),
    /// `cap * tanh(x / cap)`.
    Softcap(f32),
    /// An activation function.
    Activation(Activation),
}

/// A function of two elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Binary {
    /// Their sum.
    Add,
    /// Their product.
    Mul,
}

/// `out[i] = f(x[i])`; without `x` in place.
///
/// # Panics
/// If the lengths differ.
pub(crate) fn unary(isa: Isa, f: Unary, x: Option<&[f32]>, out: &mut [f32]) {
    match f {
        Unary::Copy => {
            if let Some(x) = x {
                out.copy_from_slice(x);
            }
        }
        Unary::Scale(by) => dispatch(isa, Apply(Scale(by), x, out)),
        Unary::Softcap(cap) => dispatch(isa, Apply(Softcap(cap), x, out)),
        Unary::Activation(Activation::Silu) => dispatch(isa, Apply(Silu, x, out)),
        Unary::Activation(Activation::Gelu) => dispatch(isa, Apply(Gelu, x, out)),
        Unary::Activation(Activation::GeluTanh) => dispatch(isa, Apply(GeluTanh, x, out)),
        Unary::Activation(Activation::Relu) => dispatch(isa, Apply(Relu, x, out)),
        // The executor refuses graphs with others when it plans them.
        Unary::Activation(other) => unreachable!("planned without a kernel for {other:?}"),
    }
}

/// Whether there is a kernel.
pub(crate) fn has_activation(activation: Activation) -> bool {
    use Activation::*;
    matches!(activation, Silu | Gelu | GeluTanh | Relu)
}

/// `out[i] = f(out[i], y[i])`.
pub(crate) fn binary(isa: Isa, f: Binary, y: &[f32], out: &mut [f32]) {
    assert_eq!(y.len(), out.len());
    match f {
        Binary::Add => dispatch(isa, Combine(|a, b| a + b, y, out)),
        Binary::Mul => dispatch(isa, Combine(|a, b| a * b, y, out)),
    }
}

/// `out[i] = f(gate[i]) * up[i]`. Without `gate`, `out` holds it.
///
/// # Panics
/// If the lengths differ.
pub(crate) fn gated(isa: Isa, kind: Gate, gate: Option<&[f32]>, up: &[f32], out: &mut [f32]) {
    assert_eq!(up.len(), out.len());
    match kind {
        Gate::Clamped { alpha, limit } => {
            dispatch(isa, Gated { f: Swish(alpha, limit), gate, up, out, clamp: Some(limit) });
        }
        Gate::Plain(Activation::Silu) => dispatch(isa, Gated::plain(Silu, gate, up, out)),
        Gate::Plain(Activation::Gelu) => dispatch(isa, Gated::plain(Gelu, gate, up, out)),
        Gate::Plain(Activation::GeluTanh) => dispatch(isa, Gated::plain(GeluTanh, gate, up, out)),
        Gate::Plain(Activation::Relu) => dispatch(isa, Gated::plain(Relu, gate, up, out)),
        other => unreachable!("planned without a kernel for {other:?}"),
    }
}

struct Apply<'a, M>(M, Option<&'a [f32]>, &'a mut [f32]);

impl<M: Map> Kernel for Apply<'_, M> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        simd::map(s, &self.0, self.1, self.2);
    }
}

struct Combine<'a, F>(F, &'a [f32], &'a mut [f32]);

impl<F: Fn(f32, f32) -> f32> Kernel for Combine<'_, F> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        let Combine(f, y, out) = self;
        out.iter_mut().zip(y).for_each(|(a, &b)| *a = f(*a, b));
    }
}

struct Gated<'a, M> {
    f: M,
    gate: Option<&'a [f32]>,
    up: &'a [f32],
    out: &'a mut [f32],
    /// Bound of `up`, to which 1 is then added.
    clamp: Option<f32>,
}

impl<'a, M> Gated<'a, M> {
    fn plain(f: M, gate: Option<&'a [f32]>, up: &'a [f32], out: &'a mut [f32]) -> Self {
        Gated { f, gate, up, out, clamp: None }
    }
}

impl<M: Map> Kernel for Gated<'_, M> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        simd::map(s, &self.f, self.gate, self.out);
        match self.clamp {
            None => self.out.iter_mut().zip(self.up).for_each(|(g, &u)| *g *= u),
            Some(limit) => {
                for (g, &u) in self.out.iter_mut().zip(self.up) {
                    *g *= u.clamp(-limit, limit) + 1.0;
                }
            }
        }
    }
}

struct Scale(f32);
impl Map for Scale {
    #[inline(always)]
    fn call<S: Simd>(&self, s: S, x: S::V) -> S::V {
        s.mul(x, s.splat(self.0))
    }
}

struct Softcap(f32);
impl Map for Softcap {
    #[inline(always)]
    fn call<S: Simd>(&self, s: S, x: S::V) -> S::V {
        s.mul(simd::tanh(s, s.div(x, s.splat(self.0))), s.splat(self.0))
    }
}

struct Silu;
impl Map for Silu {
    #[inline(always)]
    fn call<S: Simd>(&self, s: S, x: S::V) -> S::V {
        s.mul(x, simd::sigmoid(s, x))
    }
}

struct GeluTanh;
impl Map for GeluTanh {
    #[inline(always)]
    fn call<S: Simd>(&self, s: S, x: S::V) -> S::V {
        // (1 + tanh(u)) / 2 is the logistic function of 2u.
        let cube = s.mul(s.mul(x, x), x);
        let u = s.mul_add(cube, s.splat(0.044_715), x);
        s.mul(x, simd::sigmoid(s, s.mul(u, s.splat(1.595_769_2))))
    }
}

struct Gelu;
impl Map for Gelu {
    #[inline(always)]
    fn call<S: Simd>(&self, s: S, x: S::V) -> S::V {
        let zero = s.splat(0.0);
        let magnitude = s.max(s.sub(zero, x), x);
        let half = s.splat(0.5);
        let scaled = s.mul(magnitude, s.splat(std::f32::consts::FRAC_1_SQRT_2));
        let beyond = s.mul(half, simd::erfc(s, scaled));
        let within = s.sub(s.splat(1.0), beyond);
        s.mul(x, s.select_lt(x, zero, beyond, within))
    }
}

struct Relu;
impl Map for Relu {
    #[inline(always)]
    fn call<S: Simd>(&self, s: S, x: S::V) -> S::V {
        s.max(s.splat(0.0), x)
    }
}

/// gpt-oss: `g * sigmoid(alpha * g)` of the gate cut above the limit.
struct Swish(f32, f32);
impl Map for Swish {
    #[inline(always)]
    fn call<S: Simd>(&self, s: S, x: S::V) -> S::V {
        let g = s.min(s.splat(self.1), x);
        s.mul(g, simd::sigmoid(s, s.mul(g, s.splat(self.0))))
    }
}
