//! Types and constants.

use crate::mil::types::{DataType, TensorType, Type};
use crate::mil::value::{BlobRef, Data, Elements, Value};
use crate::mil::varying::UNKNOWN;
use crate::wire::{Field, Reader, Writer};
use crate::{Error, Result};

/// Dimensions of a tensor; Core ML itself stops at far fewer.
const MAX_RANK: usize = 16;

pub(super) fn read_type(mut reader: Reader<'_>) -> Result<Type> {
    let mut ty = None;
    while let Some(field) = reader.next()? {
        ty = Some(match field.number {
            1 => Type::Tensor(read_tensor_type(field.message("TensorType")?)?),
            2 => {
                let mut reader = field.message("ListType")?;
                let (mut of, mut len) = (None, None);
                while let Some(field) = reader.next()? {
                    match field.number {
                        1 => of = Some(read_type(field.message("ValueType")?)?),
                        2 => len = read_dim(field.message("Dimension")?)?,
                        _ => return Err(reader.unknown(&field)),
                    }
                }
                let of = of.ok_or_else(|| reader.error("has no element type"))?;
                Type::List(Box::new(of), len)
            }
            3 => Type::Tuple(read_inner_types(field.message("TupleType")?, 1)?),
            4 => {
                let types = read_inner_types(field.message("DictionaryType")?, 2)?;
                let pair = <[Type; 2]>::try_from(types);
                let [key, value] = pair.map_err(|_| reader.error("is a dictionary of no pair"))?;
                Type::Dict(Box::new(key), Box::new(value))
            }
            5 => match <[Type; 1]>::try_from(read_inner_types(field.message("StateType")?, 1)?) {
                Ok([Type::Tensor(ty)]) => Type::State(ty),
                _ => return Err(reader.error("is a state of no tensor")),
            },
            _ => return Err(reader.unknown(&field)),
        });
    }
    ty.ok_or_else(|| reader.error("is empty"))
}

/// The types in fields 1 to `last` of a message, in the order of their fields.
fn read_inner_types(mut reader: Reader<'_>, last: u32) -> Result<Vec<Type>> {
    let mut types = Vec::new();
    while let Some(field) = reader.next()? {
        if field.number > last {
            return Err(reader.unknown(&field));
        }
        types.push((field.number, read_type(field.message("ValueType")?)?));
    }
    types.sort_by_key(|(number, _)| *number);
    Ok(types.into_iter().map(|(_, ty)| ty).collect())
}

pub(super) fn write_type(ty: &Type, w: &mut Writer) {
    write_varying_type(ty, &[], w);
}

/// Writes a type of which some dimensions, if it is a tensor's, are of unknown size.
pub(super) fn write_varying_type(ty: &Type, varying: &[usize], w: &mut Writer) {
    match ty {
        Type::Tensor(ty) => w.message(1, |w| write_tensor_type(ty, varying, w)),
        Type::List(of, len) => w.message(2, |w| {
            w.message(1, |w| write_type(of, w));
            w.message(2, |w| write_dim(*len, w));
        }),
        Type::Tuple(types) => w.message(3, |w| {
            for ty in types {
                w.message(1, |w| write_type(ty, w));
            }
        }),
        Type::Dict(key, value) => w.message(4, |w| {
            w.message(1, |w| write_type(key, w));
            w.message(2, |w| write_type(value, w));
        }),
        Type::State(ty) => w.message(5, |w| {
            w.message(1, |w| w.message(1, |w| write_tensor_type(ty, &[], w)));
        }),
    }
}

fn read_tensor_type(mut reader: Reader<'_>) -> Result<TensorType> {
    let (mut dtype, mut rank, mut shape) = (None, 0, Vec::new());
    while let Some(field) = reader.next()? {
        match field.number {
            1 => {
                let code = field.varint()?;
                let known = DataType::from_code(code);
                dtype = Some(known.ok_or_else(|| Error::Unsupported {
                    what: format!("element type {code}"),
                    instead: "use a package of specification 6 to 9".into(),
                })?);
            }
            2 => rank = field.varint()?,
            3 => {
                shape.push(read_dim(field.message("Dimension")?)?.unwrap_or(UNKNOWN));
            }
            _ => return Err(reader.unknown(&field)),
        }
    }
    let dtype = dtype.ok_or_else(|| reader.error("has no element type"))?;
    if rank != shape.len() as u64 || shape.len() > MAX_RANK {
        return Err(reader.error(format!("of rank {rank} has {} dimensions", shape.len())));
    }
    let ty = TensorType { dtype, shape };
    let known = ty.shape.iter().filter(|&&dim| dim != UNKNOWN);
    let elements = known.copied().try_fold(8usize, usize::checked_mul);
    match elements {
        Some(_) => Ok(ty),
        None => Err(reader.error(format!("{ty} overflows"))),
    }
}

fn write_tensor_type(ty: &TensorType, varying: &[usize], w: &mut Writer) {
    w.number(1, ty.dtype.code());
    w.number_if(2, ty.shape.len() as u64);
    for (axis, &dim) in ty.shape.iter().enumerate() {
        let dim = (!varying.contains(&axis)).then_some(dim);
        w.message(3, |w| write_dim(dim, w));
    }
}

/// A dimension; none if it is not known.
fn read_dim(mut reader: Reader<'_>) -> Result<Option<usize>> {
    let mut dim = None;
    while let Some(field) = reader.next()? {
        match field.number {
            1 => {
                let mut reader = field.message("ConstantDimension")?;
                let mut size = 0;
                while let Some(field) = reader.next()? {
                    match field.number {
                        1 => size = field.varint()?,
                        _ => return Err(reader.unknown(&field)),
                    }
                }
                let size = usize::try_from(size).map_err(|_| reader.error("is too large"))?;
                dim = Some(size);
            }
            2 => dim = None,
            _ => return Err(reader.unknown(&field)),
        }
    }
    Ok(dim)
}

fn write_dim(dim: Option<usize>, w: &mut Writer) {
    match dim {
        Some(size) => w.message(1, |w| w.number_if(1, size as u64)),
        None => w.message(2, |_| {}),
    }
}

pub(super) fn read_value(mut reader: Reader<'_>) -> Result<Value> {
    let (mut ty, mut data) = (None, None);
    while let Some(field) = reader.next()? {
        match field.number {
            1 => drop(field.string()?),
            2 => ty = Some(read_type(field.message("ValueType")?)?),
            3 => data = Some(read_immediate(field.message("ImmediateValue")?)?),
            5 => {
                let mut reader = field.message("BlobFileValue")?;
                let (mut file, mut offset) = (String::new(), 0);
                while let Some(field) = reader.next()? {
                    match field.number {
                        1 => file = field.string()?,
                        2 => offset = field.varint()?,
                        _ => return Err(reader.unknown(&field)),
                    }
                }
                data = Some(Data::Blob(BlobRef { file, offset }));
            }
            _ => return Err(reader.unknown(&field)),
        }
    }
    let ty = ty.ok_or_else(|| reader.error("has no type"))?;
    if ty.tensor().is_some_and(|ty| ty.shape.contains(&UNKNOWN)) {
        return Err(reader.error("has a dimension of unknown size"));
    }
    let mut data = data.ok_or_else(|| reader.error("is empty"))?;
    // An empty tensor is written as nothing, whatever its kind.
    if let (Data::Tensor(Elements::Bytes(bytes)), Type::Tensor(ty)) = (&mut data, &ty)
        && bytes.is_empty()
        && ty.elements() == Some(0)
    {
        data = Data::Tensor(Elements::none_of(ty.dtype));
    }
    if let (Data::Tensor(elements), Type::Tensor(ty)) = (&data, &ty)
        && !elements.fits(ty)
    {
        return Err(reader.error(format!("of type {ty} has other elements")));
    }
    Ok(Value { ty, data })
}

pub(super) fn write_value(value: &Value, w: &mut Writer) {
    w.message(2, |w| write_type(&value.ty, w));
    match &value.data {
        Data::Blob(blob) => w.message(5, |w| {
            w.string(1, &blob.file);
            w.number_if(2, blob.offset);
        }),
        Data::Tensor(elements) => w.message(3, |w| w.message(1, |w| write_elements(elements, w))),
        Data::Tuple(values) => w.message(3, |w| w.message(2, |w| write_values(values, w))),
        Data::List(values) => w.message(3, |w| w.message(3, |w| write_values(values, w))),
        Data::Dict(pairs) => w.message(3, |w| {
            w.message(4, |w| {
                for (key, value) in pairs {
                    w.message(1, |w| {
                        w.message(1, |w| write_value(key, w));
                        w.message(2, |w| write_value(value, w));
                    });
                }
            });
        }),
    }
}

fn write_values(values: &[Value], w: &mut Writer) {
    for value in values {
        w.message(1, |w| write_value(value, w));
    }
}

fn read_immediate(mut reader: Reader<'_>) -> Result<Data> {
    let mut data = None;
    while let Some(field) = reader.next()? {
        data = Some(match field.number {
            1 => Data::Tensor(read_elements(field.message("TensorValue")?)?),
            2 => Data::Tuple(read_values(field.message("TupleValue")?)?),
            3 => Data::List(read_values(field.message("ListValue")?)?),
            4 => {
                let mut reader = field.message("DictionaryValue")?;
                let mut pairs = Vec::new();
                while let Some(field) = reader.next()? {
                    if field.number != 1 {
                        return Err(reader.unknown(&field));
                    }
                    pairs.push(read_pair(field.message("KeyValuePair")?)?);
                }
                Data::Dict(pairs)
            }
            _ => return Err(reader.unknown(&field)),
        });
    }
    data.ok_or_else(|| reader.error("is empty"))
}

fn read_pair(mut reader: Reader<'_>) -> Result<(Value, Value)> {
    let (mut key, mut value) = (None, None);
    while let Some(field) = reader.next()? {
        let found = Some(read_value(field.message("Value")?)?);
        match field.number {
            1 => key = found,
            2 => value = found,
            _ => return Err(reader.unknown(&field)),
        }
    }
    key.zip(value).ok_or_else(|| reader.error("is not whole"))
}

fn read_values(mut reader: Reader<'_>) -> Result<Vec<Value>> {
    let mut values = Vec::new();
    while let Some(field) = reader.next()? {
        if field.number != 1 {
            return Err(reader.unknown(&field));
        }
        values.push(read_value(field.message("Value")?)?);
    }
    Ok(values)
}

fn read_elements(mut reader: Reader<'_>) -> Result<Elements> {
    let mut elements = Elements::Bytes(Vec::new());
    while let Some(field) = reader.next()? {
        let mut list = field.message("list of elements")?;
        elements = match field.number {
            1 => {
                let mut words = Vec::new();
                while let Some(field) = next_values(&mut list)? {
                    field.words(&mut words)?;
                }
                Elements::Floats(words.into_iter().map(f32::from_le_bytes).collect())
            }
            6 => {
                let mut words = Vec::new();
                while let Some(field) = next_values(&mut list)? {
                    field.words(&mut words)?;
                }
                Elements::Doubles(words.into_iter().map(f64::from_le_bytes).collect())
            }
            4 => {
                let mut texts = Vec::new();
                while let Some(field) = next_values(&mut list)? {
                    texts.push(field.string()?);
                }
                Elements::Strings(texts)
            }
            7 => {
                let mut bytes = Vec::new();
                while let Some(field) = next_values(&mut list)? {
                    bytes.extend_from_slice(field.bytes()?);
                }
                Elements::Bytes(bytes)
            }
            2 | 3 | 5 => {
                let mut numbers = Vec::new();
                while let Some(values) = next_values(&mut list)? {
                    values.varints(&mut numbers)?;
                }
                let numbers = numbers.into_iter();
                match field.number {
                    2 => Elements::Ints(numbers.map(|n| n as i32).collect()),
                    3 => Elements::Bools(numbers.map(|n| n != 0).collect()),
                    _ => Elements::Longs(numbers.map(|n| n as i64).collect()),
                }
            }
            _ => return Err(reader.unknown(&field)),
        };
    }
    Ok(elements)
}

/// The next part of a list whose one field is `values`.
fn next_values<'a>(list: &mut Reader<'a>) -> Result<Option<Field<'a>>> {
    match list.next()? {
        Some(field) if field.number != 1 => Err(list.unknown(&field)),
        field => Ok(field),
    }
}

fn write_elements(elements: &Elements, w: &mut Writer) {
    match elements {
        Elements::Floats(values) => w.message(1, |w| {
            let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
            w.bytes(1, &bytes);
        }),
        Elements::Ints(v) => w.message(2, |w| w.varints(1, v.iter().map(|&v| i64::from(v) as u64))),
        Elements::Bools(v) => w.message(3, |w| w.varints(1, v.iter().map(|&v| u64::from(v)))),
        Elements::Strings(texts) => w.message(4, |w| {
            texts.iter().for_each(|text| w.bytes(1, text.as_bytes()));
        }),
        Elements::Longs(v) => w.message(5, |w| w.varints(1, v.iter().map(|&v| v as u64))),
        Elements::Doubles(values) => w.message(6, |w| {
            let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
            w.bytes(1, &bytes);
        }),
        Elements::Bytes(bytes) => w.message(7, |w| w.bytes(1, bytes)),
    }
}
