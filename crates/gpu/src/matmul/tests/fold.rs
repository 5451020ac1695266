//! Products that do work of the step behind them, against what the integers must be.

use std::sync::Arc;

use baton_weights::{DType, Tensor};

use super::super::fold::vector;
use super::super::variant::Finish;
use super::super::*;
use super::quantized;
use crate::testing::{Random, exact, gpu};
use crate::{Gpu, Use};

const INPUTS: usize = 96;

/// A product whose outputs are another one's input, but for a step between.
struct Pair {
    gpu: Arc<Gpu>,
    /// Of both products.
    weights: [Tensor; 2],
    biases: [Option<Tensor>; 2],
    tokens: usize,
}

struct Outcome {
    /// The input of the first product, as it was seen.
    x: Vec<f64>,
    /// What the first product leaves as floats, and as integers for the second.
    first: Vec<f32>,
    seen: Vec<f64>,
    /// What the second one gives.
    second: Vec<f32>,
}

impl Pair {
    fn new(plain: bool, kinds: [DType; 2], outputs: [usize; 2], between: usize) -> Pair {
        let random = &mut Random(outputs[0] as u64);
        let weights = [
            random.tensor(kinds[0], &[outputs[0], INPUTS]),
            random.tensor(kinds[1], &[outputs[1], between]),
        ];
        let biases = [0, 1].map(|i| Some(random.tensor(DType::F32, &[outputs[i]])));
        Pair { gpu: gpu(plain), weights, biases, tokens: 1 }
    }

    fn run(
        &self,
        fold: impl Fn(&Matrix, &Activations) -> Option<Fold>,
        add: bool,
        norm: Option<f32>,
    ) -> Outcome {
        let (gpu, tokens) = (&self.gpu, self.tokens);
        let matrices = [0, 1].map(|i| {
            let (weights, bias) = (self.weights[i].clone(), self.biases[i].clone());
            Arc::new(Matrix::upload(gpu, &[Part { weights, bias }]).unwrap())
        });
        let between = matrices[1].inputs();
        let x = gpu.buffer_of("x", &Random(tokens as u64).floats(tokens * INPUTS)).unwrap();
        let middle =
            gpu.buffer_of("middle", &vec![0.5f32; tokens * matrices[0].outputs()]).unwrap();
        let last = gpu.buffer("last", (4 * tokens * matrices[1].outputs()) as u64, Use::Storage);
        let last = last.unwrap();
        let scratch = [INPUTS, between].map(|inputs| {
            let bytes = Activations::scratch_bytes(gpu, inputs, FEW);
            // What is not written must not be read.
            gpu.buffer_of("scratch", &vec![f32::NAN; bytes as usize / 4]).unwrap()
        });
        let input = |from: &wgpu::Buffer, inputs, to: &wgpu::Buffer| {
            let [from, to] = [from, to].map(View::whole);
            Arc::new(Activations::new(gpu, from, inputs, inputs, to).unwrap())
        };
        let inputs = [input(&x, INPUTS, &scratch[0]), input(&middle, between, &scratch[1])];
        let results = [&middle, &last].map(View::whole);
        let [mut first, mut second] = [0, 1].map(|i| {
            let y = results[i].clone();
            Product::new(gpu, &matrices[i], &inputs[i], y, matrices[i].outputs()).unwrap()
        });
        first.set_fold(fold(&matrices[0], &inputs[1]).expect("it can be folded"));
        gpu.submit("two products", |pass| {
            inputs[0].encode(pass, tokens, first.reading(tokens));
            let after = Folded { norm: None, after: true };
            first.encode_folded(pass, tokens, add, after).unwrap();
            second.encode_folded(pass, tokens, false, Folded { norm, after: false }).unwrap();
        })
        .unwrap();
        let words =
            |i: usize| gpu.read::<u32>(&scratch[i], 0..scratch[i].size() as usize / 4).unwrap();
        let seen = |words: &[u32], inputs| {
            (0..tokens).flat_map(|token| quantized(words, inputs, token)).collect()
        };
        let x = match first.reading(tokens) {
            Reading::Integers => seen(&words(0), INPUTS),
            _ => {
                gpu.read::<f32>(&x, 0..tokens * INPUTS).unwrap().iter().map(|&x| x.into()).collect()
            }
        };
        let floats =
            |buffer: &wgpu::Buffer| gpu.read(buffer, 0..buffer.size() as usize / 4).unwrap();
        Outcome { x, first: floats(&middle), seen: seen(&words(1), between), second: floats(&last) }
    }

    /// `W x + b` of one of the products for a token.
    fn product(&self, i: usize, x: &[f64]) -> Vec<f64> {
        let bias = self.biases[i].as_ref().map(Tensor::to_f32);
        let row = |(row, weights): (usize, &[f64])| {
            let sum: f64 = weights.iter().zip(x).map(|(w, x)| w * x).sum();
            sum + bias.as_ref().map_or(0.0, |bias| f64::from(bias[row]))
        };
        exact(&self.weights[i]).chunks_exact(x.len()).enumerate().map(row).collect()
    }
}

/// Compares to a difference of `bound` times the largest.
fn close(what: &str, found: impl IntoIterator<Item = f64>, expected: &[f64], bound: f64) {
    let largest = expected.iter().fold(0.0, |most: f64, v| most.max(v.abs()));
    let found: Vec<f64> = found.into_iter().collect();
    assert_eq!(found.len(), expected.len(), "{what}");
    for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
        let difference = (found - expected).abs();
        assert!(difference <= bound * largest, "{what} {i}: {found} instead of {expected}");
    }
}

/// Half a step of integers of 8 bits.
const STEP: f64 = 0.5 / 127.0 + 1e-5;

#[test]
fn a_norm_behind_a_product_is_folded_into_both_products() {
    for plain in [false, true] {
        for (tokens, outputs, kind) in
            [(1, 96, DType::Q8_0), (3, 160, DType::Q4_1), (8, 64, DType::F16), (2, 32, DType::Q8_0)]
        {
            let kinds = [kind, DType::Q8_0];
            let pair = Pair { tokens, ..Pair::new(plain, kinds, [outputs, 37], outputs) };
            let gains = Random(3).floats(outputs);
            let eps = 0.1;
            let fold = |matrix: &Matrix, next: &Activations| {
                Fold::norm(&pair.gpu, matrix, next, &gains).unwrap()
            };
            let add = tokens != 3;
            let outcome = pair.run(fold, add, Some(eps));
            for token in 0..tokens {
                let mut hidden = pair.product(0, &outcome.x[token * INPUTS..][..INPUTS]);
                hidden.iter_mut().for_each(|h| *h += 0.5);
                if !add {
                    hidden.iter_mut().for_each(|h| *h -= 0.5);
                }
                let found = &outcome.first[token * outputs..][..outputs];
                close("hidden", found.iter().map(|&h| h.into()), &hidden, 1e-5);
                let gained: Vec<f64> =
                    hidden.iter().zip(&gains).map(|(h, g)| h * f64::from(*g)).collect();
                let seen = &outcome.seen[token * outputs..][..outputs];
                for (seen, gained) in seen.chunks(32).zip(gained.chunks(32)) {
                    close("integer", seen.iter().copied(), gained, STEP);
                }
                let mean = hidden.iter().map(|h| h * h).sum::<f64>() / outputs as f64;
                let factor = 1.0 / (mean + f64::from(eps)).sqrt();
                let normed: Vec<f64> = seen.iter().map(|v| v * factor).collect();
                let found = outcome.second[token * 37..][..37].iter().map(|&v| v.into());
                close("output", found, &pair.product(1, &normed), 1e-5);
            }
        }
    }
}

#[test]
fn a_gate_behind_a_product_is_folded_into_it() {
    for plain in [false, true] {
        for (tokens, width, kind) in
            [(1, 96, DType::Q8_0), (4, 32, DType::Q5_0), (8, 64, DType::BF16)]
        {
            let kinds = [kind, DType::Q8_0];
            let pair = Pair { tokens, ..Pair::new(plain, kinds, [2 * width, 5], width) };
            let words = [0, 0, 0];
            let fold =
                |matrix: &Matrix, next: &Activations| Fold::gate(&pair.gpu, matrix, next, words);
            let outcome = pair.run(fold, false, None);
            for token in 0..tokens {
                let both = pair.product(0, &outcome.x[token * INPUTS..][..INPUTS]);
                let (gate, up) = both.split_at(width);
                let join = |(gate, up): (&f64, &f64)| gate / (1.0 + (-gate).exp()) * up;
                let joined: Vec<f64> = gate.iter().zip(up).map(join).collect();
                let seen = &outcome.seen[token * width..][..width];
                for (seen, joined) in seen.chunks(32).zip(joined.chunks(32)) {
                    close("integer", seen.iter().copied(), joined, STEP);
                }
                let found = outcome.second[token * 5..][..5].iter().map(|&v| v.into());
                close("output", found, &pair.product(1, seen), 1e-5);
            }
        }
    }
}

#[test]
fn what_does_not_fit_is_not_folded() {
    let gpu = gpu(false);
    let matrix = |weights: &[Tensor]| {
        let part = |weights: &Tensor| Part { weights: weights.clone(), bias: None };
        Matrix::upload(&gpu, &weights.iter().map(part).collect::<Vec<_>>()).unwrap()
    };
    let next = |inputs: usize| {
        let buffer = View::whole(&gpu.buffer("x", 1 << 16, Use::Storage).unwrap());
        Activations::new(&gpu, buffer.clone(), inputs, inputs, buffer).unwrap()
    };
    let random = &mut Random(1);
    let mut of = |dtype, rows| random.tensor(dtype, &[rows, 32]);
    let one = matrix(&[of(DType::Q8_0, 64)]);
    assert!(Fold::norm(&gpu, &one, &next(64), &[]).unwrap().is_some());
    assert!(Fold::gate(&gpu, &one, &next(32), [0; 3]).is_some());
    assert!(Fold::norm(&gpu, &one, &next(32), &[]).unwrap().is_none(), "other outputs");
    assert!(Fold::gate(&gpu, &one, &next(64), [0; 3]).is_none(), "other halves");
    let two = matrix(&[of(DType::Q8_0, 32), of(DType::Q4_0, 32)]);
    assert!(Fold::norm(&gpu, &two, &next(64), &[]).unwrap().is_none(), "two forms");
    let rest = matrix(&[of(DType::Q8_0, 40)]);
    assert!(Fold::norm(&gpu, &rest, &next(40), &[]).unwrap().is_none(), "a part of a chunk");
}

#[test]
fn work_is_divided_into_whole_chunks() {
    let gpu = gpu(false);
    let weights = Random(1).tensor(DType::Q8_0, &[128, 4096]);
    let matrix = Matrix::upload(&gpu, &[Part { weights, bias: None }]).unwrap();
    for (finish, outputs) in [(Finish::Norm, 32), (Finish::Gate(0), 64)] {
        for columns in [1, 2, 4, 8] {
            let vector = vector(&gpu, &matrix, finish, columns, 1).unwrap();
            assert_eq!(vector.outputs(), outputs, "{vector:?}");
            let least = gpu.features().subgroups.map(|(least, _)| least);
            assert!(vector.workgroup_bytes(least, finish) <= 16 << 10, "{vector:?}");
        }
    }
}
