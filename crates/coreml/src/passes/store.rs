//! The weights of a package while it is rewritten: what lies in its file, and what passes made.

use std::collections::HashMap;
use std::io::{Seek, Write};
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;

use crate::blob::{BlobWriter, Blobs};
use crate::mil::{BlobRef, Data, DataType, Elements, Program, TensorType, Type, Value};
use crate::{Error, Result};

/// How programs refer to what passes made.
const MADE: &str = "made";
/// Constants with fewer elements stay in the program.
const SMALL: usize = 10;

/// Weights that values refer to.
#[derive(Clone, Debug)]
pub(super) struct Store {
    file: Option<Arc<Blobs>>,
    /// What a [`BlobRef`] to [`MADE`] counts.
    made: Vec<Made>,
}

#[derive(Clone, Debug)]
enum Made {
    Bytes(Bytes),
    /// Some bytes of another tensor, which stay in its file.
    Part(BlobRef, TensorType, Range<usize>),
}

impl Store {
    pub fn new(file: Option<Arc<Blobs>>) -> Store {
        Store { file, made: Vec::new() }
    }

    /// The data of a tensor.
    pub fn read(&self, blob: &BlobRef, ty: &TensorType) -> Result<Bytes> {
        self.part(blob, ty, None)
    }

    fn part(&self, blob: &BlobRef, ty: &TensorType, range: Option<Range<usize>>) -> Result<Bytes> {
        if blob.file != MADE {
            let file = self.file.as_ref();
            let file = file.ok_or_else(|| Error::malformed("its weight file is missing"))?;
            return match range {
                None => file.read(blob.offset, ty),
                Some(range) => file.read_part(blob.offset, ty, range),
            };
        }
        match &self.made[blob.offset as usize] {
            Made::Bytes(bytes) => Ok(range.map_or(bytes.clone(), |range| bytes.slice(range))),
            Made::Part(of, whole, within) => {
                let range = range.unwrap_or(0..within.len());
                self.part(of, whole, Some(within.start + range.start..within.start + range.end))
            }
        }
    }

    /// A constant of a type and its bytes, in the program if it is small or of a type that weight files
    /// do not have.
    pub fn value(&mut self, ty: &TensorType, elements: Elements) -> Value {
        let bytes: Bytes = match (&elements, ty.elements()) {
            (_, Some(n)) if n < SMALL => return in_program(ty, elements),
            (Elements::Bytes(bytes), _) => bytes.clone().into(),
            (Elements::Floats(floats), _) => bytemuck::cast_slice(floats).to_vec().into(),
            (Elements::Ints(ints), _) if ty.dtype == DataType::Int32 => {
                bytemuck::cast_slice(ints).to_vec().into()
            }
            _ => return in_program(ty, elements),
        };
        self.made.push(Made::Bytes(bytes));
        self.last(ty)
    }

    /// The elements of a constant, from wherever they lie; none of types that only weight files have.
    pub fn elements(&self, value: &Value) -> Result<Option<Elements>> {
        let (blob, ty) = match (&value.data, &value.ty) {
            (Data::Tensor(elements), _) => return Ok(Some(elements.clone())),
            (Data::Blob(blob), Type::Tensor(ty)) => (blob, ty),
            _ => return Ok(None),
        };
        let bytes = self.read(blob, ty)?;
        let words = || bytes.chunks_exact(4).map(|w| <[u8; 4]>::try_from(w).expect("four bytes"));
        Ok(Some(match ty.dtype {
            DataType::Float32 => Elements::Floats(words().map(f32::from_le_bytes).collect()),
            DataType::Int32 => Elements::Ints(words().map(i32::from_le_bytes).collect()),
            DataType::Int16 | DataType::UInt16 => return Ok(None),
            _ => Elements::Bytes(bytes.to_vec()),
        }))
    }

    /// Rows of a constant's first dimension; none if they do not begin and end at whole bytes.
    pub fn rows(&mut self, value: &Value, rows: Range<usize>) -> Result<Option<Value>> {
        let Some(ty) = value.ty.tensor() else { return Ok(None) };
        let [all, rest @ ..] = &ty.shape[..] else { return Ok(None) };
        let bits = rest.iter().product::<usize>() * ty.dtype.bits();
        let taken = TensorType::new(ty.dtype, &[&[rows.len()], rest].concat());
        let at_bytes = |n: usize| (n * bits).is_multiple_of(8);
        if rows.end > *all || bits == 0 || !at_bytes(rows.start) || !at_bytes(rows.len()) {
            return Ok(None);
        }
        let range = rows.start * bits / 8..rows.end * bits / 8;
        match &value.data {
            Data::Blob(blob) => {
                self.made.push(Made::Part(blob.clone(), ty.clone(), range));
                Ok(Some(self.last(&taken)))
            }
            Data::Tensor(elements) => {
                let each = rest.iter().product::<usize>();
                let part = rows.start * each..rows.end * each;
                let elements = match elements {
                    Elements::Floats(v) => Elements::Floats(v[part].to_vec()),
                    Elements::Ints(v) => Elements::Ints(v[part].to_vec()),
                    Elements::Bytes(v) => Elements::Bytes(v[range].to_vec()),
                    _ => return Ok(None),
                };
                Ok(Some(self.value(&taken, elements)))
            }
            _ => Ok(None),
        }
    }

    fn last(&self, ty: &TensorType) -> Value {
        let blob = BlobRef { file: MADE.into(), offset: self.made.len() as u64 - 1 };
        Value::blob(ty.dtype, &ty.shape, blob)
    }

    /// Writes all that a program refers to into a new weight file, to which it refers then.
    pub fn write<W: Write + Seek>(
        &self,
        program: &mut Program,
        weights: &mut BlobWriter<W>,
    ) -> Result<()> {
        let mut written: HashMap<BlobRef, BlobRef> = HashMap::new();
        for (value, ty) in program.blobs_mut() {
            let Data::Blob(blob) = &mut value.data else { continue };
            if let Some(new) = written.get(blob) {
                *blob = new.clone();
                continue;
            }
            let data = self.read(blob, &ty)?;
            if let Data::Blob(new) = weights.add(ty.dtype, &ty.shape, &data)?.data {
                written.insert(std::mem::replace(blob, new.clone()), new);
            }
        }
        Ok(())
    }
}

fn in_program(ty: &TensorType, elements: Elements) -> Value {
    Value::tensor(ty.dtype, &ty.shape, elements)
}
