//! Writing GGUF version 3.

use std::collections::HashSet;
use std::io::Write;

use super::header::{DEFAULT_ALIGNMENT, MAX_ALIGNMENT};
use super::{Array, GgmlType, GgufFile, Metadata, Value, split};
use crate::tensor::byte_len;
use crate::{DType, Error, Result};

/// Writes a GGUF file from front to back: first all metadata and what tensors there will be, then
/// the tensors' bytes one after the other, so that no more than one need be in memory.
///
/// ```
/// # use baton_weights::{DType, gguf::{GgufWriter, Metadata}};
/// let metadata = Metadata::from_iter([("general.architecture", "llama")]);
/// let tensors = [("output_norm.weight", DType::F32, vec![2])];
/// let mut file = Vec::new();
/// let mut writer = GgufWriter::new(&mut file, &metadata, &tensors)?;
/// writer.tensor(&[0; 8])?;
/// writer.finish()?;
/// # Ok::<(), baton_weights::Error>(())
/// ```
#[derive(Debug)]
pub struct GgufWriter<W: Write> {
    out: W,
    /// Names and sizes of the tensors that are still to come, the next one last.
    pending: Vec<(String, usize)>,
    alignment: u64,
}

impl<W: Write> GgufWriter<W> {
    /// Writes the header. `tensors` are names, types and shapes (outermost dimension first) of
    /// what will follow, in order. Tensors are aligned as `general.alignment` says, else to 32.
    ///
    /// # Errors
    /// If writing fails, a name occurs twice, a shape does not fit its type, a type cannot be
    /// stored in GGUF, or the alignment is no power of two.
    pub fn new<N: AsRef<str>>(
        mut out: W,
        metadata: &Metadata,
        tensors: &[(N, DType, Vec<usize>)],
    ) -> Result<Self> {
        let alignment = metadata.opt_u64("general.alignment")?.unwrap_or(DEFAULT_ALIGNMENT);
        if !alignment.is_power_of_two() || alignment > MAX_ALIGNMENT {
            let (key, found) = ("general.alignment".to_owned(), alignment.to_string());
            return Err(Error::WrongValue { key, wanted: "a power of two up to 2^20", found });
        }
        let mut header = Vec::new();
        header.extend(b"GGUF");
        header.extend(3u32.to_le_bytes());
        header.extend((tensors.len() as u64).to_le_bytes());
        header.extend((metadata.len() as u64).to_le_bytes());
        for (key, value) in metadata.iter() {
            put_str(&mut header, key);
            header.extend(kind_of(value).to_le_bytes());
            put_value(&mut header, value);
        }
        let mut pending = Vec::new();
        let mut offset = 0u64;
        let mut names = HashSet::new();
        for (name, dtype, shape) in tensors {
            let name = name.as_ref();
            let refuse = |problem| Error::Tensor { name: name.to_owned(), problem };
            let len = byte_len(*dtype, shape).map_err(refuse)?;
            let kind = GgmlType::of(*dtype)
                .ok_or_else(|| refuse(format!("GGUF has no type for {dtype}")))?;
            if !names.insert(name) {
                return Err(refuse("occurs twice".to_owned()));
            }
            put_str(&mut header, name);
            header.extend((shape.len() as u32).to_le_bytes());
            shape.iter().rev().for_each(|&dim| header.extend((dim as u64).to_le_bytes()));
            header.extend(kind.0.to_le_bytes());
            header.extend(offset.to_le_bytes());
            offset = (len as u64)
                .checked_next_multiple_of(alignment)
                .and_then(|padded| offset.checked_add(padded))
                .ok_or_else(|| refuse("makes the file too large".to_owned()))?;
            pending.push((name.to_owned(), len));
        }
        pending.reverse();
        pad(&mut header, alignment);
        out.write_all(&header)?;
        Ok(GgufWriter { out, pending, alignment })
    }

    /// Writes the bytes of the next tensor.
    ///
    /// # Errors
    /// If writing fails, there is no next tensor, or `data` has not the length it needs.
    pub fn tensor(&mut self, data: &[u8]) -> Result<()> {
        let Some((name, len)) = self.pending.pop() else {
            let problem = "more tensors than announced".to_owned();
            return Err(Error::Tensor { name: String::new(), problem });
        };
        if data.len() != len {
            let problem = format!("needs {len} bytes, found {}", data.len());
            return Err(Error::Tensor { name, problem });
        }
        self.out.write_all(data)?;
        let padding = vec![0; len.next_multiple_of(self.alignment as usize) - len];
        self.out.write_all(&padding)?;
        Ok(())
    }

    /// Flushes and gives the writer back.
    ///
    /// # Errors
    /// If flushing fails or tensors are missing.
    pub fn finish(mut self) -> Result<W> {
        if let Some((name, _)) = self.pending.pop() {
            return Err(Error::Tensor { name, problem: "was announced, not written".to_owned() });
        }
        self.out.flush()?;
        Ok(self.out)
    }
}

impl GgufFile {
    /// Writes a file of its own with all metadata and some of the tensors, as they are stored.
    ///
    /// # Errors
    /// If there is no tensor of such a name, or writing fails.
    pub fn write_some<W: Write>(&self, names: &[&str], out: W) -> Result<W> {
        // It is no part of a set.
        let whole = self.metadata().iter().filter(|(key, _)| !split::is_key(key));
        let metadata: Metadata = whole.map(|(key, value)| (key, value.clone())).collect();
        let tensors = names.iter().map(|name| self.tensor(name)).collect::<Result<Vec<_>>>()?;
        let announced: Vec<_> =
            tensors.iter().map(|t| (t.name(), t.dtype(), t.shape().to_vec())).collect();
        let mut writer = GgufWriter::new(out, &metadata, &announced)?;
        tensors.iter().try_for_each(|tensor| writer.tensor(tensor.data()))?;
        writer.finish()
    }
}

fn pad(bytes: &mut Vec<u8>, alignment: u64) {
    bytes.resize(bytes.len().next_multiple_of(alignment as usize), 0);
}

fn put_str(out: &mut Vec<u8>, s: &str) {
    out.extend((s.len() as u64).to_le_bytes());
    out.extend(s.as_bytes());
}

fn kind_of(value: &Value) -> u32 {
    match value {
        Value::U8(_) => 0,
        Value::I8(_) => 1,
        Value::U16(_) => 2,
        Value::I16(_) => 3,
        Value::U32(_) => 4,
        Value::I32(_) => 5,
        Value::F32(_) => 6,
        Value::Bool(_) => 7,
        Value::Str(_) => 8,
        Value::Array(_) => 9,
        Value::U64(_) => 10,
        Value::I64(_) => 11,
        Value::F64(_) => 12,
    }
}

fn put_value(out: &mut Vec<u8>, value: &Value) {
    match value {
        Value::U8(v) => out.push(*v),
        Value::I8(v) => out.extend(v.to_le_bytes()),
        Value::U16(v) => out.extend(v.to_le_bytes()),
        Value::I16(v) => out.extend(v.to_le_bytes()),
        Value::U32(v) => out.extend(v.to_le_bytes()),
        Value::I32(v) => out.extend(v.to_le_bytes()),
        Value::F32(v) => out.extend(v.to_le_bytes()),
        Value::Bool(v) => out.push(u8::from(*v)),
        Value::Str(s) => put_str(out, s),
        Value::Array(array) => put_array(out, array),
        Value::U64(v) => out.extend(v.to_le_bytes()),
        Value::I64(v) => out.extend(v.to_le_bytes()),
        Value::F64(v) => out.extend(v.to_le_bytes()),
    }
}

fn put_array(out: &mut Vec<u8>, array: &Array) {
    let kind: u32 = match array {
        Array::U8(_) => 0,
        Array::I8(_) => 1,
        Array::U16(_) => 2,
        Array::I16(_) => 3,
        Array::U32(_) => 4,
        Array::I32(_) => 5,
        Array::F32(_) => 6,
        Array::Bool(_) => 7,
        Array::Str(_) => 8,
        Array::Nested(_) => 9,
        Array::U64(_) => 10,
        Array::I64(_) => 11,
        Array::F64(_) => 12,
    };
    out.extend(kind.to_le_bytes());
    out.extend((array.len() as u64).to_le_bytes());
    match array {
        Array::U8(v) => out.extend(v),
        Array::I8(v) => v.iter().for_each(|v| out.extend(v.to_le_bytes())),
        Array::U16(v) => v.iter().for_each(|v| out.extend(v.to_le_bytes())),
        Array::I16(v) => v.iter().for_each(|v| out.extend(v.to_le_bytes())),
        Array::U32(v) => v.iter().for_each(|v| out.extend(v.to_le_bytes())),
        Array::I32(v) => v.iter().for_each(|v| out.extend(v.to_le_bytes())),
        Array::F32(v) => v.iter().for_each(|v| out.extend(v.to_le_bytes())),
        Array::Bool(v) => v.iter().for_each(|&v| out.push(u8::from(v))),
        Array::Str(v) => v.iter().for_each(|s| put_str(out, s)),
        Array::Nested(v) => v.iter().for_each(|a| put_array(out, a)),
        Array::U64(v) => v.iter().for_each(|v| out.extend(v.to_le_bytes())),
        Array::I64(v) => v.iter().for_each(|v| out.extend(v.to_le_bytes())),
        Array::F64(v) => v.iter().for_each(|v| out.extend(v.to_le_bytes())),
    }
}
