//! The layout of Anemll.

use baton_coreml::interpret::{Interpreter, States, Tensor};
use baton_coreml::layout::names::anemll::{self as names, metadata};
use baton_coreml::layout::{Anemll, Layout, Prefix, Task};
use baton_coreml::lower::{Chunks, Form, Integer, MilLowering, Palette};
use baton_coreml::{ArrayType, FeatureKind, Package};
use baton_graph::Graph;
use baton_graph::testing::{Tiny, random_tokens, random_weights};
use baton_weights::Weights;

use crate::{Laid, check, checkpoint, interpreter, prefix, scaled};

const CONTEXT: usize = 24;
const BATCH: usize = 8;

fn layout(architecture: &str) -> Layout {
    Layout::Anemll(Anemll::new(prefix(), CONTEXT, BATCH, architecture).unwrap())
}

/// How a prompt is taken in.
#[derive(Clone, Copy, Debug)]
enum Prompt {
    /// Full batches, the rest token by token.
    Batches,
    /// Batches, the last one filled up; then its last token once more.
    Padded,
}

/// Runs packages as Anemll's programs do: by the names and shapes that the packages themselves have.
struct Runtime {
    /// For one token, and for a batch.
    embeddings: [Interpreter; 2],
    chunks: Vec<Interpreter>,
    head: Interpreter,
    logits: usize,
    /// The cache, which all chunks share.
    state: States,
}

impl Runtime {
    fn new(packages: &[Package]) -> Runtime {
        let [embeddings, chunks @ .., head] = packages else { panic!("too few packages") };
        let of = |tokens| {
            let shape = [1, tokens];
            interpreter(&embeddings.with_shape("main", names::INPUT_IDS, &shape).unwrap())
        };
        let logits = head.model.program.functions["main"].outputs().count();
        let chunks: Vec<Interpreter> = chunks.iter().map(interpreter).collect();
        Runtime {
            embeddings: [of(1), of(BATCH)],
            state: chunks[0].states(names::PREFILL).unwrap(),
            chunks,
            head: interpreter(head),
            logits,
        }
    }

    /// The hidden states of some tokens that begin at a position.
    fn layers(&mut self, tokens: &[u32], position: usize) -> Tensor {
        let single = tokens.len() == 1;
        let (function, n) = if single { (names::INFER, 1) } else { (names::PREFILL, BATCH) };
        let ids: Vec<i32> = tokens.iter().map(|&id| id as i32).chain([0; BATCH]).take(n).collect();
        let input = [(names::INPUT_IDS, Tensor::ints(&[1, n], ids))];
        let embeddings = &self.embeddings[usize::from(!single)];
        let mut found = embeddings.run("main", &input, &mut States::default()).unwrap();
        let mut hidden = found.remove(names::HIDDEN_STATES).unwrap();
        let mask = (0..n * CONTEXT).map(|at| match at % CONTEXT <= position + at / CONTEXT {
            true => 0.0,
            false => f32::NEG_INFINITY,
        });
        let mask = Tensor::floats(&[1, 1, n, CONTEXT], mask.collect());
        let positions: Vec<i32> = (0..n).map(|i| (position + i) as i32).collect();
        for chunk in &self.chunks {
            let inputs = [
                (names::HIDDEN_STATES, hidden),
                (names::POSITION_IDS, Tensor::ints(&[n], positions.clone())),
                (names::CAUSAL_MASK, mask.clone()),
                (names::CURRENT_POS, Tensor::ints(&[1], vec![position as i32])),
            ];
            let mut found = chunk.run(function, &inputs, &mut self.state).unwrap();
            hidden = found.remove(names::OUTPUT_HIDDEN_STATES).unwrap();
        }
        hidden
    }

    /// The logits behind a token.
    fn infer(&mut self, token: u32, position: usize) -> Vec<f32> {
        let hidden = self.layers(&[token], position);
        let input = [(names::HIDDEN_STATES, hidden)];
        let found = self.head.run("main", &input, &mut States::default()).unwrap();
        let pieces = (1..=self.logits).map(|i| found[&names::logits(i)].as_floats().unwrap());
        pieces.flat_map(|piece| piece.to_vec()).collect()
    }

    /// Logits of a text of which the first `prompt` tokens are a prompt, by their positions.
    fn run(&mut self, tokens: &[u32], prompt: usize, how: Prompt) -> Vec<(usize, Vec<f32>)> {
        let mut at = 0;
        let mut rows = Vec::new();
        while at < prompt {
            let n = BATCH.min(prompt - at);
            match how {
                Prompt::Batches if n < BATCH => break,
                _ => drop(self.layers(&padded(&tokens[at..at + n]), at)),
            }
            at += n;
        }
        if let (Prompt::Padded, true) = (how, at > 0) {
            at -= 1;
        }
        for (position, &token) in tokens.iter().enumerate().skip(at) {
            rows.push((position, self.infer(token, position)));
        }
        rows
    }
}

/// A batch, filled up with another token.
fn padded(tokens: &[u32]) -> Vec<u32> {
    tokens.iter().copied().chain([3; BATCH]).take(BATCH).collect()
}

fn prompts(name: &str, graph: &Graph, weights: &Weights, tokens: &[u32], laid: &Laid) {
    for how in [Prompt::Batches, Prompt::Padded] {
        for prompt in [0, 1, 5, 8, 9, 16, 19] {
            let prompt = prompt.min(tokens.len() - 1);
            let mut runtime = Runtime::new(&laid.packages);
            let rows = runtime.run(tokens, prompt, how);
            check(&format!("{name}, {how:?} of {prompt}"), graph, weights, tokens, &rows);
        }
    }
}

#[test]
fn prompts_of_any_length_and_tokens_behind_them_give_what_the_reference_does() {
    let tiny = Tiny { layers: 5, ..Tiny::default() };
    let graph = tiny.graph().unwrap();
    let weights = random_weights(&graph, 5);
    let tokens = random_tokens(CONTEXT, tiny.vocab, 6);
    for (chunks, pad_states) in [(Chunks::Whole, true), (Chunks::Count(2), false)] {
        let lowering = MilLowering { pad_states, ..MilLowering::default() };
        let laid = Laid::out(&layout("Llama"), &graph, &weights, &lowering, chunks);
        prompts(&format!("{chunks:?}"), &graph, &weights, &tokens, &laid);
    }
}

#[test]
fn checkpoints_of_every_architecture_give_what_the_reference_does() {
    for name in ["llama", "qwen2", "qwen3", "gemma2", "gemma3", "phi3"] {
        let (graph, weights, mut tokens) = checkpoint(name);
        tokens.truncate(CONTEXT);
        let lowering = MilLowering::default();
        let laid = Laid::out(&layout(name), &graph, &weights, &lowering, Chunks::Count(1));
        prompts(name, &graph, &weights, &tokens, &laid);
    }
}

#[test]
fn a_hidden_state_that_is_scaled_and_quantized_weights_pass_from_package_to_package() {
    let tiny = Tiny { vocab: 128, ..Tiny::default() };
    let graph = tiny.graph().unwrap();
    let weights = random_weights(&graph, 5);
    let tokens = random_tokens(CONTEXT, tiny.vocab, 6);
    let ranges = scaled(&graph, &weights, &tokens);
    let lowering = MilLowering { ranges, ..MilLowering::default() };
    let laid = Laid::out(&layout("Llama"), &graph, &weights, &lowering, Chunks::Count(2));
    prompts("scaled", &graph, &weights, &tokens, &laid);
    // With 8 bits nothing much is lost; that each form is what it says is tested elsewhere.
    let exact = Runtime::new(&laid.packages).run(&tokens, 9, Prompt::Batches);
    for form in
        [Form::Palette(Palette { bits: 8, group: 8 }), Form::Integer(Integer { bits: 8, block: 0 })]
    {
        let lowering = MilLowering { forms: form.into(), ..MilLowering::default() };
        let laid = Laid::out(&layout("Llama"), &graph, &weights, &lowering, Chunks::Count(2));
        let rows = Runtime::new(&laid.packages).run(&tokens, 9, Prompt::Batches);
        for ((position, row), (_, exact)) in rows.iter().zip(&exact) {
            let error: f32 = row.iter().zip(exact).map(|(a, b)| (a - b) * (a - b)).sum();
            let size: f32 = exact.iter().map(|v| v * v).sum();
            assert!(error / size < 1e-2, "{form}, {position}: {}", error / size);
            assert!(error > 0.0, "{form}: nothing was quantized");
        }
        let files = laid.files();
        let lut = if form == Form::Palette(Palette { bits: 8, group: 8 }) { "_lut8" } else { "" };
        assert_eq!(
            files,
            [
                "model_embeddings.mlpackage".to_owned(),
                format!("model_FFN_PF{lut}_chunk_01of02.mlpackage"),
                format!("model_FFN_PF{lut}_chunk_02of02.mlpackage"),
                format!("model_lm_head{lut}.mlpackage"),
            ]
        );
        let bits = laid.packages[1].model.metadata.user.get(metadata::LUT_BITS);
        assert_eq!(bits.map(String::as_str), (!lut.is_empty()).then_some("8"));
    }
}

#[test]
fn features_have_the_names_types_and_shapes_that_anemll_looks_for() {
    let tiny = Tiny { layers: 4, vocab: 128, ..Tiny::default() };
    let graph = tiny.graph().unwrap();
    let weights = random_weights(&graph, 5);
    let lowering = MilLowering::default();
    let laid = Laid::out(&layout("Qwen3"), &graph, &weights, &lowering, Chunks::Count(2));
    let [embeddings, first, last, head] = &laid.packages[..] else { panic!() };
    let d = tiny.hidden;
    let of = |package: &Package, function: &str| -> Vec<String> {
        let description =
            package.model.functions.iter().find(|f| f.name == function).unwrap().clone();
        let lists = [description.inputs, description.states, description.outputs];
        let one = |feature: &baton_coreml::Feature| match &feature.kind {
            FeatureKind::Array(array) | FeatureKind::State(array) => {
                let kind = if array.dtype == ArrayType::Int32 { "int32" } else { "fp16" };
                format!("{} {kind} {:?} {:?}", feature.name, array.shape, array.shapes)
            }
            other => panic!("{other:?}"),
        };
        lists.iter().flatten().map(one).collect()
    };
    assert_eq!(
        of(embeddings, "main"),
        [
            format!("input_ids int32 [1, 1] {:?}", [[1, 1], [1, BATCH]]),
            format!("hidden_states fp16 [1, 1, {d}] []"),
        ]
    );
    let layers = |s: usize, rows: usize| {
        [
            format!("hidden_states fp16 [1, {s}, {d}] []"),
            format!("position_ids int32 [{s}] []"),
            format!("causal_mask fp16 [1, 1, {s}, {CONTEXT}] []"),
            "current_pos int32 [1] []".to_owned(),
            "model_model_kv_cache_0 fp16 [8, 2, 32, 32] []".to_owned(),
            format!("output_hidden_states fp16 [1, {rows}, {d}] []"),
        ]
    };
    assert_eq!(of(first, "infer"), layers(1, 1));
    assert_eq!(of(first, "prefill"), layers(BATCH, BATCH));
    assert_eq!(of(last, "prefill"), layers(BATCH, 1));
    assert_eq!(first.model.default_function.as_deref(), Some("infer"));
    let logits = of(head, "main");
    assert_eq!(logits.len(), 17);
    assert_eq!(logits[16], "logits16 fp16 [1, 1, 8] []");
    let user = &last.model.metadata.user;
    for (key, value) in [
        (metadata::CONTEXT_LENGTH, "24"),
        (metadata::BATCH_SIZE, "8"),
        (metadata::NUM_CHUNKS, "2"),
        (metadata::CHUNK_NO, "2"),
        (metadata::FUNCTIONS, "infer,prefill"),
    ] {
        assert_eq!(user.get(key).map(String::as_str), Some(value), "{key}");
    }
    // The packages' description of a folder.
    let Layout::Anemll(anemll) = layout("Qwen3") else { unreachable!() };
    let task = Task { graph: &graph, weights: &weights, lowering: &lowering };
    let meta = anemll.meta(task, &laid.pieces, "a \"model\"", None).unwrap();
    for line in [
        "  architecture: \"qwen3\"",
        "    context_length: 24",
        "    lut_ffn: none",
        "    num_chunks: 2",
        "    model_prefix: model",
        "    ffn: model_FFN_PF_chunk_01of02.mlmodelc",
        "    split_lm_head: 16",
        "    lm_head_chunk_sizes: [8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8]",
        "    prefill_dynamic_slice: true",
        "    single_cache: true",
        "    sliding_window: 24",
    ] {
        assert!(meta.lines().any(|found| found == line), "{line} in\n{meta}");
    }
    // A prefix that ends as packages do is still a prefix.
    let like_a_package = Prefix::new("a.mlpackage").unwrap();
    let anemll = Anemll::new(like_a_package, CONTEXT, BATCH, "Qwen3").unwrap();
    let pieces = Layout::Anemll(anemll.clone()).pieces(task, Chunks::Whole).unwrap();
    let meta = anemll.meta(task, &pieces, "a model", None).unwrap();
    let line = "    lm_head: a.mlpackage_lm_head.mlmodelc\n";
    assert!(meta.contains(line), "{meta}");
}

#[test]
fn contexts_and_batches_that_would_write_over_the_end_are_refused() {
    for (context, batch, text) in [
        (24, 7, "take a multiple of the batch"),
        (0, 8, "take a multiple of the batch"),
        (24, 1, "take 2 or more"),
        (24, 0, "take 2 or more"),
        (1 << 21, 8, "take at most 1048576"),
        (usize::MAX, 5, "take at most 1048576"),
    ] {
        let error = Anemll::new(prefix(), context, batch, "Llama").unwrap_err().to_string();
        assert!(error.contains(text), "{error}");
    }
}
