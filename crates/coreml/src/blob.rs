//! Weight files: version 2 of the storage format of ML Programs' constants.
//!
//! All numbers are little-endian, every record begins at a multiple of 64:
//!
//! | offset | bytes | content |
//! |---|---|---|
//! | 0 | 4, 4 | number of records, version (2) |
//! | 8 | 56 | zeros |
//! | record | 4, 4 | `0xDEADBEEF`, element type |
//! | + 8 | 8, 8, 8 | bytes of data, offset of the data, unused bits of its last byte |
//! | + 32 | 32 | zeros |
//! | + 64 | n | the data |
//!
//! A program refers to a record by its offset. Equal tensors are one record, so that functions share
//! their weights.

use std::collections::HashMap;
use std::fs::File;
use std::io::{Cursor, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use bytes::Bytes;
use sha2::{Digest, Sha256};

use crate::mil::{BlobRef, DataType, TensorType, Value};
use crate::{Error, Result};

/// How programs name the one weight file of a package.
pub const WEIGHT_FILE: &str = "@model_path/weights/weight.bin";

const ALIGNMENT: u64 = 64;
const SENTINEL: u32 = 0xDEAD_BEEF;
const VERSION: u32 = 2;

/// Element types by their code in a record, which is not that of `MIL.proto`.
const TYPES: [(u32, DataType); 17] = [
    (1, DataType::Float16),
    (2, DataType::Float32),
    (3, DataType::UInt8),
    (4, DataType::Int8),
    (5, DataType::BFloat16),
    (6, DataType::Int16),
    (7, DataType::UInt16),
    (8, DataType::Int4),
    (9, DataType::UInt1),
    (10, DataType::UInt2),
    (11, DataType::UInt4),
    (12, DataType::UInt3),
    (13, DataType::UInt6),
    (14, DataType::Int32),
    (15, DataType::UInt32),
    (16, DataType::Float8E4M3FN),
    (17, DataType::Float8E5M2),
];

/// Writes a weight file record by record.
pub struct BlobWriter<W> {
    out: W,
    at: u64,
    count: u32,
    /// Records by the digest of their type and data.
    known: HashMap<[u8; 32], u64>,
}

impl<W: Write + Seek> BlobWriter<W> {
    /// Begins a file.
    ///
    /// # Errors
    /// If writing fails.
    pub fn new(mut out: W) -> std::io::Result<Self> {
        out.write_all(&[0; ALIGNMENT as usize])?;
        Ok(BlobWriter { out, at: ALIGNMENT, count: 0, known: HashMap::new() })
    }

    /// Adds a tensor of `shape` and yields the constant that refers to it. `data` is packed without
    /// gaps, the first element in the lowest bits.
    ///
    /// # Errors
    /// If writing fails.
    ///
    /// # Panics
    /// If the type cannot lie in a weight file or `data` has another length than shape and type say.
    pub fn add(&mut self, dtype: DataType, shape: &[usize], data: &[u8]) -> std::io::Result<Value> {
        let (code, bytes, padding) = layout(dtype, shape);
        assert_eq!(data.len(), bytes, "data does not fill {dtype} {shape:?}");
        let kind = [u64::from(code), padding].map(u64::to_le_bytes).concat();
        let digest = Sha256::new().chain_update(kind).chain_update(data).finalize().into();
        let offset = match self.known.get(&digest) {
            Some(&offset) => offset,
            None => {
                let offset = self.record(code, data, padding)?;
                self.known.insert(digest, offset);
                offset
            }
        };
        let blob = BlobRef { file: WEIGHT_FILE.into(), offset };
        Ok(Value::blob(dtype, shape, blob))
    }

    /// Adds a tensor whose data come piece by piece, so that no more of them need be in memory. It is a
    /// record of its own, whether there is an equal one or not.
    ///
    /// # Errors
    /// If a piece cannot be had, or writing fails.
    ///
    /// # Panics
    /// As [`BlobWriter::add`].
    pub fn add_pieces<E: From<std::io::Error>>(
        &mut self,
        dtype: DataType,
        shape: &[usize],
        pieces: impl Iterator<Item = std::result::Result<Vec<u8>, E>>,
    ) -> std::result::Result<Value, E> {
        let (code, bytes, padding) = layout(dtype, shape);
        let offset = self.header(code, bytes as u64, padding)?;
        let mut written = 0;
        for piece in pieces {
            let piece = piece?;
            written += piece.len();
            self.out.write_all(&piece)?;
        }
        assert_eq!(written, bytes, "data do not fill {dtype} {shape:?}");
        Ok(Value::blob(dtype, shape, BlobRef { file: WEIGHT_FILE.into(), offset }))
    }

    fn record(&mut self, code: u32, data: &[u8], padding: u64) -> std::io::Result<u64> {
        let offset = self.header(code, data.len() as u64, padding)?;
        self.out.write_all(data)?;
        Ok(offset)
    }

    /// Begins a record of so many bytes.
    fn header(&mut self, code: u32, bytes: u64, padding: u64) -> std::io::Result<u64> {
        let offset = self.at.next_multiple_of(ALIGNMENT);
        let gap = (offset - self.at) as usize;
        self.out.write_all(&[0; ALIGNMENT as usize][..gap])?;
        let mut header = [0; ALIGNMENT as usize];
        header[..4].copy_from_slice(&SENTINEL.to_le_bytes());
        header[4..8].copy_from_slice(&code.to_le_bytes());
        let numbers = [bytes, offset + ALIGNMENT, padding];
        for (place, number) in header[8..32].chunks_exact_mut(8).zip(numbers) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        self.out.write_all(&header)?;
        self.at = offset + ALIGNMENT + bytes;
        self.count += 1;
        Ok(offset)
    }

    /// Writes equal tensors twice from here on.
    #[cfg(test)]
    pub(crate) fn forget(&mut self) {
        self.known.clear();
    }

    /// Bytes written so far.
    pub fn len(&self) -> u64 {
        self.at
    }

    /// Whether no tensor was added.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Ends the file.
    ///
    /// # Errors
    /// If writing fails.
    pub fn finish(mut self) -> std::io::Result<W> {
        self.out.seek(SeekFrom::Start(0))?;
        self.out.write_all(&self.count.to_le_bytes())?;
        self.out.write_all(&VERSION.to_le_bytes())?;
        self.out.seek(SeekFrom::End(0))?;
        self.out.flush()?;
        Ok(self.out)
    }
}

/// The code of a type, the bytes of a tensor and the unused bits of the last of them.
fn layout(dtype: DataType, shape: &[usize]) -> (u32, usize, u64) {
    let code = TYPES.iter().find(|(_, ty)| *ty == dtype).map(|(code, _)| *code);
    let code = code.expect("a type that weight files have");
    let elements = TensorType::new(dtype, shape).elements().expect("no overflow");
    let bytes = dtype.bytes(elements).expect("no overflow");
    (code, bytes, (8 * bytes - elements * dtype.bits()) as u64)
}

impl<W> std::fmt::Debug for BlobWriter<W> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "BlobWriter({} records, {} bytes)", self.count, self.at)
    }
}

/// A weight file that is read from.
#[derive(Debug)]
pub struct Blobs {
    source: Source,
    len: u64,
}

#[derive(Debug)]
enum Source {
    Memory(Bytes),
    File(PathBuf, Mutex<File>),
}

impl Blobs {
    /// The file at `path`, of which only the header is read.
    ///
    /// # Errors
    /// If it cannot be read or is no weight file.
    pub fn open(path: &Path) -> Result<Blobs> {
        // A pipe would be waited for.
        let about = std::fs::metadata(path).map_err(Error::io(path))?;
        if !about.is_file() {
            return Err(Error::malformed(format!("{} is no file", path.display())));
        }
        let file = File::open(path).map_err(Error::io(path))?;
        let len = file.metadata().map_err(Error::io(path))?.len();
        Blobs { source: Source::File(path.to_owned(), Mutex::new(file)), len }.checked()
    }

    /// A file whose bytes are in memory.
    ///
    /// # Errors
    /// If they are no weight file.
    pub fn from_bytes(bytes: impl Into<Bytes>) -> Result<Blobs> {
        let bytes = bytes.into();
        Blobs { len: bytes.len() as u64, source: Source::Memory(bytes) }.checked()
    }

    fn checked(self) -> Result<Blobs> {
        let header = self.bytes(0, ALIGNMENT)?;
        let version = word(&header, 4);
        if version != VERSION || header[8..].iter().any(|&byte| byte != 0) {
            let problem = format!("its weight file is of version {version}, not {VERSION}");
            return Err(Error::malformed(problem));
        }
        Ok(self)
    }

    /// Bytes of the file.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether the file has no bytes, which none that opens is.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The data of the record at `offset`, which must be a tensor of type `ty`.
    ///
    /// # Errors
    /// If there is no record of that type and size. No more memory is allocated than the file has
    /// bytes.
    pub fn read(&self, offset: u64, ty: &TensorType) -> Result<Bytes> {
        let (at, len) = self.locate(offset, ty)?;
        self.bytes(at, len)
    }

    /// Some bytes of the data of the record at `offset`, which must be a tensor of type `ty`.
    ///
    /// # Errors
    /// If there is no record of that type and size, or it has fewer bytes.
    pub(crate) fn read_part(
        &self,
        offset: u64,
        ty: &TensorType,
        range: Range<usize>,
    ) -> Result<Bytes> {
        let (at, len) = self.locate(offset, ty)?;
        if range.start > range.end || range.end as u64 > len {
            return Err(Error::malformed(format!("bytes {range:?} of {len} in its weight file")));
        }
        self.bytes(at + range.start as u64, range.len() as u64)
    }

    /// Checks that the record at `offset` is a tensor of type `ty`, without reading it.
    ///
    /// # Errors
    /// What is wrong.
    pub fn check(&self, offset: u64, ty: &TensorType) -> Result<()> {
        self.locate(offset, ty).map(|_| ())
    }

    fn locate(&self, offset: u64, ty: &TensorType) -> Result<(u64, u64)> {
        let wrong = |problem: String| {
            Error::malformed(format!("the record at {offset} of its weight file {problem}"))
        };
        if !offset.is_multiple_of(ALIGNMENT) {
            return Err(wrong("does not begin at a multiple of 64".into()));
        }
        let header = self.bytes(offset, ALIGNMENT)?;
        let (sentinel, code) = (word(&header, 0), word(&header, 4));
        if sentinel != SENTINEL {
            return Err(wrong("has no record's mark".into()));
        }
        let dtype = TYPES.iter().find(|(c, _)| *c == code).map(|(_, dtype)| *dtype);
        if dtype != Some(ty.dtype) {
            let found = dtype.map_or(format!("type {code}"), |dtype| dtype.to_string());
            return Err(wrong(format!("holds {found}, not {}", ty.dtype)));
        }
        let [len, at, padding] = [8, 16, 24]
            .map(|i| u64::from_le_bytes(header[i..i + 8].try_into().expect("eight bytes")));
        let bits = ty.elements().and_then(|n| n.checked_mul(ty.dtype.bits())).map(|n| n as u64);
        let held = len.checked_mul(8).and_then(|bits| bits.checked_sub(padding));
        if bits.is_none() || held != bits || padding >= 8 {
            return Err(wrong(format!("holds {len} bytes, which are no {ty}")));
        }
        // A record's data follows its header, though a reader need not rely on it.
        if !at.is_multiple_of(ALIGNMENT) || at < offset.saturating_add(ALIGNMENT) {
            return Err(wrong(format!("has its data at {at}")));
        }
        match at.checked_add(len) {
            Some(end) if end <= self.len => Ok((at, len)),
            _ => Err(wrong("is cut short".into())),
        }
    }

    fn bytes(&self, at: u64, len: u64) -> Result<Bytes> {
        let end = at.checked_add(len).filter(|&end| end <= self.len);
        let Some(end) = end else {
            return Err(Error::malformed(format!("its weight file ends before {at} + {len}")));
        };
        match &self.source {
            Source::Memory(bytes) => Ok(bytes.slice(at as usize..end as usize)),
            Source::File(path, file) => {
                let mut bytes = vec![0; len as usize];
                let mut file = file.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                file.seek(SeekFrom::Start(at)).map_err(Error::io(path))?;
                file.read_exact(&mut bytes).map_err(Error::io(path))?;
                Ok(bytes.into())
            }
        }
    }
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

/// A writer into memory.
pub fn in_memory() -> BlobWriter<Cursor<Vec<u8>>> {
    BlobWriter::new(Cursor::new(Vec::new())).expect("memory takes all bytes")
}

#[cfg(test)]
mod tests;
