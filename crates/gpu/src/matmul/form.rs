//! The forms that weights have on the device.
//!
//! Every quantized type is reduced to one picture: chunks of 32 small integers, and for each chunk,
//! or half of one, `weight = scale * (integer - offset) + minimum`. A form says how integers and
//! scales are kept; for each there is a piece of WGSL that reads it.

use baton_weights::{DType, Tensor};

use crate::Constant;

/// Weights that are handled together: one word of the activations' scale, one step of every kernel.
pub(crate) const CHUNK: usize = 32;

/// How a matrix is kept on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Form {
    /// Integers with scales.
    Quantized {
        codes: Codes,
        scales: Scales,
        /// What is subtracted from each integer.
        offset: i32,
    },
    /// Half precision.
    F16,
    /// bfloat16.
    BF16,
    /// Single precision.
    F32,
}

/// How integers are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Codes {
    /// 4 bits.
    Four,
    /// 4 bits that stand for floats of 4 bits (E2M1), doubled.
    Fp4,
    /// 5 bits.
    Five,
    /// 6 bits.
    Six,
    /// 8 bits, signed.
    Eight,
}

/// How scales and minima are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Scales {
    /// A half for each chunk.
    Half,
    /// Scale and minimum of 16 bits each for `1 << shift` chunks.
    Pair { brain_float: bool, shift: u32 },
    /// Scale and minimum of 6 bits for each chunk, times a pair of halves for each 8.
    K,
    /// A scale of 8 bits for each 16 weights, times a half for each 8 chunks.
    Sixteen,
    /// A power of two for each chunk.
    E8m0,
}

impl Form {
    /// The form in which a tensor's weights are kept.
    pub(crate) fn of(tensor: &Tensor) -> Form {
        use Codes::{Eight, Five, Four, Fp4, Six};
        let quantized = |codes, scales, offset| Form::Quantized { codes, scales, offset };
        let pair = Scales::Pair { brain_float: false, shift: 0 };
        match tensor.dtype() {
            DType::F32 => Form::F32,
            DType::BF16 => Form::BF16,
            DType::Q4_0 => quantized(Four, Scales::Half, 8),
            DType::Q4_1 => quantized(Four, pair, 0),
            DType::Q5_0 => quantized(Five, Scales::Half, 16),
            DType::Q5_1 => quantized(Five, pair, 0),
            DType::Q8_0 | DType::Iq4Nl => quantized(Eight, Scales::Half, 0),
            DType::Q3_K => quantized(Four, Scales::Sixteen, 4),
            DType::Q4_K => quantized(Four, Scales::K, 0),
            DType::Q5_K => quantized(Five, Scales::K, 0),
            DType::Q6_K => quantized(Six, Scales::Sixteen, 32),
            DType::Iq4Xs => quantized(Eight, Scales::Sixteen, 0),
            DType::MxFp4 => quantized(Fp4, Scales::E8m0, 0),
            DType::Affine { bits, group_size } => {
                let brain_float = match tensor.affine().map(|affine| affine.dtype) {
                    Some(DType::F16) => false,
                    Some(DType::BF16) => true,
                    _ => return Form::F16,
                };
                let shift = (group_size / 32).trailing_zeros();
                let scales = Scales::Pair { brain_float, shift };
                match bits {
                    2..=4 => quantized(Four, scales, 0),
                    5 => quantized(Five, scales, 0),
                    6 => quantized(Six, scales, 0),
                    _ => quantized(Eight, scales, -128),
                }
            }
            // Q2_K has a minimum for each 16 weights, which no form has.
            _ => Form::F16,
        }
    }

    /// Whether weights of that type lose precision by the form they are kept in: those that are
    /// made halves.
    pub(crate) fn rounds(self, dtype: DType) -> bool {
        self == Form::F16 && dtype != DType::F16
    }

    /// Whether weights are floats, which multiply activations that are not quantized.
    pub(crate) fn is_float(self) -> bool {
        !matches!(self, Form::Quantized { .. })
    }

    /// Whether 16 bytes hold the most of a chunk.
    pub(crate) fn is_small(self) -> bool {
        matches!(self, Form::Quantized { codes, .. } if codes != Codes::Eight)
    }

    /// Bytes of a row of that many chunks in each plane: data, high bits, scales, and scales of
    /// scales.
    pub(crate) fn row_bytes(self, chunks: usize) -> [usize; 4] {
        let Form::Quantized { codes, scales, .. } = self else {
            return [if self == Form::F32 { 128 * chunks } else { 64 * chunks }, 0, 0, 0];
        };
        let (data, high) = match codes {
            Codes::Four | Codes::Fp4 => (16, 0),
            Codes::Five => (16, 4),
            Codes::Six => (16, 8),
            Codes::Eight => (32, 0),
        };
        let (scale, above) = match scales {
            Scales::Half => (2 * chunks, 0),
            Scales::Pair { shift, .. } => (4 * (chunks >> shift), 0),
            Scales::K => (0, 2 * chunks),
            Scales::Sixteen => (2 * chunks, chunks / 4),
            Scales::E8m0 => (chunks, 0),
        };
        [data * chunks, high * chunks, scale, above]
    }

    /// The WGSL that reads weights of this form, for kernels on chunks of floats or, if `integers`
    /// are wanted, on integers and scales.
    pub(crate) fn source(self) -> Vec<&'static str> {
        macro_rules! shader {
            ($name:literal) => {
                include_str!(concat!("../shaders/", $name, ".wgsl"))
            };
        }
        let Form::Quantized { codes, scales, .. } = self else {
            return vec![match self {
                Form::F32 => shader!("matmul_float32"),
                _ => shader!("matmul_float16"),
            }];
        };
        let codes = match codes {
            Codes::Four => shader!("matmul_codes4"),
            Codes::Fp4 => shader!("matmul_codes_fp4"),
            Codes::Five => shader!("matmul_codes5"),
            Codes::Six => shader!("matmul_codes6"),
            Codes::Eight => shader!("matmul_codes8"),
        };
        let scales = match scales {
            Scales::Half => shader!("matmul_scales_half"),
            Scales::Pair { .. } => shader!("matmul_scales_pair"),
            Scales::K => shader!("matmul_scales_k"),
            Scales::Sixteen => shader!("matmul_scales_sixteen"),
            Scales::E8m0 => shader!("matmul_scales_e8m0"),
        };
        vec![codes, scales]
    }

    /// The constants that this WGSL reads.
    pub(crate) fn constants(self) -> Vec<(&'static str, Constant)> {
        let brain_float = |yes: bool| ("BRAIN_FLOAT", yes.into());
        let Form::Quantized { scales, offset, .. } = self else {
            return vec![brain_float(self == Form::BF16)];
        };
        let mut constants = vec![
            ("OFFSET", offset.into()),
            ("SIXTEEN", (scales == Scales::Sixteen).into()),
            ("MINIMUM", matches!(scales, Scales::Pair { .. } | Scales::K).into()),
        ];
        if let Scales::Pair { brain_float: yes, shift } = scales {
            constants.extend([brain_float(yes), ("GROUP_SHIFT", shift.into())]);
        }
        constants
    }
}
