//! The metadata of a GGUF file: an ordered map with typed access.

use indexmap::IndexMap;

use super::{Array, Strings, Value};
use crate::{Error, Result};

/// Keys and values in file order.
///
/// Getters named after a type fail if the key is missing or its value does not fit; those with
/// `opt_` give `None` for a missing key. Whole numbers are accepted in any width and signedness as
/// long as the value fits, since files made by different tools differ in that.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Metadata {
    entries: IndexMap<String, Value>,
}

impl Metadata {
    /// Empty metadata.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets a key; gives the value it had.
    pub fn insert(&mut self, key: impl Into<String>, value: impl Into<Value>) -> Option<Value> {
        self.entries.insert(key.into(), value.into())
    }

    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.entries.get(key)
    }

    /// True if the key is there.
    pub fn has(&self, key: &str) -> bool {
        self.entries.contains_key(key)
    }

    /// Number of keys.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// True if there are no keys.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Keys and values in file order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.entries.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// A string.
    ///
    /// # Errors
    /// If the key is missing or no string.
    pub fn str(&self, key: &str) -> Result<&str> {
        required(key, self.opt_str(key)?)
    }

    /// A string, if the key is there.
    ///
    /// # Errors
    /// If the value is no string.
    pub fn opt_str(&self, key: &str) -> Result<Option<&str>> {
        self.typed(key, "a string", Value::as_str)
    }

    /// A whole number.
    ///
    /// # Errors
    /// If the key is missing, or its value no whole number from 0 to `u32::MAX`.
    pub fn u32(&self, key: &str) -> Result<u32> {
        required(key, self.opt_u32(key)?)
    }

    /// A whole number, if the key is there.
    ///
    /// # Errors
    /// If the value is no whole number from 0 to `u32::MAX`.
    pub fn opt_u32(&self, key: &str) -> Result<Option<u32>> {
        self.typed(key, "a whole number of 32 bits", |v| v.as_u64()?.try_into().ok())
    }

    /// A whole number.
    ///
    /// # Errors
    /// If the key is missing, or its value no whole number from 0.
    pub fn u64(&self, key: &str) -> Result<u64> {
        required(key, self.opt_u64(key)?)
    }

    /// A whole number, if the key is there.
    ///
    /// # Errors
    /// If the value is no whole number from 0.
    pub fn opt_u64(&self, key: &str) -> Result<Option<u64>> {
        self.typed(key, "a whole number", Value::as_u64)
    }

    /// A float of either width, rounded to single precision.
    ///
    /// # Errors
    /// If the key is missing or no float.
    pub fn f32(&self, key: &str) -> Result<f32> {
        required(key, self.opt_f32(key)?)
    }

    /// A float of either width, rounded to single precision, if the key is there.
    ///
    /// # Errors
    /// If the value is no float.
    pub fn opt_f32(&self, key: &str) -> Result<Option<f32>> {
        self.typed(key, "a float", |v| v.as_f64().map(|v| v as f32))
    }

    /// A truth value.
    ///
    /// # Errors
    /// If the key is missing or no truth value.
    pub fn bool(&self, key: &str) -> Result<bool> {
        required(key, self.opt_bool(key)?)
    }

    /// A truth value, if the key is there.
    ///
    /// # Errors
    /// If the value is no truth value.
    pub fn opt_bool(&self, key: &str) -> Result<Option<bool>> {
        self.typed(key, "true or false", Value::as_bool)
    }

    /// A list of strings.
    ///
    /// # Errors
    /// If the key is missing or no list of strings.
    pub fn strings(&self, key: &str) -> Result<&Strings> {
        required(key, self.opt_strings(key)?)
    }

    /// A list of strings, if the key is there.
    ///
    /// # Errors
    /// If the value is no list of strings.
    pub fn opt_strings(&self, key: &str) -> Result<Option<&Strings>> {
        self.typed(key, "a list of strings", |v| match v.as_array()? {
            Array::Str(strings) => Some(strings),
            _ => None,
        })
    }

    /// A list of floats of either width, rounded to single precision.
    ///
    /// # Errors
    /// If the key is missing or no list of floats.
    pub fn f32s(&self, key: &str) -> Result<Vec<f32>> {
        required(key, self.opt_f32s(key)?)
    }

    /// A list of floats, if the key is there.
    ///
    /// # Errors
    /// If the value is no list of floats.
    pub fn opt_f32s(&self, key: &str) -> Result<Option<Vec<f32>>> {
        self.typed(key, "a list of floats", |v| match v.as_array()? {
            Array::F32(v) => Some(v.clone()),
            Array::F64(v) => Some(v.iter().map(|&v| v as f32).collect()),
            _ => None,
        })
    }

    /// A list of whole numbers.
    ///
    /// # Errors
    /// If the key is missing or no list of whole numbers of 32 bits.
    pub fn i32s(&self, key: &str) -> Result<Vec<i32>> {
        required(key, self.opt_i32s(key)?)
    }

    /// A list of whole numbers, if the key is there.
    ///
    /// # Errors
    /// If the value is no list of whole numbers that fit an `i32`.
    pub fn opt_i32s(&self, key: &str) -> Result<Option<Vec<i32>>> {
        self.typed(key, "a list of whole numbers of 32 bits", |v| whole_numbers(v.as_array()?))
    }

    /// A list of whole numbers from 0.
    ///
    /// # Errors
    /// If the key is missing or no list of whole numbers of 32 bits.
    pub fn u32s(&self, key: &str) -> Result<Vec<u32>> {
        required(key, self.opt_u32s(key)?)
    }

    /// A list of whole numbers from 0, if the key is there.
    ///
    /// # Errors
    /// If the value is no list of whole numbers that fit a `u32`.
    pub fn opt_u32s(&self, key: &str) -> Result<Option<Vec<u32>>> {
        self.typed(key, "a list of whole numbers from 0", |v| whole_numbers(v.as_array()?))
    }

    fn typed<'a, T>(
        &'a self,
        key: &str,
        wanted: &'static str,
        convert: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let wrong = || Error::WrongValue { key: key.to_owned(), wanted, found: value.summary() };
        convert(value).map(Some).ok_or_else(wrong)
    }
}

impl<K: Into<String>, V: Into<Value>> FromIterator<(K, V)> for Metadata {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(iter: I) -> Self {
        Metadata { entries: iter.into_iter().map(|(k, v)| (k.into(), v.into())).collect() }
    }
}

fn required<T>(key: &str, value: Option<T>) -> Result<T> {
    value.ok_or_else(|| Error::MissingKey { key: key.to_owned() })
}

/// The elements as another type of whole number, if all of them fit.
fn whole_numbers<T>(array: &Array) -> Option<Vec<T>>
where
    T: TryFrom<u64> + TryFrom<i64>,
{
    fn convert<S: Copy + Into<W>, W, T: TryFrom<W>>(values: &[S]) -> Option<Vec<T>> {
        values.iter().map(|&v| T::try_from(v.into()).ok()).collect()
    }
    match array {
        Array::U8(v) => convert::<_, u64, _>(v),
        Array::U16(v) => convert::<_, u64, _>(v),
        Array::U32(v) => convert::<_, u64, _>(v),
        Array::U64(v) => convert::<_, u64, _>(v),
        Array::I8(v) => convert::<_, i64, _>(v),
        Array::I16(v) => convert::<_, i64, _>(v),
        Array::I32(v) => convert::<_, i64, _>(v),
        Array::I64(v) => convert::<_, i64, _>(v),
        _ => None,
    }
}
