//! The layout of coreml-llm-cli.

use std::collections::BTreeMap;

use baton_coreml::interpret::{Interpreter, States, Tensor};
use baton_coreml::layout::names::llm_cli as names;
use baton_coreml::layout::{Layout, LlmCli};
use baton_coreml::lower::{Chunks, Form, MilLowering, Palette, Ranges};
use baton_graph::reference;
use baton_graph::testing::{Tiny, random_tokens, random_weights};

use crate::{Laid, TOLERANCE, check, checkpoint, interpreter, prefix, scaled};

const WINDOW: usize = 8;
const CACHE: usize = 24;

fn layout() -> Layout {
    Layout::LlmCli(LlmCli::new(prefix(), WINDOW + CACHE, WINDOW).unwrap())
}

/// Runs packages as coreml-llm-cli does: tensors are handed on by their names.
struct Runtime {
    chunks: Vec<Interpreter>,
    cache_processor: Interpreter,
    logit_processor: Interpreter,
    /// What all chunks are given by its name.
    shared: BTreeMap<String, Tensor>,
    /// The caches of each chunk.
    caches: Vec<BTreeMap<String, Tensor>>,
}

impl Runtime {
    fn new(laid: &Laid) -> Runtime {
        let [chunks @ .., cache_processor, logit_processor] = &laid.packages[..] else { panic!() };
        let chunks: Vec<Interpreter> = chunks.iter().map(interpreter).collect();
        let caches = chunks.iter().map(|chunk| {
            let caches = chunk.inputs("main").filter(|(name, _)| name.contains("cache"));
            caches.map(|(name, ty)| (name.to_owned(), Tensor::zeros(ty).unwrap())).collect()
        });
        Runtime {
            caches: caches.collect(),
            chunks,
            cache_processor: interpreter(cache_processor),
            logit_processor: interpreter(logit_processor),
            shared: BTreeMap::new(),
        }
    }

    /// The logits behind the last of some tokens, of which those in front of the window are cached.
    fn predict(&mut self, tokens: &[u32]) -> Vec<f32> {
        let used = (tokens.len() - 1) % WINDOW + 1;
        let latest = tokens[tokens.len() - used..].iter().map(|&id| id as i32);
        let ids: Vec<i32> = latest.chain([0; WINDOW]).take(WINDOW).collect();
        let length = (tokens.len() + WINDOW - used) as i32;
        self.shared.insert(names::INPUT_IDS.into(), Tensor::ints(&[1, WINDOW], ids));
        self.shared.insert(names::FULL_SEQUENCE_LENGTH.into(), Tensor::ints(&[1], vec![length]));
        let mut pieces = Vec::new();
        for (chunk, caches) in self.chunks.iter().zip(&mut self.caches) {
            let given = |name: &str| match caches.get(name).or(self.shared.get(name)) {
                Some(tensor) => tensor.clone(),
                None => panic!("nobody makes {name}"),
            };
            let inputs: Vec<(&str, Tensor)> =
                chunk.inputs("main").map(|(name, _)| (name, given(name))).collect();
            let outputs = chunk.run("main", &inputs, &mut States::default()).unwrap();
            if used == WINDOW {
                for layer in 0..caches.len() / 2 {
                    let old = names::cache(layer);
                    let new = names::new_cache(layer);
                    let mut inputs = Vec::new();
                    for (which, [old_name, new_name, _]) in names::CACHES.iter().enumerate() {
                        inputs.push((*old_name, caches[&old[which]].clone()));
                        inputs.push((*new_name, outputs[&new[which]].clone()));
                    }
                    let mut updated =
                        self.cache_processor.run("main", &inputs, &mut States::default()).unwrap();
                    for (which, [.., name]) in names::CACHES.iter().enumerate() {
                        let updated = updated.remove(*name).unwrap();
                        assert_eq!(updated.shape(), caches[&old[which]].shape());
                        caches.insert(old[which].clone(), updated);
                    }
                }
            }
            pieces =
                outputs.iter().filter(|(name, _)| name.starts_with("logit")).map(own).collect();
            for (name, tensor) in outputs {
                let name = if name == names::NEW_X { names::X.to_owned() } else { name };
                self.shared.insert(name, tensor);
            }
        }
        let n = pieces.len();
        let order = |i| pieces.iter().find(|(name, _)| *name == names::logits(i, n)).unwrap();
        let ordered: Vec<_> = (0..n).map(order).collect();
        let inputs: Vec<(&str, Tensor)> =
            ordered.iter().map(|(name, tensor)| (name.as_str(), tensor.clone())).collect();
        let found = self.logit_processor.run("main", &inputs, &mut States::default()).unwrap();
        let row = |tensor: &Tensor| {
            let rows = tensor.shape()[2];
            tensor.as_floats().unwrap()[(used - 1) * rows..used * rows].to_vec()
        };
        let logits: Vec<f32> = ordered.iter().flat_map(|(_, tensor)| row(tensor)).collect();
        let best = logits.iter().fold(f32::NEG_INFINITY, |most, &v| most.max(v));
        let argmax = found[names::ARGMAX].as_ints().unwrap()[used - 1];
        assert_eq!(found[names::ARGMAX].shape(), [1, WINDOW]);
        assert_eq!(logits[argmax as usize], best);
        logits
    }

    /// Logits of a text of which the first `prompt` tokens are a prompt, by their positions.
    fn run(&mut self, tokens: &[u32], prompt: usize) -> Vec<(usize, Vec<f32>)> {
        let mut rows = Vec::new();
        let mut count = 0;
        while count < tokens.len() {
            // A window at a time of the prompt, then each token.
            count = if count < prompt { prompt.min(count + WINDOW) } else { count + 1 };
            rows.push((count - 1, self.predict(&tokens[..count])));
        }
        rows
    }
}

fn own((name, tensor): (&String, &Tensor)) -> (String, Tensor) {
    (name.clone(), tensor.clone())
}

#[test]
fn prompts_of_any_length_and_tokens_behind_them_give_what_the_reference_does() {
    let tiny = Tiny { layers: 5, ..Tiny::default() };
    let graph = tiny.graph().unwrap();
    let weights = random_weights(&graph, 5);
    let tokens = random_tokens(WINDOW + CACHE, tiny.vocab, 6);
    let scaled = scaled(&graph, &weights, &tokens);
    for (chunks, head_piece, ranges) in [
        (Chunks::Whole, 1000, Ranges::default()),
        (Chunks::Count(2), 40, Ranges::default()),
        (Chunks::Bytes(125_000), 40, scaled),
    ] {
        let lowering = MilLowering { head_piece, ranges, ..MilLowering::default() };
        let laid = Laid::out(&layout(), &graph, &weights, &lowering, chunks);
        for prompt in [1, 5, 8, 9, 16, 25, 32] {
            let rows = Runtime::new(&laid).run(&tokens, prompt);
            let name = format!("{chunks:?}, prompt of {prompt}");
            check(&name, &graph, &weights, &tokens, &rows);
        }
    }
}

#[test]
fn checkpoints_of_every_architecture_give_what_the_reference_does() {
    for name in ["llama", "qwen2", "qwen3", "gemma2", "gemma3", "phi3"] {
        let (graph, weights, mut tokens) = checkpoint(name);
        tokens.truncate(WINDOW + CACHE);
        let lowering = MilLowering::default();
        let laid = Laid::out(&layout(), &graph, &weights, &lowering, Chunks::Count(1));
        for prompt in [1, 11] {
            let rows = Runtime::new(&laid).run(&tokens, prompt);
            check(&format!("{name}, prompt of {prompt}"), &graph, &weights, &tokens, &rows);
        }
    }
}

#[test]
fn behind_the_context_a_token_sees_the_latest_ones() {
    // With one layer, keys and values are those of their tokens alone, wherever the text begins.
    let tiny = Tiny { layers: 1, window: None, ..Tiny::default() };
    let graph = tiny.graph().unwrap();
    let weights = random_weights(&graph, 5);
    let tokens = random_tokens(70, tiny.vocab, 6);
    let laid = Laid::out(&layout(), &graph, &weights, &MilLowering::default(), Chunks::Whole);
    let rows = Runtime::new(&laid).run(&tokens, 40);
    for (position, row) in &rows {
        let end = (position + 1).next_multiple_of(WINDOW);
        let start = end.saturating_sub(WINDOW + CACHE);
        let seen = &tokens[start..=*position];
        let expected = reference::logits(&graph, &weights, seen).unwrap();
        TOLERANCE.check(&format!("position {position}"), row, expected.row(seen.len() - 1));
    }
    assert!(rows.len() > 30 && tokens.len() > 2 * (WINDOW + CACHE));
}

#[test]
fn features_and_files_have_the_names_and_shapes_that_the_program_looks_for() {
    let tiny = Tiny { layers: 3, window: None, ..Tiny::default() };
    let graph = tiny.graph().unwrap();
    let weights = random_weights(&graph, 5);
    let forms = Form::Palette(Palette { bits: 8, group: 8 }).into();
    let lowering = MilLowering { head_piece: 60, forms, ..MilLowering::default() };
    let laid = Laid::out(&layout(), &graph, &weights, &lowering, Chunks::Count(2));
    assert_eq!(
        laid.files(),
        [
            "model_chunk1.mlpackage",
            "model_chunk2.mlpackage",
            "model_chunk3.mlpackage",
            "model_chunk4.mlpackage",
            "cache-processor.mlpackage",
            "logit-processor.mlpackage",
        ]
    );
    let features = |at: usize| -> Vec<String> {
        let function = &laid.packages[at].model.program.functions["main"];
        let all = function.tensor_inputs().chain(function.outputs());
        all.map(|(name, ty)| format!("{name} {:?}", ty.shape)).collect()
    };
    let (d, w, p) = (tiny.hidden, tiny.head_dim, WINDOW + CACHE);
    let x = format!("x [1, {d}, 1, 8]");
    let tables = [format!("cos [1, 1, {w}, 8]"), format!("sin [1, 1, {w}, 8]")];
    let mask = format!("mask [1, 1, 8, {p}]");
    let ids = ["input_ids [1, 8]".to_owned(), "full_sequence_length [1]".to_owned()];
    let shared = [&[x.clone()][..], &tables, &[mask]].concat();
    assert_eq!(features(0), [&ids[..], &shared].concat());
    let layers = [features(1), features(2)].concat();
    assert_eq!(layers.iter().filter(|f| *f == &format!("k_cache_0 [1, 2, {w}, 24]")).count(), 2);
    assert_eq!(layers.iter().filter(|f| *f == &format!("new_v_cache_1 [1, 2, {w}, 8]")).count(), 1);
    assert_eq!(layers.iter().filter(|f| *f == &format!("new_x [1, {d}, 1, 8]")).count(), 2);
    assert_eq!(features(3), [x, "logits_0 [1, 8, 60]".into(), "logits_1 [1, 8, 37]".into()]);
    assert_eq!(features(5)[2], "argmax [1, 8]");
    // One piece has no number.
    let lowering = MilLowering { head_piece: 97, ..MilLowering::default() };
    let laid = Laid::out(&layout(), &graph, &weights, &lowering, Chunks::Whole);
    let head = &laid.packages[2].model.program.functions["main"];
    assert_eq!(head.outputs().next().unwrap().0, "logits");
}

#[test]
fn contexts_that_are_no_windows_behind_each_other_are_refused() {
    let error = |context, window| LlmCli::new(prefix(), context, window).unwrap_err().to_string();
    for (context, window) in [(8, 8), (8, 0), (4, 8), (20, 8)] {
        let error = error(context, window);
        assert!(error.contains("multiple of the window"), "{error}");
    }
    for (context, window) in [(1 << 40, 8), ((1 << 17) + 8, 8), (usize::MAX, 5)] {
        let error = error(context, window);
        assert!(error.contains("take at most 131072"), "{error}");
    }
    // What is told to be small enough is.
    let error = error(1 << 17, 1 << 16);
    assert!(error.contains("a window of at most 512"), "{error}");
    LlmCli::new(prefix(), 1 << 17, 512).unwrap();
}
