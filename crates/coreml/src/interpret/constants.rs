//! Constants of a function: what they are as tensors and as matrices.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use baton_cpu::Matrix;
use baton_weights::{DType, Tensor as WeightTensor};
use bytes::Bytes;
use half::f16;

use super::tensor::{Tensor, from_f16, strides};
use crate::mil::{Binding, Data, DataType, Elements, Op, TensorType, Value};
use crate::package::Package;
use crate::{Error, Result};

/// A constant. Weights in half precision stay as they lie in their file until something other than a
/// matrix product wants them.
#[derive(Debug)]
pub(super) struct Constant {
    ty: TensorType,
    content: Content,
    tensor: OnceLock<Option<Tensor>>,
    matrix: OnceLock<Option<Matrix>>,
}

#[derive(Debug)]
enum Content {
    Elements(Elements),
    Bytes(Bytes),
}

impl Constant {
    fn new(ty: TensorType, content: Content) -> Arc<Constant> {
        Arc::new(Constant { ty, content, tensor: OnceLock::new(), matrix: OnceLock::new() })
    }

    /// A constant whose elements lie in a program; none if it is no tensor.
    pub fn of(value: &Value) -> Option<Arc<Constant>> {
        let elements = value.elements()?.clone();
        Some(Constant::new(value.ty.tensor()?.clone(), Content::Elements(elements)))
    }

    /// Its shape.
    pub fn shape(&self) -> &[usize] {
        &self.ty.shape
    }

    /// The text, if it is one.
    pub fn text(&self) -> Option<&str> {
        match &self.content {
            Content::Elements(Elements::Strings(texts)) => texts.first().map(String::as_str),
            _ => None,
        }
    }

    /// It as a tensor.
    pub fn tensor(&self) -> std::result::Result<Tensor, String> {
        let tensor = self.tensor.get_or_init(|| match &self.content {
            Content::Elements(elements) => Tensor::of(&self.ty, elements),
            Content::Bytes(bytes) => match self.ty.dtype {
                DataType::Float16 => Some(Tensor::floats(&self.ty.shape, from_f16(bytes))),
                DataType::Float32 => {
                    let words = bytes.chunks_exact(4).map(|w| w.try_into().expect("four bytes"));
                    let floats = words.map(f32::from_le_bytes).collect();
                    Some(Tensor::floats(&self.ty.shape, floats))
                }
                DataType::Int32 => {
                    let words = bytes.chunks_exact(4).map(|w| w.try_into().expect("four bytes"));
                    let ints = words.map(i32::from_le_bytes).collect();
                    Some(Tensor::ints(&self.ty.shape, ints))
                }
                _ => None,
            },
        });
        tensor.clone().ok_or_else(|| format!("a constant of {} is not computed with", self.ty))
    }

    /// It as a matrix of `rows` for the kernels of the CPU, whose columns are all other dimensions.
    pub fn matrix(&self) -> std::result::Result<&Matrix, String> {
        let matrix = self.matrix.get_or_init(|| {
            let (&rows, rest) = self.ty.shape.split_first()?;
            let cols = rest.iter().product();
            if rows == 0 || cols == 0 {
                return None;
            }
            let (dtype, bytes) = match (&self.content, self.ty.dtype) {
                (Content::Bytes(bytes), DataType::Float16) => (DType::F16, bytes.clone()),
                (Content::Bytes(bytes), DataType::Float32) => (DType::F32, bytes.clone()),
                (Content::Elements(Elements::Bytes(bytes)), DataType::Float16) => {
                    (DType::F16, bytes.clone().into())
                }
                (Content::Elements(Elements::Floats(floats)), _) => {
                    (DType::F32, bytemuck::cast_slice::<f32, u8>(floats).to_vec().into())
                }
                _ => return None,
            };
            let tensor = WeightTensor::new("constant", dtype, &[rows, cols], bytes).ok()?;
            Matrix::new(tensor).ok()
        });
        matrix.as_ref().ok_or_else(|| format!("a matrix of {} is not computed with", self.ty))
    }
}

/// The constants of a package, each made once however many functions use it.
pub(super) struct Constants<'a> {
    package: &'a Package,
    /// By the text of the operation that makes them, without its name.
    known: HashMap<String, Arc<Constant>>,
}

impl<'a> Constants<'a> {
    pub fn new(package: &'a Package) -> Self {
        Constants { package, known: HashMap::new() }
    }

    /// A constant written in a program.
    pub fn value(&mut self, value: &Value) -> Result<Arc<Constant>> {
        let key = value.to_string();
        if let Some(constant) = self.known.get(&key) {
            return Ok(constant.clone());
        }
        let ty = value.ty.tensor().cloned();
        let ty = ty.ok_or_else(|| Error::malformed(format!("a constant of {}", value.ty)))?;
        let content = match &value.data {
            Data::Tensor(elements) => Content::Elements(elements.clone()),
            Data::Blob(blob) => Content::Bytes(self.package.weight(blob, &ty)?),
            _ => return Err(Error::malformed("a constant that is no tensor")),
        };
        let constant = Constant::new(ty, content);
        self.known.insert(key, constant.clone());
        Ok(constant)
    }

    /// The result of a `constexpr` operation; `earlier` finds those of others.
    pub fn expression(
        &mut self,
        op: &Op,
        earlier: &dyn Fn(&str) -> Option<Arc<Constant>>,
    ) -> Result<Arc<Constant>> {
        let ty = op.outputs[0].ty.tensor().expect("verified").clone();
        let plain = op.inputs.values().flatten().all(|b| matches!(b, Binding::Value(_)));
        let key = format!("{} {:?}", op.kind, op.inputs);
        if let Some(constant) = self.known.get(&key).filter(|_| plain) {
            return Ok(constant.clone());
        }
        let mut operand = |name: &str| match op.input(name) {
            None => Ok(None),
            Some(Binding::Value(value)) => self.value(value).map(Some),
            Some(Binding::Name(name)) => Ok(earlier(name)),
        };
        let wrong = |name: &str| {
            Error::malformed(format!("{} {} cannot read its {name}", op.kind, op.name()))
        };
        let mut numbers = |name: &str| -> Result<Option<(TensorType, Vec<f32>)>> {
            let Some(constant) = operand(name)? else { return Ok(None) };
            let values = decoded(&constant).ok_or_else(|| wrong(name))?;
            Ok(Some((constant.ty.clone(), values)))
        };
        let values = match op.kind.as_str() {
            "constexpr_blockwise_shift_scale" => {
                let (data, scale) = (numbers("data")?, numbers("scale")?);
                let offset = numbers("offset")?;
                let ((data_type, data), (scale_type, scale)) =
                    data.zip(scale).ok_or_else(|| wrong("data"))?;
                let offset = offset.map(|(_, values)| values);
                shift_scale(&data_type.shape, data, &scale_type.shape, &scale, offset.as_deref())
            }
            "constexpr_lut_to_dense" => {
                let (indices, lut) = (numbers("indices")?, numbers("lut")?);
                let ((indices_type, indices), (lut_type, lut)) =
                    indices.zip(lut).ok_or_else(|| wrong("lut"))?;
                look_up(&indices_type.shape, &indices, &lut_type.shape, &lut)
            }
            other => {
                return Err(Error::Unsupported {
                    what: format!("the operation {other:?}"),
                    instead: "use linear or palettized quantization".into(),
                });
            }
        };
        let bytes: Vec<u8> = match ty.dtype {
            DataType::Float16 => {
                values.iter().flat_map(|&v| f16::from_f32(v).to_le_bytes()).collect()
            }
            _ => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
        };
        let constant = Constant::new(ty, Content::Bytes(bytes.into()));
        if plain {
            self.known.insert(key, constant.clone());
        }
        Ok(constant)
    }
}

/// The elements of a constant of any type as numbers; none for texts and types without kernels.
fn decoded(constant: &Constant) -> Option<Vec<f32>> {
    let n = constant.ty.elements()?;
    let bytes = match &constant.content {
        Content::Elements(Elements::Floats(values)) => return Some(values.clone()),
        Content::Elements(Elements::Ints(values)) => {
            return Some(values.iter().map(|&v| v as f32).collect());
        }
        Content::Elements(Elements::Bytes(bytes)) => &bytes[..],
        Content::Elements(_) => return None,
        Content::Bytes(bytes) => bytes,
    };
    let bits = constant.ty.dtype.bits();
    Some(match constant.ty.dtype {
        DataType::Float16 | DataType::Float32 => constant.tensor().ok()?.into_floats()?,
        DataType::Int8 => bytes.iter().map(|&b| f32::from(b as i8)).collect(),
        DataType::UInt8 => bytes.iter().map(|&b| f32::from(b)).collect(),
        DataType::Int4 => unpack(bytes, bits, n).map(|v| f32::from((v << 4) as i8 >> 4)).collect(),
        DataType::UInt1 | DataType::UInt2 | DataType::UInt3 | DataType::UInt4 | DataType::UInt6 => {
            unpack(bytes, bits, n).map(f32::from).collect()
        }
        _ => return None,
    })
}

/// `n` unsigned numbers of at most 8 bits each, the first in the lowest bits.
fn unpack(bytes: &[u8], bits: usize, n: usize) -> impl Iterator<Item = u8> {
    (0..n).map(move |i| {
        let (byte, shift) = (i * bits / 8, i * bits % 8);
        let next = bytes.get(byte + 1).copied().unwrap_or(0);
        let pair = u16::from_le_bytes([bytes[byte], next]);
        (pair >> shift) as u8 & ((1u16 << bits) - 1) as u8
    })
}

/// For each element of `shape` in order, which element of the coarser `blocks` covers it.
fn covering(shape: &[usize], blocks: &[usize]) -> Vec<usize> {
    if shape.contains(&0) {
        return Vec::new();
    }
    let mut covering = vec![0];
    let steps = strides(blocks);
    for (i, &dim) in shape.iter().enumerate() {
        let each = dim / blocks[i].max(1);
        let mut next = Vec::with_capacity(covering.len() * dim);
        for base in covering {
            next.extend((0..dim).map(|at| base + at / each.max(1) * steps[i]));
        }
        covering = next;
    }
    covering
}

/// `scale * (data - offset)`, a scale for each block.
fn shift_scale(
    shape: &[usize],
    mut data: Vec<f32>,
    blocks: &[usize],
    scale: &[f32],
    offset: Option<&[f32]>,
) -> Vec<f32> {
    for (value, block) in data.iter_mut().zip(covering(shape, blocks)) {
        *value = scale[block] * (*value - offset.map_or(0.0, |offset| offset[block]));
    }
    data
}

/// The entry of each index in its group's table. `lut` is `(groups..., entries, 1)`.
fn look_up(shape: &[usize], indices: &[f32], lut_shape: &[usize], lut: &[f32]) -> Vec<f32> {
    let (groups, entries) = (&lut_shape[..shape.len()], lut_shape[shape.len()]);
    let groups = covering(shape, groups);
    indices.iter().zip(groups).map(|(&i, group)| lut[group * entries + i as usize]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packed_numbers_run_over_byte_borders() {
        let three: Vec<u8> = unpack(&[0xd1, 0x58, 0x1f, 0x01], 3, 9).collect();
        assert_eq!(three, [1, 2, 3, 4, 5, 6, 7, 0, 1]);
        let four: Vec<u8> = unpack(&[0x78, 0xf1, 0x03], 4, 5).collect();
        assert_eq!(four, [8, 7, 1, 15, 3]);
    }

    #[test]
    fn scales_and_tables_cover_their_blocks() {
        let data = (0..8).map(|v| v as f32).collect();
        let scaled =
            shift_scale(&[2, 4], data, &[2, 2], &[1.0, 10.0, 100.0, 1000.0], Some(&[1.0; 4]));
        assert_eq!(scaled, [-1.0, 0.0, 10.0, 20.0, 300.0, 400.0, 5000.0, 6000.0]);
        let found = look_up(&[4, 1], &[0.0, 1.0, 1.0, 0.0], &[2, 1, 2, 1], &[1.0, 2.0, 3.0, 4.0]);
        assert_eq!(found, [1.0, 2.0, 4.0, 3.0]);
    }
}
