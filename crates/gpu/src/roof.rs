//! The device's own limits: how fast memory is read, and how many operations large products do. It takes a
//! tenth of a second, kernels that no model has compiled yet left out.

use std::sync::Arc;
use std::time::{Duration, Instant};

use baton_graph::Roof;
use baton_weights::{DType, Tensor};

use crate::{Access, Activations, Gpu, GpuError, Matrix, Part, Product, Shader, Use, View};

/// Bytes that are read: several times what caches hold.
const READ_BYTES: u64 = 256 << 20;
/// Outputs, inputs and tokens of the product.
const PRODUCT: [usize; 3] = [4096, 2048, 512];
/// Work is repeated until it takes about so long: clocks go up only then, and waiting costs nothing
/// beside it.
const TIME: Duration = Duration::from_millis(20);
/// Workgroups that read.
const WORKGROUPS: u32 = 8448;

const READ: &str = include_str!("shaders/read.wgsl");

/// Measures both.
///
/// # Errors
/// If memory is short or the device is lost.
pub(crate) fn measure(gpu: &Arc<Gpu>) -> Result<Roof, GpuError> {
    let bytes = READ_BYTES.min(gpu.limits().max_storage_buffer_binding_size);
    let read = read_rate(gpu, bytes)?;
    Ok(Roof { read, ops: Some(product_rate(gpu)?) })
}

/// Bytes per second that a kernel reads from a buffer of so many bytes, at most as many as can be bound.
///
/// # Errors
/// If memory is short or the device is lost.
pub fn read_rate(gpu: &Gpu, bytes: u64) -> Result<f64, GpuError> {
    let from = gpu.buffer("what is read", bytes, Use::Storage)?;
    let lanes = WORKGROUPS * 256;
    let sums = gpu.buffer("sums", 4 * u64::from(lanes), Use::Storage)?;
    let kernel = gpu.kernel(&Shader {
        name: "read",
        source: READ.into(),
        constants: &[("LENGTH", ((bytes / 16) as u32).into()), ("LANES", lanes.into())],
        bindings: &[Access::Read, Access::Write],
        ..Shader::default()
    })?;
    let buffers = [&from, &sums].map(|buffer| buffer.as_entire_buffer_binding());
    let group = gpu.guard("reading", || kernel.bind(gpu, &buffers))?;
    let seconds = time(gpu, |pass| {
        kernel.dispatch(pass, &group, &[], [WORKGROUPS, 1, 1]);
        Ok(())
    })?;
    Ok((bytes / 16 * 16) as f64 / seconds)
}

/// Operations per second of a product with many tokens.
fn product_rate(gpu: &Arc<Gpu>) -> Result<f64, GpuError> {
    let [outputs, inputs, tokens] = PRODUCT;
    let shape = [outputs, inputs];
    let blocks = outputs * inputs / DType::Q8_0.block_len();
    // The scale is 1, and so are most weights.
    let mut block = vec![1; DType::Q8_0.block_bytes()];
    (block[0], block[1]) = (0x00, 0x3c);
    let weights = Tensor::new("a product", DType::Q8_0, &shape, block.repeat(blocks).into());
    let weights = weights.map_err(|problem| GpuError::Tensor {
        name: "a product".to_owned(),
        problem: problem.to_string(),
    })?;
    let matrix = Arc::new(Matrix::upload(gpu, &[Part { weights, bias: None }])?);
    let new =
        |bytes| Ok::<_, GpuError>(View::whole(&gpu.buffer("a product", bytes, Use::Storage)?));
    let x = new(4 * (tokens * inputs) as u64)?;
    let scratch = new(Activations::scratch_bytes(gpu, inputs, tokens))?;
    let x = Arc::new(Activations::new(gpu, x, inputs, inputs, scratch)?);
    let y = new(4 * (tokens * outputs) as u64)?;
    let mut product = Product::new(gpu, &matrix, &x, y, outputs)?;
    let reading = product.reading(tokens);
    gpu.submit("a product", |pass| x.encode(pass, tokens, reading))?;
    let seconds = time(gpu, |pass| product.encode(pass, tokens, false))?;
    Ok(2.0 * (outputs * inputs * tokens) as f64 / seconds)
}

/// Seconds that work takes on the device.
fn time(
    gpu: &Gpu,
    mut work: impl FnMut(&mut wgpu::ComputePass<'_>) -> Result<(), GpuError>,
) -> Result<f64, GpuError> {
    let mut run = |times: u32| {
        let start = Instant::now();
        let mut outcome = Ok(());
        gpu.submit("a measurement", |pass| {
            outcome = (0..times).try_for_each(|_| work(pass));
        })?;
        outcome?;
        gpu.wait()?;
        Ok::<_, GpuError>(start.elapsed().as_secs_f64() / f64::from(times))
    };
    // The first time memory is filled and kernels are compiled.
    run(1)?;
    let once = run(1)?;
    let times = (TIME.as_secs_f64() / once).clamp(1.0, 1000.0) as u32;
    let first = run(times)?;
    Ok(once.min(first).min(if times > 1 { run(times)? } else { first }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::gpu;

    #[test]
    fn rates_are_those_of_a_machine() {
        let gpu = gpu(true);
        // A software renderer would take seconds for all of it.
        let read = read_rate(&gpu, 1 << 20).unwrap();
        assert!((1e7..1e14).contains(&read), "{read} bytes per second");
    }
}
