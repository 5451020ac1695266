//! Mixtures of experts against their definition in f64.

use std::sync::Arc;

use baton_graph::{Activation, Gate, GraphBuilder, Moe, Routing};
use baton_weights::{DType, Tensor, Weight};

use super::super::*;
use crate::Use;
use crate::testing::{Random, exact, gpu};

const EXPERTS: usize = 6;
const TOP_K: usize = 2;
const HIDDEN: usize = 64;
const FFN: usize = 96;

fn moe(routing: Routing, activation: Gate) -> Moe {
    // The kernels are given weights, not names.
    let weight = GraphBuilder::new("mixture").weight("w", &[1]);
    Moe {
        router: weight,
        router_bias: None,
        gate: weight,
        up: weight,
        down: weight,
        biases: None,
        experts: EXPERTS,
        top_k: TOP_K,
        ffn: FFN,
        routing,
        activation,
    }
}

/// Weights of which gate and up are of those types, with biases or without.
fn weights(gate: DType, up: DType, biases: bool, random: &mut Random) -> MixtureWeights {
    let mut bias = |n: usize| biases.then(|| random.tensor(DType::F32, &[n]));
    let (router_bias, gate_bias, up_bias, down_bias) =
        (bias(EXPERTS), bias(EXPERTS * FFN), bias(EXPERTS * FFN), bias(EXPERTS * HIDDEN));
    let down = (0..EXPERTS).map(|_| random.tensor(gate, &[HIDDEN, FFN])).collect();
    MixtureWeights {
        router: random.tensor(DType::F32, &[EXPERTS, HIDDEN]),
        router_bias,
        gate: Weight::One(random.tensor(gate, &[EXPERTS, FFN, HIDDEN])),
        up: Weight::One(random.tensor(up, &[EXPERTS, FFN, HIDDEN])),
        down: Weight::Stack(down),
        gate_bias,
        up_bias,
        down_bias,
    }
}

/// `W x + b`, and the rows of `b` from row `first` on.
fn product(w: &Tensor, bias: &Option<Tensor>, first: usize, x: &[f64]) -> Vec<f64> {
    let bias = bias.as_ref().map(Tensor::to_f32);
    let rows = exact(w);
    let row = |(i, row): (usize, &[f64])| {
        let sum: f64 = row.iter().zip(x).map(|(w, x)| w * x).sum();
        sum + bias.as_ref().map_or(0.0, |bias| f64::from(bias[first + i]))
    };
    rows.chunks_exact(x.len()).enumerate().map(row).collect()
}

fn expected(moe: &Moe, weights: &MixtureWeights, x: &[f64]) -> Vec<f64> {
    let logits = product(&weights.router, &weights.router_bias, 0, x);
    let mut order: Vec<usize> = (0..EXPERTS).collect();
    order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]));
    let share = |expert: usize| (logits[expert] - logits[order[0]]).exp();
    let of_all = moe.routing == Routing::SoftmaxThenTopK { normalize: false };
    let counted = if of_all { &order[..] } else { &order[..TOP_K] };
    let total: f64 = counted.iter().map(|&expert| share(expert)).sum();
    let mut sum = vec![0.0; HIDDEN];
    for &expert in &order[..TOP_K] {
        let of = |weight: &Weight, bias, x: &[f64]| {
            let matrix = weight.index(expert);
            product(&matrix, bias, expert * matrix.rows(), x)
        };
        let gate = of(&weights.gate, &weights.gate_bias, x);
        let up = of(&weights.up, &weights.up_bias, x);
        let sigmoid = |v: f64| 1.0 / (1.0 + (-v).exp());
        let join = |(gate, up): (&f64, &f64)| match moe.activation {
            Gate::Clamped { alpha, limit } => {
                let (alpha, limit) = (f64::from(alpha), f64::from(limit));
                let gate = gate.min(limit);
                gate * sigmoid(alpha * gate) * (up.clamp(-limit, limit) + 1.0)
            }
            _ => gate * sigmoid(*gate) * up,
        };
        let inner: Vec<f64> = gate.iter().zip(&up).map(join).collect();
        let outputs = of(&weights.down, &weights.down_bias, &inner);
        for (sum, output) in sum.iter_mut().zip(outputs) {
            *sum += share(expert) / total * output;
        }
    }
    sum
}

fn check(plain: bool, moe: &Moe, weights: &MixtureWeights, tokens: usize, add: bool, bound: f64) {
    let gpu = gpu(plain);
    // Halves have 11 bits.
    let is_halved = tokens > FEW && gpu.features().cooperative.is_some();
    let bound = if is_halved { bound.max(2e-2) } else { bound };
    let x = Random(tokens as u64).floats(tokens * HIDDEN);
    let x_buffer = gpu.buffer_of("x", &x).unwrap();
    let y_buffer = gpu.buffer_of("y", &vec![1.0f32; tokens * HIDDEN]).unwrap();
    let bytes = Activations::scratch_bytes(&gpu, HIDDEN, tokens);
    let scratch = View::whole(&gpu.buffer("scratch", bytes, Use::Storage).unwrap());
    let x_view = View::whole(&x_buffer);
    let activations = Arc::new(Activations::new(&gpu, x_view, HIDDEN, HIDDEN, scratch).unwrap());
    let room = Arc::new(MixtureRoom::new(&gpu, moe, HIDDEN, tokens).unwrap());
    let y = View::whole(&y_buffer);
    let mut mixture = Mixture::new(&gpu, moe, weights, &room, &activations, (&y, HIDDEN)).unwrap();
    gpu.submit("a mixture", |pass| mixture.encode(pass, tokens, add, false).unwrap()).unwrap();
    let found: Vec<f32> = gpu.read(&y_buffer, 0..tokens * HIDDEN).unwrap();
    for (token, (found, x)) in found.chunks_exact(HIDDEN).zip(x.chunks_exact(HIDDEN)).enumerate() {
        let x: Vec<f64> = x.iter().map(|&x| f64::from(x)).collect();
        let expected = expected(moe, weights, &x);
        let size = expected.iter().fold(0.0, |most: f64, v| most.max(v.abs()));
        for (found, expected) in found.iter().zip(expected) {
            let expected = expected + if add { 1.0 } else { 0.0 };
            let difference = (f64::from(*found) - expected).abs();
            assert!(
                difference <= bound * size,
                "token {token} of {tokens}: {found} instead of {expected}"
            );
        }
    }
}

const SILU: Gate = Gate::Plain(Activation::Silu);

#[test]
fn mixtures_of_few_and_many_tokens() {
    let random = &mut Random(5);
    let whole = moe(Routing::SoftmaxThenTopK { normalize: false }, SILU);
    let floats = weights(DType::F32, DType::F16, false, random);
    let clamped = moe(Routing::TopKThenSoftmax, Gate::Clamped { alpha: 1.7, limit: 0.5 });
    let packed = weights(DType::MxFp4, DType::MxFp4, true, random);
    for (tokens, add) in [(1, false), (5, true), (9, false), (70, true)] {
        check(false, &whole, &floats, tokens, add, 1e-5);
        // Few tokens are rounded to 8 bits.
        check(false, &clamped, &packed, tokens, add, if tokens <= FEW { 3e-2 } else { 1e-5 });
    }
}

#[test]
fn mixtures_on_plain_kernels() {
    let random = &mut Random(6);
    let normalized = moe(Routing::SoftmaxThenTopK { normalize: true }, SILU);
    let weights = weights(DType::BF16, DType::BF16, true, random);
    for tokens in [2, 40] {
        check(true, &normalized, &weights, tokens, false, 1e-5);
    }
}

#[test]
fn a_room_of_another_shape_is_an_error() {
    let gpu = gpu(false);
    let moe = moe(Routing::TopKThenSoftmax, SILU);
    let weights = weights(DType::F32, DType::F32, false, &mut Random(1));
    let buffer = gpu.buffer("x", 4 * 128, Use::Storage).unwrap();
    let view = View::whole(&buffer);
    let x = Arc::new(Activations::new(&gpu, view.clone(), HIDDEN, HIDDEN, view.clone()).unwrap());
    let room = Arc::new(MixtureRoom::new(&gpu, &moe, HIDDEN + 1, 1).unwrap());
    let refused = Mixture::new(&gpu, &moe, &weights, &room, &x, (&view, HIDDEN)).unwrap_err();
    assert!(matches!(refused, crate::GpuError::Tensor { .. }), "{refused}");
}
