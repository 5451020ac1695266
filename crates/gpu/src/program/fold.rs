//! Connects products with the steps around them, for passes of few rows: what stores integers for the
//! product behind it, and what of other steps a product does itself.

use super::Run;
use super::multiply::Multiply;
use crate::matmul::Fold;
use crate::plan::{Foldable, Plan, Work, foldable};
use crate::{Gpu, GpuError};

/// Connects the runs of a plan's steps.
///
/// # Errors
/// If memory is short.
pub(super) fn connect(
    gpu: &Gpu,
    plan: &Plan,
    steps: &mut [(Vec<Run>, usize)],
) -> Result<(), GpuError> {
    let mut before: Option<&Work> = None;
    for ((runs, _), step) in steps.iter_mut().zip(&plan.steps) {
        let is_stored = |x| before.is_some_and(|before| before.may_store(x));
        match (&mut runs[..], &step.work) {
            ([Run::Product(multiply)], Work::Product(step)) => multiply.stored = is_stored(&step.x),
            ([Run::Mix(mix)], Work::Moe(step)) => mix.stored = is_stored(&step.x),
            _ => {}
        }
        // What puts rows back stores the same as what made them.
        if !step.work.picks() {
            before = Some(&step.work);
        }
    }
    for at in 1..plan.steps.len().saturating_sub(1) {
        if !plan.steps[at].may_fold {
            continue;
        }
        let work = foldable(&plan.steps[at - 1], &plan.steps[at]);
        if let (Some(work), [(before, _), (own, _), (next, _), ..]) = (work, &mut steps[at - 1..])
            && let ([Run::Product(before)], [Run::Launch(launch)], [Run::Product(next)]) =
                (&mut before[..], &mut own[..], &mut next[..])
            && fold(gpu, work, before, next)?
        {
            launch.fold(plan.steps[at].height);
        }
    }
    Ok(())
}

/// Gives the product before a step that step's work, if it can do it; says whether.
fn fold(
    gpu: &Gpu,
    work: Foldable<'_>,
    before: &mut Multiply,
    next: &mut Multiply,
) -> Result<bool, GpuError> {
    let Some(input) = next.integers_alone() else { return Ok(false) };
    let folded = match work {
        Foldable::Norm(gains, _) => Fold::norm(gpu, before.matrix(), input, gains)?,
        Foldable::Gate(words) => Fold::gate(gpu, before.matrix(), input, words),
    };
    let Some(folded) = folded else { return Ok(false) };
    before.fold_after(folded);
    if let Foldable::Norm(_, eps) = work {
        next.fold_norm(eps);
    }
    Ok(true)
}
