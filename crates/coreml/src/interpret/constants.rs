//! Constants of a function: what they are as tensors and as matrices.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use baton_cpu::Matrix;
use baton_weights::{DType, Tensor as WeightTensor};
use bytes::Bytes;

use super::expand::{self, Expansion};
use super::room;
use super::tensor::Tensor;
use crate::blob::Blobs;
use crate::mil::{Binding, Data, DataType, Elements, Op, TensorType, Value};
use crate::package::Package;
use crate::{Error, Result};

/// A constant. Weights stay in their file, and quantized ones as they are, until an operation wants
/// them.
#[derive(Debug)]
pub(super) struct Constant {
    ty: TensorType,
    source: Source,
    /// How many expansions it is the result of, one inside the other.
    depth: usize,
    held: Mutex<Held>,
}

/// Tables may be quantized themselves, and their scales. Deeper than that nothing sensible is, and each step
/// has up to three operands.
const DEEPEST: usize = 4;

/// What a constant was last wanted as.
#[derive(Debug, Default)]
struct Held {
    tensor: Option<Tensor>,
    matrix: Option<Arc<Matrix>>,
}

#[derive(Debug)]
enum Source {
    Elements(Elements),
    Blob(Arc<Blobs>, u64),
    Expansion(Expansion, [Arc<Constant>; 2], Option<Arc<Constant>>),
}

impl Constant {
    fn new(ty: TensorType, source: Source) -> Arc<Constant> {
        let depth = match &source {
            Source::Expansion(_, [data, by], offset) => {
                let offset = offset.as_ref().map_or(0, |offset| offset.depth);
                1 + data.depth.max(by.depth).max(offset)
            }
            _ => 0,
        };
        Arc::new(Constant { ty, source, depth, held: Mutex::default() })
    }

    /// A constant whose elements lie in a program; none if it is no tensor.
    pub fn of(value: &Value) -> Option<Arc<Constant>> {
        let elements = value.elements()?.clone();
        Some(Constant::new(value.ty.tensor()?.clone(), Source::Elements(elements)))
    }

    /// Its shape.
    pub fn shape(&self) -> &[usize] {
        &self.ty.shape
    }

    /// The text, if it is one.
    pub fn text(&self) -> Option<&str> {
        match &self.source {
            Source::Elements(Elements::Strings(texts)) => texts.first().map(String::as_str),
            _ => None,
        }
    }

    /// Bytes that it takes once it was wanted: as a matrix in its own type, as a tensor in single precision.
    pub fn held_bytes(&self, as_matrix: bool) -> u64 {
        match as_matrix {
            true => own_bytes(&self.ty),
            false => room::bytes(&self.ty),
        }
    }

    /// Bytes that it takes beside those while it is made of others.
    pub fn making_bytes(&self) -> u64 {
        let Source::Expansion(_, [data, by], offset) = &self.source else {
            return own_bytes(&self.ty);
        };
        let of = |constant: &Constant| {
            let all = room::bytes(&constant.ty).saturating_add(own_bytes(&constant.ty));
            all.saturating_add(constant.making_bytes())
        };
        let parts = [Some(data), Some(by), offset.as_ref()].into_iter().flatten();
        let parts =
            parts.map(|constant| of(constant)).fold(own_bytes(&self.ty), u64::saturating_add);
        // Which block covers each element of a row.
        let row = self.ty.shape.get(1..).unwrap_or_default();
        let row = row.iter().fold(16u64, |bytes, &dim| bytes.saturating_mul(dim as u64));
        parts.saturating_add(row)
    }

    /// It as a tensor.
    pub fn tensor(&self) -> std::result::Result<Tensor, String> {
        let mut held = self.held();
        if held.tensor.is_none() {
            held.tensor = Some(self.make_tensor()?);
        }
        Ok(held.tensor.clone().expect("made above"))
    }

    /// It as a matrix for the kernels of the CPU: its first dimension are the rows, all others the
    /// columns.
    pub fn matrix(&self) -> std::result::Result<Arc<Matrix>, String> {
        let mut held = self.held();
        if held.matrix.is_none() {
            held.matrix = Some(Arc::new(self.make_matrix()?));
        }
        Ok(held.matrix.clone().expect("made above"))
    }

    /// Lets go of what can be had again from the weight file.
    pub fn release(&self) {
        if !matches!(self.source, Source::Elements(_)) {
            *self.held() = Held::default();
        }
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        // What is held is whole, whatever became of who put it there.
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn make_tensor(&self) -> std::result::Result<Tensor, String> {
        let made = match &self.source {
            Source::Elements(elements) => Tensor::of(&self.ty, elements),
            _ => {
                let bytes = self.bytes()?;
                match self.ty.dtype {
                    DataType::Float16 | DataType::Float32 => self
                        .ty
                        .elements()
                        .and_then(|n| expand::numbers(self.ty.dtype, &bytes, n))
                        .map(|floats| Tensor::floats(&self.ty.shape, floats)),
                    DataType::Int32 => {
                        let words = bytes.as_chunks().0.iter().map(|w| i32::from_le_bytes(*w));
                        Some(Tensor::ints(&self.ty.shape, words.collect()))
                    }
                    _ => None,
                }
            }
        };
        made.ok_or_else(|| format!("a constant of {} is not computed with", self.ty))
    }

    fn make_matrix(&self) -> std::result::Result<Matrix, String> {
        let no_matrix = || format!("a matrix of {} is not computed with", self.ty);
        let (&rows, rest) = self.ty.shape.split_first().ok_or_else(no_matrix)?;
        let cols: usize = rest.iter().product();
        let dtype = match self.ty.dtype {
            DataType::Float16 => DType::F16,
            DataType::Float32 => DType::F32,
            _ => return Err(no_matrix()),
        };
        let bytes = match &self.source {
            Source::Elements(Elements::Bytes(bytes)) => bytes.clone().into(),
            Source::Elements(Elements::Floats(floats)) => {
                bytemuck::cast_slice::<f32, u8>(floats).to_vec().into()
            }
            Source::Elements(_) => return Err(no_matrix()),
            _ => self.bytes()?,
        };
        let tensor = WeightTensor::new("constant", dtype, &[rows, cols], bytes);
        tensor.ok().and_then(|tensor| Matrix::new(tensor).ok()).ok_or_else(no_matrix)
    }

    /// The bytes of what is not written in the program.
    fn bytes(&self) -> std::result::Result<Bytes, String> {
        match &self.source {
            Source::Elements(_) => Err("a constant has no bytes".into()),
            Source::Blob(blobs, offset) => {
                blobs.read(*offset, &self.ty).map_err(|error| error.to_string())
            }
            Source::Expansion(how, [data, by], offset) => {
                let unread = |constant: &Constant| format!("{} are not expanded", constant.ty);
                let offset = match offset {
                    Some(offset) => Some(offset.numbers()?.ok_or_else(|| unread(offset))?),
                    None => None,
                };
                let values = by.numbers()?.ok_or_else(|| unread(by))?;
                let values = (&by.ty, &values[..]);
                let bytes = match &data.source {
                    Source::Elements(Elements::Bytes(bytes)) => bytes.clone().into(),
                    Source::Elements(_) => {
                        let floats = data.numbers()?.ok_or_else(|| unread(data))?;
                        bytemuck::cast_slice::<f32, u8>(&floats).to_vec().into()
                    }
                    _ => data.bytes()?,
                };
                let mut ty = data.ty.clone();
                if let Source::Elements(Elements::Floats(_) | Elements::Ints(_)) = &data.source {
                    ty.dtype = DataType::Float32;
                }
                let expanded = how.expand(&self.ty, (&ty, &bytes), values, offset.as_deref());
                Ok(expanded.ok_or_else(|| unread(data))?.into())
            }
        }
    }

    /// Its elements as numbers, which are not kept; none for texts and types without kernels.
    fn numbers(&self) -> std::result::Result<Option<Vec<f32>>, String> {
        let n = self.ty.elements().unwrap_or(0);
        Ok(match &self.source {
            Source::Elements(Elements::Floats(values)) => Some(values.clone()),
            Source::Elements(Elements::Ints(values)) => {
                Some(values.iter().map(|&v| v as f32).collect())
            }
            Source::Elements(Elements::Bytes(bytes)) => expand::numbers(self.ty.dtype, bytes, n),
            Source::Elements(_) => None,
            _ => expand::numbers(self.ty.dtype, &self.bytes()?, n),
        })
    }
}

/// Bytes of a tensor as it lies in a file.
fn own_bytes(ty: &TensorType) -> u64 {
    let bytes = ty.elements().and_then(|n| ty.dtype.bytes(n));
    bytes.map_or(u64::MAX, |bytes| bytes as u64)
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
        let source = match &value.data {
            Data::Tensor(elements) => Source::Elements(elements.clone()),
            Data::Blob(blob) => Source::Blob(self.package.blobs(blob)?.clone(), blob.offset),
            _ => return Err(Error::malformed("a constant that is no tensor")),
        };
        let constant = Constant::new(ty, source);
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
        let Some(expansion) = Expansion::of(op) else {
            return Err(Error::Unsupported {
                what: format!("the operation {:?}", op.kind),
                instead: "use linear or palettized quantization".into(),
            });
        };
        let mut operand = |name: &str| match op.input(name) {
            None => Ok(None),
            Some(Binding::Value(value)) => self.value(value).map(Some),
            Some(Binding::Name(name)) => Ok(earlier(name)),
        };
        let [data, by, offset] = expansion.operands();
        let (Some(data), Some(by)) = (operand(data)?, operand(by)?) else {
            let problem = format!("{} {} lacks an operand", op.kind, op.name());
            return Err(Error::malformed(problem));
        };
        let constant =
            Constant::new(ty, Source::Expansion(expansion, [data, by], operand(offset)?));
        if constant.depth > DEEPEST {
            return Err(Error::Unsupported {
                what: format!(
                    "{}, a weight that is quantized {} times over,",
                    op.name(),
                    constant.depth
                ),
                instead: format!("at most {DEEPEST} times are"),
            });
        }
        if plain {
            self.known.insert(key, constant.clone());
        }
        Ok(constant)
    }
}
