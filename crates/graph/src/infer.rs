//! Type and shape inference: what a node yields, or why its operands do not fit.

use crate::{Dim, Elem, GraphError, Lookup, Moe, Op, Scope, StateSpec, Type, WeightId, WeightSpec};

/// The type of `op` applied to `inputs`.
pub(crate) fn result_type(
    node: &str,
    op: &Op,
    inputs: &[&Type],
    weights: &[WeightSpec],
    states: &[StateSpec],
) -> Result<Type, GraphError> {
    let check = Check { node, op, inputs, weights };
    match op {
        Op::Embedding { table, lookup, .. } => {
            check.arity(&[1])?;
            if inputs[0].elem != Elem::Token {
                return Err(check.error("wants token ids"));
            }
            let shape = &weights[table.index()].shape;
            let &[rows, hidden] = &shape[..] else {
                return Err(check.error(format!("wants a matrix, the table is {shape:?}")));
            };
            if let Lookup::Row(row) = lookup
                && *row >= rows
            {
                return Err(check.error(format!("takes row {row} of {rows}")));
            }
            Ok(Type::real(inputs[0].rows(), hidden))
        }
        Op::RmsNorm(norm) => {
            let x = check.unary()?;
            if norm.group == 0 || x.features() % norm.group != 0 {
                return Err(check.error(format!("groups of {} in {x}", norm.group)));
            }
            check.weight_shape(norm.weight, &[norm.group])?;
            Ok(x.clone())
        }
        Op::LayerNorm { weight, bias, .. } => {
            let x = check.unary()?;
            check.weight_shape(Some(*weight), &[x.features()])?;
            check.weight_shape(*bias, &[x.features()])?;
            Ok(x.clone())
        }
        Op::Linear(linear) => {
            let x = check.unary()?;
            let mut out = 0usize;
            for part in &linear.parts {
                let shape = &weights[part.weight.index()].shape;
                match shape[..] {
                    [rows, cols] if cols == x.features() => {
                        check.weight_shape(part.bias, &[rows])?;
                        out += rows;
                    }
                    _ => {
                        let name = &weights[part.weight.index()].name;
                        return Err(check.error(format!("matrix {name} {shape:?} on {x}")));
                    }
                }
            }
            if out == 0 {
                return Err(check.error("has no output"));
            }
            Ok(Type::real(x.rows(), out))
        }
        Op::Slice { offset, len } => {
            let x = check.unary()?;
            match offset.checked_add(*len) {
                Some(end) if *len > 0 && end <= x.features() => Ok(Type::real(x.rows(), *len)),
                _ => Err(check.error(format!("takes {len} features from {offset} of {x}"))),
            }
        }
        Op::Rope(rope) => {
            let x = check.unary()?;
            let whole_heads = rope.head_dim > 0 && x.features() % rope.head_dim == 0;
            if !whole_heads || rope.inv_freq.len() * 2 > rope.head_dim || rope.inv_freq.is_empty() {
                let problem = format!(
                    "rotates {} features of heads of {} in {x}",
                    rope.inv_freq.len() * 2,
                    rope.head_dim
                );
                return Err(check.error(problem));
            }
            Ok(x.clone())
        }
        Op::Attention(attention) => {
            check.arity(&[3])?;
            let (heads, kv_heads, dim) = (attention.heads, attention.kv_heads, attention.head_dim);
            if kv_heads == 0 || dim == 0 || heads == 0 || heads % kv_heads != 0 {
                let problem = format!("{heads} heads of {dim} over {kv_heads} key-value heads");
                return Err(check.error(problem));
            }
            if attention.window == Some(0) {
                return Err(check.error("has a window of 0"));
            }
            for (input, heads) in inputs.iter().zip([heads, kv_heads, kv_heads]) {
                if **input != Type::real(Dim::Tokens, heads * dim) {
                    return Err(check.error(format!("{heads} heads of {dim} from {input}")));
                }
            }
            check.weight_shape(attention.sinks, &[heads])?;
            if let Scope::Past(state) = attention.scope {
                let window = attention.window;
                let wanted = StateSpec::Kv { kv_heads, head_dim: dim, window };
                if states.get(state.index()) != Some(&wanted) {
                    return Err(check.error("its state is of another shape"));
                }
            }
            Ok(inputs[0].clone())
        }
        Op::Add | Op::Mul => {
            check.arity(&[2])?;
            if inputs[0] != inputs[1] || inputs[0].elem != Elem::Real {
                return Err(check.error(format!("{} and {}", inputs[0], inputs[1])));
            }
            Ok(inputs[0].clone())
        }
        Op::Scale(_) | Op::Activation(_) | Op::Softcap(_) => check.unary().cloned(),
        Op::GatedActivation(_) => {
            check.arity(&[1, 2])?;
            match inputs {
                [x] if x.features() % 2 == 0 && x.features() > 0 => {
                    Ok(Type::real(x.rows(), x.features() / 2))
                }
                [gate, up] if gate == up && gate.features() > 0 => Ok((*gate).clone()),
                _ => Err(check.error("gate and up differ")),
            }
        }
        Op::Moe(moe) => check.moe(moe),
        Op::SelectRows | Op::Pool(_) => {
            let x = check.unary()?;
            if x.rows() != Dim::Tokens {
                return Err(check.error(format!("rows of {x} are selected already")));
            }
            Ok(Type::real(Dim::Rows, x.features()))
        }
    }
}

struct Check<'a> {
    node: &'a str,
    op: &'a Op,
    inputs: &'a [&'a Type],
    weights: &'a [WeightSpec],
}

impl<'a> Check<'a> {
    fn error(&self, problem: impl std::fmt::Display) -> GraphError {
        GraphError::new(self.node, format!("{}: {problem}", self.op.name()))
    }

    fn arity(&self, allowed: &[usize]) -> Result<(), GraphError> {
        if allowed.contains(&self.inputs.len()) {
            return Ok(());
        }
        Err(self.error(format!("has {} inputs", self.inputs.len())))
    }

    fn unary(&self) -> Result<&'a Type, GraphError> {
        self.arity(&[1])?;
        let x = self.inputs[0];
        if x.elem != Elem::Real || x.features() == 0 {
            return Err(self.error(format!("does not work on {x}")));
        }
        Ok(x)
    }

    fn weight_shape(&self, id: Option<WeightId>, shape: &[usize]) -> Result<(), GraphError> {
        match id.map(|id| &self.weights[id.index()]) {
            Some(weight) if weight.shape != shape => {
                let (name, found) = (&weight.name, &weight.shape);
                Err(self.error(format!("weight {name} is {found:?}, wanted {shape:?}")))
            }
            _ => Ok(()),
        }
    }

    fn moe(&self, moe: &Moe) -> Result<Type, GraphError> {
        let x = self.unary()?;
        let (experts, ffn, hidden) = (moe.experts, moe.ffn, x.features());
        if moe.top_k == 0 || moe.top_k > experts {
            return Err(self.error(format!("uses {} of {experts} experts", moe.top_k)));
        }
        self.weight_shape(Some(moe.router), &[experts, hidden])?;
        self.weight_shape(moe.router_bias, &[experts])?;
        self.weight_shape(Some(moe.gate), &[experts, ffn, hidden])?;
        self.weight_shape(Some(moe.up), &[experts, ffn, hidden])?;
        self.weight_shape(Some(moe.down), &[experts, hidden, ffn])?;
        if let Some(biases) = moe.biases {
            self.weight_shape(Some(biases.gate), &[experts, ffn])?;
            self.weight_shape(Some(biases.up), &[experts, ffn])?;
            self.weight_shape(Some(biases.down), &[experts, hidden])?;
        }
        Ok(x.clone())
    }
}
