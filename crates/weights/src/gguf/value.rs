//! Values of GGUF metadata.

/// One metadata value.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum Value {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    U64(u64),
    I64(i64),
    F32(f32),
    F64(f64),
    Bool(bool),
    Str(String),
    Array(Array),
}

/// An array of metadata values, all of one type.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum Array {
    U8(Vec<u8>),
    I8(Vec<i8>),
    U16(Vec<u16>),
    I16(Vec<i16>),
    U32(Vec<u32>),
    I32(Vec<i32>),
    U64(Vec<u64>),
    I64(Vec<i64>),
    F32(Vec<f32>),
    F64(Vec<f64>),
    Bool(Vec<bool>),
    Str(Strings),
    /// Arrays of arrays, which the format allows though hardly any file has them.
    Nested(Vec<Array>),
}

/// A list of strings in one allocation: a vocabulary has a quarter of a million of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Strings {
    text: String,
    ends: Vec<usize>,
}

impl Strings {
    /// An empty list.
    pub fn new() -> Self {
        Self::default()
    }

    /// The strings of `text`, each up to one of `ends` (ascending, the last at the end of `text`);
    /// `None` if one of them is not UTF-8.
    pub(super) fn from_parts(text: Vec<u8>, ends: Vec<usize>) -> Option<Self> {
        // All at once, and that no character runs over a boundary: together, each is UTF-8.
        let text = String::from_utf8(text).ok()?;
        ends.iter().all(|&end| text.is_char_boundary(end)).then_some(Strings { text, ends })
    }

    /// Appends a string.
    pub fn push(&mut self, s: &str) {
        self.text.push_str(s);
        self.ends.push(self.text.len());
    }

    /// Number of strings.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// String `i`.
    pub fn get(&self, i: usize) -> Option<&str> {
        let end = *self.ends.get(i)?;
        let start = if i == 0 { 0 } else { self.ends[i - 1] };
        Some(&self.text[start..end])
    }

    /// All strings in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &str> + Clone {
        (0..self.len()).map(|i| self.get(i).unwrap_or_default())
    }
}

impl<S: AsRef<str>> FromIterator<S> for Strings {
    fn from_iter<I: IntoIterator<Item = S>>(iter: I) -> Self {
        let mut strings = Strings::new();
        iter.into_iter().for_each(|s| strings.push(s.as_ref()));
        strings
    }
}

impl Value {
    /// The value as a whole number, if it is one that fits.
    pub fn as_u64(&self) -> Option<u64> {
        match *self {
            Value::U64(v) => Some(v),
            _ => self.as_i64()?.try_into().ok(),
        }
    }

    /// The value as a whole number, if it is one that fits.
    pub fn as_i64(&self) -> Option<i64> {
        match *self {
            Value::U8(v) => Some(v.into()),
            Value::I8(v) => Some(v.into()),
            Value::U16(v) => Some(v.into()),
            Value::I16(v) => Some(v.into()),
            Value::U32(v) => Some(v.into()),
            Value::I32(v) => Some(v.into()),
            Value::U64(v) => v.try_into().ok(),
            Value::I64(v) => Some(v),
            _ => None,
        }
    }

    /// The value as a float, if it is one.
    pub fn as_f64(&self) -> Option<f64> {
        match *self {
            Value::F32(v) => Some(v.into()),
            Value::F64(v) => Some(v),
            _ => None,
        }
    }

    /// The value as a truth value, if it is one.
    pub fn as_bool(&self) -> Option<bool> {
        match *self {
            Value::Bool(v) => Some(v),
            _ => None,
        }
    }

    /// The value as a string, if it is one.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Value::Str(s) => Some(s),
            _ => None,
        }
    }

    /// The value as an array, if it is one.
    pub fn as_array(&self) -> Option<&Array> {
        match self {
            Value::Array(array) => Some(array),
            _ => None,
        }
    }

    /// What it is, in a few words and never at length: `"u32 7"`, `"array of 3 strings"`.
    pub fn summary(&self) -> String {
        match self {
            Value::U8(v) => format!("u8 {v}"),
            Value::I8(v) => format!("i8 {v}"),
            Value::U16(v) => format!("u16 {v}"),
            Value::I16(v) => format!("i16 {v}"),
            Value::U32(v) => format!("u32 {v}"),
            Value::I32(v) => format!("i32 {v}"),
            Value::U64(v) => format!("u64 {v}"),
            Value::I64(v) => format!("i64 {v}"),
            Value::F32(v) => format!("f32 {v}"),
            Value::F64(v) => format!("f64 {v}"),
            Value::Bool(v) => format!("bool {v}"),
            Value::Str(s) if s.chars().count() <= 40 => format!("string {s:?}"),
            Value::Str(s) => format!("string of {} bytes", s.len()),
            Value::Array(array) => format!("array of {} {}", array.len(), array.element_name()),
        }
    }
}

impl Array {
    /// Number of elements.
    pub fn len(&self) -> usize {
        match self {
            Array::U8(v) => v.len(),
            Array::I8(v) => v.len(),
            Array::U16(v) => v.len(),
            Array::I16(v) => v.len(),
            Array::U32(v) => v.len(),
            Array::I32(v) => v.len(),
            Array::U64(v) => v.len(),
            Array::I64(v) => v.len(),
            Array::F32(v) => v.len(),
            Array::F64(v) => v.len(),
            Array::Bool(v) => v.len(),
            Array::Str(v) => v.len(),
            Array::Nested(v) => v.len(),
        }
    }

    /// True if there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Element `i`, copied; none out of bounds.
    pub fn get(&self, i: usize) -> Option<Value> {
        match self {
            Array::U8(v) => v.get(i).copied().map(Value::U8),
            Array::I8(v) => v.get(i).copied().map(Value::I8),
            Array::U16(v) => v.get(i).copied().map(Value::U16),
            Array::I16(v) => v.get(i).copied().map(Value::I16),
            Array::U32(v) => v.get(i).copied().map(Value::U32),
            Array::I32(v) => v.get(i).copied().map(Value::I32),
            Array::U64(v) => v.get(i).copied().map(Value::U64),
            Array::I64(v) => v.get(i).copied().map(Value::I64),
            Array::F32(v) => v.get(i).copied().map(Value::F32),
            Array::F64(v) => v.get(i).copied().map(Value::F64),
            Array::Bool(v) => v.get(i).copied().map(Value::Bool),
            Array::Str(v) => v.get(i).map(|s| Value::Str(s.to_owned())),
            Array::Nested(v) => v.get(i).cloned().map(Value::Array),
        }
    }

    fn element_name(&self) -> &'static str {
        match self {
            Array::U8(_) => "u8",
            Array::I8(_) => "i8",
            Array::U16(_) => "u16",
            Array::I16(_) => "i16",
            Array::U32(_) => "u32",
            Array::I32(_) => "i32",
            Array::U64(_) => "u64",
            Array::I64(_) => "i64",
            Array::F32(_) => "f32",
            Array::F64(_) => "f64",
            Array::Bool(_) => "bools",
            Array::Str(_) => "strings",
            Array::Nested(_) => "arrays",
        }
    }
}

macro_rules! from {
    ($($type:ty => $variant:ident),*) => {$(
        impl From<$type> for Value {
            fn from(v: $type) -> Self { Value::$variant(v) }
        }
        impl From<Vec<$type>> for Value {
            fn from(v: Vec<$type>) -> Self { Value::Array(Array::$variant(v)) }
        }
    )*};
}

from!(u8 => U8, i8 => I8, u16 => U16, i16 => I16, u32 => U32, i32 => I32, u64 => U64, i64 => I64);
from!(f32 => F32, f64 => F64, bool => Bool);

impl From<&str> for Value {
    fn from(s: &str) -> Self {
        Value::Str(s.to_owned())
    }
}

impl From<String> for Value {
    fn from(s: String) -> Self {
        Value::Str(s)
    }
}

impl From<Strings> for Value {
    fn from(strings: Strings) -> Self {
        Value::Array(Array::Str(strings))
    }
}
