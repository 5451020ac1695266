//! Mixture of experts.

use super::linear::product;
use super::{Interpreter, Matrix, pointwise};
use crate::{ExecError, Moe, Routing, WeightId};

impl Interpreter {
    pub(super) fn moe(&self, moe: &Moe, x: &Matrix) -> Result<Matrix, ExecError> {
        let router = self.weights.tensor(self.weight_name(moe.router))?;
        let bias = moe.router_bias.map(|b| self.weight(b)).transpose()?;
        let logits = product(x, router, bias.as_deref());
        let mut users: Vec<Vec<(usize, f32)>> = vec![Vec::new(); moe.experts];
        for row in 0..x.rows() {
            for (expert, weight) in route(moe.routing, moe.top_k, logits.row(row)) {
                users[expert].push((row, weight));
            }
        }
        let mut out = Matrix::zeros(x.rows(), x.cols);
        for (expert, users) in users.iter().enumerate().filter(|(_, users)| !users.is_empty()) {
            let rows: Vec<usize> = users.iter().map(|&(row, _)| row).collect();
            let result = self.expert(moe, expert, &pointwise::select(x, &rows))?;
            for (i, &(row, weight)) in users.iter().enumerate() {
                let sum = out.row_mut(row).iter_mut().zip(result.row(i));
                sum.for_each(|(o, y)| *o += weight * y);
            }
        }
        Ok(out)
    }

    fn expert(&self, moe: &Moe, expert: usize, x: &Matrix) -> Result<Matrix, ExecError> {
        let linear = |weight: WeightId, bias: Option<WeightId>, x: &Matrix| {
            let tensor = self.weights.get(self.weight_name(weight))?.index(expert);
            let bias = bias.map(|b| self.weight(b)).transpose()?;
            let rows = tensor.rows();
            let bias = bias.as_ref().map(|b| &b[expert * rows..(expert + 1) * rows]);
            Ok::<_, ExecError>(product(x, &tensor, bias))
        };
        let gate = linear(moe.gate, moe.biases.map(|b| b.gate), x)?;
        let up = linear(moe.up, moe.biases.map(|b| b.up), x)?;
        let inner = pointwise::zip(&gate, &up, |g, u| pointwise::gate(moe.activation, g, u));
        linear(moe.down, moe.biases.map(|b| b.down), &inner)
    }
}

/// The chosen experts and their weights. Of equal logits the lower index wins.
fn route(routing: Routing, top_k: usize, logits: &[f32]) -> Vec<(usize, f32)> {
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]).then(a.cmp(&b)));
    let chosen = &order[..top_k];
    let highest = logits[order[0]];
    let weight = |expert: usize| (logits[expert] - highest).exp();
    let total: f32 = match routing {
        Routing::SoftmaxThenTopK { normalize: false } => order.iter().map(|&e| weight(e)).sum(),
        _ => chosen.iter().map(|&e| weight(e)).sum(),
    };
    chosen.iter().map(|&expert| (expert, weight(expert) / total)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routing_rules_differ_in_what_they_sum_to() {
        let logits = [0.0, 2.0, 1.0, 2.0];
        let sum = |routing| route(routing, 2, &logits).iter().map(|(_, w)| w).sum::<f32>();
        assert!((sum(Routing::TopKThenSoftmax) - 1.0).abs() < 1e-6);
        assert!((sum(Routing::SoftmaxThenTopK { normalize: true }) - 1.0).abs() < 1e-6);
        assert!(sum(Routing::SoftmaxThenTopK { normalize: false }) < 0.9);
        let chosen = route(Routing::TopKThenSoftmax, 2, &logits);
        assert_eq!([chosen[0].0, chosen[1].0], [1, 3]);
    }
}
