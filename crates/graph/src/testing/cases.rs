//! The list of graphs that the conformance suite runs.

use crate::{
    Activation, Attention, Gate, Graph, GraphBuilder, GraphError, Linear, LinearPart, Lookup, Moe,
    MoeBiases, Op, RmsNorm, Rope, RopeLayout, Routing, Scope, ValueId,
};

use super::Tiny;

/// Tokens in the vocabulary of the operations' graphs.
const VOCAB: usize = 40;

/// Models that differ in what attention does.
pub(super) fn tiny_cases() -> Vec<(&'static str, Tiny)> {
    let tiny = Tiny::default;
    vec![
        ("a model with windows", tiny()),
        ("a model without windows", Tiny { window: None, layers: 2, ..tiny() }),
        ("soft caps and sinks", Tiny { softcap: Some(3.0), sinks: true, layers: 2, ..tiny() }),
        (
            "one key-value head and interleaved pairs",
            Tiny { kv_heads: 1, layout: RopeLayout::Interleaved, layers: 2, ..tiny() },
        ),
        (
            "large heads, a window of a page and odd sizes",
            Tiny { window: Some(64), head_dim: 40, hidden: 72, ffn: 100, layers: 2, ..tiny() },
        ),
    ]
}

/// Each operation in a graph of its own, with a name that says which kind it is.
pub(super) fn operation_cases() -> Vec<(String, Graph)> {
    let mut cases = Cases(Vec::new());
    cases.rows();
    cases.elements();
    cases.products();
    cases.rotations();
    cases.attention();
    cases.experts();
    cases.0
}

struct Cases(Vec<(String, Graph)>);

impl Cases {
    /// A graph that embeds tokens in `width` features of size up to `scale`, then does `build`.
    fn add(
        &mut self,
        name: impl Into<String>,
        width: usize,
        scale: f32,
        build: impl FnOnce(&mut GraphBuilder, ValueId) -> Result<ValueId, GraphError>,
    ) {
        let name = name.into();
        let mut b = GraphBuilder::new("case");
        let table = b.weight("table", &[VOCAB, width]);
        // Random tables have elements up to sqrt(3 / width).
        let scale = scale / (3.0 / width as f32).sqrt();
        let graph = b
            .embedding("embed", table, scale)
            .and_then(|x| build(&mut b, x))
            .and_then(|out| b.finish(out));
        match graph {
            Ok(graph) => self.0.push((name, graph)),
            Err(error) => panic!("{name}: {error}"),
        }
    }

    fn rows(&mut self) {
        self.add("embedding", 33, 1.0, |_, x| Ok(x));
        for lookup in [Lookup::Position, Lookup::Row(3)] {
            self.add(format!("embedding by {lookup:?}"), 33, 1.0, |b, x| {
                let table = b.weight("positions", &[200, 33]);
                let y = b.lookup("f", table, lookup)?;
                b.add("sum", x, y)
            });
        }
        for width in [8, 33, 64, 100, 576] {
            for (offset, weighted) in [(0.0, true), (1.0, true), (0.0, false)] {
                let name = format!("rms_norm of {width}, offset {offset}, gain {weighted}");
                self.add(name, width, 3.0, |b, x| {
                    let weight = weighted.then(|| b.weight("gain", &[width]));
                    let norm = RmsNorm { weight, weight_offset: offset, eps: 1e-5, group: width };
                    b.rms_norm("norm", x, norm)
                });
            }
            for biased in [true, false] {
                self.add(format!("layer_norm of {width}, bias {biased}"), width, 3.0, |b, x| {
                    let weight = b.weight("gain", &[width]);
                    let bias = biased.then(|| b.weight("bias", &[width]));
                    b.push("norm", Op::LayerNorm { weight, bias, eps: 1e-5 }, &[x])
                });
            }
        }
        self.add("rms_norm by groups, its input still in use", 96, 1.0, |b, x| {
            let weight = Some(b.weight("gain", &[16]));
            let norm = RmsNorm { weight, weight_offset: 0.0, eps: 1e-6, group: 16 };
            let y = b.rms_norm("norm", x, norm)?;
            b.add("sum", x, y)
        });
        self.add("slices of slices", 64, 1.0, |b, x| {
            let y = b.push("outer", Op::Slice { offset: 5, len: 50 }, &[x])?;
            let z = b.push("inner", Op::Slice { offset: 3, len: 33 }, &[y])?;
            let doubled = b.scale("doubled", z, 2.0)?;
            let y = b.push("again", Op::Slice { offset: 17, len: 33 }, &[y])?;
            b.add("sum", doubled, y)
        });
    }

    fn elements(&mut self) {
        use Activation::{Gelu, GeluTanh, Relu, Silu};
        for kind in [Silu, Gelu, GeluTanh, Relu] {
            self.add(format!("{kind:?}"), 50, 12.0, |b, x| b.activation("f", x, kind));
        }
        self.add("scale", 35, 1.0, |b, x| b.scale("f", x, -0.3));
        for cap in [0.5, 30.0] {
            self.add(format!("softcap {cap}"), 35, 9.0, |b, x| b.softcap("f", x, cap));
        }
        self.add("a value and itself", 35, 1.0, |b, x| {
            let square = b.mul("square", x, x)?;
            let twice = b.add("twice", square, square)?;
            b.mul("mixed", twice, x)
        });
        let clamped = Gate::Clamped { alpha: 1.702, limit: 2.0 };
        for kind in [Silu, Gelu, GeluTanh, Relu].map(Gate::Plain).into_iter().chain([clamped]) {
            self.add(format!("{kind:?} of two values"), 37, 5.0, |b, x| {
                let up = b.scale("up", x, 0.7)?;
                b.gated("f", x, up, kind)
            });
            self.add(format!("{kind:?} of halves"), 74, 5.0, |b, x| {
                b.push("f", Op::GatedActivation(kind), &[x])
            });
        }
    }

    fn products(&mut self) {
        for (out, width) in [(1, 1), (17, 33), (64, 64), (100, 96), (7, 576)] {
            for biased in [false, true] {
                let name = format!("linear {out} x {width}, bias {biased}");
                self.add(name, width, 1.0, |b, x| {
                    let weight = b.weight("w", &[out, width]);
                    let bias = biased.then(|| b.weight("b", &[out]));
                    b.linear("f", x, weight, bias)
                });
            }
        }
        self.add("three stacked products, one with bias", 48, 1.0, |b, x| {
            let outs = [20, 9, 40];
            let weights = outs.map(|n| b.weight(&format!("w{n}"), &[n, 48]));
            let bias = Some(b.weight("b", &[9]));
            let parts = [(0, None), (1, bias), (2, None)];
            let parts = parts.map(|(i, bias)| LinearPart { weight: weights[i], bias }).to_vec();
            b.push("f", Op::Linear(Linear { parts }), &[x])
        });
        self.add("products of slices, added to what they came from", 64, 1.0, |b, x| {
            let half = b.push("half", Op::Slice { offset: 16, len: 32 }, &[x])?;
            let w = b.weight("w", &[64, 32]);
            let y = b.linear("first", half, w, None)?;
            let x = b.add("residual", x, y)?;
            let w = b.weight("v", &[64, 64]);
            let y = b.linear("second", x, w, None)?;
            let z = b.add("other order", y, x)?;
            b.mul("both in use", z, y)
        });
        self.add("norms around a residual", 64, 1.0, |b, x| {
            let norm = |b: &mut GraphBuilder, name: &str| RmsNorm {
                weight: Some(b.weight(name, &[64])),
                weight_offset: 1.0,
                eps: 1e-6,
                group: 64,
            };
            let before = norm(b, "before");
            let y = b.rms_norm("before", x, before)?;
            let w = b.weight("w", &[64, 64]);
            let y = b.linear("product", y, w, None)?;
            let after = norm(b, "after");
            let y = b.rms_norm("after", y, after)?;
            let x = b.add("residual", x, y)?;
            let last = norm(b, "last");
            b.rms_norm("last", x, last)
        });
    }

    fn rotations(&mut self) {
        for layout in [RopeLayout::Half, RopeLayout::Interleaved] {
            for (head_dim, pairs) in [(64, 32), (64, 16), (80, 10), (20, 7), (2, 1)] {
                let name = format!("rope {layout:?}, {pairs} pairs of {head_dim}");
                self.add(name, 3 * head_dim, 1.0, |b, x| {
                    b.rope("f", x, rope(head_dim, pairs, layout, 1.3))
                });
            }
        }
    }

    fn attention(&mut self) {
        for head_dim in [16, 20, 32, 64, 80, 96, 128, 256] {
            self.attend(2, 1, head_dim, None, None, false);
        }
        for (heads, kv_heads) in [(1, 1), (3, 3), (6, 2), (9, 3), (8, 1), (16, 2)] {
            self.attend(heads, kv_heads, 32, None, None, false);
        }
        for window in [1, 2, 7, 63, 64, 65, 128, 1000] {
            self.attend(4, 2, 16, Some(window), None, false);
        }
        self.attend(4, 2, 16, None, Some(0.7), false);
        self.attend(4, 2, 16, None, None, true);
        self.attend(4, 2, 64, Some(20), Some(5.0), true);
    }

    fn attend(
        &mut self,
        heads: usize,
        kv_heads: usize,
        head_dim: usize,
        window: Option<usize>,
        softcap: Option<f32>,
        sinks: bool,
    ) {
        let name = format!(
            "attention {heads} over {kv_heads} of {head_dim}, window {window:?}, cap {softcap:?}, \
             sinks {sinks}"
        );
        self.add(name, 24, 1.0, |b, x| {
            let mut part = |name: &str, heads: usize| {
                let weight = b.weight(name, &[heads * head_dim, 24]);
                b.linear(name, x, weight, None)
            };
            let (q, k, v) = (part("q", heads)?, part("k", kv_heads)?, part("v", kv_heads)?);
            let rope = rope(head_dim, head_dim / 4, RopeLayout::Half, 1.0);
            let (q, k) = (b.rope("q_rope", q, rope.clone())?, b.rope("k_rope", k, rope)?);
            let attention = Attention {
                scope: Scope::Past(b.kv_state(kv_heads, head_dim, window)),
                heads,
                kv_heads,
                head_dim,
                scale: 2.0 * (head_dim as f32).powf(-0.5),
                window,
                softcap,
                sinks: sinks.then(|| b.weight("sinks", &[heads])),
            };
            b.attention("attention", [q, k, v], attention)
        });
    }

    fn experts(&mut self) {
        let routings = [
            Routing::SoftmaxThenTopK { normalize: true },
            Routing::SoftmaxThenTopK { normalize: false },
            Routing::TopKThenSoftmax,
        ];
        for routing in routings {
            for (experts, top_k) in [(8, 2), (5, 1), (4, 4)] {
                for biased in [false, true] {
                    self.mixture(routing, experts, top_k, biased);
                }
            }
        }
    }

    fn mixture(&mut self, routing: Routing, experts: usize, top_k: usize, biased: bool) {
        let name = format!("moe {routing:?}, {top_k} of {experts}, bias {biased}");
        let (hidden, ffn) = (64, 32);
        self.add(name, hidden, 1.5, |b, x| {
            let biases = biased.then(|| MoeBiases {
                gate: b.weight("gate_b", &[experts, ffn]),
                up: b.weight("up_b", &[experts, ffn]),
                down: b.weight("down_b", &[experts, hidden]),
            });
            let activation = match biased {
                true => Gate::Clamped { alpha: 1.702, limit: 7.0 },
                false => Gate::Plain(Activation::Silu),
            };
            let moe = Moe {
                router: b.weight("router", &[experts, hidden]),
                router_bias: biased.then(|| b.weight("router_b", &[experts])),
                gate: b.weight("gate", &[experts, ffn, hidden]),
                up: b.weight("up", &[experts, ffn, hidden]),
                down: b.weight("down", &[experts, hidden, ffn]),
                biases,
                experts,
                top_k,
                ffn,
                routing,
                activation,
            };
            let y = b.moe("moe", x, moe)?;
            b.add("residual", x, y)
        });
    }
}

pub(super) fn rope(head_dim: usize, pairs: usize, layout: RopeLayout, magnitude: f32) -> Rope {
    let inv_freq: Vec<f32> = (0..pairs).map(|i| 1000f32.powf(-(i as f32) / pairs as f32)).collect();
    Rope { head_dim, layout, inv_freq: inv_freq.into(), magnitude }
}
