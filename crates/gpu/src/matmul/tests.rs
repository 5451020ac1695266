//! Every kernel on every type of weights against plain sums in f64.

mod fold;
mod mixture;

use std::sync::Arc;

use baton_weights::{DType, Tensor};

use super::*;
use crate::testing::{Random, exact, gpu};
use crate::{Gpu, Use};

const TYPES: [DType; 24] = [
    DType::Q4_0,
    DType::Q4_1,
    DType::Q5_0,
    DType::Q5_1,
    DType::Q8_0,
    DType::Q2_K,
    DType::Q3_K,
    DType::Q4_K,
    DType::Q5_K,
    DType::Q6_K,
    DType::Iq4Nl,
    DType::Iq4Xs,
    DType::MxFp4,
    DType::Affine { bits: 2, group_size: 64 },
    DType::Affine { bits: 3, group_size: 64 },
    DType::Affine { bits: 4, group_size: 32 },
    DType::Affine { bits: 4, group_size: 64 },
    DType::Affine { bits: 4, group_size: 128 },
    DType::Affine { bits: 5, group_size: 32 },
    DType::Affine { bits: 6, group_size: 64 },
    DType::Affine { bits: 8, group_size: 64 },
    DType::F16,
    DType::BF16,
    DType::F32,
];

/// Floats behind a token's results, which must stay as they are.
const GAP: usize = 3;
const UNTOUCHED: f32 = 7.0;

struct Case {
    gpu: Arc<Gpu>,
    parts: Vec<Part>,
    tokens: usize,
    add: bool,
    tuning: Tuning,
}

impl Case {
    fn new(gpu: Arc<Gpu>, weights: Vec<Tensor>, tokens: usize) -> Case {
        let parts = weights.into_iter().map(|weights| Part { weights, bias: None }).collect();
        Case { gpu, parts, tokens, add: false, tuning: Tuning::default() }
    }

    /// Computes the product and compares every number with its definition, to a difference of
    /// `tolerance` times the sum of the magnitudes of what is added up.
    fn check(&self, tolerance: f64) {
        let random = &mut Random(self.tokens as u64);
        let gpu = &self.gpu;
        let matrix = Arc::new(Matrix::upload(gpu, &self.parts).unwrap());
        let (inputs, outputs) = (matrix.inputs(), matrix.outputs());
        // Multiples of four stay such.
        let (x_stride, y_stride) = (inputs + 4, outputs + GAP);
        let mut x = random.floats(self.tokens * x_stride);
        // Some stand out, as they do in models.
        x.iter_mut().step_by(97).for_each(|x| *x *= 50.0);
        let before: Vec<f32> = vec![UNTOUCHED; self.tokens * y_stride];
        let x_buffer = gpu.buffer_of("x", &x).unwrap();
        let y_buffer = gpu.buffer_of("y", &before).unwrap();
        let scratch_bytes = Activations::scratch_bytes(gpu, inputs, self.tokens);
        let scratch = gpu.buffer("scratch", scratch_bytes, Use::Storage).unwrap();
        let view = View::whole(&scratch);
        let activations =
            Activations::new(gpu, View::whole(&x_buffer), inputs, x_stride, view).unwrap();
        let activations = Arc::new(activations);
        let y_view = View::whole(&y_buffer);
        let mut product = Product::new(gpu, &matrix, &activations, y_view, y_stride).unwrap();
        product.tune(self.tuning).unwrap();
        gpu.submit("a product", |pass| {
            activations.encode(pass, self.tokens, product.reading(self.tokens));
            product.encode(pass, self.tokens, self.add).unwrap();
        })
        .unwrap();
        let y: Vec<f32> = gpu.read(&y_buffer, 0..self.tokens * y_stride).unwrap();
        // Halves have 11 bits, on either side.
        let is_halved = product.reading(self.tokens) == Reading::Halves;
        let tolerance = if is_halved { tolerance.max(1e-3) } else { tolerance };
        let words: Vec<u32> = gpu.read(&scratch, 0..scratch_bytes as usize / 4).unwrap();
        let integers = self.tokens <= FEW;
        let mut first = 0;
        for part in &self.parts {
            let (weights, rows) = (exact(&part.weights), part.weights.rows());
            let bias = part.bias.as_ref().map(Tensor::to_f32);
            let is_float = form::Form::of(&part.weights).is_float();
            for token in 0..self.tokens {
                let x = &x[token * x_stride..][..inputs];
                let seen: Vec<f64> = match integers && !is_float {
                    true => quantized(&words, inputs, token),
                    false => x.iter().map(|&x| f64::from(x)).collect(),
                };
                for row in 0..rows {
                    let terms = weights[row * inputs..][..inputs].iter().zip(&seen);
                    let (sum, size) = terms.fold((0.0, 0.0), |(sum, size), (w, x)| {
                        (sum + w * x, size + (w * x).abs())
                    });
                    let sum = sum
                        + bias.as_ref().map_or(0.0, |bias| f64::from(bias[row]))
                        + if self.add { f64::from(UNTOUCHED) } else { 0.0 };
                    let found = f64::from(y[token * y_stride + first + row]);
                    let kind = part.weights.dtype();
                    assert!(
                        (found - sum).abs() <= tolerance * size + 1e-6 * (1.0 + sum.abs()),
                        "{kind} row {row} token {token}: {found} instead of {sum}, terms {size}"
                    );
                }
            }
            first += rows;
        }
        for token in 0..self.tokens {
            assert_eq!(y[token * y_stride + outputs..][..GAP], [UNTOUCHED; GAP]);
        }
    }
}

/// A token's activations as `integers.wgsl` left them.
fn quantized(words: &[u32], inputs: usize, token: usize) -> Vec<f64> {
    let pairs = (inputs / 32).div_ceil(2);
    let words = &words[token * activations::integer_stride(inputs / 32)..];
    let value = |i: usize| {
        let (c, half, k) = (i / 32, i % 32 / 16, i % 16);
        let word = words[4 * ((2 * (c % 2) + half) * pairs + c / 2) + k / 4];
        let scale = f32::from_bits(words[16 * pairs + 2 * c]);
        f64::from(word.to_le_bytes()[k % 4] as i8) * f64::from(scale)
    };
    (0..inputs).map(value).collect()
}

/// Inputs that are whole blocks, and leave a rest in most loops.
fn inputs(dtype: DType, tokens: usize) -> usize {
    match dtype.block_len() {
        1 => 71,
        256 => 768,
        // Both odd and even numbers of chunks occur.
        32 if tokens > 1 => 128,
        len => 3 * len,
    }
}

/// Weights that are made halves lose some bits.
fn tolerance(dtype: DType) -> f64 {
    if dtype == DType::Q2_K { 6e-4 } else { 2e-6 }
}

fn every_type(plain: bool, tokens: &[usize]) {
    for dtype in TYPES {
        for &tokens in tokens {
            let weights = Random(tokens as u64).tensor(dtype, &[37, inputs(dtype, tokens)]);
            Case::new(gpu(plain), vec![weights], tokens).check(tolerance(dtype));
        }
    }
}

#[test]
fn few_tokens_with_every_type() {
    every_type(false, &[1, 3]);
}

#[test]
fn few_tokens_with_every_type_on_plain_kernels() {
    every_type(true, &[1]);
}

#[test]
fn many_tokens_with_every_type() {
    every_type(false, &[9]);
}

#[test]
fn parts_of_several_types_lie_side_by_side() {
    let random = &mut Random(7);
    for tokens in [2, 12] {
        // Two of one form share a buffer, with a rest of rows that is no multiple of four.
        let weights = [(DType::Q4_K, 13), (DType::Q4_K, 6), (DType::Q6_K, 9), (DType::F16, 5)]
            .map(|(dtype, rows)| random.tensor(dtype, &[rows, 256]));
        let mut case = Case::new(gpu(false), weights.into(), tokens);
        for (part, n) in case.parts.iter_mut().zip([0, 6, 0, 5]) {
            part.bias = (n > 0).then(|| random.tensor(DType::F32, &[n]));
        }
        case.add = true;
        case.check(2e-6);
    }
}

#[test]
fn forms_side_by_side_go_in_one_launch() {
    use DType::{MxFp4, Q4_K, Q5_1, Q6_K, Q8_0};
    let gpu = gpu(false);
    let part = |(kind, rows): (DType, usize)| Random(rows as u64).tensor(kind, &[rows, 256]);
    let kinds: [&[(DType, usize)]; 3] = [
        &[(Q4_K, 300), (Q6_K, 70)],
        &[(Q8_0, 1), (Q4_K, 129)],
        &[(Q5_1, 64), (Q8_0, 64), (MxFp4, 5)],
    ];
    for kinds in kinds {
        for (tokens, add) in [(1, false), (3, true), (8, false)] {
            let parts: Vec<Tensor> = kinds.iter().copied().map(part).collect();
            let mut case = Case { add, ..Case::new(gpu.clone(), parts, tokens) };
            let biased = case.parts.last_mut().unwrap();
            biased.bias = Some(Random(9).tensor(DType::F32, &[biased.weights.rows()]));
            let matrix = Matrix::upload(&gpu, &case.parts).unwrap();
            let has_subgroups = gpu.features().subgroups.is_some();
            assert_eq!(together::Together::fits(&gpu, &matrix), has_subgroups);
            case.check(1e-5);
        }
    }
}

#[test]
fn shapes_leave_rests_in_every_direction() {
    for plain in [false, true] {
        for (rows, inputs, tokens) in [(1, 32, 1), (300, 128, 8), (65, 32, 65), (128, 64, 130)] {
            let weights = Random(rows as u64).tensor(DType::Q8_0, &[rows, inputs]);
            Case::new(gpu(plain), vec![weights], tokens).check(2e-6);
            let weights = Random(rows as u64).tensor(DType::F16, &[rows, inputs + 4]);
            Case::new(gpu(plain), vec![weights], tokens).check(2e-6);
        }
    }
}

#[test]
fn a_group_of_lanes_may_have_two_outputs() {
    for plain in [false, true] {
        for dtype in [DType::Q6_K, DType::BF16] {
            let weights = Random(9).tensor(dtype, &[33, 512]);
            let mut case = Case::new(gpu(plain), vec![weights], 2);
            case.tuning.vector = Some((64, 2));
            case.check(2e-6);
        }
    }
}

#[test]
fn what_a_device_cannot_divide_is_an_error() {
    let shape =
        Cooperative { edge: 16, sub_rows: 64, sub_tokens: 64, rows: 4, columns: 4, vectors: true };
    let gpu = gpu(false);
    let weights = Random(1).tensor(DType::F32, &[4, 32]);
    let matrix = Arc::new(Matrix::upload(&gpu, &[Part { weights, bias: None }]).unwrap());
    let buffer = View::whole(&gpu.buffer("x", 4096, Use::Storage).unwrap());
    let x = Activations::new(&gpu, buffer.clone(), 32, 32, buffer.clone()).unwrap();
    let mut product = Product::new(&gpu, &matrix, &Arc::new(x), buffer, 4).unwrap();
    let too_many = Tuning { cooperative: Some(shape), ..Default::default() };
    let uneven = Tuning { vector: Some((48, 1)), ..Default::default() };
    for tuning in [too_many, uneven] {
        let refused = product.tune(tuning);
        assert!(matches!(refused, Err(crate::GpuError::Unsupported { .. })));
    }
}

#[test]
fn matrices_too_large_for_a_binding_are_cut() {
    let gpu = gpu(false);
    let limit = gpu.limits().max_storage_buffer_binding_size as usize;
    let inputs = 1 << 14;
    let rows = limit / inputs / 2 + 70;
    // Of one row it is seen that it came to its place.
    let mut data = vec![0; rows * inputs * 2];
    let one = half::f16::ONE.to_le_bytes();
    for row in [0, rows / 2, rows - 1] {
        data[row * inputs * 2..][..2].copy_from_slice(&one);
    }
    let weights = Tensor::new("w", DType::F16, &[rows, inputs], data.into()).unwrap();
    let matrix = Matrix::upload(&gpu, &[Part { weights, bias: None }]).unwrap();
    assert_eq!(matrix.segments.len(), 2);
    let ids = gpu.buffer_of("ids", &[0, 1, rows / 2, rows - 1].map(|id| id as u32)).unwrap();
    let y = gpu.buffer("y", 4 * 4 * inputs as u64, Use::Storage).unwrap();
    let [ids, of] = [&ids, &y].map(View::whole);
    let rows = Rows::new(&gpu, &Arc::new(matrix), &ids, &of, inputs, 2.0).unwrap();
    gpu.submit("rows", |pass| rows.encode(pass, 4)).unwrap();
    for (token, expected) in [2.0, 0.0, 2.0, 2.0].into_iter().enumerate() {
        let first = gpu.read::<f32>(&y, token * inputs..token * inputs + 2).unwrap();
        assert_eq!(first, [expected, 0.0], "token {token}");
    }
}

#[test]
fn rows_of_a_table_of_every_type() {
    let gpu = gpu(false);
    let ids = [3u32, 0, 4, 3];
    let list = gpu.buffer_of("ids", &ids).unwrap();
    for dtype in TYPES {
        let weights = Random(1).tensor(dtype, &[5, inputs(dtype, 1)]);
        let (width, table) = (weights.cols(), exact(&weights));
        let part = Part { weights, bias: None };
        let matrix = Arc::new(Matrix::upload(&gpu, &[part]).unwrap());
        let y = gpu.buffer("y", (4 * 4 * width) as u64, Use::Storage).unwrap();
        let [list, of] = [&list, &y].map(View::whole);
        let rows = Rows::new(&gpu, &matrix, &list, &of, width, 0.5).unwrap();
        gpu.submit("rows", |pass| rows.encode(pass, 4)).unwrap();
        let found: Vec<f32> = gpu.read(&y, 0..4 * width).unwrap();
        for (token, id) in ids.into_iter().enumerate() {
            let row = &table[id as usize * width..][..width];
            for (found, expected) in found[token * width..].iter().zip(row) {
                let difference = (f64::from(*found) - 0.5 * expected).abs();
                let bound = tolerance(dtype) * (1.0 + expected.abs());
                assert!(difference <= bound, "{dtype}: {found} instead of half of {expected}");
            }
        }
    }
}

#[test]
fn matrices_that_do_not_fit_are_errors() {
    let gpu = gpu(false);
    let random = &mut Random(3);
    let mut part = |shape: &[usize]| Part { weights: random.tensor(DType::F32, shape), bias: None };
    let refused = |parts: &[Part]| {
        let error = Matrix::upload(&gpu, parts).unwrap_err();
        assert!(matches!(error, crate::GpuError::Tensor { .. }), "{error}");
    };
    refused(&[]);
    refused(&[part(&[4])]);
    refused(&[part(&[4, 32]), part(&[4, 64])]);
    let mut biased = part(&[4, 32]);
    biased.bias = Some(part(&[1, 5]).weights);
    refused(&[biased]);
    let weights = [part(&[4, 32]).weights];
    assert!(Matrix::upload_experts(&gpu, &weights, None, 3).is_err());
    assert!(Matrix::upload_experts(&gpu, &weights, Some(&[0.0; 3]), 2).is_err());
}
