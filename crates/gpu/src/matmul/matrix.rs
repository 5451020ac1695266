//! Weights of a linear operation on the device.

use std::ops::Range;
use std::thread;

use baton_weights::Tensor;

use super::form::{CHUNK, Form};
use super::planes::Planes;
use crate::{Gpu, GpuError, Upload, Use};

/// One of the matrices that make up a linear operation.
#[derive(Clone, Debug)]
pub struct Part {
    /// The matrix, `(outputs, inputs)`; of a mixture `(experts, outputs, inputs)`.
    pub weights: Tensor,
    /// An offset for each output.
    pub bias: Option<Tensor>,
}

/// Matrices whose outputs lie side by side, on the device. Quantized weights stay quantized.
///
/// Parts of one form share a kernel run; those too large for one binding are cut by rows.
#[derive(Debug)]
pub struct Matrix {
    pub(super) segments: Vec<Segment>,
    outputs: usize,
    inputs: usize,
    experts: usize,
}

/// Consecutive rows of one form in one buffer.
#[derive(Clone, Debug)]
pub(super) struct Segment {
    pub(super) buffer: wgpu::Buffer,
    pub(super) planes: Planes,
    /// Where among the outputs its own begin.
    pub(super) first_output: usize,
    /// Outputs of one expert; all, if it is no mixture.
    pub(super) outputs: usize,
    /// The experts whose matrices it holds.
    pub(super) experts: Range<usize>,
    pub(super) has_bias: bool,
}

impl Matrix {
    /// Brings matrices to the device, whose outputs come to lie side by side.
    ///
    /// # Errors
    /// If the parts do not fit together, a row is too large for the device, or memory is short.
    pub fn upload(gpu: &Gpu, parts: &[Part]) -> Result<Matrix, GpuError> {
        let Some(first) = parts.first() else {
            let problem = "no part is given".to_owned();
            return Err(GpuError::Tensor { name: "matrix".to_owned(), problem });
        };
        let inputs = first.weights.cols();
        for part in parts {
            check(part, part.weights.rows(), inputs)?;
        }
        let mut matrix = Matrix { segments: Vec::new(), outputs: 0, inputs, experts: 1 };
        let mut upload = Upload::new(gpu);
        for parts in parts.chunk_by(|a, b| Form::of(&a.weights) == Form::of(&b.weights)) {
            let tensors: Vec<Tensor> = parts.iter().map(|part| part.weights.clone()).collect();
            let rows = tensors.iter().map(Tensor::rows).sum();
            let bias = biases(parts);
            // Whole tiles of rows, so that no kernel works on two rests.
            matrix.segments(gpu, &mut upload, &tensors, bias.as_deref(), 64, rows)?;
            matrix.outputs += rows;
        }
        upload.finish()?;
        Ok(matrix)
    }

    /// Brings the matrices of a mixture's experts to the device, given as one tensor `(experts,
    /// outputs, inputs)`, as one for each expert, or as several for each, one expert after another;
    /// with an offset for each of an expert's outputs.
    ///
    /// # Errors
    /// As [`Matrix::upload`].
    pub fn upload_experts(
        gpu: &Gpu,
        weights: &[Tensor],
        bias: Option<&[f32]>,
        experts: usize,
    ) -> Result<Matrix, GpuError> {
        let rows: usize = weights.iter().map(Tensor::rows).sum();
        let Some(first) = weights.first().filter(|_| experts > 0 && rows.is_multiple_of(experts))
        else {
            let problem = format!("has {rows} rows, which are no {experts} experts");
            return Err(GpuError::Tensor { name: "experts".to_owned(), problem });
        };
        let (inputs, outputs) = (first.cols(), rows / experts);
        if let Some(bias) = bias.filter(|bias| bias.len() != rows) {
            let problem = format!("has {} biases for {rows} outputs", bias.len());
            return Err(GpuError::Tensor { name: first.name().to_owned(), problem });
        }
        for weights in weights {
            check(&Part { weights: weights.clone(), bias: None }, rows, inputs)?;
            if Form::of(weights) != Form::of(first) {
                let problem = format!("is {}, other experts {}", weights.dtype(), first.dtype());
                return Err(GpuError::Tensor { name: weights.name().to_owned(), problem });
            }
        }
        let mut matrix = Matrix { segments: Vec::new(), outputs, inputs, experts };
        let mut upload = Upload::new(gpu);
        matrix.segments(gpu, &mut upload, weights, bias, outputs, rows)?;
        for segment in &mut matrix.segments {
            let first = segment.first_output / outputs;
            segment.experts = first..first + segment.planes.rows / outputs;
            (segment.first_output, segment.outputs) = (0, outputs);
        }
        upload.finish()?;
        Ok(matrix)
    }

    /// Number of outputs, of one expert if it is a mixture.
    pub fn outputs(&self) -> usize {
        self.outputs
    }

    /// Number of inputs.
    pub fn inputs(&self) -> usize {
        self.inputs
    }

    /// Number of experts; 1 if it is no mixture.
    pub fn experts(&self) -> usize {
        self.experts
    }

    /// Bytes on the device.
    pub fn bytes(&self) -> usize {
        self.segments.iter().map(|segment| segment.planes.bytes).sum()
    }

    /// The same matrix once more, in memory of its own: measuring needs more weights than a cache
    /// holds.
    ///
    /// # Errors
    /// If memory is short.
    pub fn duplicate(&self, gpu: &Gpu) -> Result<Matrix, GpuError> {
        let copy = |segment: &Segment| {
            let bytes = segment.buffer.size();
            let buffer = gpu.buffer("a copy of weights", bytes, Use::Storage)?;
            gpu.guard("a copy", || {
                let mut encoder = gpu.device().create_command_encoder(&Default::default());
                encoder.copy_buffer_to_buffer(&segment.buffer, 0, &buffer, 0, bytes);
                gpu.queue().submit([encoder.finish()])
            })?;
            Ok(Segment { buffer, ..segment.clone() })
        };
        let segments = self.segments.iter().map(copy).collect::<Result<_, GpuError>>()?;
        Ok(Matrix { segments, ..*self })
    }

    /// Whether kernels for few rows quantize the activations.
    pub(super) fn has_integers(&self) -> bool {
        self.segments.iter().any(|segment| !segment.planes.form.is_float())
    }

    /// Whether kernels for few rows read quantized activations alone.
    pub(crate) fn is_integer(&self) -> bool {
        self.segments.iter().all(|segment| !segment.planes.form.is_float())
    }

    /// Cuts rows of one form at multiples of `unit` into buffers that can be bound, and fills them.
    fn segments(
        &mut self,
        gpu: &Gpu,
        upload: &mut Upload<'_>,
        tensors: &[Tensor],
        bias: Option<&[f32]>,
        unit: usize,
        rows: usize,
    ) -> Result<(), GpuError> {
        let (form, name) = (Form::of(&tensors[0]), tensors[0].name());
        for tensor in tensors.iter().filter(|tensor| form.rounds(tensor.dtype())) {
            let (name, dtype) = (tensor.name(), tensor.dtype());
            tracing::info!("{name:?} is {dtype}, kept as F16 on the GPU, which takes more memory");
        }
        let limits = gpu.limits();
        let limit = limits.max_storage_buffer_binding_size.min(limits.max_buffer_size) as usize;
        let planes = |rows| Planes::new(form, rows, self.inputs, bias.is_some());
        let mut most = rows;
        while planes(most).bytes > limit {
            if most <= unit {
                let problem = format!("is larger than the {limit} bytes that the GPU can bind");
                return Err(GpuError::Tensor { name: name.to_owned(), problem });
            }
            most = (most / 2).next_multiple_of(unit);
        }
        for first in (0..rows).step_by(most) {
            let range = first..rows.min(first + most);
            let planes = planes(range.len());
            let buffer = gpu.buffer(name, planes.bytes as u64, Use::Storage)?;
            fill(upload, &buffer, &planes, tensors, range.clone())?;
            if let Some(bias) = bias {
                let bytes = bytemuck::cast_slice(&bias[range.clone()]);
                upload.write(&buffer, planes.starts[4] as u64, bytes)?;
            }
            self.segments.push(Segment {
                buffer,
                planes,
                first_output: self.outputs * usize::from(self.experts == 1) + first,
                outputs: range.len(),
                experts: 0..1,
                has_bias: bias.is_some(),
            });
        }
        // The device has its own copy now.
        tensors.iter().for_each(Tensor::release);
        Ok(())
    }
}

/// Packs rows on several threads, some at a time, and sends them off.
fn fill(
    upload: &mut Upload<'_>,
    buffer: &wgpu::Buffer,
    planes: &Planes,
    tensors: &[Tensor],
    rows: Range<usize>,
) -> Result<(), GpuError> {
    let threads = thread::available_parallelism().map_or(1, usize::from).min(8);
    let row_bytes = planes.form.row_bytes(planes.chunks);
    // Four rows are whole words in every plane.
    let step = ((4 << 20) / row_bytes[0].max(1)).next_multiple_of(4);
    let steps: Vec<_> =
        rows.clone().step_by(step).map(|first| first..rows.end.min(first + step)).collect();
    for some in steps.chunks(threads) {
        let packed: Vec<[Vec<u8>; 4]> = thread::scope(|scope| {
            let pack = |range: &Range<usize>| {
                let range = range.clone();
                scope.spawn(move || planes.pack(tensors, range))
            };
            let running: Vec<_> = some.iter().map(pack).collect();
            running
                .into_iter()
                .map(|thread| thread.join().expect("packing does not panic"))
                .collect()
        });
        for (range, packed) in some.iter().zip(packed) {
            for ((bytes, start), row) in packed.iter().zip(planes.starts).zip(row_bytes) {
                let at = start + (range.start - rows.start) * row;
                upload.write(buffer, at as u64, bytes)?;
            }
        }
    }
    Ok(())
}

fn check(part: &Part, outputs: usize, inputs: usize) -> Result<(), GpuError> {
    let weights = &part.weights;
    let wrong = |tensor: &Tensor, problem| {
        Err(GpuError::Tensor { name: tensor.name().to_owned(), problem })
    };
    if weights.shape().len() < 2 || weights.cols() != inputs {
        let shape = weights.shape();
        return wrong(
            weights,
            format!("has shape {shape:?}; a matrix of {inputs} inputs is needed"),
        );
    }
    // Places in a matrix are 32-bit numbers in the kernels.
    if weights.rows() > u32::MAX as usize / inputs.div_ceil(CHUNK) / 2 {
        return wrong(weights, "has more weights than the GPU kernels can count".to_owned());
    }
    match &part.bias {
        Some(bias) if bias.elements() != outputs => wrong(
            bias,
            format!("has {} elements, not one for each of {outputs} outputs", bias.elements()),
        ),
        _ => Ok(()),
    }
}

/// The biases of parts side by side, zero where one has none; none if no part has.
fn biases(parts: &[Part]) -> Option<Vec<f32>> {
    parts.iter().any(|part| part.bias.is_some()).then(|| {
        let of = |part: &Part| match &part.bias {
            Some(bias) => bias.to_f32(),
            None => vec![0.0; part.weights.rows()],
        };
        parts.iter().flat_map(of).collect()
    })
}
