//! Products of a plan.

use std::sync::Arc;

use baton_weights::Tensor;

use super::Shared;
use crate::matmul::{Fold, Folded, Integers};
use crate::memory::Buffers;
use crate::plan::{self, Height};
use crate::step::Sizes;
use crate::{Activations, Gpu, GpuError, Matrix, Part, Product, Reading, View};

/// A matrix product, and the form of its input that it reads.
#[derive(Debug)]
pub(super) struct Multiply {
    x: Arc<Activations>,
    product: Product,
    height: Height,
    accumulate: bool,
    /// Whether the step before stores integers, where [`Sizes::integers`] says so.
    pub(super) stored: bool,
    /// What is folded into it, there too.
    folded: Folded,
}

impl Multiply {
    pub(super) fn new(
        gpu: &Arc<Gpu>,
        buffers: &Buffers,
        step: &plan::Product,
        height: Height,
        shared: &mut Shared,
    ) -> Result<Multiply, GpuError> {
        let matrix = match &step.parts[..] {
            [(weights, None)] => shared.matrix(gpu, weights)?,
            parts => {
                let part = |(weights, bias): &(Tensor, Option<Tensor>)| Part {
                    weights: weights.clone(),
                    bias: bias.clone(),
                };
                let parts: Vec<Part> = parts.iter().map(part).collect();
                Arc::new(Matrix::upload(gpu, &parts)?)
            }
        };
        let x = shared.activations(gpu, buffers, &step.x)?;
        let y = View::whole(buffers.of(&step.out));
        let product = Product::new(gpu, &matrix, &x, y, step.out.stride)?;
        let (accumulate, folded) = (step.accumulate, Folded::default());
        Ok(Multiply { x, product, height, accumulate, stored: false, folded })
    }

    /// Where it reads integers of few rows, if it does.
    pub(super) fn integers(&self) -> Option<Integers> {
        (self.product.reading(1) == Reading::Integers).then(|| self.x.integers())
    }

    /// Its input, if all that it reads of few rows are integers.
    pub(super) fn integers_alone(&self) -> Option<&Arc<Activations>> {
        self.product.matrix().is_integer().then_some(&self.x)
    }

    pub(super) fn matrix(&self) -> &Matrix {
        self.product.matrix()
    }

    /// Makes it do the work of the step behind it.
    pub(super) fn fold_after(&mut self, fold: Fold) {
        self.product.set_fold(fold);
        self.folded.after = true;
    }

    /// Makes it finish an RMS norm that the product before has begun.
    pub(super) fn fold_norm(&mut self, eps: f32) {
        self.folded.norm = Some(eps);
    }

    pub(super) fn encode(
        &mut self,
        pass: &mut wgpu::ComputePass<'_>,
        sizes: &Sizes,
    ) -> Result<(), GpuError> {
        let rows = sizes.rows(self.height) as usize;
        if rows == 0 {
            return Ok(());
        }
        let few = sizes.integers(self.height);
        if !self.stored || !few {
            self.x.encode(pass, rows, self.product.reading(rows));
        }
        let folded = if few { self.folded } else { Folded::default() };
        self.product.encode_folded(pass, rows, self.accumulate, folded)
    }
}
