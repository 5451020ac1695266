//! Every golden checkpoint, in every form, against what transformers computed.

use baton_graph::{passes, reference};
use baton_models::testing::goldens;
use baton_models::{BuildOptions, Model};

const TOLERANCE: f32 = 1e-3;

#[test]
fn every_architecture_agrees_with_transformers() {
    let mut failures = Vec::new();
    for golden in goldens() {
        let run = || -> Result<(f32, f32), Box<dyn std::error::Error>> {
            let model = Model::open(&golden.path)?;
            let options = BuildOptions { context: golden.context };
            let (mut graph, weights) = model.build(&options)?;
            let plain = reference::logits(&graph, &weights, &golden.ids)?;
            passes::run(&mut graph, &[])?;
            let optimized = reference::logits(&graph, &weights, &golden.ids)?;
            Ok((golden.max_difference(&plain), golden.max_difference(&optimized)))
        };
        match run() {
            Ok((plain, optimized)) => {
                println!("{:40} {plain:.1e} {optimized:.1e}", golden.name);
                if plain > TOLERANCE || optimized > TOLERANCE {
                    failures.push(format!("{}: {plain}, {optimized} with passes", golden.name));
                }
            }
            Err(error) => failures.push(format!("{}: {error}", golden.name)),
        }
    }
    assert!(failures.is_empty(), "\n{}", failures.join("\n"));
}
