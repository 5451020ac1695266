//! A mixture of experts as a whole: router, choice, experts, sum.

use std::sync::Arc;

use baton_graph::{Activation, Gate, Moe, Routing};
use baton_weights::{Tensor, Weight};

use super::FEW;
use super::activations::{Activations, Reading, View, bind};
use super::experts::{Choices, ExpertProduct};
use super::form::Form;
use super::kernels;
use super::matrix::{Matrix, Part};
use super::product::{Product, Tuning};
use crate::{Access, Constant, Gpu, GpuError, Kernel, Use};

macro_rules! shader {
    ($name:literal) => {
        include_str!(concat!("../shaders/", $name, ".wgsl"))
    };
}

/// The weights of a mixture, as the graph names them.
#[derive(Clone, Debug)]
pub struct MixtureWeights {
    /// `(experts, hidden)`.
    pub router: Tensor,
    /// `(experts)`.
    pub router_bias: Option<Tensor>,
    /// `(experts, ffn, hidden)`.
    pub gate: Weight,
    /// `(experts, ffn, hidden)`.
    pub up: Weight,
    /// `(experts, hidden, ffn)`.
    pub down: Weight,
    /// `(experts, ffn)`.
    pub gate_bias: Option<Tensor>,
    /// `(experts, ffn)`.
    pub up_bias: Option<Tensor>,
    /// `(experts, hidden)`.
    pub down_bias: Option<Tensor>,
}

/// Memory for what a mixture computes on its way; all layers of a model share it.
#[derive(Debug)]
pub struct MixtureRoom {
    choices: Arc<Choices>,
    logits: wgpu::Buffer,
    /// Gate and up of each choice, side by side.
    halves: wgpu::Buffer,
    inner: wgpu::Buffer,
    inner_scratch: wgpu::Buffer,
    outputs: wgpu::Buffer,
    fits: (usize, usize, usize, usize),
}

impl MixtureRoom {
    /// Room for mixtures of this shape over that many tokens.
    ///
    /// # Errors
    /// If memory is short.
    pub fn new(
        gpu: &Gpu,
        moe: &Moe,
        hidden: usize,
        tokens: usize,
    ) -> Result<MixtureRoom, GpuError> {
        let choices = tokens * moe.top_k;
        let floats = |n: usize| gpu.buffer("a mixture's values", 4 * n as u64, Use::Storage);
        let scratch = Activations::bytes_of(gpu, moe.ffn, choices, FEW * moe.top_k);
        Ok(MixtureRoom {
            choices: Arc::new(Choices::new(gpu, moe.experts, moe.top_k, tokens)?),
            logits: floats(tokens * moe.experts)?,
            halves: floats(choices * 2 * moe.ffn)?,
            inner: floats(choices * moe.ffn)?,
            inner_scratch: gpu.buffer("a mixture's activations", scratch, Use::Storage)?,
            outputs: floats(choices * hidden)?,
            fits: (moe.experts, moe.top_k, moe.ffn, hidden),
        })
    }

    /// Whether it is of the shape of that mixture.
    pub fn fits(&self, moe: &Moe, hidden: usize) -> bool {
        self.fits == (moe.experts, moe.top_k, moe.ffn, hidden)
    }

    /// Bytes on the device.
    pub fn bytes(&self) -> usize {
        let own = [&self.logits, &self.halves, &self.inner, &self.inner_scratch, &self.outputs];
        (own.map(wgpu::Buffer::size).iter().sum::<u64>() + self.choices.bytes()) as usize
    }
}

/// A kernel and what is bound to it.
type Bound = (Arc<Kernel>, wgpu::BindGroup);

/// A mixture of experts with fixed places of its input and its result.
///
/// Nothing comes back to the host: which experts are needed is known on the device alone.
#[derive(Debug)]
pub struct Mixture {
    gpu: Arc<Gpu>,
    moe: Moe,
    room: Arc<MixtureRoom>,
    x: Arc<Activations>,
    inner: Arc<Activations>,
    router: Product,
    gate_up: Vec<ExpertProduct>,
    down: ExpertProduct,
    route: Bound,
    gate: Bound,
    gate_words: [u32; 3],
    combine: Bound,
    hidden: usize,
    y_stride: usize,
    bytes: usize,
}

impl Mixture {
    /// Brings the weights to the device. Results of a token lie side by side in `y`, `y_stride`
    /// floats from one token to the next.
    ///
    /// # Errors
    /// If the weights do not fit together, the room is of another shape, or memory is short.
    pub fn new(
        gpu: &Arc<Gpu>,
        moe: &Moe,
        weights: &MixtureWeights,
        room: &Arc<MixtureRoom>,
        x: &Arc<Activations>,
        (y, y_stride): (&View, usize),
    ) -> Result<Mixture, GpuError> {
        let hidden = x.inputs;
        if !room.fits(moe, hidden) || moe.top_k > moe.experts {
            let problem = "is no mixture of the shape that memory was taken for".to_owned();
            return Err(GpuError::Tensor { name: weights.router.name().to_owned(), problem });
        }
        let gate_words = gate_words(gpu, moe.activation)?;
        let part = Part { weights: weights.router.clone(), bias: weights.router_bias.clone() };
        let router = Arc::new(Matrix::upload(gpu, &[part])?);
        let logits = View::whole(&room.logits);
        let mut bytes = router.bytes();
        let mut router = Product::new(gpu, &router, x, logits, moe.experts)?;
        // Half precision could choose other experts.
        router.tune(Tuning { tiled: true, in_eights: true, ..Default::default() })?;
        let share = moe.top_k;
        let halves = View::whole(&room.halves);
        let mut gate_up = Vec::new();
        for (at, matrix) in gate_and_up(gpu, moe, weights)? {
            let y = (halves.clone(), at, 2 * moe.ffn);
            gate_up.push(ExpertProduct::new(gpu, matrix, &room.choices, (x, share), y));
        }
        let down = each(&weights.down, moe.experts);
        let bias = weights.down_bias.as_ref().map(Tensor::to_f32);
        let down = Matrix::upload_experts(gpu, &down, bias.as_deref(), moe.experts)?;
        let (inner, scratch) = (View::whole(&room.inner), View::whole(&room.inner_scratch));
        let inner = Arc::new(Activations::new(gpu, inner, moe.ffn, moe.ffn, scratch)?);
        let outputs = (View::whole(&room.outputs), 0, hidden);
        let down = ExpertProduct::new(gpu, down, &room.choices, (&inner, 1), outputs);
        if down.reading(1) == Reading::Integers {
            gate_up.iter_mut().for_each(|product| product.fold_gate(&inner, gate_words));
        }
        bytes += down.bytes() + gate_up.iter().map(ExpertProduct::bytes).sum::<usize>();
        let bound = |source, bindings: &[Access], words, constants: &[_], views: &[&View]| {
            let kernel = kernels::of_mixture(gpu, source, bindings, words, constants)?;
            let group = bind(gpu, &kernel, views)?;
            Ok::<Bound, GpuError>((kernel, group))
        };
        let of = |name, n: usize| (name, Constant::from(n as u32));
        let [chosen, shares] = [&room.choices.chosen, &room.choices.shares].map(View::whole);
        let [logits, values, outputs] = [&room.logits, &room.inner, &room.outputs].map(View::whole);
        use Access::{Read, Write};
        let route = bound(
            shader!("route"),
            &[Read, Write, Write],
            1,
            &[of("EXPERTS", moe.experts), of("TOP_K", moe.top_k)],
            &[&logits, &chosen, &shares],
        )?;
        let source = [shader!("activate"), shader!("integers"), shader!("gate")].concat();
        let integers = View::whole(&room.inner_scratch);
        let gate = bound(&source, &[Read, Write, Write], 6, &[], &[&halves, &values, &integers])?;
        let combine = bound(
            shader!("combine"),
            &[Read, Read, Write],
            3,
            &[of("TOP_K", moe.top_k)],
            &[&outputs, &shares, y],
        )?;
        let (gpu, moe, room, x) = (Arc::clone(gpu), moe.clone(), Arc::clone(room), Arc::clone(x));
        Ok(Mixture {
            gpu,
            moe,
            room,
            x,
            inner,
            router,
            gate_up,
            down,
            route,
            gate,
            gate_words,
            combine,
            hidden,
            y_stride,
            bytes,
        })
    }

    /// Bytes of its weights on the device.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// What it reads.
    pub(crate) fn input(&self) -> &Activations {
        &self.x
    }

    /// Whether it reads its input as integers, besides as floats, if tokens are few.
    pub(crate) fn reads_integers(&self) -> bool {
        self.gate_up.iter().any(|product| product.reading(1) == Reading::Integers)
    }

    /// Encodes it for the first `tokens` rows. With `add` the result is added to what `y` holds. Integers
    /// of its input may be `stored` already.
    ///
    /// # Errors
    /// If a kernel cannot be compiled.
    pub fn encode(
        &mut self,
        pass: &mut wgpu::ComputePass<'_>,
        tokens: usize,
        add: bool,
        stored: bool,
    ) -> Result<(), GpuError> {
        let (moe, choices) = (&self.moe, tokens * self.moe.top_k);
        let mut made = if stored { Reading::Integers } else { Reading::Floats };
        let mut make = |pass: &mut wgpu::ComputePass<'_>, reading: Reading| {
            if reading != made && reading != Reading::Floats {
                made = reading;
                self.x.encode(pass, tokens, made);
            }
        };
        make(pass, self.router.reading(tokens));
        self.router.encode(pass, tokens, false)?;
        let whole = moe.routing == Routing::SoftmaxThenTopK { normalize: false };
        run(&self.route, pass, &[u32::from(whole)], [tokens as u32, 1, 1]);
        self.room.choices.sort(&self.gpu, pass, tokens);
        for product in &mut self.gate_up {
            make(pass, product.reading(tokens));
            product.encode(pass, tokens)?;
        }
        if !self.gate_up.iter().all(|product| product.is_folded(tokens)) {
            let [kind, alpha, limit] = self.gate_words;
            let ffn = moe.ffn as u32;
            let reading = self.down.reading(tokens);
            let stored = reading == Reading::Integers;
            let integers = if stored { self.inner.integers().words } else { 0 };
            let p = [ffn, choices as u32, kind, alpha, limit, integers];
            run(&self.gate, pass, &p, [ffn.div_ceil(1024), (choices as u32).min(65_535), 1]);
            if !stored {
                self.inner.encode(pass, choices, reading);
            }
        }
        self.down.encode(pass, tokens)?;
        let p = [self.hidden as u32, self.y_stride as u32, u32::from(add)];
        run(&self.combine, pass, &p, [p[0].div_ceil(256), tokens as u32, 1]);
        Ok(())
    }
}

fn run((kernel, group): &Bound, pass: &mut wgpu::ComputePass<'_>, p: &[u32], grid: [u32; 3]) {
    kernel.dispatch(pass, group, bytemuck::cast_slice(p), grid);
}

/// What `gate.wgsl` computes: which function, and its constants' bits.
fn gate_words(gpu: &Gpu, gate: Gate) -> Result<[u32; 3], GpuError> {
    Ok(match gate {
        Gate::Plain(Activation::Silu) => [0; 3],
        Gate::Plain(Activation::Gelu) => [1, 0, 0],
        Gate::Plain(Activation::GeluTanh) => [2, 0, 0],
        Gate::Plain(Activation::Relu) => [3, 0, 0],
        Gate::Clamped { alpha, limit } => [4, alpha.to_bits(), limit.to_bits()],
        other => {
            let missing = format!("a kernel for the gate {other:?}");
            return Err(GpuError::Unsupported { adapter: gpu.name(), missing });
        }
    })
}

/// The matrices of each expert.
fn each(weight: &Weight, experts: usize) -> Vec<Tensor> {
    (0..experts).map(|expert| weight.index(expert)).collect()
}

/// Matrices for gate and up, with the place of their results: one for both where they are of one
/// form.
fn gate_and_up(
    gpu: &Gpu,
    moe: &Moe,
    weights: &MixtureWeights,
) -> Result<Vec<(usize, Matrix)>, GpuError> {
    let MixtureWeights { gate, up, gate_bias, up_bias, .. } = weights;
    let [gates, ups] = [gate, up].map(|weight| each(weight, moe.experts));
    let [gate_bias, up_bias] = [gate_bias, up_bias].map(|bias| bias.as_ref().map(Tensor::to_f32));
    let forms = gates.iter().chain(&ups).map(Form::of);
    if gates.first().is_none_or(|first| forms.clone().all(|form| form == Form::of(first))) {
        let both: Vec<Tensor> = gates.into_iter().zip(ups).flat_map(|(g, u)| [g, u]).collect();
        let bias = (gate_bias.is_some() || up_bias.is_some()).then(|| {
            let of = |bias: &Option<Vec<f32>>, expert: usize| match bias {
                Some(bias) => bias[expert * moe.ffn..][..moe.ffn].to_vec(),
                None => vec![0.0; moe.ffn],
            };
            (0..moe.experts).flat_map(|e| [of(&gate_bias, e), of(&up_bias, e)].concat()).collect()
        });
        let bias: Option<Vec<f32>> = bias;
        let matrix = Matrix::upload_experts(gpu, &both, bias.as_deref(), moe.experts)?;
        return Ok(vec![(0, matrix)]);
    }
    let gate = Matrix::upload_experts(gpu, &gates, gate_bias.as_deref(), moe.experts)?;
    let up = Matrix::upload_experts(gpu, &ups, up_bias.as_deref(), moe.experts)?;
    Ok(vec![(0, gate), (moe.ffn, up)])
}
