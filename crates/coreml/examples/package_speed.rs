//! How fast the interpreter runs each function of a package:
//!
//! `cargo run --release -p baton-coreml --example package_speed -- X.mlpackage`

use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use baton_coreml::Package;
use baton_coreml::interpret::{Interpreter, Precision, Tensor};
use baton_cpu::{Isa, Pool, physical_cores};

/// Calls of which the fastest counts.
const CALLS: usize = 3;

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args().nth(1).ok_or("usage: speed X.mlpackage")?;
    let pool = Arc::new(Pool::new(physical_cores(), Isa::from_env()?)?);
    let package = Package::open(Path::new(&path))?;
    for precision in [Precision::F32, Precision::F16] {
        let interpreter = Interpreter::new(&package, precision, pool.clone())?;
        for (name, function) in &package.model.program.functions {
            let zeros = |(name, ty)| Some((name, Tensor::zeros(ty)?));
            let inputs: Vec<(&str, Tensor)> = function.tensor_inputs().filter_map(zeros).collect();
            let columns = inputs.first().and_then(|(_, x)| x.shape().last().copied()).unwrap_or(1);
            let mut states = interpreter.states(name)?;
            let mut fastest = f64::INFINITY;
            for _ in 0..CALLS {
                let start = Instant::now();
                interpreter.run(name, &inputs, &mut states)?;
                fastest = fastest.min(start.elapsed().as_secs_f64());
            }
            let rate = columns as f64 / fastest;
            println!("{precision:?} {name:20} {:8.1} ms {rate:9.1} columns/s", 1e3 * fastest);
        }
    }
    Ok(())
}
