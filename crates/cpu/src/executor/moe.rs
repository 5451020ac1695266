//! Mixture of experts: tokens are grouped by expert, so that each expert's matrices are read once.

mod route;

use baton_graph::{ExecError, Limits};

use super::rows::each_chunk;
use crate::arena::Slots;
use crate::disjoint::Disjoint;
use crate::kernels::pointwise::gated;
use crate::matmul::{Epilogue, Expert, Matrix, matmul, matmul_experts};
use crate::pages::Floats;
use crate::plan::{MoeStep, Plan, Work, zeroed};
use crate::pool::Pool;
use crate::quant::{QuantizedRows, Rounding, Rows};
use route::{Choice, Groups, choose};

/// Buffers for the largest mixture of a plan.
#[derive(Debug, Default)]
pub(super) struct MoeBuffers {
    /// Router logits, `(tokens, experts)`.
    logits: Floats,
    /// Gate and up of each token's experts, `(uses, 2 * ffn)`, grouped by expert as all that follow.
    gate_up: Floats,
    /// Their product, `(uses, ffn)`.
    inner: Floats,
    /// The experts' results, `(uses, hidden)`.
    down: Floats,
    /// Experts of each token, `(tokens, top_k)`.
    choices: Vec<Choice>,
    groups: Groups,
    quantized: QuantizedRows,
}

impl MoeBuffers {
    pub(super) fn new(plan: &Plan, limits: &Limits) -> Result<Self, ExecError> {
        let mut buffers = MoeBuffers::default();
        let tokens = limits.batch_tokens;
        let mut grow = |buffer: fn(&mut MoeBuffers) -> &mut Floats, width: usize| {
            let buffer = buffer(&mut buffers);
            if width.saturating_mul(tokens) > buffer.len() {
                *buffer = zeroed(width, tokens, limits)?;
            }
            Ok::<_, ExecError>(())
        };
        for step in &plan.steps {
            if let Work::Moe(moe) = &step.work {
                let uses = moe.spec.top_k;
                grow(|b| &mut b.logits, moe.spec.experts)?;
                grow(|b| &mut b.gate_up, 2 * uses * moe.spec.ffn)?;
                grow(|b| &mut b.inner, uses * moe.spec.ffn)?;
                grow(|b| &mut b.down, uses * moe.out.cols)?;
            }
        }
        Ok(buffers)
    }

    pub(super) fn bytes(&self) -> usize {
        let floats = [&self.logits, &self.gate_up, &self.inner, &self.down];
        floats.map(|buffer| 4 * buffer.len()).iter().sum()
    }

    /// Runs a step on `rows` rows.
    pub(super) fn run(
        &mut self,
        pool: &Pool,
        step: &MoeStep,
        rows: usize,
        slots: &Slots<'_>,
        quantized: &mut QuantizedRows,
    ) {
        if rows == 0 {
            return;
        }
        let MoeBuffers { logits, gate_up, inner, down, choices, groups, .. } = self;
        let (ffn, hidden) = (step.spec.ffn, step.out.cols);
        // SAFETY: no other step runs, and nobody writes to the input during this one.
        let x = unsafe { slots.read(&step.x, rows) };
        let x = match step.quantizes_input() {
            true => quantized.quantize(pool, x, step.x.cols, Rounding::Coarse),
            false => Rows::floats(x, step.x.cols),
        };
        let logits = &mut logits[..rows * step.spec.experts];
        let bias = (!step.router_bias.is_empty()).then_some(&step.router_bias[..]);
        let epilogue = Epilogue { bias, accumulate: false };
        matmul(pool, &x, &[&step.router], logits, step.spec.experts, epilogue);
        choices.resize(rows * step.spec.top_k, Choice::default());
        choose(pool, &step.spec, logits, choices);
        groups.sort(step.spec.experts, step.spec.top_k, choices);

        let uses = choices.len();
        let gate_up = &mut gate_up[..uses * 2 * ffn];
        experts(pool, &x, &step.gate, groups, gate_up, 2 * ffn);
        experts(pool, &x, &step.up, groups, &mut gate_up[ffn..], 2 * ffn);
        let inner = &mut inner[..uses * ffn];
        join(pool, step, groups, gate_up, inner);
        let inner = match step.quantizes_inner() {
            true => self.quantized.quantize(pool, inner, ffn, Rounding::Coarse),
            false => Rows::floats(inner, ffn),
        };
        let down = &mut down[..uses * hidden];
        let expert = |e: usize| Expert { matrix: &step.down[e], rows: groups.uses_of(e) };
        let all: Vec<Expert<'_>> = groups.used().map(expert).collect();
        matmul_experts(pool, &inner, &all, down, hidden, Epilogue::default());

        each_chunk(pool, rows, step.spec.top_k * hidden, |chunk| {
            for row in chunk {
                // SAFETY: a row is in one task's chunk only.
                let out = unsafe { slots.row(&step.out, row) };
                out.fill(0.0);
                for at in row * step.spec.top_k..(row + 1) * step.spec.top_k {
                    let Choice { expert, weight } = choices[at];
                    let result = &down[groups.place(at) * hidden..][..hidden];
                    out.iter_mut().zip(result).for_each(|(out, y)| *out += weight * y);
                    let bias = part(&step.down_bias, expert, hidden);
                    out.iter_mut().zip(bias).for_each(|(out, b)| *out += weight * b);
                }
            }
        });
    }
}

/// Multiplies each expert's tokens with its matrix; results are grouped by expert.
fn experts(
    pool: &Pool,
    x: &Rows<'_>,
    matrices: &[Matrix],
    groups: &Groups,
    out: &mut [f32],
    stride: usize,
) {
    let expert = |e: usize| Expert { matrix: &matrices[e], rows: groups.tokens_of(e) };
    let all: Vec<Expert<'_>> = groups.used().map(expert).collect();
    matmul_experts(pool, x, &all, out, stride, Epilogue::default());
}

/// Adds the offsets of gate and up and joins the two.
fn join(pool: &Pool, step: &MoeStep, groups: &Groups, gate_up: &mut [f32], inner: &mut [f32]) {
    let (ffn, uses) = (step.spec.ffn, inner.len() / step.spec.ffn);
    let (gate_up, inner) = (Disjoint::new(gate_up), Disjoint::new(inner));
    each_chunk(pool, uses, 3 * ffn, |chunk| {
        for at in chunk {
            // SAFETY: a row is in one task's chunk only.
            let (row, out) = unsafe {
                (
                    gate_up.part(at * 2 * ffn..(at + 1) * 2 * ffn),
                    inner.part(at * ffn..(at + 1) * ffn),
                )
            };
            let (gate, up) = row.split_at_mut(ffn);
            let expert = groups.expert_at(at);
            let gate_bias = part(&step.gate_bias, expert, ffn);
            let up_bias = part(&step.up_bias, expert, ffn);
            gate.iter_mut().zip(gate_bias).for_each(|(gate, bias)| *gate += bias);
            up.iter_mut().zip(up_bias).for_each(|(up, bias)| *up += bias);
            gated(pool.isa(), step.spec.activation, Some(gate), up, out);
        }
    });
}

/// One expert's offsets; empty if there are none.
fn part(all: &[f32], expert: u32, len: usize) -> &[f32] {
    match all.is_empty() {
        true => all,
        false => &all[expert as usize * len..][..len],
    }
}
