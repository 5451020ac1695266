//! Finds steps whose work the product before can do where tokens are few, see `matmul::fold`.

use super::{Function, NormStep, Plan, PointStep, Product, Step, View, Work};

/// What a product may do of the step behind it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Foldable<'a> {
    /// An RMS norm with these gains, or none, and what is added to the mean square.
    Norm(&'a [f32], f32),
    /// A gate of `shaders/activate.wgsl` over the halves of what the product gives, and its constants'
    /// bits.
    Gate([u32; 3]),
}

impl Plan {
    /// Marks the steps that the product before may do the work of: nothing reads their results but the
    /// product behind them.
    pub(super) fn mark_foldable(&mut self) {
        for at in 1..self.steps.len().saturating_sub(1) {
            let (Work::Norm(NormStep { out, .. }) | Work::Point(PointStep { out, .. })) =
                &self.steps[at].work
            else {
                continue;
            };
            let out = *out;
            let reads = |step: &Step| matches!(&step.work, Work::Product(next) if next.x == out);
            let in_a_row = foldable(&self.steps[at - 1], &self.steps[at]).is_some()
                && reads(&self.steps[at + 1])
                && self.steps[at + 1].height == self.steps[at].height;
            let mut readers = usize::from(self.result.slot == out.slot);
            for step in &mut self.steps {
                step.views(|view, _| readers += usize::from(view.slot == out.slot));
            }
            // The step itself and the product.
            self.steps[at].may_fold = in_a_row && readers == 2;
        }
    }
}

/// What a step does, if the product before can do that.
pub(crate) fn foldable<'a>(before: &Step, step: &'a Step) -> Option<Foldable<'a>> {
    let Work::Product(Product { out: from, .. }) = &before.work else { return None };
    if before.height != step.height || from.offset != 0 || from.cols != from.stride {
        return None;
    }
    match &step.work {
        Work::Norm(NormStep {
            x, residual: None, group, centred: false, eps, gain, bias, ..
        }) if x == from && *group == from.cols && bias.is_empty() => {
            Some(Foldable::Norm(gain, *eps))
        }
        Work::Point(PointStep { f, a, b: Some(b), gather: false, .. }) => {
            let cols = from.cols / 2;
            let half = |offset| View { offset, cols, ..*from };
            let Function { x, y, .. } = *f;
            let gate = (*a == half(0) && *b == half(cols)).then(|| f.gate())??;
            Some(Foldable::Gate([gate, x.to_bits(), y.to_bits()]))
        }
        _ => None,
    }
}
