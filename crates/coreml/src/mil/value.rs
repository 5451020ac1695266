//! Constants of a MIL program: in it, or in its weight file.

use half::f16;

use super::types::{DataType, TensorType, Type};

/// A constant.
#[derive(Clone, Debug, PartialEq)]
pub struct Value {
    /// Its type.
    pub ty: Type,
    /// What it is.
    pub data: Data,
}

/// What a constant is.
#[derive(Clone, Debug, PartialEq)]
pub enum Data {
    /// The elements of a tensor.
    Tensor(Elements),
    /// A value for each type of a tuple.
    Tuple(Vec<Value>),
    /// The values of a list.
    List(Vec<Value>),
    /// Keys and their values.
    Dict(Vec<(Value, Value)>),
    /// A tensor in a weight file.
    Blob(BlobRef),
}

/// Where a tensor lies in a weight file.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlobRef {
    /// The file, as `@model_path/weights/weight.bin`.
    pub file: String,
    /// Offset of the record's header.
    pub offset: u64,
}

/// Elements of a tensor as `TensorValue` of `MIL.proto` has them. Which of these a type uses is said by
/// [`Elements::fits`].
#[derive(Clone, Debug, PartialEq)]
pub enum Elements {
    /// 32-bit floating-point numbers.
    Floats(Vec<f32>),
    /// 16- and 32-bit integers.
    Ints(Vec<i32>),
    /// Truth values.
    Bools(Vec<bool>),
    /// Texts.
    Strings(Vec<String>),
    /// 64-bit integers.
    Longs(Vec<i64>),
    /// 64-bit floating-point numbers.
    Doubles(Vec<f64>),
    /// All other types: little-endian, the first element in the lowest bits.
    Bytes(Vec<u8>),
}

impl Elements {
    /// No elements, of the kind that `dtype` uses.
    pub fn none_of(dtype: DataType) -> Elements {
        match dtype {
            DataType::Float32 => Elements::Floats(Vec::new()),
            DataType::Int32 | DataType::Int16 | DataType::UInt16 => Elements::Ints(Vec::new()),
            DataType::Bool => Elements::Bools(Vec::new()),
            DataType::String => Elements::Strings(Vec::new()),
            DataType::Int64 | DataType::UInt64 => Elements::Longs(Vec::new()),
            DataType::Float64 => Elements::Doubles(Vec::new()),
            _ => Elements::Bytes(Vec::new()),
        }
    }

    /// Whether they are `ty`'s elements: the right kind, and as many.
    pub fn fits(&self, ty: &TensorType) -> bool {
        use DataType as T;
        let Some(n) = ty.elements() else { return false };
        match (self, ty.dtype) {
            (Elements::Floats(v), T::Float32) => v.len() == n,
            (Elements::Ints(v), T::Int32 | T::Int16 | T::UInt16) => v.len() == n,
            (Elements::Bools(v), T::Bool) => v.len() == n,
            (Elements::Strings(v), T::String) => v.len() == n,
            (Elements::Longs(v), T::Int64 | T::UInt64) => v.len() == n,
            (Elements::Doubles(v), T::Float64) => v.len() == n,
            (
                Elements::Bytes(v),
                T::Float16
                | T::BFloat16
                | T::Int8
                | T::UInt8
                | T::UInt32
                | T::Int4
                | T::UInt4
                | T::UInt6
                | T::UInt3
                | T::UInt2
                | T::UInt1
                | T::Float8E4M3FN
                | T::Float8E5M2,
            ) => Some(v.len()) == ty.dtype.bytes(n),
            _ => false,
        }
    }
}

impl Value {
    /// A tensor whose elements are given.
    ///
    /// # Panics
    /// If they do not [fit](Elements::fits) the type.
    pub fn tensor(dtype: DataType, shape: &[usize], elements: Elements) -> Value {
        let ty = TensorType::new(dtype, shape);
        assert!(elements.fits(&ty), "elements do not fit {ty}");
        Value { ty: ty.into(), data: Data::Tensor(elements) }
    }

    /// A text.
    pub fn string(text: &str) -> Value {
        Value::tensor(DataType::String, &[], Elements::Strings(vec![text.to_owned()]))
    }

    /// A truth value.
    pub fn bool(value: bool) -> Value {
        Value::tensor(DataType::Bool, &[], Elements::Bools(vec![value]))
    }

    /// A vector of truth values.
    pub fn bools(values: &[bool]) -> Value {
        Value::tensor(DataType::Bool, &[values.len()], Elements::Bools(values.to_vec()))
    }

    /// A 32-bit integer.
    pub fn int(value: i32) -> Value {
        Value::tensor(DataType::Int32, &[], Elements::Ints(vec![value]))
    }

    /// A vector of 32-bit integers.
    pub fn ints(values: &[i32]) -> Value {
        Value::tensor(DataType::Int32, &[values.len()], Elements::Ints(values.to_vec()))
    }

    /// A vector of sizes.
    ///
    /// # Panics
    /// If one exceeds 31 bits.
    pub fn sizes(values: &[usize]) -> Value {
        let small = |&n: &usize| i32::try_from(n).expect("a size of at most 31 bits");
        Value::ints(&values.iter().map(small).collect::<Vec<_>>())
    }

    /// A number in half precision.
    pub fn f16(value: f32) -> Value {
        Value::f16s(&[], &[value])
    }

    /// A tensor of numbers in half precision.
    ///
    /// # Panics
    /// If there are not as many as the shape says.
    pub fn f16s(shape: &[usize], values: &[f32]) -> Value {
        let bytes = values.iter().flat_map(|&v| f16::from_f32(v).to_le_bytes()).collect();
        Value::tensor(DataType::Float16, shape, Elements::Bytes(bytes))
    }

    /// A number in single precision.
    pub fn f32(value: f32) -> Value {
        Value::tensor(DataType::Float32, &[], Elements::Floats(vec![value]))
    }

    /// A tensor in a weight file.
    pub fn blob(dtype: DataType, shape: &[usize], blob: BlobRef) -> Value {
        Value { ty: TensorType::new(dtype, shape).into(), data: Data::Blob(blob) }
    }

    /// The elements, if it is a tensor that lies in the program.
    pub fn elements(&self) -> Option<&Elements> {
        match &self.data {
            Data::Tensor(elements) => Some(elements),
            _ => None,
        }
    }

    /// The integers, if it is a tensor of 16- or 32-bit integers in the program.
    pub fn as_ints(&self) -> Option<&[i32]> {
        match self.elements()? {
            Elements::Ints(values) => Some(values),
            _ => None,
        }
    }

    /// The truth values, if it is a tensor of them.
    pub fn as_bools(&self) -> Option<&[bool]> {
        match self.elements()? {
            Elements::Bools(values) => Some(values),
            _ => None,
        }
    }

    /// The text, if it is one.
    pub fn as_str(&self) -> Option<&str> {
        match self.elements()? {
            Elements::Strings(values) if values.len() == 1 => Some(&values[0]),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_fit_their_type_alone() {
        let ty = |dtype, n| TensorType::new(dtype, &[n]);
        let ints = Elements::Ints(vec![1, 2]);
        assert!(ints.fits(&ty(DataType::Int32, 2)) && ints.fits(&ty(DataType::UInt16, 2)));
        assert!(!ints.fits(&ty(DataType::Int32, 3)) && !ints.fits(&ty(DataType::Int8, 2)));
        let bytes = Elements::Bytes(vec![0; 4]);
        assert!(bytes.fits(&ty(DataType::Float16, 2)) && bytes.fits(&ty(DataType::UInt3, 9)));
        assert!(!bytes.fits(&ty(DataType::Float32, 1)) && !bytes.fits(&ty(DataType::UInt3, 11)));
        assert!(!bytes.fits(&TensorType::new(DataType::Int8, &[usize::MAX, 2])));
    }
}
