//! Every kernel on every format against plain sums in f64.

use baton_weights::{Affine, DType, Tensor};

use super::*;
use crate::isa::Isa;
use crate::quant::{QuantizedRows, Rounding};

/// A small generator, so that failures repeat.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 ^ self.0 >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 16
    }

    /// In -1..1.
    pub(crate) fn float(&mut self) -> f32 {
        (self.next() % 20_001) as f32 / 10_000.0 - 1.0
    }

    fn bytes(&mut self, n: usize) -> Vec<u8> {
        (0..n).map(|_| self.next() as u8).collect()
    }

    /// Half-precision bits of a number of magnitude 2^-7 to 2^-4.
    fn half(&mut self) -> [u8; 2] {
        let n = self.next() as u16;
        (n & 0x83ff | (8 + (n >> 10) % 3) << 10).to_le_bytes()
    }
}

pub(crate) const QUANTIZED: [DType; 21] = [
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
];

fn packed(pool: &Pool, tensor: Tensor) -> Matrix {
    let mut matrix = Matrix::new(tensor).unwrap();
    pack(pool, vec![&mut matrix]).unwrap();
    matrix
}

/// Random weights of that type.
pub(crate) fn matrix(
    pool: &Pool,
    dtype: DType,
    rows: usize,
    cols: usize,
    random: &mut Random,
) -> Matrix {
    let blocks = rows * cols / dtype.block_len();
    let mut data = random.bytes(blocks * dtype.block_bytes());
    let halves: &[usize] = match dtype {
        DType::Q4_0 | DType::Q5_0 | DType::Q8_0 | DType::Iq4Nl | DType::Iq4Xs => &[0],
        DType::Q4_1 | DType::Q5_1 | DType::Q4_K | DType::Q5_K => &[0, 2],
        DType::Q2_K => &[80, 82],
        DType::Q3_K => &[108],
        DType::Q6_K => &[208],
        DType::F16 => &[0],
        _ => &[],
    };
    for block in data.chunks_exact_mut(dtype.block_bytes()) {
        for &at in halves {
            block[at..at + 2].copy_from_slice(&random.half());
        }
        match dtype {
            DType::MxFp4 => block[0] = 120 + block[0] % 8,
            DType::F32 => block.copy_from_slice(&random.float().to_le_bytes()),
            DType::BF16 => block.copy_from_slice(&random.float().to_le_bytes()[2..]),
            _ => {}
        }
    }
    let shape = [rows, cols];
    let tensor = if matches!(dtype, DType::Affine { .. }) {
        let mut pairs = || (0..blocks).flat_map(|_| random.half()).collect::<Vec<u8>>().into();
        let affine = Affine { dtype: DType::F16, scales: pairs(), biases: pairs() };
        Tensor::with_affine("w", dtype, &shape, data.into(), affine)
    } else {
        Tensor::new("w", dtype, &shape, data.into())
    };
    packed(pool, tensor.unwrap())
}

/// The weights, row-major, as the plain definitions of the formats have them.
fn dequantized(matrix: &Matrix) -> Vec<f64> {
    let mut tensor = matrix.tensor().clone();
    if let Some(affine) = tensor.affine() {
        // MLX rounds weights to the type of the scales, which the kernels do not.
        let single = |halves: &[u8]| -> Vec<u8> {
            let halves = halves.chunks_exact(2).map(|b| u16::from_le_bytes([b[0], b[1]]));
            halves.flat_map(|bits| formats::f16(bits).to_le_bytes()).collect()
        };
        let (scales, biases) = (single(&affine.scales).into(), single(&affine.biases).into());
        let (data, shape) = (tensor.data().to_vec().into(), tensor.shape().to_vec());
        let affine = Affine { dtype: DType::F32, scales, biases };
        tensor = Tensor::with_affine("w", tensor.dtype(), &shape, data, affine).unwrap();
    }
    tensor.to_f32().into_iter().map(f64::from).collect()
}

/// Activations as the kernels see them.
fn seen(x: &Rows<'_>, matrix: &Matrix, row: usize) -> Vec<f64> {
    let at = row * x.cols();
    if matrix.is_float() {
        return x.x[at..at + x.cols()].iter().map(|&v| f64::from(v)).collect();
    }
    let q = x.quantized.unwrap();
    (at..at + x.cols()).map(|i| q.value(i)).collect()
}

/// The exact product and the sum of its terms' magnitudes.
fn expected(w: &[f64], x: &[f64]) -> (f64, f64) {
    w.iter().zip(x).fold((0.0, 0.0), |(sum, size), (w, x)| (sum + w * x, size + (w * x).abs()))
}

/// Activations of which some stand out, so that blocks of 8 and of 12 bits meet in a tile.
fn activations(rows: usize, cols: usize, random: &mut Random) -> Vec<f32> {
    let size = |i: usize| if i % 211 == 5 { 40.0 } else { 3.0 };
    (0..rows * cols).map(|i| random.float() * random.float() * size(i)).collect()
}

fn check_product(pool: &Pool, dtype: DType, rows: usize, cols: usize, tokens: usize) {
    let random = &mut Random((rows * 31 + cols * 7 + tokens) as u64);
    let matrix = matrix(pool, dtype, rows, cols, random);
    let x = activations(tokens, cols, random);
    let mut quantized = QuantizedRows::new();
    let x = if matrix.is_float() && !cols.is_multiple_of(BLOCK) {
        Rows::floats(&x, cols)
    } else {
        quantized.quantize(pool, &x, cols, Rounding::Coarse)
    };
    let stride = rows + 3;
    let mut out = vec![f32::MAX; tokens * stride];
    matmul(pool, &x, &[&matrix], &mut out, stride, Epilogue::default());
    let weights = dequantized(&matrix);
    for token in 0..tokens {
        let x = seen(&x, &matrix, token);
        for (row, w) in weights.chunks(cols).enumerate() {
            let (sum, size) = expected(w, &x);
            let got = f64::from(out[token * stride + row]);
            let isa = pool.isa();
            assert!(
                (got - sum).abs() <= 3e-6 * size + 1e-9,
                "{isa} {dtype} {rows}×{cols}, {tokens} tokens: [{token}, {row}] is {got}, not {sum}"
            );
        }
        let rest = &out[token * stride + rows..(token + 1) * stride];
        assert!(rest.iter().all(|&v| v == f32::MAX), "wrote past the row");
    }
}

fn pools() -> Vec<Pool> {
    Isa::available().into_iter().map(|isa| Pool::new(2, isa).unwrap()).collect()
}

#[test]
fn every_format_and_batch() {
    for pool in pools() {
        for dtype in QUANTIZED {
            let unit = dtype.block_len().max(BLOCK);
            for (rows, cols, tokens) in [
                (1, 1, 1),
                (9, 3, 1),
                (33, 5, 2),
                (8, 2, 3),
                (16, 9, 4),
                (7, 2, 5),
                (33, 3, 7),
                (70, 1, 8),
                (40, 2, 9),
                (130, 2, 33),
            ] {
                check_product(&pool, dtype, rows, cols * unit, tokens);
            }
        }
    }
}

#[test]
fn every_float_type() {
    for pool in pools() {
        for dtype in [DType::F32, DType::F16, DType::BF16] {
            for (rows, cols, tokens) in
                [(1, 1, 1), (5, 7, 2), (9, 8, 3), (33, 100, 4), (4, 576, 7), (64, 33, 33)]
            {
                check_product(&pool, dtype, rows, cols, tokens);
            }
        }
    }
}

#[test]
fn a_token_does_not_feel_its_neighbours() {
    for pool in pools() {
        for dtype in QUANTIZED.into_iter().chain([DType::F32, DType::F16, DType::BF16]) {
            let (rows, cols, random) = (21, 512, &mut Random(5));
            let matrix = matrix(&pool, dtype, rows, cols, random);
            let x = activations(70, cols, random);
            let mut quantized = QuantizedRows::new();
            let mut all = vec![0.0; 70 * rows];
            let batch = quantized.quantize(&pool, &x, cols, Rounding::Coarse);
            matmul(&pool, &batch, &[&matrix], &mut all, rows, Epilogue::default());
            for chunk in [1, 2, 3, 4, 6, 31, 32, 33] {
                let mut out = vec![0.0; 70 * rows];
                for (x, out) in x.chunks(chunk * cols).zip(out.chunks_mut(chunk * rows)) {
                    let batch = quantized.quantize(&pool, x, cols, Rounding::Coarse);
                    matmul(&pool, &batch, &[&matrix], out, rows, Epilogue::default());
                }
                assert_eq!(out, all, "{} {dtype}: chunks of {chunk}", pool.isa());
            }
        }
    }
}

#[test]
fn stacked_matrices_of_several_types() {
    for pool in pools() {
        let (random, cols) = (&mut Random(1), 256);
        let parts = [(DType::Q4_1, 24), (DType::Q6_K, 3), (DType::F16, 9), (DType::Q8_0, 17)]
            .map(|(dtype, rows)| matrix(&pool, dtype, rows, cols, random));
        let x = activations(5, cols, random);
        let mut quantized = QuantizedRows::new();
        let x = quantized.quantize(&pool, &x, cols, Rounding::Coarse);
        let width: usize = parts.iter().map(Matrix::rows).sum();
        let mut out = vec![0.0; 5 * width];
        let refs: Vec<&Matrix> = parts.iter().collect();
        matmul(&pool, &x, &refs, &mut out, width, Epilogue::default());
        let mut first = 0;
        for part in &parts {
            let mut alone = vec![0.0; 5 * part.rows()];
            matmul(&pool, &x, &[part], &mut alone, part.rows(), Epilogue::default());
            for (all, alone) in out.chunks(width).zip(alone.chunks(part.rows())) {
                assert_eq!(&all[first..first + part.rows()], alone);
            }
            first += part.rows();
        }
    }
}

#[test]
fn experts_take_their_rows() {
    for pool in pools() {
        let (random, cols, rows) = (&mut Random(2), 64, 20);
        let w: Vec<Matrix> =
            (0..4).map(|_| matrix(&pool, DType::MxFp4, rows, cols, random)).collect();
        let x = activations(9, cols, random);
        let mut quantized = QuantizedRows::new();
        let x = quantized.quantize(&pool, &x, cols, Rounding::Coarse);
        let lists: [&[u32]; 4] = [&[3], &[], &[0, 8, 8, 1, 2, 7], &[5, 4]];
        let experts: Vec<Expert<'_>> =
            w.iter().zip(lists).map(|(matrix, rows)| Expert { matrix, rows }).collect();
        let mut out = vec![0.0; 9 * rows];
        matmul_experts(&pool, &x, &experts, &mut out, rows, Epilogue::default());
        let mut out = out.chunks(rows);
        for (matrix, list) in w.iter().zip(lists) {
            let mut all = vec![0.0; 9 * rows];
            matmul(&pool, &x, &[matrix], &mut all, rows, Epilogue::default());
            for &row in list {
                let row = row as usize;
                assert_eq!(out.next().unwrap(), &all[row * rows..(row + 1) * rows]);
            }
        }
    }
}

#[test]
fn bias_and_accumulation() {
    for pool in pools() {
        let (random, cols, rows) = (&mut Random(3), 96, 13);
        let w = matrix(&pool, DType::Q5_0, rows, cols, random);
        let (x, bias) = (activations(6, cols, random), activations(1, rows, random));
        let mut quantized = QuantizedRows::new();
        let x = quantized.quantize(&pool, &x, cols, Rounding::Coarse);
        let mut plain = vec![0.0; 6 * rows];
        matmul(&pool, &x, &[&w], &mut plain, rows, Epilogue::default());
        let mut out = vec![2.0; 6 * rows];
        let epilogue = Epilogue { bias: Some(&bias), accumulate: true };
        matmul(&pool, &x, &[&w], &mut out, rows, epilogue);
        for (i, (got, plain)) in out.iter().zip(&plain).enumerate() {
            assert_eq!(*got, 2.0 + (plain + bias[i % rows]));
        }
    }
}

#[test]
fn empty_batches_and_zero_activations() {
    for pool in pools() {
        let w = matrix(&pool, DType::Q4_K, 8, 256, &mut Random(4));
        let mut quantized = QuantizedRows::new();
        let x = quantized.quantize(&pool, &[], 256, Rounding::Coarse);
        matmul(&pool, &x, &[&w], &mut [], 8, Epilogue::default());
        let zeros = [0.0; 256];
        let x = quantized.quantize(&pool, &zeros, 256, Rounding::Coarse);
        let mut out = [1.0; 8];
        matmul(&pool, &x, &[&w], &mut out, 8, Epilogue::default());
        assert_eq!(out, [0.0; 8]);
        matmul(&pool, &x, &[], &mut out, 8, Epilogue::default());
        matmul_experts(&pool, &x, &[], &mut out, 8, Epilogue::default());
    }
}

#[test]
fn infinite_and_undefined_scales_stay_in_their_row() {
    for pool in pools() {
        for dtype in QUANTIZED {
            let bytes = 16 * 256 / dtype.block_len() * dtype.block_bytes();
            let mut data = Random(6).bytes(bytes);
            data[..bytes / 2].fill(0xff);
            let tensor = if matches!(dtype, DType::Affine { .. }) {
                let pairs = vec![0xff; 16 * 256 / dtype.block_len() * 2];
                let (scales, biases) = (pairs.clone().into(), pairs.into());
                let affine = Affine { dtype: DType::F16, scales, biases };
                Tensor::with_affine("w", dtype, &[16, 256], data.into(), affine)
            } else {
                Tensor::new("w", dtype, &[16, 256], data.into())
            };
            let w = packed(&pool, tensor.unwrap());
            let x = activations(5, 256, &mut Random(7));
            let mut quantized = QuantizedRows::new();
            let x = quantized.quantize(&pool, &x, 256, Rounding::Coarse);
            let mut out = vec![0.0; 5 * 16];
            matmul(&pool, &x, &[&w], &mut out, 16, Epilogue::default());
            // MXFP4 has no undefined scale; every other first row is NaN through and through.
            assert!(out[0].is_nan() || dtype == DType::MxFp4, "{dtype}: {}", out[0]);
        }
    }
}

#[test]
fn only_matrices_are_taken() {
    for shape in [&[4][..], &[0, 4], &[1, 2, 2]] {
        let count = shape.iter().product();
        let tensor = Tensor::from_f32("v", shape, &vec![0.0; count]);
        assert!(matches!(Matrix::new(tensor), Err(MatrixError::Shape { .. })));
    }
}

#[test]
#[should_panic(expected = "wants quantized activations")]
fn quantized_weights_want_quantized_activations() {
    let pool = Pool::new(1, Isa::Portable).unwrap();
    let w = matrix(&pool, DType::Q8_0, 2, 32, &mut Random(0));
    let x = [0.0; 32];
    matmul(&pool, &Rows::floats(&x, 32), &[&w], &mut [0.0; 2], 2, Epilogue::default());
}
