//! GGUF, the file format of llama.cpp: reading versions 2 and 3, writing version 3.

mod header;
mod metadata;
mod split;
mod types;
mod value;
mod write;

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use bytes::Bytes;

pub use metadata::Metadata;
pub use types::GgmlType;
pub use value::{Array, Strings, Value};
pub use write::GgufWriter;

use crate::mmap::MappedFile;
use crate::{DType, Error, Result, Tensor};
use header::{Header, Refusal};

/// An open GGUF file, or all parts of a split one.
///
/// Opening reads the header and checks that every tensor lies in the file; tensors' bytes are
/// mapped, and read when they are used.
#[derive(Clone, Debug)]
pub struct GgufFile {
    parts: Vec<Part>,
    metadata: Metadata,
    tensors: Vec<TensorInfo>,
    by_name: HashMap<String, usize>,
}

#[derive(Clone, Debug)]
struct Part {
    path: PathBuf,
    /// None for bytes that are in memory anyway.
    map: Option<MappedFile>,
    bytes: Bytes,
}

/// What a file says of a tensor.
#[derive(Clone, Debug)]
pub struct TensorInfo {
    name: String,
    shape: Vec<usize>,
    kind: GgmlType,
    part: usize,
    start: usize,
    len: Option<usize>,
}

impl TensorInfo {
    /// The tensor's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Row-major shape, outermost dimension first: the reverse of what the file has.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The type in the file, which may be one that is not computed with.
    pub fn kind(&self) -> GgmlType {
        self.kind
    }

    /// The type to compute with, if it is supported.
    pub fn dtype(&self) -> Option<DType> {
        self.kind.dtype()
    }

    /// Number of elements.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// Bytes in the file; 0 if the type is unknown.
    pub fn stored_bytes(&self) -> usize {
        self.len.unwrap_or(0)
    }
}

impl GgufFile {
    /// Opens the file at `path`. Of a split file (`…-00001-of-00003.gguf`) any part may be named;
    /// the others are found beside it.
    ///
    /// # Errors
    /// If a file cannot be read, a part is missing, or a header is malformed. A tensor of a type
    /// that is not supported is no error until it is asked for.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let (first, header) = Part::open(path.as_ref())?;
        let Some(set) = split::Set::of(&first.path, &header.metadata)? else {
            let mut file = GgufFile::empty(header.metadata);
            file.add(first, header.tensors)?;
            return Ok(file);
        };
        let mut metadata = Metadata::new();
        let mut loaded = Vec::new();
        for number in 0..set.count() {
            let path = set.path(number);
            let (part, header) = match Part::open(&path) {
                Err(Error::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {
                    let (part, parts) = (number + 1, set.count());
                    return Err(Error::MissingPart { path, part, parts });
                }
                other => other?,
            };
            set.check_member(&path, number, &header.metadata)?;
            if number == 0 {
                metadata = header.metadata;
            }
            loaded.push((part, header.tensors));
        }
        let mut file = GgufFile::empty(metadata);
        for (part, tensors) in loaded {
            file.add(part, tensors)?;
        }
        set.check_tensor_count(file.tensors.len(), &file.metadata)?;
        Ok(file)
    }

    /// Reads a file that is in memory.
    ///
    /// # Errors
    /// As [`GgufFile::open`]; also for a part of a split file, since there is nowhere to look for
    /// the others.
    pub fn from_bytes(bytes: impl Into<Bytes>) -> Result<Self> {
        let (part, header) = Part::parse(PathBuf::from("(memory)"), None, bytes.into())?;
        split::Set::of(&part.path, &header.metadata)?;
        let mut file = GgufFile::empty(header.metadata);
        file.add(part, header.tensors)?;
        Ok(file)
    }

    /// The file that `metadata` and `tensors` would be in, without writing it: for models made in
    /// memory. Nothing is copied; tensors may share their bytes.
    ///
    /// # Errors
    /// If a name occurs twice, or GGUF has no type for a tensor.
    pub fn from_tensors(metadata: Metadata, tensors: Vec<Tensor>) -> Result<Self> {
        let mut file = GgufFile::empty(metadata);
        for tensor in tensors {
            let name = tensor.name().to_owned();
            let Some(kind) = GgmlType::of(tensor.dtype()) else {
                let problem = format!("GGUF has no type for {}", tensor.dtype());
                return Err(Error::Tensor { name, problem });
            };
            let (shape, bytes) = (tensor.shape().to_vec(), tensor.bytes());
            let len = Some(bytes.len());
            let part = Part { path: PathBuf::from("(memory)"), map: None, bytes };
            file.add(part, vec![header::RawTensor { name, shape, kind, start: 0, len }])?;
        }
        Ok(file)
    }

    fn empty(metadata: Metadata) -> Self {
        GgufFile { parts: Vec::new(), metadata, tensors: Vec::new(), by_name: HashMap::new() }
    }

    fn add(&mut self, part: Part, tensors: Vec<header::RawTensor>) -> Result<()> {
        for header::RawTensor { name, shape, kind, start, len } in tensors {
            if self.by_name.insert(name.clone(), self.tensors.len()).is_some() {
                let problem = format!("tensor {name:?} is also in another part");
                return Err(Error::Malformed { path: part.path, problem });
            }
            let part = self.parts.len();
            self.tensors.push(TensorInfo { name, shape, kind, part, start, len });
        }
        self.parts.push(part);
        Ok(())
    }

    /// Keys and values; of a split file, those of its first part.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// What the file says of each tensor, in file order.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// What the file says of the tensor of that name.
    pub fn info(&self, name: &str) -> Option<&TensorInfo> {
        self.by_name.get(name).map(|&i| &self.tensors[i])
    }

    /// True if there is a tensor of that name.
    pub fn has(&self, name: &str) -> bool {
        self.by_name.contains_key(name)
    }

    /// The tensor of that name, sharing the file's mapping.
    ///
    /// # Errors
    /// If there is none, or its type is not supported.
    pub fn tensor(&self, name: &str) -> Result<Tensor> {
        let missing = || Error::MissingTensor { name: name.to_owned() };
        let info = self.info(name).ok_or_else(missing)?;
        let (Some(dtype), Some(len)) = (info.dtype(), info.len) else {
            let (name, dtype) = (name.to_owned(), info.kind.to_string());
            return Err(Error::UnsupportedType { name, dtype });
        };
        let part = &self.parts[info.part];
        let bytes = part.bytes.slice(info.start..info.start + len);
        Ok(Tensor::new(name, dtype, &info.shape, bytes)?.mapped_from(part.map.as_ref()))
    }

    /// The files, in order.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        self.parts.iter().map(|part| part.path.as_path())
    }

    /// Asks the system to read the whole file in the background, for a caller that will soon use
    /// all of it. A hint that costs nothing when the file is in memory already.
    pub fn prefetch(&self) {
        self.parts.iter().filter_map(|part| part.map.as_ref()).for_each(MappedFile::prefetch);
    }
}

impl Part {
    fn open(path: &Path) -> Result<(Part, Header)> {
        let map = MappedFile::open(path)?;
        let bytes = map.bytes();
        Part::parse(path.to_owned(), Some(map), bytes)
    }

    fn parse(path: PathBuf, map: Option<MappedFile>, bytes: Bytes) -> Result<(Part, Header)> {
        match header::parse(&bytes) {
            Ok(header) => Ok((Part { path, map, bytes }, header)),
            Err(Refusal::Malformed(problem)) => Err(Error::Malformed { path, problem }),
            Err(Refusal::Unsupported(problem)) => Err(Error::Unsupported { path, problem }),
        }
    }
}
