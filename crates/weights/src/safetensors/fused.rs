//! Tensors that a format spreads over several names, put together.

use indexmap::IndexMap;

use super::{Checkpoint, Stored, layer_of, mlx, mxfp4_blocks, plain_dtype};
use crate::{Affine, DType, Error, Result, Tensor};

/// What a tensor is made of.
#[derive(Clone, Copy, Debug)]
pub(super) enum Source {
    /// One tensor of the file.
    Plain,
    /// `X.weight`, `X.scales` and perhaps `X.biases`.
    Mlx,
    /// `X_blocks` and `X_scales`.
    MxFp4,
}

impl Source {
    /// The names under which a tensor's parts are stored.
    pub(super) fn parts(self, name: &str) -> impl Iterator<Item = String> + use<> {
        let layer = layer_of(name);
        let names = match self {
            Source::Plain => vec![name.to_owned()],
            Source::Mlx => {
                vec![name.to_owned(), format!("{layer}.scales"), format!("{layer}.biases")]
            }
            Source::MxFp4 => vec![format!("{name}_blocks"), format!("{name}_scales")],
        };
        names.into_iter()
    }
}

impl Checkpoint {
    pub(super) fn mxfp4_shape(&self, name: &str) -> Result<Vec<usize>> {
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
    pub(super) fn mlx_shape(
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

    pub(super) fn mlx_tensor(&self, name: &str) -> Result<Tensor> {
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
        let tensor = Tensor::with_affine(name, dtype, &shape, self.bytes(name)?, affine)?;
        Ok(tensor.mapped_from(self.map(name)))
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

/// Finds which stored tensors belong together.
pub(super) fn sources(stored: &IndexMap<String, Stored>) -> IndexMap<String, Source> {
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
