//! What the host's side of a step costs: submitting, waiting, writing and reading.

use std::time::Instant;

use baton_gpu::Use;

use crate::Outcome;
use crate::bench::Bench;

/// Prints the shortest of some runs of each.
pub fn measure(bench: &mut Bench) -> Outcome<()> {
    let gpu = &bench.gpu;
    let small = gpu.buffer("small", 4096, Use::Storage)?;
    let logits = gpu.buffer("logits", 4 * 128_256, Use::Storage)?;
    let staging = gpu.buffer("staging", 4 * 128_256, Use::Readback)?;
    let bytes = vec![1u8; 4096];
    let report = |what: &str, run: &mut dyn FnMut() -> Outcome<()>| -> Outcome<()> {
        let mut best = f64::INFINITY;
        for _ in 0..20 {
            let start = Instant::now();
            run()?;
            best = best.min(start.elapsed().as_secs_f64());
        }
        println!("{what}: {:.0} µs", best * 1e6);
        Ok(())
    };
    report("an empty pass and waiting", &mut || {
        gpu.submit("nothing", |_| {})?;
        Ok(gpu.wait()?)
    })?;
    report("writing 4 KiB, submitting and waiting", &mut || {
        gpu.queue().write_buffer(&small, 0, &bytes);
        gpu.submit("nothing", |_| {})?;
        Ok(gpu.wait()?)
    })?;
    report("a row of logits through new memory", &mut || {
        gpu.read::<f32>(&logits, 0..128_256)?;
        Ok(())
    })?;
    report("a row of logits through memory that is kept", &mut || {
        gpu.guard("a copy", || {
            let mut encoder = gpu.device().create_command_encoder(&Default::default());
            encoder.copy_buffer_to_buffer(&logits, 0, &staging, 0, staging.size());
            gpu.queue().submit([encoder.finish()])
        })?;
        gpu.map(&staging)?;
        Ok(())
    })?;
    report("128 bytes through new memory", &mut || {
        gpu.read::<f32>(&logits, 0..32)?;
        Ok(())
    })
}
