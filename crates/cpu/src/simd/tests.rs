use super::*;
use crate::isa::Isa;

struct Apply<'a, M>(&'a M, &'a mut [f32]);

impl<M: Map> Kernel for Apply<'_, M> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        map(s, self.0, None, self.1);
    }
}

/// Compares a vector function with its double-precision definition on `inputs`.
fn compare(name: &str, f: &impl Map, exact: impl Fn(f64) -> f64, inputs: &[f32], relative: f64) {
    for isa in Isa::available() {
        let mut got = inputs.to_vec();
        dispatch(isa, Apply(f, &mut got));
        for (x, y) in inputs.iter().zip(&got) {
            let wanted = exact(f64::from(*x));
            let error = (f64::from(*y) - wanted).abs() / wanted.abs().max(1e-37);
            assert!(error < relative, "{isa}: {name}({x}) = {y}, not {wanted}: off by {error:e}");
        }
    }
}

fn steps(from: f32, to: f32, n: usize) -> Vec<f32> {
    (0..=n).map(|i| from + (to - from) * i as f32 / n as f32).collect()
}

macro_rules! map_fn {
    ($name:ident) => {{
        struct F;
        impl Map for F {
            #[inline(always)]
            fn call<S: Simd>(&self, s: S, x: S::V) -> S::V {
                $name(s, x)
            }
        }
        &F
    }};
}

#[test]
fn exponential() {
    compare("exp", map_fn!(exp), f64::exp, &steps(-87.0, 88.3, 40_001), 4e-7);
    compare("exp", map_fn!(exp), f64::exp, &steps(-1.0, 1.0, 10_001), 2e-7);
}

#[test]
fn hyperbolic_tangent() {
    compare("tanh", map_fn!(tanh), f64::tanh, &steps(-12.0, 12.0, 40_003), 5e-7);
    compare("tanh", map_fn!(tanh), f64::tanh, &steps(1e-6, 1e-3, 999), 3e-7);
}

#[test]
fn logistic() {
    let exact = |x: f64| 1.0 / (1.0 + (-x).exp());
    compare("sigmoid", map_fn!(sigmoid), exact, &steps(-80.0, 80.0, 40_003), 1e-6);
}

#[test]
fn complementary_error_function() {
    // Values of erfc to 16 digits.
    let table = [
        (0.0f32, 1.0),
        (0.25, 0.723_673_609_831_763_1),
        (0.5, 0.479_500_122_186_953_5),
        (1.0, 0.157_299_207_050_285_13),
        (2.0, 0.004_677_734_981_047_266),
        (3.0, 2.209_049_699_858_544e-5),
        (4.0, 1.541_725_790_028_002e-8),
    ];
    let inputs: Vec<f32> = table.iter().map(|(x, _)| *x).collect();
    let exact = |x: f64| table.iter().find(|(at, _)| f64::from(*at) == x).unwrap().1;
    compare("erfc", map_fn!(erfc), exact, &inputs, 2e-6);
}

#[test]
fn special_values_pass_through() {
    for isa in Isa::available() {
        let mut got = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 0.0, -1e30];
        dispatch(isa, Apply(map_fn!(exp), &mut got));
        assert!(got[0].is_nan() && got[1] > 2e38, "{isa}: {got:?}");
        assert_eq!(got[2..], [0.0, 1.0, 0.0], "{isa}");
    }
}

struct Halves<'a>(&'a [f32; 16], &'a mut [u16; 16], &'a mut [f32; 16]);

impl Kernel for Halves<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for i in (0..16).step_by(S::LANES) {
            // SAFETY: LANES divides 16, the length of all three.
            unsafe {
                s.store_half_at(self.1.as_mut_ptr().add(i), s.load(&self.0[i..]));
                let back = s.load_half_at(self.1.as_ptr().add(i));
                s.store(&mut self.2[i..], back);
            }
        }
    }
}

#[test]
fn half_precision_is_that_of_the_half_crate() {
    let mut inputs = [0f32; 16];
    for round in 0..4096u32 {
        for (i, x) in inputs.iter_mut().enumerate() {
            let bits = (round * 16 + i as u32).wrapping_mul(0x9e37_79b9);
            // Mostly within the range of half precision.
            *x = f32::from_bits(bits & 0x8fff_ffff | 0x3000_0000);
        }
        for isa in Isa::available() {
            let (mut bits, mut back) = ([0; 16], [0.0; 16]);
            dispatch(isa, Halves(&inputs, &mut bits, &mut back));
            for i in 0..16 {
                let wanted = half::f16::from_f32(inputs[i]);
                assert_eq!(bits[i], wanted.to_bits(), "{isa}: {}", inputs[i]);
                assert_eq!(back[i], wanted.to_f32(), "{isa}");
            }
        }
    }
}
