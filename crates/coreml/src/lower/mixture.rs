//! A mixture of experts, all of which are computed for every token.
//!
//! Which experts a token gets is decided by comparing numbers, without indices and truth values: the Neural
//! Engine is reported to compute with neither. An expert that is not chosen counts 0.

use std::io::{Seek, Write};

use baton_graph::{Moe, Node, Routing, WeightId};

use super::function::{FunctionLowering, Lowered};
use crate::mil::{Arg, Value, Var};
use crate::package::LARGEST;
use crate::{Error, Result};

/// Most experts of a layer, for each of which there are seven operations.
const MOST: usize = 64;
/// What is taken from the score of an expert that was chosen, or is not to be.
const FAR: f32 = 1e4;
/// Scores that are nearer to each other count as the same, in part if they are not: the least number in
/// half precision that is not stored with fewer bits.
const NEAR: f32 = 6.103_515_6e-5;

impl<W: Write + Seek> FunctionLowering<'_, '_, '_, W> {
    pub(super) fn mixture(&mut self, name: &str, moe: &Moe, node: &Node) -> Result<Lowered> {
        self.check_size(moe)?;
        let x = self.plain(name, node.inputs[0])?;
        let factor = self.wanted_factor(node.output);
        let shares = self.shares(name, moe, &x)?;
        let columns = self.columns;
        let mut sum = None;
        for expert in 0..moe.experts {
            let part = |text: &str| format!("{name}_{expert}_{text}");
            let [gate, up, down] = match &moe.biases {
                Some(biases) => [Some(biases.gate), Some(biases.up), Some(biases.down)],
                None => [None; 3],
            };
            let gate = self.expert(&part("gate"), expert, (moe.gate, gate), &x, 1.0)?;
            let up = self.expert(&part("up"), expert, (moe.up, up), &x, 1.0)?;
            let inner = self.joined(&part("inner"), moe.activation, &gate, &up)?;
            let out = self.expert(&part("down"), expert, (moe.down, down), &inner, factor)?;
            let (begin, end) = ([0, expert, 0, 0], [1, expert + 1, 1, columns]);
            let share = self.slice(&part("share"), &shares, &begin, &end)?;
            let out = self.binary("mul", &part("shared"), &out, &share)?;
            sum = Some(match sum {
                None => out,
                Some(sum) => self.binary("add", &part("sum"), &sum, &out)?,
            });
        }
        let pieces = sum.into_iter().collect();
        Ok(Lowered { pieces, factor })
    }

    fn check_size(&self, moe: &Moe) -> Result<()> {
        let elements = |id: WeightId| -> u64 {
            let shape = &self.graph.weights()[id.index()].shape;
            shape.iter().fold(1u64, |n, &dim| n.saturating_mul(dim as u64))
        };
        let bytes = [moe.gate, moe.up, moe.down]
            .map(elements)
            .iter()
            .fold(0u64, |a, &b| a.saturating_add(b));
        let bytes = bytes.saturating_mul(2);
        if moe.experts <= MOST && bytes <= LARGEST {
            return Ok(());
        }
        Err(Error::Unsupported {
            what: format!(
                "a mixture of {} experts, {} MB a layer, in a Core ML package",
                moe.experts,
                bytes / 1_000_000
            ),
            instead: format!(
                "all experts are computed for every token there, so that no more than {MOST} and {} MB \
                 a layer are; run this model on another unit",
                LARGEST / 1_000_000
            ),
        })
    }

    /// What each expert counts for each token, `(1, experts, 1, tokens)`.
    fn shares(&mut self, name: &str, moe: &Moe, x: &Var) -> Result<Var> {
        let part = |text: &str| format!("{name}_router_{text}");
        // A little error makes other experts out of it, so that it is never quantized.
        let weight = self.emitter.router(moe.router)?;
        let bias = moe.router_bias.map(|id| self.emitter.vector(id)).transpose()?;
        let scores = self.convolution(&part("scores"), x, weight, bias.as_deref())?;
        let chosen = self.largest(name, &scores, moe.top_k)?;
        let axis = || Arg::from(Value::int(1));
        if let Routing::SoftmaxThenTopK { normalize: false } = moe.routing {
            let all = self.unary("softmax", &part("all"), &scores, &[("axis", axis())])?;
            return self.binary("mul", &part("shares"), &all, &chosen);
        }
        // A softmax over those that are chosen, which is what a normalized one over all comes to.
        let number = |v: f32| Arg::from(Value::f16(v));
        let left = self.unary("sub", &part("left"), &chosen, &[("y", number(1.0))])?;
        let left = self.unary("mul", &part("left_far"), &left, &[("y", number(FAR))])?;
        let scores = self.binary("add", &part("left_scores"), &scores, &left)?;
        self.unary("softmax", &part("shares"), &scores, &[("axis", axis())])
    }

    /// 1 for each of the `n` largest scores of a token, 0 for the others. Scores that are the same as the last of
    /// these count as well, so that there may be more than `n`.
    fn largest(&mut self, name: &str, scores: &Var, n: usize) -> Result<Var> {
        if n == 0 {
            return Err(Error::malformed("a mixture of which no expert is used"));
        }
        let number = |v: f32| Arg::from(Value::f16(v));
        let over_experts = [("axes", Value::ints(&[1]).into()), ("keep_dims", true.into())];
        let part = |text: &str| format!("{name}_router_{text}");
        // The least score that counts, which goes down from one to the next until `n` of them do.
        let mut least = self.unary("reduce_max", &part("most"), scores, &over_experts)?;
        for i in 1..n {
            let part = |text: &str| format!("{name}_router_{text}_{i}");
            let is = self.at_least(&part("is"), scores, &least)?;
            let count = self.unary("reduce_sum", &part("count"), &is, &over_experts)?;
            let over = self.unary("sub", &part("over"), &count, &[("y", number(n as f32))])?;
            // -1 where more are wanted, 0 where there are enough.
            let bounds = [("alpha", number(-1.0)), ("beta", number(0.0))];
            let open = self.unary("clip", &part("open"), &over, &bounds)?;
            let shut = self.unary("add", &part("shut"), &open, &[("y", number(1.0))])?;
            let far = self.unary("mul", &part("far"), &is, &[("y", number(FAR))])?;
            let rest = self.binary("sub", &part("rest"), scores, &far)?;
            let next = self.unary("reduce_max", &part("next"), &rest, &over_experts)?;
            // One of both is 0, and the other one exact, which their difference would not be.
            let next = self.binary("mul", &part("down"), &next, &open)?;
            let same = self.binary("mul", &part("same"), &least, &shut)?;
            least = self.binary("sub", &part("least"), &same, &next)?;
        }
        self.at_least(&part("chosen"), scores, &least)
    }

    /// 1 for each score that is `least` or more, 0 for the others.
    fn at_least(&mut self, name: &str, scores: &Var, least: &Var) -> Result<Var> {
        let number = |v: f32| Arg::from(Value::f16(v));
        let part = |text: &str| format!("{name}_{text}");
        let above = self.binary("sub", &part("above"), scores, least)?;
        let bounds = [("alpha", number(-NEAR)), ("beta", number(0.0))];
        let near = self.unary("clip", &part("near"), &above, &bounds)?;
        let steep = self.unary("mul", &part("steep"), &near, &[("y", number(1.0 / NEAR))])?;
        self.unary("add", name, &steep, &[("y", number(1.0))])
    }

    /// A product with a matrix of one expert, times `factor`.
    fn expert(
        &mut self,
        name: &str,
        expert: usize,
        (matrix, bias): (WeightId, Option<WeightId>),
        x: &Var,
        factor: f32,
    ) -> Result<Var> {
        let weight = self.emitter.expert(matrix, expert, factor)?;
        let bias = match bias {
            Some(id) => {
                let all = self.emitter.vector(id)?;
                let rows = self.graph.weights()[id.index()].shape[1];
                let own = &all[expert * rows..(expert + 1) * rows];
                Some(own.iter().map(|v| v * factor).collect::<Vec<f32>>())
            }
            None => None,
        };
        self.convolution(name, x, weight, bias.as_deref())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use baton_cpu::{Isa, Pool};
    use baton_graph::testing::{Random, random_weights};
    use baton_graph::{
        Activation, Batch, Gate, Graph, GraphBuilder, Limits, Moe, Routing, Rows, SeqId, Unit,
    };
    use baton_weights::{Tensor, Weight, Weights};

    use crate::interpret::{self, Interpreter, Precision};
    use crate::lower::function::PartLowering;
    use crate::lower::{Anatomy, MilLowering, Part};
    use crate::mil::Program;
    use crate::{CoreMl, Model, Package, in_memory};

    const HIDDEN: usize = 32;

    /// A model that is a mixture and a head.
    fn graph(experts: usize, top_k: usize, ffn: usize, routing: Routing) -> Graph {
        let mut b = GraphBuilder::new("mixture");
        let table = b.weight("embed", &[64, HIDDEN]);
        let x = b.embedding("embed", table, 1.0).unwrap();
        let moe = Moe {
            router: b.weight("router", &[experts, HIDDEN]),
            router_bias: None,
            gate: b.weight("gate", &[experts, ffn, HIDDEN]),
            up: b.weight("up", &[experts, ffn, HIDDEN]),
            down: b.weight("down", &[experts, HIDDEN, ffn]),
            biases: None,
            experts,
            top_k,
            ffn,
            routing,
            activation: Gate::Plain(Activation::Silu),
        };
        let y = b.moe("moe", x, moe).unwrap();
        let x = b.add("residual", x, y).unwrap();
        let head = b.weight("head", &[64, HIDDEN]);
        let logits = b.linear("head", x, head, None).unwrap();
        b.finish(logits).unwrap()
    }

    fn run(graph: &Graph, weights: &Weights, precision: Precision, tokens: &[u32]) -> Vec<f32> {
        let unit = CoreMl::new(Arc::new(Pool::new(1, Isa::detect()).unwrap()));
        let limits = Limits { context: 64, kv_tokens: 64, batch_tokens: 64 };
        let mut executor = unit.with_precision(precision).compile(graph, weights, limits).unwrap();
        executor.forward(&Batch::one(SeqId(0), tokens.to_vec(), Rows::All)).unwrap().values
    }

    #[test]
    fn many_experts_and_few_are_chosen_as_the_reference_does_in_both_precisions() {
        let tokens: Vec<u32> = (0..48).collect();
        for (experts, top_k) in [(4, 1), (16, 8), (5, 5), (48, 3)] {
            for routing in [
                Routing::TopKThenSoftmax,
                Routing::SoftmaxThenTopK { normalize: true },
                Routing::SoftmaxThenTopK { normalize: false },
            ] {
                let graph = graph(experts, top_k, 24, routing);
                let weights = random_weights(&graph, 7);
                let expected = baton_graph::reference::logits(&graph, &weights, &tokens).unwrap();
                for (precision, most) in [(Precision::F32, 1e-5), (Precision::F16, 1e-3)] {
                    let found = run(&graph, &weights, precision, &tokens);
                    let pairs = || found.iter().zip(&expected.values);
                    let error: f32 = pairs().map(|(a, b)| (a - b).powi(2)).sum();
                    let nmse = error / pairs().map(|(_, b)| b * b).sum::<f32>();
                    assert!(
                        nmse < most,
                        "{top_k} of {experts}, {routing:?}, {precision:?}: {nmse}"
                    );
                }
            }
        }
    }

    /// What is chosen of scores for one token.
    fn chosen(scores: &[f32], n: usize, precision: Precision) -> Vec<f32> {
        let experts = scores.len();
        let graph = graph(experts, n, 8, Routing::TopKThenSoftmax);
        let weights = random_weights(&graph, 1);
        let (options, part) =
            (MilLowering::default(), Part::whole(&graph, &Anatomy::of(&graph).unwrap()));
        let mut blobs = in_memory();
        let mut lowering =
            PartLowering::new(&options, &graph, &weights, &part, &mut blobs).unwrap();
        let mut function = lowering.function(1);
        let input = function.input("scores", &[1, experts, 1, 1]);
        let chosen = function.largest("n", &input, n).unwrap();
        let name = chosen.name().to_owned();
        let functions = [("main".to_owned(), function.b.finish(&[chosen]))];
        let program = Program { functions: functions.into(), ..Program::default() };
        let package = Package::new(Model::new(program, None).unwrap(), None).unwrap();
        let pool = Arc::new(Pool::new(1, Isa::detect()).unwrap());
        let interpreter = Interpreter::new(&package, precision, pool).unwrap();
        let scores = interpret::Tensor::floats(&[1, experts, 1, 1], scores.to_vec());
        let found = interpreter.run("main", &[("scores", scores)], &mut Default::default());
        found.unwrap()[&name].as_floats().unwrap().to_vec()
    }

    #[test]
    fn of_equal_scores_all_or_none_count_and_none_that_is_lower_than_the_last() {
        for precision in [Precision::F32, Precision::F16] {
            let check = |scores: &[f32], n: usize| {
                let mut sorted = scores.to_vec();
                sorted.sort_by(|a, b| b.total_cmp(a));
                let expected: Vec<f32> =
                    scores.iter().map(|&v| f32::from(v >= sorted[n - 1])).collect();
                assert_eq!(chosen(scores, n, precision), expected, "{n} of {scores:?}");
            };
            check(&[5.0, 5.0, 3.0, 1.0], 2);
            check(&[5.0, 5.0, 4.0, 4.0, 3.0, 2.0], 3);
            check(&[5.0, 5.0, 4.0, 4.0, 3.0, 2.0], 5);
            check(&[7.0; 4], 1);
            check(&[7.0; 4], 4);
            // What is far below the largest is exact.
            check(&[900.0, 0.125, -900.0, 0.126], 2);
            let mut random = Random::new(5);
            for _ in 0..100 {
                let scores: Vec<f32> =
                    (0..2 + random.below(11)).map(|_| random.below(6) as f32 - 3.0).collect();
                check(&scores, 1 + random.below(scores.len()));
            }
        }
    }

    #[test]
    fn equal_scores_count_alike_and_none_is_lost() {
        let mut random = Random::new(1);
        // All products with rows of the router are positive.
        let table: Vec<f32> = (0..64 * HIDDEN).map(|_| random.signed().abs()).collect();
        let row: Vec<f32> = (0..HIDDEN).map(|_| random.signed().abs() / 4.0).collect();
        // Experts by their scores, of which the same are the same experts, so that it is all one which of them
        // are chosen; and how many are.
        let cases: [(&[f32], usize); 3] = [
            (&[5.0, 5.0, 5.0, 4.0], 2),
            (&[5.0, 5.0, 3.0, 1.0], 2),
            (&[5.0, 5.0, 4.0, 4.0, 3.0], 4),
        ];
        for (scores, top_k) in cases {
            let experts = scores.len();
            let graph = graph(experts, top_k, 8, Routing::TopKThenSoftmax);
            let mut weights = random_weights(&graph, 3);
            let mut insert = |name: &str, shape: &[usize], values: &[f32]| {
                weights.insert(name, Weight::One(Tensor::from_f32(name, shape, values)));
            };
            insert("embed", &[64, HIDDEN], &table);
            let router: Vec<f32> =
                scores.iter().flat_map(|score| row.iter().map(move |v| v * score / 5.0)).collect();
            insert("router", &[experts, HIDDEN], &router);
            for (name, shape) in [("gate", [8, HIDDEN]), ("up", [8, HIDDEN]), ("down", [HIDDEN, 8])]
            {
                let mut values: Vec<f32> = Vec::new();
                for (i, score) in scores.iter().enumerate() {
                    if i > 0 && scores[i - 1] == *score {
                        values.extend_from_within(values.len() - 8 * HIDDEN..);
                    } else {
                        values.extend((0..8 * HIDDEN).map(|_| random.signed()));
                    }
                }
                insert(name, &[experts, shape[0], shape[1]], &values);
            }
            let tokens: Vec<u32> = (0..32).collect();
            let expected = baton_graph::reference::logits(&graph, &weights, &tokens).unwrap();
            let found = run(&graph, &weights, Precision::F32, &tokens);
            for (a, b) in found.iter().zip(&expected.values) {
                assert!((a - b).abs() < 2e-2, "{top_k} of {scores:?}: {a} is not {b}");
            }
        }
    }

    #[test]
    fn mixtures_that_are_too_many_or_too_large_are_refused_with_the_reason() {
        let limits = Limits { context: 8, kv_tokens: 8, batch_tokens: 8 };
        let unit = CoreMl::new(Arc::new(Pool::new(1, Isa::detect()).unwrap()));
        let graph = graph(65, 2, 8, Routing::TopKThenSoftmax);
        let weights = random_weights(&graph, 3);
        let error = unit.compile(&graph, &weights, limits).err().unwrap().to_string();
        assert!(
            error.contains("a mixture of 65 experts") && error.contains("for every token"),
            "{error}"
        );
    }
}
