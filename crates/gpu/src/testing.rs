//! What the crate's tests share.

use std::sync::{Arc, OnceLock};

use baton_weights::{Affine, DType, Tensor};

use crate::{Gpu, Options};

/// The machine's GPU, opened once; with plain kernels or all that it offers.
pub(crate) fn gpu(plain: bool) -> Arc<Gpu> {
    static OPEN: [OnceLock<Arc<Gpu>>; 2] = [OnceLock::new(), OnceLock::new()];
    let open = || {
        let options = Options { plain, ..Options::from_env() };
        Gpu::open(&options).unwrap_or_else(|error| panic!("{error}"))
    };
    Arc::clone(OPEN[usize::from(plain)].get_or_init(open))
}

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

    pub(crate) fn floats(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.float()).collect()
    }

    fn bytes(&mut self, n: usize) -> Vec<u8> {
        (0..n).map(|_| self.next() as u8).collect()
    }

    /// The upper 16 bits of a single of magnitude 2^-7 to 2^-4, or a half of it.
    fn short(&mut self, brain_float: bool) -> [u8; 2] {
        let (n, e) = (self.next() as u16, (self.next() % 3) as u16);
        let bits =
            if brain_float { n & 0x807f | (120 + e) << 7 } else { n & 0x83ff | (8 + e) << 10 };
        bits.to_le_bytes()
    }

    /// A tensor of random weights.
    pub(crate) fn tensor(&mut self, dtype: DType, shape: &[usize]) -> Tensor {
        let blocks = shape.iter().product::<usize>() / dtype.block_len();
        let mut data = self.bytes(blocks * dtype.block_bytes());
        let shorts: &[usize] = match dtype {
            DType::Q4_0 | DType::Q5_0 | DType::Q8_0 | DType::Iq4Nl | DType::Iq4Xs => &[0],
            DType::Q4_1 | DType::Q5_1 | DType::Q4_K | DType::Q5_K => &[0, 2],
            DType::Q2_K => &[80, 82],
            DType::Q3_K => &[108],
            DType::Q6_K => &[208],
            DType::F16 | DType::BF16 => &[0],
            _ => &[],
        };
        for block in data.chunks_exact_mut(dtype.block_bytes()) {
            for &at in shorts {
                block[at..at + 2].copy_from_slice(&self.short(dtype == DType::BF16));
            }
            match dtype {
                DType::MxFp4 => block[0] = 120 + block[0] % 8,
                DType::F32 => block.copy_from_slice(&self.float().to_le_bytes()),
                _ => {}
            }
        }
        let DType::Affine { bits, .. } = dtype else {
            return Tensor::new("w", dtype, shape, data.into()).unwrap();
        };
        // Both types of scales occur.
        let brain_float = bits % 2 == 1;
        let mut shorts =
            || (0..blocks).flat_map(|_| self.short(brain_float)).collect::<Vec<u8>>().into();
        let (scales, biases) = (shorts(), shorts());
        let dtype_of_scales = if brain_float { DType::BF16 } else { DType::F16 };
        let affine = Affine { dtype: dtype_of_scales, scales, biases };
        Tensor::with_affine("w", dtype, shape, data.into(), affine).unwrap()
    }
}

/// A tensor's values before any rounding that is not the format's: MLX rounds weights to the type
/// of the scales, which kernels do not.
pub(crate) fn exact(tensor: &Tensor) -> Vec<f64> {
    let mut tensor = tensor.clone();
    if let Some(affine) = tensor.affine() {
        let wide = |bytes: &[u8]| -> Vec<u8> {
            let n = bytes.len() / 2;
            let short = Tensor::new("s", affine.dtype, &[n], bytes.to_vec().into()).unwrap();
            short.to_f32().iter().flat_map(|v| v.to_le_bytes()).collect()
        };
        let (scales, biases) = (wide(&affine.scales).into(), wide(&affine.biases).into());
        let (data, shape) = (tensor.data().to_vec().into(), tensor.shape().to_vec());
        let affine = Affine { dtype: DType::F32, scales, biases };
        tensor = Tensor::with_affine("w", tensor.dtype(), &shape, data, affine).unwrap();
    }
    tensor.to_f32().into_iter().map(f64::from).collect()
}
