//! safetensors checkpoints: one file, shards with an index, or MLX's quantized ones.

mod folder;
mod header;
mod mlx;
mod mxfp4;

use std::path::{Path, PathBuf};

use bytes::Bytes;
use indexmap::IndexMap;
use serde_json::Value;

pub use mxfp4::mxfp4_blocks;

use crate::mmap::MappedFile;
use crate::{Affine, DType, Error, Result, Tensor};
use header::Entry;
use mlx::Quantization;

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
    map: MappedFile,
    bytes: Bytes,
}

#[derive(Clone, Debug)]
struct Stored {
    file: usize,
    entry: Entry,
}

/// What a tensor is made of.
#[derive(Clone, Copy, Debug)]
enum Source {
    /// One tensor of the file.
    Plain,
    /// `X.weight`, `X.scales` and perhaps `X.biases`.
    Mlx,
    /// `X_blocks` and `X_scales`.
    MxFp4,
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
    /// Opens the checkpoint at `path`: a `.safetensors` file, or a folder with
    /// `model.safetensors.index.json`, with `model.safetensors`, or with other such files. Any
    /// shard of an indexed checkpoint stands for the whole.
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
            match header::parse(&bytes) {
                Ok(header) => headers.push(header),
                Err(problem) => return Err(Error::Malformed { path, problem }),
            }
            files.push(File { path, map, bytes });
        }
        let stored = match found.index {
            Some(index) => pick(index, headers, &files)?,
            None => merge(headers, &files)?,
        };
        let tensors = sources(&stored);
        Ok(Checkpoint { files, config, quantization, stored, tensors })
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
        self.files.iter().for_each(|file| file.map.prefetch());
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
                Tensor::new(name, dtype, &entry.shape, self.bytes(name)?)
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
        let stored_bytes = parts(name, source).filter_map(|n| self.stored.get(&n));
        let stored_bytes = stored_bytes.map(|s| s.entry.len).sum();
        Ok(TensorInfo { shape, dtype, stored_bytes })
    }

    fn source(&self, name: &str) -> Result<Source> {
        if let Some(source) = self.tensors.get(name) {
            return Ok(*source);
        }
        let name = name.to_owned();
        // GPTQ's and AWQ's name for a packed weight.
        if self.stored.contains_key(&format!("{}.qweight", layer_of(&name))) {
            return Err(Error::UnsupportedType { name, dtype: "GPTQ or AWQ".to_owned() });
        }
        Err(Error::MissingTensor { name })
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

    fn mxfp4_shape(&self, name: &str) -> Result<Vec<usize>> {
        let blocks = &self.entry(&format!("{name}_blocks"))?.shape;
        let scales = &self.entry(&format!("{name}_scales"))?.shape;
        match (blocks.split_last(), scales.split_last()) {
            (Some((16, groups)), Some((last, outer))) if groups == scales => {
                Ok([outer, &[last.saturating_mul(32)]].concat())
            }
            _ => {
                let problem = format!(
                    "MXFP4 blocks of {blocks:?} and scales of {scales:?} do not fit together"
                );
                Err(Error::Tensor { name: name.to_owned(), problem })
            }
        }
    }

    /// Shape and type of an MLX-quantized tensor.
    fn mlx_shape(
        &self,
        name: &str,
        layer: &str,
    ) -> Result<(Vec<usize>, std::result::Result<DType, String>)> {
        let fail = |problem| Error::Tensor { name: name.to_owned(), problem };
        let words = &self.entry(name)?.shape;
        let groups = &self.entry(&format!("{layer}.scales"))?.shape;
        let scheme = self.quantization.scheme(layer).ok_or_else(|| {
            fail(format!("is packed, but config.json states no MLX quantization for {layer:?}"))
        })?;
        let (bits, group_size) = (scheme.bits, scheme.group_size);
        let cols = match (words.split_last(), groups.split_last()) {
            (Some((words, a)), Some((groups, b))) if a == b => {
                let fits = |&cols: &u64| {
                    u128::from(cols) * u128::from(bits) == *words as u128 * u128::from(u32::BITS)
                };
                (*groups as u64).checked_mul(group_size).filter(fits)
            }
            _ => None,
        };
        let cols = cols.and_then(|n| usize::try_from(n).ok());
        let cols = cols.ok_or_else(|| {
            fail(format!(
                "{words:?} words and {groups:?} scales do not fit {bits} bits in groups of \
                 {group_size}, as config.json has it"
            ))
        })?;
        let outer = &words[..words.len() - 1];
        Ok(([outer, &[cols]].concat(), scheme.dtype()))
    }

    fn mlx_tensor(&self, name: &str) -> Result<Tensor> {
        let layer = layer_of(name);
        let (scales, biases) = (format!("{layer}.scales"), format!("{layer}.biases"));
        let (shape, dtype) = self.mlx_shape(name, layer)?;
        let unsupported = |dtype| Error::UnsupportedType { name: name.to_owned(), dtype };
        let dtype = dtype.map_err(unsupported)?;
        let scale_type = &self.entry(&scales)?.dtype;
        if dtype == DType::MxFp4 {
            if scale_type != "U8" {
                let problem = format!("MXFP4 needs scales of U8, found {scale_type}");
                return Err(Error::Tensor { name: name.to_owned(), problem });
            }
            return mxfp4_blocks(name, &shape, &self.bytes(name)?, &self.bytes(&scales)?);
        }
        let biases_entry = self.entry(&biases)?;
        if biases_entry.dtype != *scale_type || biases_entry.shape != self.entry(&scales)?.shape {
            let problem = "scales and biases differ in type or shape".to_owned();
            return Err(Error::Tensor { name: name.to_owned(), problem });
        }
        let affine_dtype = plain_dtype(scale_type).map_err(unsupported)?;
        let (scales, biases) = (self.bytes(&scales)?, self.bytes(&biases)?);
        let affine = Affine { dtype: affine_dtype, scales, biases };
        Tensor::with_affine(name, dtype, &shape, self.bytes(name)?, affine)
    }
}

impl mlx::Scheme {
    /// The type it stands for, or its name if that is not supported.
    fn dtype(&self) -> std::result::Result<DType, String> {
        let bits = u8::try_from(self.bits).unwrap_or(0);
        let group_size = u16::try_from(self.group_size).unwrap_or(0);
        match (self.mode.as_str(), bits, group_size) {
            ("affine", 2..=6 | 8, 32 | 64 | 128) => Ok(DType::Affine { bits, group_size }),
            ("mxfp4", 4, 32) => Ok(DType::MxFp4),
            (mode, ..) => Err(format!("MLX {mode} {}-bit g{}", self.bits, self.group_size)),
        }
    }
}

/// The names under which a tensor's parts are stored.
fn parts(name: &str, source: Source) -> impl Iterator<Item = String> + use<> {
    let layer = layer_of(name);
    let names = match source {
        Source::Plain => vec![name.to_owned()],
        Source::Mlx => vec![name.to_owned(), format!("{layer}.scales"), format!("{layer}.biases")],
        Source::MxFp4 => vec![format!("{name}_blocks"), format!("{name}_scales")],
    };
    names.into_iter()
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

/// Finds which stored tensors belong together.
fn sources(stored: &IndexMap<String, Stored>) -> IndexMap<String, Source> {
    let dtype = |name: &str| stored.get(name).map(|s| s.entry.dtype.as_str());
    let is_packed = |layer: &str| {
        dtype(&format!("{layer}.weight")) == Some("U32")
            && dtype(&format!("{layer}.scales")).is_some()
    };
    let is_mxfp4 = |base: &str| {
        dtype(&format!("{base}_blocks")) == Some("U8")
            && dtype(&format!("{base}_scales")) == Some("U8")
    };
    let mut tensors = IndexMap::new();
    for name in stored.keys() {
        if let Some(layer) = name.strip_suffix(".weight")
            && is_packed(layer)
        {
            tensors.insert(name.clone(), Source::Mlx);
        } else if let Some(base) = name.strip_suffix("_blocks")
            && is_mxfp4(base)
        {
            tensors.insert(base.to_owned(), Source::MxFp4);
        } else {
            let of_mlx = [".scales", ".biases"].iter().filter_map(|s| name.strip_suffix(s));
            let of_mxfp4 = name.strip_suffix("_scales").filter(|base| is_mxfp4(base));
            if of_mxfp4.is_none() && !of_mlx.into_iter().any(is_packed) {
                tensors.entry(name.clone()).or_insert(Source::Plain);
            }
        }
    }
    tensors
}
