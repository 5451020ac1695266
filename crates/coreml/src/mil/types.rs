//! Types of MIL values.

use std::fmt;

/// What the elements of a tensor are. The codes are those of `DataType` in Core ML's `MIL.proto`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs)]
pub enum DataType {
    Bool,
    String,
    Float16,
    Float32,
    Float64,
    BFloat16,
    Int8,
    Int16,
    Int32,
    Int64,
    Int4,
    UInt8,
    UInt16,
    UInt32,
    UInt64,
    UInt4,
    UInt2,
    UInt1,
    UInt6,
    UInt3,
    Float8E4M3FN,
    Float8E5M2,
}

use DataType::*;

/// Type, code in `MIL.proto`, name in dumps, bits of an element (0: none of its own).
const DATA_TYPES: [(DataType, u64, &str, usize); 22] = [
    (Bool, 1, "bool", 8),
    (String, 2, "string", 0),
    (Float16, 10, "fp16", 16),
    (Float32, 11, "fp32", 32),
    (Float64, 12, "fp64", 64),
    (BFloat16, 13, "bf16", 16),
    (Int8, 21, "int8", 8),
    (Int16, 22, "int16", 16),
    (Int32, 23, "int32", 32),
    (Int64, 24, "int64", 64),
    (Int4, 25, "int4", 4),
    (UInt8, 31, "uint8", 8),
    (UInt16, 32, "uint16", 16),
    (UInt32, 33, "uint32", 32),
    (UInt64, 34, "uint64", 64),
    (UInt4, 35, "uint4", 4),
    (UInt2, 36, "uint2", 2),
    (UInt1, 37, "uint1", 1),
    (UInt6, 38, "uint6", 6),
    (UInt3, 39, "uint3", 3),
    (Float8E4M3FN, 40, "fp8e4m3fn", 8),
    (Float8E5M2, 41, "fp8e5m2", 8),
];

impl DataType {
    fn row(self) -> (DataType, u64, &'static str, usize) {
        *DATA_TYPES.iter().find(|row| row.0 == self).expect("every type has a row")
    }

    /// Code in `MIL.proto`.
    pub fn code(self) -> u64 {
        self.row().1
    }

    /// The type of a code.
    pub fn from_code(code: u64) -> Option<DataType> {
        DATA_TYPES.iter().find(|row| row.1 == code).map(|row| row.0)
    }

    /// Name, as it appears in `cast` and in dumps.
    pub fn name(self) -> &'static str {
        self.row().2
    }

    /// The type of a name.
    pub fn from_name(name: &str) -> Option<DataType> {
        DATA_TYPES.iter().find(|row| row.2 == name).map(|row| row.0)
    }

    /// Bits of one element; 0 for strings.
    pub fn bits(self) -> usize {
        self.row().3
    }

    /// Whether it is a floating-point type.
    pub fn is_float(self) -> bool {
        matches!(self, Float16 | Float32 | Float64 | BFloat16 | Float8E4M3FN | Float8E5M2)
    }

    /// Bytes that `elements` elements take, packed without gaps; none if that overflows.
    pub fn bytes(self, elements: usize) -> Option<usize> {
        elements.checked_mul(self.bits()).map(|bits| bits.div_ceil(8))
    }
}

impl fmt::Display for DataType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Element type and shape of a tensor; the last dimension is contiguous. A scalar has no dimension.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TensorType {
    /// What the elements are.
    pub dtype: DataType,
    /// The dimensions, outermost first.
    pub shape: Vec<usize>,
}

impl TensorType {
    /// A tensor type.
    pub fn new(dtype: DataType, shape: &[usize]) -> Self {
        TensorType { dtype, shape: shape.to_vec() }
    }

    /// Number of elements; none if that overflows.
    pub fn elements(&self) -> Option<usize> {
        self.shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d))
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dims: Vec<_> = self.shape.iter().map(usize::to_string).collect();
        write!(f, "tensor<{}, [{}]>", self.dtype, dims.join(", "))
    }
}

/// The type of a value.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Type {
    /// A tensor.
    Tensor(TensorType),
    /// Values of one type, so many if that is known.
    List(Box<Type>, Option<usize>),
    /// A value of each type.
    Tuple(Vec<Type>),
    /// A map from keys to values.
    Dict(Box<Type>, Box<Type>),
    /// A tensor that outlives a call of the function.
    State(TensorType),
}

impl Type {
    /// The tensor type, if it is one.
    pub fn tensor(&self) -> Option<&TensorType> {
        match self {
            Type::Tensor(ty) => Some(ty),
            _ => None,
        }
    }
}

impl From<TensorType> for Type {
    fn from(ty: TensorType) -> Self {
        Type::Tensor(ty)
    }
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Type::Tensor(ty) => write!(f, "{ty}"),
            Type::List(of, None) => write!(f, "list<{of}>"),
            Type::List(of, Some(len)) => write!(f, "list<{of}, {len}>"),
            Type::Tuple(types) => {
                let types: Vec<_> = types.iter().map(Type::to_string).collect();
                write!(f, "tuple<{}>", types.join(", "))
            }
            Type::Dict(key, value) => write!(f, "dict<{key}, {value}>"),
            Type::State(ty) => write!(f, "state<{ty}>"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_and_names_lead_back_to_their_types() {
        for (ty, code, name, _) in DATA_TYPES {
            assert_eq!(DataType::from_code(code), Some(ty));
            assert_eq!(DataType::from_name(name), Some(ty));
            assert_eq!((ty.code(), ty.name()), (code, name));
        }
        assert_eq!(DataType::from_code(0), None);
        assert_eq!(UInt3.bytes(9), Some(4));
        assert_eq!(Float16.bytes(usize::MAX), None);
    }
}
