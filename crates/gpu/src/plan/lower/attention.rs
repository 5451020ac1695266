//! Rotations and attention: what lies between projections and attention is one step, which stores keys
//! and values, and the attention another.

use baton_graph::{Attention, ExecError, Node, Rope, Scope};

use super::super::heads::Chain;
use super::super::{
    AttentionStep, CacheShape, HeadNorm, HeadsStep, Height, Part, Rotation, Stored, View, Work,
    unsupported,
};
use super::Lower;

/// Most features of a head that attention has kernels for.
const WIDEST_HEAD: usize = 256;
/// Most features of a head that the kernel of norms and rotations has room for.
const WIDEST_ROTATED: usize = 512;

impl Lower<'_> {
    fn rotation(&mut self, rope: &Rope) -> usize {
        let Rope { inv_freq, magnitude, layout, .. } = rope.clone();
        let rotation = Rotation { inv_freq, magnitude, layout };
        let known = self.plan.rotations.iter().position(|known| *known == rotation);
        known.unwrap_or_else(|| {
            self.plan.rotations.push(rotation);
            self.plan.rotations.len() - 1
        })
    }

    pub(super) fn rope(&mut self, node: &Node, rope: &Rope) -> Result<View, ExecError> {
        let head_dim = rope.head_dim;
        if head_dim > WIDEST_ROTATED {
            let what = format!("node {:?}: rotation of heads of {head_dim}", node.name);
            return Err(unsupported(what, "use the CPU"));
        }
        let (x, out) = (self.view(node.inputs[0])?, self.fresh(node));
        let query = Part { x, heads: x.cols / head_dim, norm: None, rotated: true };
        let rotation = Some(self.rotation(rope));
        let step = HeadsStep { head_dim, rotation, query, out, stored: None };
        self.push(node, self.height(node.output), Work::Heads(step));
        Ok(out)
    }

    pub(super) fn attention(
        &mut self,
        node: &Node,
        attention: &Attention,
    ) -> Result<View, ExecError> {
        let &Attention { heads, kv_heads, head_dim, scale, softcap, window, .. } = attention;
        if head_dim > WIDEST_HEAD || head_dim % 2 != 0 {
            let what = format!("node {:?}: attention with heads of {head_dim} features", node.name);
            let instead = format!("use the CPU; the GPU wants an even number up to {WIDEST_HEAD}");
            return Err(unsupported(what, &instead));
        }
        let cache = match attention.scope {
            Scope::Past(state) => state.index(),
            Scope::Text => self.text_cache(CacheShape { kv_heads, head_dim }),
        };
        let operand = |i: usize, heads| -> Result<_, ExecError> {
            let chain = self.chains.of[&node.inputs[i]];
            Ok((self.part(&chain, heads)?, chain.rope.cloned()))
        };
        let ((query, q_rope), (key, k_rope)) = (operand(0, heads)?, operand(1, kv_heads)?);
        let rotation = q_rope.or(k_rope).map(|rope| self.rotation(&rope));
        let value = self.view(node.inputs[2])?;
        let value = Part { x: value, heads: kv_heads, norm: None, rotated: false };
        let q = self.root(heads * head_dim);
        let raw = [query.x, key.x, value.x];
        let stored = Some(Stored { key, value, cache });
        let step = HeadsStep { head_dim, rotation, query, out: q, stored };
        self.push(node, Height::Tokens, Work::Heads(step));
        let out = self.fresh(node);
        let step = AttentionStep {
            q,
            raw,
            out,
            cache,
            heads,
            kv_heads,
            head_dim,
            scale,
            softcap,
            window,
            both_ways: attention.scope == Scope::Text,
            sinks: self.weights.floats(attention.sinks)?,
        };
        self.push(node, Height::Tokens, Work::Attention(step));
        Ok(out)
    }

    fn part(&self, chain: &Chain<'_>, heads: usize) -> Result<Part, ExecError> {
        let norm = match chain.norm {
            Some(norm) => {
                let mut gain = self.gain(norm)?;
                gain.resize(norm.group, 1.0);
                Some(HeadNorm { gain, eps: norm.eps })
            }
            None => None,
        };
        Ok(Part { x: self.view(chain.source)?, heads, norm, rotated: chain.rope.is_some() })
    }

    /// A cache for attention over the texts of a pass, of which nothing is kept: layers of one
    /// shape share it.
    fn text_cache(&mut self, shape: CacheShape) -> usize {
        let states = self.graph.states().len();
        let known = self.plan.caches[states..].iter().position(|cache| *cache == shape);
        known.map(|at| states + at).unwrap_or_else(|| {
            self.plan.caches.push(shape);
            self.plan.caches.len() - 1
        })
    }
}
