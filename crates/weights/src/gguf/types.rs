//! ggml's numbers for element types, the ones that are not computed with included.

use std::fmt;

use crate::DType;

/// A tensor's type as a GGUF file states it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GgmlType(pub u32);

/// Number, name, elements per block and bytes per block.
type Row = (u32, &'static str, usize, usize);

/// Types that files may hold though nothing here decodes them: their size is known, so the file
/// can be checked and described.
const OTHERS: [Row; 21] = [
    (9, "Q8_1", 32, 40),
    (15, "Q8_K", 256, 292),
    (16, "IQ2_XXS", 256, 66),
    (17, "IQ2_XS", 256, 74),
    (18, "IQ3_XXS", 256, 98),
    (19, "IQ1_S", 256, 50),
    (21, "IQ3_S", 256, 110),
    (22, "IQ2_S", 256, 82),
    (24, "I8", 1, 1),
    (25, "I16", 1, 2),
    (26, "I32", 1, 4),
    (27, "I64", 1, 8),
    (28, "F64", 1, 8),
    (29, "IQ1_M", 256, 56),
    (31, "Q4_0_4_4", 32, 18),
    (32, "Q4_0_4_8", 32, 18),
    (33, "Q4_0_8_8", 32, 18),
    (34, "TQ1_0", 256, 54),
    (35, "TQ2_0", 256, 66),
    (40, "NVFP4", 64, 36),
    (41, "Q1_0", 128, 18),
];

const SUPPORTED: [(u32, DType); 16] = [
    (0, DType::F32),
    (1, DType::F16),
    (2, DType::Q4_0),
    (3, DType::Q4_1),
    (6, DType::Q5_0),
    (7, DType::Q5_1),
    (8, DType::Q8_0),
    (10, DType::Q2_K),
    (11, DType::Q3_K),
    (12, DType::Q4_K),
    (13, DType::Q5_K),
    (14, DType::Q6_K),
    (20, DType::Iq4Nl),
    (23, DType::Iq4Xs),
    (30, DType::BF16),
    (39, DType::MxFp4),
];

impl GgmlType {
    /// The type that stands for `dtype`; none for [`DType::Affine`], which GGUF cannot hold.
    pub fn of(dtype: DType) -> Option<Self> {
        SUPPORTED.iter().find(|(_, d)| *d == dtype).map(|(number, _)| GgmlType(*number))
    }

    /// The format to decode it with, if there is one.
    pub fn dtype(self) -> Option<DType> {
        SUPPORTED.iter().find(|(number, _)| *number == self.0).map(|(_, dtype)| *dtype)
    }

    /// Elements and bytes of one block, if the type is known at all.
    pub fn block(self) -> Option<(usize, usize)> {
        match self.dtype() {
            Some(dtype) => Some((dtype.block_len(), dtype.block_bytes())),
            None => self.other().map(|(_, _, len, bytes)| (len, bytes)),
        }
    }

    fn other(self) -> Option<Row> {
        OTHERS.into_iter().find(|(number, ..)| *number == self.0)
    }
}

impl fmt::Display for GgmlType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.dtype(), self.other()) {
            (Some(dtype), _) => dtype.fmt(f),
            (None, Some((_, name, ..))) => f.write_str(name),
            (None, None) => write!(f, "number {} of ggml", self.0),
        }
    }
}
