//! Whether cooperative matrices do what they should: the extension is young, and no renderer in
//! software has it, so that each device is asked once when it is opened.

use std::sync::Arc;

use baton_weights::{DType, Tensor};

use super::{Activations, Matrix, Part, Product, Reading, Tuning, View};
use crate::{Gpu, Use};

const ROWS: usize = 40;
const INPUTS: usize = 96;
const TOKENS: usize = 23;

/// Compares a small product through cooperative matrices with the plain one.
///
/// # Errors
/// What went wrong, as text; none where the device has none.
pub(crate) fn check_cooperative(gpu: &Arc<Gpu>) -> Result<(), String> {
    if gpu.features().cooperative.is_none() {
        return Ok(());
    }
    let error = |e: &dyn std::fmt::Display| e.to_string();
    let wave = |n: usize, step: f32| (0..n).map(|i| (i as f32 * step).sin()).collect::<Vec<f32>>();
    let weights = wave(ROWS * INPUTS, 0.7);
    let weights = Tensor::quantize("a test", DType::Q8_0, &[ROWS, INPUTS], &weights);
    let part = Part { weights: weights.map_err(|e| error(&e))?, bias: None };
    let run = || {
        let matrix = Arc::new(Matrix::upload(gpu, &[part])?);
        let x = View::whole(&gpu.buffer_of("a test", &wave(TOKENS * INPUTS, 0.3))?);
        let bytes = Activations::scratch_bytes(gpu, INPUTS, TOKENS);
        let scratch = View::whole(&gpu.buffer("a test", bytes, Use::Storage)?);
        let x = Arc::new(Activations::new(gpu, x, INPUTS, INPUTS, scratch)?);
        let y = gpu.buffer("a test", (4 * TOKENS * ROWS) as u64, Use::Storage)?;
        let mut product = Product::new(gpu, &matrix, &x, View::whole(&y), ROWS)?;
        let mut results = |tiled| {
            product.tune(Tuning { tiled, ..Default::default() })?;
            let reading = product.reading(TOKENS);
            let mut outcome = Ok(());
            gpu.submit("a test", |pass| {
                x.encode(pass, TOKENS, reading);
                outcome = product.encode(pass, TOKENS, false);
            })?;
            outcome?;
            Ok((reading, gpu.read::<f32>(&y, 0..TOKENS * ROWS)?))
        };
        Ok::<_, crate::GpuError>((results(true)?, results(false)?))
    };
    let ((_, plain), (reading, found)) = run().map_err(|e| error(&e))?;
    let worst = plain.iter().zip(&found).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    let is_finite = found.iter().all(|v| v.is_finite());
    // Sums of 96 products of numbers below 1, of which each factor is rounded to 11 bits.
    if reading == Reading::Halves && is_finite && worst < 0.02 {
        Ok(())
    } else {
        Err(format!("a product is off by {worst}"))
    }
}
