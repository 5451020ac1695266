//! The header of one GGUF file: counts, metadata, tensor infos.
//!
//! Whatever the bytes say, no more memory is taken than a small multiple of what the file holds:
//! every count is checked against the bytes that are left before anything is reserved for it.

use std::collections::HashSet;

use super::{Array, GgmlType, Metadata, Strings, Value};

/// Arrays may hold arrays; deeper than this is an attack on the stack.
const MAX_DEPTH: usize = 8;
/// As many dimensions as ggml has.
const MAX_DIMS: u32 = 4;
/// Above it, padding would be most of the file.
pub(super) const MAX_ALIGNMENT: u64 = 1 << 20;
/// Where the file does not say.
pub(super) const DEFAULT_ALIGNMENT: u64 = 32;

/// Why a header was refused.
#[derive(Debug)]
pub(super) enum Refusal {
    /// Broken.
    Malformed(String),
    /// Sound, but not read here.
    Unsupported(String),
}

type Parsed<T> = Result<T, Refusal>;

fn malformed<T>(problem: impl Into<String>) -> Parsed<T> {
    Err(Refusal::Malformed(problem.into()))
}

/// What a header says.
pub(super) struct Header {
    pub(super) metadata: Metadata,
    pub(super) tensors: Vec<RawTensor>,
}

/// A tensor's entry; its bytes have been found to lie in the file if its type's size is known.
pub(super) struct RawTensor {
    pub(super) name: String,
    /// Outermost dimension first.
    pub(super) shape: Vec<usize>,
    pub(super) kind: GgmlType,
    /// Where its bytes start in the file.
    pub(super) start: usize,
    /// How many there are; `None` if the type is unknown.
    pub(super) len: Option<usize>,
}

/// Reads the header of a file of these bytes.
pub(super) fn parse(file: &[u8]) -> Parsed<Header> {
    let mut reader = Reader { file, at: 0 };
    check_magic(&mut reader)?;
    let tensor_count = reader.u64("the tensor count")?;
    let key_count = reader.u64("the key count")?;

    // A key, a type and a value take 13 bytes at least; a tensor 24.
    reader.check_count(key_count, 13, "metadata keys")?;
    let mut metadata = Metadata::new();
    for _ in 0..key_count {
        let key = reader.string("a metadata key")?;
        let kind = reader.u32("a metadata type")?;
        let value = reader.value(kind, &key)?;
        if metadata.has(&key) {
            return malformed(format!("metadata key {key:?} occurs twice"));
        }
        metadata.insert(key, value);
    }

    reader.check_count(tensor_count, 24, "tensors")?;
    let mut names = HashSet::new();
    let mut entries = Vec::new();
    for _ in 0..tensor_count {
        let entry = reader.tensor()?;
        if !names.insert(entry.name.clone()) {
            return malformed(format!("tensor {:?} occurs twice", entry.name));
        }
        entries.push(entry);
    }
    let alignment = alignment(&metadata)?;
    let tensors = place(entries, file.len(), reader.at, alignment)?;
    Ok(Header { metadata, tensors })
}

fn check_magic(reader: &mut Reader<'_>) -> Parsed<()> {
    let magic = reader.take(4, "the magic")?;
    if magic != b"GGUF" {
        return malformed("is no GGUF file: it does not start with \"GGUF\"");
    }
    match reader.u32("the version")? {
        2 | 3 => Ok(()),
        1 => Err(Refusal::Unsupported("is GGUF version 1; use a version 2 or 3 file".into())),
        v if v & 0xffff == 0 && v != 0 => Err(Refusal::Unsupported(
            "is a big-endian GGUF file; convert it with the gguf package's gguf-convert-endian"
                .into(),
        )),
        v => Err(Refusal::Unsupported(format!("is GGUF version {v}; versions 2 and 3 are read"))),
    }
}

fn alignment(metadata: &Metadata) -> Parsed<u64> {
    let alignment = match metadata.opt_u64("general.alignment") {
        Ok(alignment) => alignment.unwrap_or(DEFAULT_ALIGNMENT),
        Err(e) => return malformed(e.to_string()),
    };
    if !alignment.is_power_of_two() || alignment > MAX_ALIGNMENT {
        return malformed(format!(
            "general.alignment is {alignment}, should be a power of two up to {MAX_ALIGNMENT}"
        ));
    }
    Ok(alignment)
}

/// A tensor's entry as read, its offset counted from the start of the data.
struct Entry {
    name: String,
    shape: Vec<usize>,
    kind: GgmlType,
    offset: u64,
}

/// Finds each tensor's bytes in a file of `file_len` bytes whose header ends at `header_end`.
fn place(
    entries: Vec<Entry>,
    file_len: usize,
    header_end: usize,
    alignment: u64,
) -> Parsed<Vec<RawTensor>> {
    let data_start = (header_end as u64).next_multiple_of(alignment);
    let mut tensors = Vec::with_capacity(entries.len());
    for Entry { name, shape, kind, offset } in entries {
        if offset % alignment != 0 {
            return malformed(format!(
                "tensor {name:?} starts at {offset}, which is not aligned to {alignment}"
            ));
        }
        let Some(len) = byte_len(&shape, kind) else {
            return malformed(format!("tensor {name:?}: {kind} {shape:?} is no possible shape"));
        };
        let start = data_start.checked_add(offset).and_then(|s| usize::try_from(s).ok());
        let end = start.and_then(|s| s.checked_add(len.unwrap_or(0)));
        match (start, end) {
            (Some(start), Some(end)) if end <= file_len => {
                tensors.push(RawTensor { name, shape, kind, start, len });
            }
            _ => {
                return malformed(format!(
                    "tensor {name:?} ({kind} {shape:?}, {} bytes at {offset}) lies beyond the end \
                     of the file, which has {file_len} bytes; is it cut off?",
                    len.unwrap_or(0)
                ));
            }
        }
    }
    check_overlaps(&tensors)?;
    Ok(tensors)
}

/// Bytes of a tensor: `None` if the shape is impossible, `Some(None)` if the type is unknown.
fn byte_len(shape: &[usize], kind: GgmlType) -> Option<Option<usize>> {
    let elements = shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d))?;
    let Some((block_len, block_bytes)) = kind.block() else { return Some(None) };
    if shape.last().is_some_and(|cols| cols % block_len != 0) || elements % block_len != 0 {
        return None;
    }
    (elements / block_len).checked_mul(block_bytes).map(Some)
}

fn check_overlaps(tensors: &[RawTensor]) -> Parsed<()> {
    let mut by_start: Vec<&RawTensor> =
        tensors.iter().filter(|t| t.len.is_some_and(|len| len > 0)).collect();
    by_start.sort_unstable_by_key(|t| t.start);
    for pair in by_start.windows(2) {
        if pair[0].start + pair[0].len.unwrap_or(0) > pair[1].start {
            return malformed(format!("tensors {:?} and {:?} overlap", pair[0].name, pair[1].name));
        }
    }
    Ok(())
}

/// A cursor over the file.
struct Reader<'a> {
    file: &'a [u8],
    at: usize,
}

macro_rules! numbers {
    ($reader:expr, $count:expr, $type:ty) => {{
        let bytes = $reader.elements($count, size_of::<$type>())?;
        bytes.as_chunks().0.iter().map(|b| <$type>::from_le_bytes(*b)).collect()
    }};
}

impl<'a> Reader<'a> {
    fn left(&self) -> usize {
        self.file.len() - self.at
    }

    fn take(&mut self, n: usize, what: &str) -> Parsed<&'a [u8]> {
        if n > self.left() {
            return malformed(format!(
                "ends at byte {} within {what}, which needs {n} bytes from byte {}",
                self.file.len(),
                self.at
            ));
        }
        let taken = &self.file[self.at..self.at + n];
        self.at += n;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self, what: &str) -> Parsed<[u8; N]> {
        let mut bytes = [0; N];
        bytes.copy_from_slice(self.take(N, what)?);
        Ok(bytes)
    }

    fn u32(&mut self, what: &str) -> Parsed<u32> {
        self.array(what).map(u32::from_le_bytes)
    }

    fn u64(&mut self, what: &str) -> Parsed<u64> {
        self.array(what).map(u64::from_le_bytes)
    }

    /// Refuses a count of things of at least `each` bytes that the rest of the file cannot hold.
    fn check_count(&self, count: u64, each: usize, what: &str) -> Parsed<usize> {
        match usize::try_from(count) {
            Ok(n) if n.checked_mul(each).is_some_and(|bytes| bytes <= self.left()) => Ok(n),
            _ => malformed(format!(
                "claims {count} {what} at byte {}, but only {} bytes follow",
                self.at,
                self.left()
            )),
        }
    }

    /// The bytes of a string, its length before it.
    fn string_bytes(&mut self, what: &str) -> Parsed<&'a [u8]> {
        let len = self.u64(what)?;
        let len = self.check_count(len, 1, "bytes of a string")?;
        self.take(len, what)
    }

    fn string(&mut self, what: &str) -> Parsed<String> {
        let at = self.at;
        let bytes = self.string_bytes(what)?.to_vec();
        match String::from_utf8(bytes) {
            Ok(s) => Ok(s),
            Err(_) => malformed(format!("{what} at byte {at} is not UTF-8")),
        }
    }

    fn value(&mut self, kind: u32, key: &str) -> Parsed<Value> {
        let what = &format!("the value of {key:?}");
        Ok(match kind {
            0 => Value::U8(self.array::<1>(what)?[0]),
            1 => Value::I8(i8::from_le_bytes(self.array(what)?)),
            2 => Value::U16(u16::from_le_bytes(self.array(what)?)),
            3 => Value::I16(i16::from_le_bytes(self.array(what)?)),
            4 => Value::U32(self.u32(what)?),
            5 => Value::I32(i32::from_le_bytes(self.array(what)?)),
            6 => Value::F32(f32::from_le_bytes(self.array(what)?)),
            7 => Value::Bool(truth(self.array::<1>(what)?[0], key)?),
            8 => Value::Str(self.string(what)?),
            9 => Value::Array(self.values(key, MAX_DEPTH)?),
            10 => Value::U64(self.u64(what)?),
            11 => Value::I64(i64::from_le_bytes(self.array(what)?)),
            12 => Value::F64(f64::from_le_bytes(self.array(what)?)),
            other => return malformed(format!("metadata key {key:?} has unknown type {other}")),
        })
    }

    /// An array's bytes, if each element has `size` of them.
    fn elements(&mut self, count: u64, size: usize) -> Parsed<&'a [u8]> {
        let count = self.check_count(count, size, "array elements")?;
        self.take(count * size, "an array")
    }

    fn values(&mut self, key: &str, depth: usize) -> Parsed<Array> {
        let kind = self.u32("an array's type")?;
        let count = self.u64("an array's length")?;
        Ok(match kind {
            0 => Array::U8(self.elements(count, 1)?.to_vec()),
            1 => Array::I8(numbers!(self, count, i8)),
            2 => Array::U16(numbers!(self, count, u16)),
            3 => Array::I16(numbers!(self, count, i16)),
            4 => Array::U32(numbers!(self, count, u32)),
            5 => Array::I32(numbers!(self, count, i32)),
            6 => Array::F32(numbers!(self, count, f32)),
            7 => {
                let bytes = self.elements(count, 1)?;
                Array::Bool(bytes.iter().map(|&b| truth(b, key)).collect::<Parsed<_>>()?)
            }
            8 => Array::Str(self.strings(count, key)?),
            9 if depth == 0 => return malformed(format!("{key:?} nests arrays too deeply")),
            9 => {
                let count = self.check_count(count, 12, "arrays")?;
                let nested = (0..count).map(|_| self.values(key, depth - 1));
                Array::Nested(nested.collect::<Parsed<_>>()?)
            }
            10 => Array::U64(numbers!(self, count, u64)),
            11 => Array::I64(numbers!(self, count, i64)),
            12 => Array::F64(numbers!(self, count, f64)),
            other => {
                return malformed(format!("array {key:?} has elements of unknown type {other}"));
            }
        })
    }

    fn strings(&mut self, count: u64, key: &str) -> Parsed<Strings> {
        let count = self.check_count(count, 8, "strings")?;
        let mut text = Vec::new();
        let mut ends = Vec::with_capacity(count);
        for _ in 0..count {
            text.extend_from_slice(self.string_bytes("a string of an array")?);
            ends.push(text.len());
        }
        match Strings::from_parts(text, ends) {
            Some(strings) => Ok(strings),
            None => malformed(format!("a string of {key:?} is not UTF-8")),
        }
    }

    fn tensor(&mut self) -> Parsed<Entry> {
        let name = self.string("a tensor's name")?;
        let dims = self.u32("a tensor's number of dimensions")?;
        if dims > MAX_DIMS {
            return malformed(format!("tensor {name:?} has {dims} dimensions, {MAX_DIMS} at most"));
        }
        let mut shape = Vec::new();
        for _ in 0..dims {
            let dim = self.u64("a tensor's dimensions")?;
            match usize::try_from(dim) {
                Ok(dim) => shape.push(dim),
                Err(_) => return malformed(format!("tensor {name:?} has a dimension of {dim}")),
            }
        }
        // The file has the innermost first.
        shape.reverse();
        let kind = GgmlType(self.u32("a tensor's type")?);
        let offset = self.u64("a tensor's offset")?;
        Ok(Entry { name, shape, kind, offset })
    }
}

fn truth(byte: u8, key: &str) -> Parsed<bool> {
    match byte {
        0 => Ok(false),
        1 => Ok(true),
        other => malformed(format!("{key:?} should be 0 (false) or 1 (true), found {other}")),
    }
}
