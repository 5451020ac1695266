//! How fast memory can be read and copied at all.

use std::time::Instant;

use baton_gpu::{Access, Kernel, Shader, Use, read_rate};

use crate::Outcome;
use crate::bench::Bench;

const COPY: &str = "
@group(0) @binding(0) var<storage, read> input: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read_write> output: array<vec4<u32>>;

@compute @workgroup_size(256)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    for (var i = id.x; i < LENGTH; i += LANES) {
        output[i] = input[i];
    }
}
";

/// Prints both rates in GB/s, and returns that of copying, which counts what is read and written.
pub fn measure(bench: &Bench) -> Outcome<f64> {
    let limit = bench.gpu.limits().max_storage_buffer_binding_size;
    let bytes = if bench.quick { 64 << 20 } else { limit.min(1 << 30) };
    println!("read: {:.0} GB/s", read_rate(&bench.gpu, bytes)? / 1e9);
    let from = bench.gpu.buffer("from", bytes, Use::Storage)?;
    let to = bench.gpu.buffer("to", bytes, Use::Storage)?;
    let mut best = f64::INFINITY;
    for workgroups in [1056u32, 2112, 8448, 16_384] {
        let constants =
            [("LENGTH", ((bytes / 16) as u32).into()), ("LANES", (workgroups * 256).into())];
        let kernel = bench.gpu.kernel(&Shader {
            name: "copy",
            source: COPY.into(),
            constants: &constants,
            bindings: &[Access::Read, Access::Write],
            ..Default::default()
        })?;
        best = best.min(time(bench, &kernel, [&from, &to], workgroups)?);
    }
    let rate = 2.0 * bytes as f64 / best / 1e9;
    println!("copy: {rate:.0} GB/s");
    Ok(rate)
}

fn time(
    bench: &Bench,
    kernel: &Kernel,
    buffers: [&wgpu::Buffer; 2],
    workgroups: u32,
) -> Outcome<f64> {
    let group = kernel.bind(&bench.gpu, &buffers.map(|b| b.as_entire_buffer_binding()));
    let mut best = f64::INFINITY;
    let runs = if bench.quick { 1 } else { 20 };
    for _ in 0..4 {
        let start = Instant::now();
        bench.gpu.submit("a pass over memory", |pass| {
            for _ in 0..runs {
                kernel.dispatch(pass, &group, &[], [workgroups, 1, 1]);
            }
        })?;
        bench.gpu.wait()?;
        best = best.min(start.elapsed().as_secs_f64() / f64::from(runs));
    }
    Ok(best)
}
