//! gpt-oss: sinks, offsets everywhere, clamped gates, experts in MXFP4, windows on every other
//! layer.

use baton_graph::{Gate, Routing};
use baton_weights::{DType, Tensor};

use super::Family;
use crate::config::ModelConfig;
use crate::hyper::{self, Hyper, Key};
use crate::loader::Loader;
use crate::names::Slot;
use crate::rope::RopeScaling;
use crate::{Error, Result};

const LIMIT: Key = Key { json: "swiglu_limit", gguf: "" };
const ALPHA: Key = Key { json: "swiglu_alpha", gguf: "" };

/// gpt-oss 20B and 120B.
pub(crate) const GPT_OSS: Family = Family {
    name: "gpt-oss",
    model_types: &["gpt_oss"],
    gguf: &["gpt-oss"],
    checkpoint_names: &[
        (Slot::AttnSinks, "layers.{}.self_attn.sinks"),
        (Slot::Router, "layers.{}.mlp.router"),
        (Slot::ExpertsGate, "layers.{}.mlp.experts.gate_proj"),
        (Slot::ExpertsUp, "layers.{}.mlp.experts.up_proj"),
        (Slot::ExpertsDown, "layers.{}.mlp.experts.down_proj"),
    ],
    gguf_names: &[(Slot::FfnNorm, "blk.{}.post_attention_norm")],
    configure,
    defaults: &[],
    prepare: Some(prepare),
};

fn configure(h: &Hyper<'_>, config: &mut ModelConfig) -> Result<()> {
    config.sinks = true;
    config.gate = Gate::Clamped {
        alpha: h.f64_opt(ALPHA)?.unwrap_or(1.702) as f32,
        limit: h.f64_opt(LIMIT)?.unwrap_or(7.0) as f32,
    };
    config.set_experts(h, Routing::TopKThenSoftmax)?;
    if let Some(experts) = &mut config.experts {
        experts.biased = true;
    }
    if let (true, RopeScaling::Yarn { truncate, .. }) = (h.is_gguf(), &mut config.rope.scaling) {
        // The model was trained without rounding; GGUF has no key to say so.
        *truncate = false;
    }
    let window = h.window()?;
    if window.is_none() && h.is_gguf() {
        return Err(h.missing(hyper::WINDOW));
    }
    config.set_windows(h, window, |i| i % 2 == 0)
}

/// OpenAI's checkpoints hold gate and up of each expert in one tensor, their rows alternating; and
/// transposed where they are not in MXFP4. Nothing else multiplies such a thing, so it is sorted
/// here once, in memory.
fn prepare(l: &mut Loader<'_>, config: &ModelConfig) -> Result<()> {
    let Some(experts) = &config.experts else { return Ok(()) };
    let (count, hidden, ffn) = (experts.count, config.hidden, experts.ffn);
    for i in 0..config.layers.len() {
        let stem = format!("layers.{i}.mlp.experts.");
        let stem = l.source().qualified(Slot::ExpertsGate, &stem).swap_remove(0);
        let gate_up = format!("{stem}gate_up_proj");
        if !l.source().has(&gate_up) {
            continue;
        }
        let both = rows_outermost(l.take(&gate_up)?, [count, 2 * ffn, hidden])?;
        let [gate, up] = alternate_rows(&both, &[count, ffn, hidden])?;
        l.prepare(Slot::ExpertsGate, i, "weight", gate);
        l.prepare(Slot::ExpertsUp, i, "weight", up);
        let down = rows_outermost(l.take(&format!("{stem}down_proj"))?, [count, hidden, ffn])?;
        l.prepare(Slot::ExpertsDown, i, "weight", down);

        let both = l.take(&format!("{stem}gate_up_proj_bias"))?;
        if both.shape() != [count, 2 * ffn] || !both.dtype().is_float() {
            return Err(wrong_shape(&both, &[count, 2 * ffn]));
        }
        // As rows of one element each.
        let column = Tensor::new(
            both.name(),
            both.dtype(),
            &[count * 2 * ffn, 1],
            both.data().to_vec().into(),
        )?;
        let [gate, up] = alternate_rows(&column, &[count, ffn])?;
        l.prepare(Slot::ExpertsGate, i, "bias", gate);
        l.prepare(Slot::ExpertsUp, i, "bias", up);
        let down = l.take(&format!("{stem}down_proj_bias"))?;
        l.prepare(Slot::ExpertsDown, i, "bias", down);
    }
    Ok(())
}

/// The experts' matrices as `shape`, `(experts, out, in)`: as they are in MXFP4, else transposed.
fn rows_outermost(tensor: Tensor, shape: [usize; 3]) -> Result<Tensor> {
    let [count, rows, cols] = shape;
    if tensor.dtype() == DType::MxFp4 {
        return if tensor.shape() == shape {
            Ok(tensor)
        } else {
            Err(wrong_shape(&tensor, &shape))
        };
    }
    if tensor.shape() != [count, cols, rows] || !tensor.dtype().is_float() {
        return Err(wrong_shape(&tensor, &[count, cols, rows]));
    }
    let size = tensor.dtype().block_bytes();
    let data = tensor.data();
    let mut turned = Vec::with_capacity(data.len());
    for expert in data.chunks_exact(rows * cols * size) {
        for row in 0..rows {
            for col in 0..cols {
                let at = (col * rows + row) * size;
                turned.extend_from_slice(&expert[at..at + size]);
            }
        }
    }
    Ok(Tensor::new(tensor.name(), tensor.dtype(), &shape, turned.into())?)
}

/// The even and the odd rows, each as a tensor of the given shape.
fn alternate_rows(tensor: &Tensor, shape: &[usize]) -> Result<[Tensor; 2]> {
    let bytes = tensor.row_bytes();
    let part = |odd: usize| {
        let rows = tensor.data().chunks_exact(bytes).skip(odd).step_by(2);
        let data: Vec<u8> = rows.flatten().copied().collect();
        Tensor::new(tensor.name(), tensor.dtype(), shape, data.into())
    };
    Ok([part(0)?, part(1)?])
}

fn wrong_shape(tensor: &Tensor, expected: &[usize]) -> Error {
    let (name, found) = (tensor.name().to_owned(), tensor.shape().to_vec());
    Error::TensorShape { name, found, expected: expected.to_vec() }
}
