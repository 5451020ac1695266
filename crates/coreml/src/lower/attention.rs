//! Attention, decomposed into products and a softmax.

use std::io::{Seek, Write};

use baton_graph::{Attention, Scope};

use super::function::{FunctionLowering, Kind};
use super::{Anatomy, unsupported};
use crate::Result;
use crate::mil::{Arg, Value, Var};

/// What the names of scores to which a mask was added end in.
pub(crate) const MASKED: &str = "_masked";

/// What the position behind the new token is kept as among the inputs.
const NEXT: &str = "next position";

impl<W: Write + Seek> FunctionLowering<'_, '_, '_, W> {
    /// Each query head attends over the keys of its group. The queries of a group are stacked, so that
    /// keys and values are not repeated.
    pub(super) fn attention(
        &mut self,
        name: &str,
        attention: &Attention,
        [q, k, v]: [&Var; 3],
    ) -> Result<Var> {
        let &Attention { heads, kv_heads, head_dim: dim, .. } = attention;
        let Scope::Past(state) = attention.scope else {
            return Err(unsupported("attention in both directions"));
        };
        let columns = self.columns();
        let part = |text: &str| format!("{name}_{text}");
        // Scaled before the product: scores of unscaled queries may leave half precision.
        let q = self.times(&part("query"), q, attention.scale)?;
        let q = self.reshape(&part("q_heads"), &q, &[1, heads, dim, columns])?;
        let q = self.swapped(&part("q"), &q)?;
        let stacked = [1, kv_heads, heads / kv_heads * columns, dim];
        let q = self.reshape(&part("q_groups"), &q, &stacked)?;
        let mut new = Vec::new();
        for (text, x) in [("k", k), ("v", v)] {
            let x =
                self.reshape(&part(&format!("{text}_heads")), x, &[1, kv_heads, dim, columns])?;
            new.push(self.swapped(&part(text), &x)?);
        }
        // Counted from the first layer of its package.
        let layer = state.index() - self.part.layers.start;
        let keys = self.all_of(&part("keys"), 0, layer, &new[0])?;
        let values = self.all_of(&part("values"), 1, layer, &new[1])?;
        let places = keys.shape()[2];
        let mut scores = self.matmul(&part("scores"), &q, &keys, true)?;
        if let Some(cap) = attention.softcap {
            scores = self.times(&part("cap_in"), &scores, 1.0 / cap)?;
            scores = self.unary("tanh", &part("capped"), &scores, &[])?;
            scores = self.times(&part("cap_out"), &scores, cap)?;
        }
        let scores = self.reshape(&part("by_head"), &scores, &[1, heads, columns, places])?;
        let mask = self.inputs[&Anatomy::mask(attention.window)].clone();
        let scores = self.binary("add", &format!("{name}{MASKED}"), &scores, &mask)?;
        let shares = match attention.sinks {
            None => self.unary("softmax", &part("shares"), &scores, &[("axis", (-1).into())])?,
            // The sinks are scores of one place more, which is then left out.
            Some(sinks) => {
                let sinks = self.emitter.vector(sinks)?;
                let sinks = self.emitter.numbers(name, &[1, heads, 1, 1], &sinks)?;
                let sinks = self.b.constant(&part("sinks"), sinks);
                let reps = Value::sizes(&[1, 1, columns, 1]);
                let sinks = self.unary("tile", &part("sink"), &sinks, &[("reps", reps.into())])?;
                let scores = self.concat(&part("with_sink"), &[scores, sinks], 3)?;
                let all = self.unary("softmax", &part("all"), &scores, &[("axis", (-1).into())])?;
                self.slice(&part("shares"), &all, &[0; 4], &[1, heads, columns, places])?
            }
        };
        let shape = [1, kv_heads, heads / kv_heads * columns, places];
        let shares = self.reshape(&part("by_group"), &shares, &shape)?;
        let mixed = self.matmul(&part("mixed"), &shares, &values, false)?;
        let mixed = self.reshape(&part("mixed_heads"), &mixed, &[1, heads, columns, dim])?;
        let mixed = self.swapped(&part("mixed_back"), &mixed)?;
        self.reshape(name, &mixed, &[1, heads * dim, 1, columns])
    }

    /// Keys (`which` 0) or values (1) of a layer, those of past tokens before the new ones.
    fn all_of(&mut self, name: &str, which: usize, layer: usize, new: &Var) -> Result<Var> {
        let [_, heads, _, width] = <[usize; 4]>::try_from(new.shape()).expect("4 dimensions");
        match self.kind {
            Kind::Prefill { history, .. } => {
                self.cached[which].insert(layer, new.clone());
                if history == 0 {
                    return Ok(new.clone());
                }
                let past = self.inputs[["past_keys", "past_values"][which]].clone();
                let (begin, end) = ([layer, 0, 0, 0], [layer + 1, heads, history, width]);
                let past = self.slice(&format!("{name}_past"), &past, &begin, &end)?;
                self.concat(name, &[past, new.clone()], 2)
            }
            Kind::Decode { .. } => self.through_state(name, which, layer, new),
            Kind::Head { .. } => Err(unsupported("attention behind the last layer")),
        }
    }

    /// Writes a token's keys or values to their place in the state, and reads those of the layer.
    fn through_state(&mut self, name: &str, which: usize, layer: usize, new: &Var) -> Result<Var> {
        let [_, heads, _, width] = <[usize; 4]>::try_from(new.shape()).expect("4 dimensions");
        let state = self.inputs[["key_cache", "value_cache"][which]].clone();
        let places = state.shape()[2];
        let position = self.inputs["position"].clone();
        let one = Value::ints(&[1]);
        let next = match self.inputs.get(NEXT) {
            Some(next) => next.clone(),
            None => {
                let next = self.unary("add", "next_position", &position, &[("y", one.into())])?;
                self.inputs.insert(NEXT.into(), next.clone());
                next
            }
        };
        let begin = self.corner("begin", layer, [layer, 0, 0], &position)?;
        let end = self.corner("end", layer, [layer + 1, heads, width], &next)?;
        let held =
            self.b.op("read_state", &format!("{name}_held"), &[("input", (&state).into())])?;
        let mask = || Arg::from(Value::bools(&[false; 4]));
        let updated = self.unary(
            "slice_update",
            &format!("{name}_updated"),
            &held,
            &[
                ("update", new.into()),
                ("begin", (&begin).into()),
                ("end", (&end).into()),
                ("stride", Value::ints(&[1; 4]).into()),
                ("begin_mask", mask()),
                ("end_mask", mask()),
                ("squeeze_mask", mask()),
            ],
        )?;
        let write = [("input", Arg::from(&state)), ("data", (&updated).into())];
        self.b.ops("write_state", &format!("{name}_write"), &write)?;
        let held =
            self.b.op("read_state", &format!("{name}_all"), &[("input", (&state).into())])?;
        let (begin, end) = ([layer, 0, 0, 0], [layer + 1, heads, places, width]);
        self.slice(name, &held, &begin, &end)
    }
    /// A corner of a token's place in a state, the same for the keys and the values of a layer.
    fn corner(
        &mut self,
        text: &str,
        layer: usize,
        [first, head, last]: [usize; 3],
        at: &Var,
    ) -> Result<Var> {
        let name = format!("{text}_{layer}");
        if let Some(corner) = self.inputs.get(&name) {
            return Ok(corner.clone());
        }
        let [first, head, last] = [first, head, last]
            .map(|n| self.b.constant(&format!("number_{n}"), Value::sizes(&[n])));
        let corner = self.concat(&name, &[first, head, at.clone(), last], 0)?;
        self.inputs.insert(name, corner.clone());
        Ok(corner)
    }
}
