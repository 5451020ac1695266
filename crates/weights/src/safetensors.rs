//! safetensors checkpoints: one file, shards with an index, or MLX's quantized ones.

mod folder;
mod fused;
mod header;
mod mlx;
mod mxfp4;
mod write;

use std::path::{Path, PathBuf};

use bytes::Bytes;
use indexmap::IndexMap;
use serde_json::Value;

pub use mxfp4::mxfp4_blocks;

use crate::mmap::MappedFile;
use crate::{DType, Error, Result, Tensor};
use fused::Source;
use header::Entry;
use mlx::Quantization;

/// What others call a layer's packed weight, and who they are.
const PACKED: [(&str, &str); 2] =
    [("qweight", "GPTQ or AWQ"), ("weight_packed", "compressed-tensors")];

/// An open checkpoint.
///
/// Tensors that a format spreads over several names are one here: MLX's `X.weight`, `X.scales` and
/// `X.biases` are `X.weight`; gpt-oss's `X_blocks` and `X_scales` are `X`. Opening reads headers
/// and `config.json`; tensors' bytes are mapped, and read when they are used.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    files: Vec<File>,
    config: Value,
    quantization: Quantization,
    /// Every tensor under its name in the file.
    stored: IndexMap<String, Stored>,
    /// Every tensor under the name it is asked for by.
    tensors: IndexMap<String, Source>,
}

#[derive(Clone, Debug)]
struct File {
    path: PathBuf,
    /// None for bytes that are in memory anyway.
    map: Option<MappedFile>,
    bytes: Bytes,
}

#[derive(Clone, Debug)]
struct Stored {
    file: usize,
    entry: Entry,
}

/// What a checkpoint says of a tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// Row-major shape, outermost dimension first.
    pub shape: Vec<usize>,
    /// Its type; one that is not computed with under the name its file has for it.
    pub dtype: std::result::Result<DType, String>,
    /// Bytes in the files, scales and biases included.
    pub stored_bytes: usize,
}

impl Checkpoint {
    /// Opens the checkpoint at `path`: a `.safetensors` file, or a folder with `model.safetensors`,
    /// with `model.safetensors.index.json`, or with other such files, in this order. Any shard of
    /// an indexed checkpoint stands for the whole.
    ///
    /// # Errors
    /// If a file cannot be read, a shard is missing or a header is malformed. A tensor of a type
    /// that is not supported is no error until it is asked for.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let found = folder::find(path.as_ref())?;
        let (config_path, config) = folder::config(&found.folder)?;
        let quantization = Quantization::of(&config)
            .map_err(|problem| Error::Malformed { path: config_path, problem })?;
        let mut files = Vec::new();
        let mut headers = Vec::new();
        for path in found.files {
            let map = MappedFile::open(&path)?;
            let bytes = map.bytes();
            let (file, header) = File::parse(path, Some(map), bytes)?;
            files.push(file);
            headers.push(header);
        }
        let stored = match found.index {
            Some(index) => pick(index, headers, &files)?,
            None => merge(headers, &files)?,
        };
        let tensors = fused::sources(&stored);
        Ok(Checkpoint { files, config, quantization, stored, tensors })
    }

    /// Reads one file that is in memory, with the `config.json` that belongs to it.
    ///
    /// # Errors
    /// As [`Checkpoint::open`].
    pub fn from_bytes(bytes: impl Into<Bytes>, config: Value) -> Result<Self> {
        let path = PathBuf::from("(memory)");
        let quantization = Quantization::of(&config)
            .map_err(|problem| Error::Malformed { path: path.clone(), problem })?;
        let (file, header) = File::parse(path, None, bytes.into())?;
        let files = vec![file];
        let stored = merge(vec![header], &files)?;
        let tensors = fused::sources(&stored);
        Ok(Checkpoint { files, config, quantization, stored, tensors })
    }

    /// A folder without weights, of which `config.json` is read if it is there.
    ///
    /// # Errors
    /// If that is malformed.
    pub fn without_tensors(folder: &Path) -> Result<Self> {
        let (path, config) = folder::config(folder)?;
        let quantization =
            Quantization::of(&config).map_err(|problem| Error::Malformed { path, problem })?;
        let (stored, tensors) = Default::default();
        Ok(Checkpoint { files: Vec::new(), config, quantization, stored, tensors })
    }

    /// The `config.json` beside the weights; null if there is none.
    pub fn config(&self) -> &Value {
        &self.config
    }

    /// The names of all tensors, in file order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// True if there is a tensor of that name.
    pub fn has(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    /// The files, in order.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        self.files.iter().map(|file| file.path.as_path())
    }

    /// Asks the system to read all files in the background, for a caller that will soon use all
    /// of them. A hint that costs nothing when they are in memory already.
    pub fn prefetch(&self) {
        self.files.iter().filter_map(|file| file.map.as_ref()).for_each(MappedFile::prefetch);
    }

    /// The tensor of that name, sharing the file's mapping; MXFP4 alone is converted to ggml's
    /// blocks at every call, in memory.
    ///
    /// # Errors
    /// If there is none, its type is not supported, or its parts do not fit together.
    pub fn tensor(&self, name: &str) -> Result<Tensor> {
        match self.source(name)? {
            Source::Plain => {
                let entry = self.entry(name)?;
                let dtype = plain_dtype(&entry.dtype)
                    .map_err(|dtype| Error::UnsupportedType { name: name.to_owned(), dtype })?;
                let tensor = Tensor::new(name, dtype, &entry.shape, self.bytes(name)?)?;
                Ok(tensor.mapped_from(self.map(name)))
            }
            Source::Mlx => self.mlx_tensor(name),
            Source::MxFp4 => {
                let (blocks, scales) = (format!("{name}_blocks"), format!("{name}_scales"));
                let shape = self.mxfp4_shape(name)?;
                mxfp4_blocks(name, &shape, &self.bytes(&blocks)?, &self.bytes(&scales)?)
            }
        }
    }

    /// What the checkpoint says of the tensor of that name, without reading it.
    ///
    /// # Errors
    /// If there is none, or its parts do not fit together.
    pub fn info(&self, name: &str) -> Result<TensorInfo> {
        let source = self.source(name)?;
        let (shape, dtype) = match source {
            Source::Plain => {
                let entry = self.entry(name)?;
                (entry.shape.clone(), plain_dtype(&entry.dtype))
            }
            Source::Mlx => {
                let layer = layer_of(name);
                self.mlx_shape(name, layer)?
            }
            Source::MxFp4 => (self.mxfp4_shape(name)?, Ok(DType::MxFp4)),
        };
        let stored_bytes = source.parts(name).filter_map(|n| self.stored.get(&n));
        let stored_bytes = stored_bytes.map(|s| s.entry.len).sum();
        Ok(TensorInfo { shape, dtype, stored_bytes })
    }

    fn source(&self, name: &str) -> Result<Source> {
        if let Some(source) = self.tensors.get(name) {
            return Ok(*source);
        }
        let name = name.to_owned();
        let foreign = PACKED
            .iter()
            .find(|(suffix, _)| self.stored.contains_key(&format!("{}.{suffix}", layer_of(&name))));
        Err(match foreign {
            Some((_, dtype)) => Error::UnsupportedType { name, dtype: (*dtype).to_owned() },
            None => Error::MissingTensor { name },
        })
    }

    fn entry(&self, stored_name: &str) -> Result<&Entry> {
        let missing = || Error::MissingTensor { name: stored_name.to_owned() };
        self.stored.get(stored_name).map(|s| &s.entry).ok_or_else(missing)
    }

    fn bytes(&self, stored_name: &str) -> Result<Bytes> {
        let entry = self.entry(stored_name)?;
        let file = &self.files[self.stored[stored_name].file];
        Ok(file.bytes.slice(entry.start..entry.start + entry.len))
    }

    /// The file that a stored tensor is in, if it is mapped.
    fn map(&self, stored_name: &str) -> Option<&MappedFile> {
        self.files[self.stored.get(stored_name)?.file].map.as_ref()
    }
}

impl File {
    fn parse(
        path: PathBuf,
        map: Option<MappedFile>,
        bytes: Bytes,
    ) -> Result<(File, Vec<(String, Entry)>)> {
        match header::parse(&bytes) {
            Ok(header) => Ok((File { path, map, bytes }, header)),
            Err(problem) => Err(Error::Malformed { path, problem }),
        }
    }
}

fn layer_of(name: &str) -> &str {
    name.strip_suffix(".weight").unwrap_or(name)
}

fn plain_dtype(stored: &str) -> std::result::Result<DType, String> {
    match stored {
        "F32" => Ok(DType::F32),
        "F16" => Ok(DType::F16),
        "BF16" => Ok(DType::BF16),
        other => Err(other.to_owned()),
    }
}

/// Takes each tensor from the file that the index names.
fn pick(
    index: Vec<(String, usize)>,
    headers: Vec<Vec<(String, Entry)>>,
    files: &[File],
) -> Result<IndexMap<String, Stored>> {
    let mut by_file: Vec<IndexMap<String, Entry>> =
        headers.into_iter().map(|header| header.into_iter().collect()).collect();
    let mut stored = IndexMap::with_capacity(index.len());
    for (name, file) in index {
        let Some(entry) = by_file[file].swap_remove(&name) else {
            let problem = format!("has no tensor {name:?}, though the index says so");
            return Err(Error::Malformed { path: files[file].path.clone(), problem });
        };
        stored.insert(name, Stored { file, entry });
    }
    Ok(stored)
}

/// Takes every tensor of every file.
fn merge(headers: Vec<Vec<(String, Entry)>>, files: &[File]) -> Result<IndexMap<String, Stored>> {
    let mut stored = IndexMap::new();
    for (file, header) in headers.into_iter().enumerate() {
        for (name, entry) in header {
            if stored.contains_key(&name) {
                let problem = format!("tensor {name:?} is also in another file");
                return Err(Error::Malformed { path: files[file].path.clone(), problem });
            }
            stored.insert(name, Stored { file, entry });
        }
    }
    Ok(stored)
}
