//! Checkpoints of every architecture, lowered and interpreted, against what transformers computed.

use std::collections::BTreeSet;
use std::sync::Arc;

use baton_coreml::CoreMl;
use baton_cpu::{Isa, Pool};
use baton_graph::{Batch, Limits, Rows, SeqId, Unit};
use baton_models::testing::goldens;
use baton_models::{BuildOptions, Model};

/// Logits are of size 1; weights and what crosses a function's border are in half precision.
const TOLERANCE: f32 = 2e-2;

#[test]
fn every_architecture_but_mixtures_agrees_with_transformers() {
    let unit = CoreMl::new(Arc::new(Pool::new(2, Isa::detect()).unwrap()));
    let (mut passed, mut failures) = (BTreeSet::new(), Vec::new());
    for golden in goldens() {
        let model = Model::open(&golden.path).unwrap();
        let (graph, weights) = model.build(&BuildOptions { context: golden.context }).unwrap();
        let n = golden.ids.len();
        let limits = Limits { context: golden.context, kv_tokens: n, batch_tokens: n };
        let mut executor = match unit.compile(&graph, &weights, limits) {
            Ok(executor) => executor,
            Err(error) => {
                let mixture = error.to_string().contains("a mixture of experts");
                assert!(mixture, "{}: {error}", golden.name);
                continue;
            }
        };
        let batch = Batch::one(SeqId(0), golden.ids.clone(), Rows::All);
        let worst = golden.max_difference(&executor.forward(&batch).unwrap());
        println!("{:40} {worst:.1e}", golden.name);
        if worst > TOLERANCE {
            failures.push(format!("{}: {worst}", golden.name));
        }
        passed.insert(model.architecture().to_owned());
    }
    assert!(failures.is_empty(), "\n{}", failures.join("\n"));
    for architecture in ["Llama", "Qwen2", "Qwen3", "Gemma 2", "Gemma 3", "Phi-3", "SmolLM3"] {
        assert!(passed.contains(architecture), "{architecture} is not among {passed:?}");
    }
}
