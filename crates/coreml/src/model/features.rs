//! Features, the inputs and outputs as a caller sees them, and what else is said of a model.

use std::collections::BTreeMap;

use crate::Result;
use crate::mil::{DataType, TensorType};
use crate::wire::{Field, Reader, Writer};

/// An input, an output or a state.
#[derive(Clone, Debug, PartialEq)]
pub struct Feature {
    /// Its name, which is that in the function.
    pub name: String,
    /// A text about it.
    pub text: String,
    /// What it is.
    pub kind: FeatureKind,
    /// Whether a caller may leave it out.
    pub optional: bool,
    /// Fields that are not understood.
    unknown: Vec<u8>,
}

/// What a feature is.
#[derive(Clone, Debug, PartialEq)]
pub enum FeatureKind {
    /// A tensor.
    Array(Array),
    /// A tensor that outlives a call.
    State(Array),
    /// Something else, such as an image, as it lies in the file.
    Other(Vec<u8>),
}

/// The type of a tensor at the border of a function.
#[derive(Clone, Debug, PartialEq)]
pub struct Array {
    /// Its shape.
    pub shape: Vec<usize>,
    /// The shapes that it may have, if they are several; the one above is among them.
    pub shapes: Vec<Vec<usize>>,
    /// What its elements are.
    pub dtype: ArrayType,
    /// Ranges of dimensions and default values, as they lie in the file.
    unknown: Vec<u8>,
}

/// What the elements of an [`Array`] are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum ArrayType {
    Float16,
    Float32,
    Float64,
    Int32,
    Int8,
}

/// What is said of a model.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Metadata {
    /// What it is.
    pub description: String,
    /// Its version.
    pub version: String,
    /// Who made it.
    pub author: String,
    /// The terms it may be used under.
    pub licence: String,
    /// Anything else.
    pub user: BTreeMap<String, String>,
    /// Fields that are not understood.
    unknown: Vec<u8>,
}

/// Type, code in the file, type in a program.
const ARRAY_TYPES: [(ArrayType, u64, DataType); 5] = [
    (ArrayType::Float16, 65552, DataType::Float16),
    (ArrayType::Float32, 65568, DataType::Float32),
    (ArrayType::Float64, 65600, DataType::Float64),
    (ArrayType::Int32, 131_104, DataType::Int32),
    (ArrayType::Int8, 131_080, DataType::Int8),
];

/// Most shapes that an array may have, as in Core ML: a function is worked through in each of them.
pub(super) const MAX_SHAPES: usize = 128;

impl Array {
    /// The array type of a tensor; none if such tensors cannot cross the border of a function.
    pub fn of(ty: &TensorType) -> Option<Array> {
        let (dtype, ..) = *ARRAY_TYPES.iter().find(|(.., dtype)| *dtype == ty.dtype)?;
        // A scalar crosses as a vector of one.
        let shape = if ty.shape.is_empty() { vec![1] } else { ty.shape.clone() };
        Some(Array { shape, shapes: Vec::new(), dtype, unknown: Vec::new() })
    }

    /// Whether tensors of type `ty` are such arrays.
    pub(super) fn matches(&self, ty: &TensorType) -> bool {
        let shape_matches =
            |of: &Array| of.shape == self.shape || ty.shape.is_empty() && self.shape.is_empty();
        Array::of(ty).is_some_and(|of| of.dtype == self.dtype && shape_matches(&of))
    }

    pub(super) fn read(mut reader: Reader<'_>) -> Result<Array> {
        let (mut shape, mut dtype, mut unknown) = (Vec::new(), None, Vec::new());
        let mut shapes = Vec::new();
        while let Some(field) = reader.next()? {
            match field.number {
                1 => field.varints(&mut shape)?,
                2 => {
                    let code = field.varint()?;
                    let row = ARRAY_TYPES.iter().find(|(_, c, _)| *c == code);
                    let (found, ..) = row.ok_or_else(|| reader.error(format!("of type {code}")))?;
                    dtype = Some(*found);
                }
                21 => {
                    let mut list = field.message("EnumeratedShapes")?;
                    while let Some(field) = list.next()? {
                        if field.number != 1 {
                            return Err(list.unknown(&field));
                        }
                        let (mut each, mut shape) = (field.message("Shape")?, Vec::new());
                        while let Some(field) = each.next()? {
                            match field.number {
                                1 => field.varints(&mut shape)?,
                                _ => return Err(each.unknown(&field)),
                            }
                        }
                        if shapes.len() == MAX_SHAPES {
                            return Err(list.error(format!("has more than {MAX_SHAPES} shapes")));
                        }
                        shapes.push(dims(shape, &each)?);
                    }
                }
                _ => unknown.extend_from_slice(field.raw),
            }
        }
        let dtype = dtype.ok_or_else(|| reader.error("has no type"))?;
        Ok(Array { shape: dims(shape, &reader)?, shapes, dtype, unknown })
    }

    pub(super) fn write(&self, w: &mut Writer) {
        let row = ARRAY_TYPES.iter().find(|(dtype, ..)| *dtype == self.dtype);
        w.varints(1, self.shape.iter().map(|&d| d as u64));
        w.number(2, row.expect("every type has a row").1);
        if !self.shapes.is_empty() {
            w.message(21, |w| {
                for shape in &self.shapes {
                    w.message(1, |w| w.varints(1, shape.iter().map(|&d| d as u64)));
                }
            });
        }
        w.raw(&self.unknown);
    }
}

/// The dimensions of an array.
fn dims(shape: Vec<u64>, reader: &Reader<'_>) -> Result<Vec<usize>> {
    let dim = |d: u64| usize::try_from(d).ok().filter(|&d| d > 0 && d < 1 << 40);
    let shape: Option<Vec<usize>> = shape.into_iter().map(dim).collect();
    shape.ok_or_else(|| reader.error("has a dimension out of range"))
}

impl Feature {
    /// A feature of a kind.
    pub fn new(name: &str, kind: FeatureKind) -> Feature {
        let (text, unknown) = (String::new(), Vec::new());
        Feature { name: name.to_owned(), text, kind, optional: false, unknown }
    }

    /// Whether both are tensors, or states, of one name, type and shape.
    pub(super) fn is_same(&self, other: &Feature) -> bool {
        let arrays = match (&self.kind, &other.kind) {
            (FeatureKind::Array(a), FeatureKind::Array(b)) => (a, b),
            (FeatureKind::State(a), FeatureKind::State(b)) => (a, b),
            _ => return false,
        };
        let (a, b) = arrays;
        // A scalar may be described without a dimension.
        let shape = |array: &Array| match array.shape.is_empty() {
            true => vec![1],
            false => array.shape.clone(),
        };
        self.name == other.name && a.dtype == b.dtype && shape(a) == shape(b)
    }

    /// The feature as one of any shape.
    pub(super) fn without_shape(&self) -> Feature {
        let mut feature = self.clone();
        if let FeatureKind::Array(array) = &mut feature.kind {
            array.shape.clear();
        }
        feature
    }

    pub(super) fn read(field: &Field<'_>) -> Result<Feature> {
        let mut feature = Feature::new("", FeatureKind::Other(Vec::new()));
        let mut reader = field.message("FeatureDescription")?;
        while let Some(field) = reader.next()? {
            match field.number {
                1 => feature.name = field.string()?,
                2 => feature.text = field.string()?,
                3 => feature.read_type(field.message("FeatureType")?)?,
                _ => feature.unknown.extend_from_slice(field.raw),
            }
        }
        Ok(feature)
    }

    fn read_type(&mut self, mut reader: Reader<'_>) -> Result<()> {
        while let Some(field) = reader.next()? {
            match field.number {
                5 => {
                    self.kind = FeatureKind::Array(Array::read(field.message("ArrayFeatureType")?)?)
                }
                8 => {
                    let mut state = field.message("StateFeatureType")?;
                    while let Some(field) = state.next()? {
                        if field.number != 1 {
                            return Err(state.unknown(&field));
                        }
                        let array = Array::read(field.message("ArrayFeatureType")?)?;
                        self.kind = FeatureKind::State(array);
                    }
                }
                1000 => self.optional = field.varint()? != 0,
                _ => self.kind = FeatureKind::Other(field.raw.to_vec()),
            }
        }
        Ok(())
    }

    pub(super) fn write(&self, w: &mut Writer) {
        w.string(1, &self.name);
        w.string(2, &self.text);
        w.message(3, |w| {
            match &self.kind {
                FeatureKind::Array(array) => w.message(5, |w| array.write(w)),
                FeatureKind::State(array) => w.message(8, |w| w.message(1, |w| array.write(w))),
                FeatureKind::Other(raw) => w.raw(raw),
            }
            w.number_if(1000, u64::from(self.optional));
        });
        w.raw(&self.unknown);
    }
}

impl Metadata {
    pub(super) fn read(field: &Field<'_>) -> Result<Metadata> {
        let mut metadata = Metadata::default();
        let mut reader = field.message("Metadata")?;
        while let Some(field) = reader.next()? {
            match field.number {
                1 => metadata.description = field.string()?,
                2 => metadata.version = field.string()?,
                3 => metadata.author = field.string()?,
                4 => metadata.licence = field.string()?,
                100 => {
                    let (mut key, mut value) = (String::new(), String::new());
                    let mut entry = field.message("map entry")?;
                    while let Some(field) = entry.next()? {
                        match field.number {
                            1 => key = field.string()?,
                            2 => value = field.string()?,
                            _ => return Err(entry.unknown(&field)),
                        }
                    }
                    metadata.user.insert(key, value);
                }
                _ => metadata.unknown.extend_from_slice(field.raw),
            }
        }
        Ok(metadata)
    }

    pub(super) fn write(&self, w: &mut Writer) {
        let texts = [&self.description, &self.version, &self.author, &self.licence];
        for (number, text) in (1..).zip(texts) {
            w.string(number, text);
        }
        for (key, value) in &self.user {
            w.message(100, |w| {
                w.string(1, key);
                w.string(2, value);
            });
        }
        w.raw(&self.unknown);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_array_of_more_shapes_than_core_ml_allows_is_an_error_of_the_file() {
        let read = |n: usize| {
            let mut array = Array::of(&TensorType::new(DataType::Float16, &[1, 1])).unwrap();
            array.shapes = (1..=n).map(|dim| vec![1, dim]).collect();
            let mut writer = Writer::default();
            array.write(&mut writer);
            let bytes = writer.finish();
            Array::read(Reader::new(&bytes, "ArrayFeatureType")).map(|read| read == array)
        };
        assert!(read(MAX_SHAPES).unwrap());
        let error = read(MAX_SHAPES + 1).unwrap_err().to_string();
        assert!(error.contains("more than 128 shapes"), "{error}");
    }
}
