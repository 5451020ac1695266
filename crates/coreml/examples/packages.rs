//! Writes packages of small models, and rewritten ones of coremltools, into a folder, each with what the
//! interpreter computes, for `tests/golden/check.py` to look at:
//!
//! `cargo run --release -p baton-coreml --features testing --example packages -- FOLDER`

use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use baton_coreml::interpret::{Interpreter, Precision, States, Tensor, Values};
use baton_coreml::layout::{Anemll, Content, Layout, LlmCli, Prefix, Task};
use baton_coreml::lower::{
    Chunks, Form, Integer, Lowering, MilLowering, PALETTE_BITS, Palette, Sample, mixed_palettes,
};
use baton_coreml::mil::{DataType, Function};
use baton_coreml::passes::{Draft, Options, PASSES};
use baton_coreml::testing::example;
use baton_coreml::{FeatureKind, Package, PackageWriter, calibrate};
use baton_cpu::{Isa, Pool};
use baton_graph::testing::Random;
use baton_models::testing::{Golden, goldens};
use baton_models::{BuildOptions, Model};
use serde_json::{Map, Value as Json, json};

type Outcome<T> = Result<T, Box<dyn Error>>;

/// Checkpoints whose architectures differ most.
const MODELS: [&str; 8] =
    ["llama", "qwen2", "qwen3", "gemma2", "gemma3", "phi3", "qwen3-moe", "gpt-oss-bf16"];
const CONTEXT: usize = 24;
/// Tokens that functions of other layouts take at once.
const BATCH: usize = 8;

fn main() -> Outcome<()> {
    let folder = PathBuf::from(std::env::args().nth(1).ok_or("usage: packages FOLDER")?);
    let pool = Arc::new(Pool::new(1, Isa::detect())?);
    let path = folder.join("example.mlpackage");
    let mut writer = PackageWriter::create(&path)?;
    let model = example(&mut writer.weights)?;
    writer.finish(&model)?;
    write_runs(&path, &pool)?;
    // Weights in half precision, and quantized in a few ways.
    let palettes = PALETTE_BITS.into_iter().flat_map(|bits| [(bits, 0), (bits, 8)]);
    let palettes = palettes.map(|(bits, group)| Form::Palette(Palette { bits, group }));
    let integers = [(8, 0), (4, 0), (4, 32), (8, 16)];
    let integers = integers.map(|(bits, block)| Form::Integer(Integer { bits, block }));
    let quantized = palettes.chain(integers).map(|form| ("llama", form));
    // A file whose own blocks are taken over.
    let own = Form::Integer(Integer { bits: 4, block: 32 });
    let plain = MODELS.map(|name| (name, Form::Half)).into_iter();
    let forms = plain.chain(quantized).chain([("llama-mlx", own)]);
    let forms = forms.map(|(name, form)| (name, Some(form)));
    // One has matrices in different forms.
    for (name, form) in forms.chain([("llama", None)]) {
        let golden = checkpoint(name)?;
        let model = Model::open(&golden.path)?;
        let (graph, weights) = model.build(&BuildOptions { context: CONTEXT })?;
        let sample = &golden.ids[..golden.ids.len().min(CONTEXT)];
        let seen = calibrate(&graph, &weights, sample, sample.len())?;
        let said = form.map_or("mixed".to_owned(), |form| form.to_string());
        let forms = match form {
            Some(form) => form.into(),
            None => {
                let sample = Sample { tokens: sample, logits: &seen.logits };
                mixed_palettes(&graph, &weights, &seen.energies, 4.5, 8, sample)?
            }
        };
        let lowering = MilLowering {
            prefill: vec![(8, 0), (8, 16), (1, 16)],
            decode: Some(CONTEXT),
            head_piece: 100,
            forms,
            ranges: seen.ranges,
            energies: seen.energies,
            ..MilLowering::default()
        };
        // One is cut into its layers and a head.
        let chunks = if name == "gemma3" { Chunks::Count(2) } else { Chunks::Whole };
        for (i, part) in lowering.parts(&graph, chunks)?.iter().enumerate() {
            let path = folder.join(format!("{name}-{said}-{i}.mlpackage"));
            let mut writer = PackageWriter::create(&path)?;
            let model = lowering.lower_part(&graph, &weights, part, &mut writer.weights)?;
            writer.finish(&model)?;
            write_runs(&path, &pool)?;
        }
    }
    for (name, form) in [
        ("llama", Form::Palette(Palette { bits: 4, group: 4 })),
        ("qwen2", Form::Half),
        ("qwen3", Form::Integer(Integer { bits: 8, block: 0 })),
        ("gemma3", Form::Half),
    ] {
        lay_out(name, form, &folder, &pool)?;
    }
    for name in ["block", "decoder", "stateful", "quantized"] {
        rewrite(name, &folder, &pool)?;
    }
    Ok(())
}

/// Writes a checkpoint in the layouts of other projects.
fn lay_out(name: &str, form: Form, folder: &Path, pool: &Arc<Pool>) -> Outcome<()> {
    let golden = checkpoint(name)?;
    let model = Model::open(&golden.path)?;
    let (graph, weights) = model.build(&BuildOptions { context: CONTEXT })?;
    let lowering = MilLowering { forms: form.into(), head_piece: 100, ..MilLowering::default() };
    let task = Task { graph: &graph, weights: &weights, lowering: &lowering };
    let prefix = |layout: &str| Prefix::new(&format!("{layout}-{name}"));
    let anemll = Anemll::new(prefix("anemll")?, CONTEXT, BATCH, model.architecture())?;
    let llm_cli = LlmCli::new(prefix("cli")?, CONTEXT, BATCH)?;
    for layout in [Layout::Anemll(anemll), Layout::LlmCli(llm_cli)] {
        let pieces = layout.pieces(task, Chunks::Count(2))?;
        for (at, piece) in pieces.iter().enumerate() {
            // Some have a name that is the same for all models.
            let path = match piece.content {
                Content::CacheProcessor | Content::LogitProcessor => {
                    folder.join(format!("{name}-{}", piece.file))
                }
                _ => folder.join(&piece.file),
            };
            let mut writer = PackageWriter::create(&path)?;
            let model = layout.lower(task, &pieces, at, &mut writer.weights)?;
            writer.finish(&model)?;
            write_runs(&path, pool)?;
        }
    }
    Ok(())
}

/// A checkpoint of the tests.
fn checkpoint(name: &str) -> Outcome<Golden> {
    let golden = goldens().into_iter().find(|golden| golden.name.starts_with(&format!("{name},")));
    Ok(golden.ok_or("no such checkpoint")?)
}

/// Rewrites a package that coremltools made by all passes of the default, with bounds so low that small
/// packages reach them, and writes what becomes of it.
fn rewrite(name: &str, folder: &Path, pool: &Arc<Pool>) -> Outcome<()> {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let mut drafts = vec![Draft::new(Package::open(&golden.join(format!("{name}.mlpackage")))?)];
    let options = Options { min_queries: 3, query_divider: 2, head_piece: 64, chunk_bytes: 12_000 };
    for pass in PASSES.iter().filter(|pass| pass.default) {
        let mut made = Vec::new();
        for draft in drafts {
            made.extend(draft.apply(pass, &options)?.0);
        }
        drafts = made;
    }
    for draft in drafts {
        let path =
            folder.join(format!("{name}-passes{}.mlpackage", draft.part.replace("chunk", "")));
        draft.write(&path)?;
        write_runs(&path, pool)?;
    }
    Ok(())
}

/// Runs each function of a package once on random inputs and writes all of it beside the package.
fn write_runs(path: &Path, pool: &Arc<Pool>) -> Outcome<()> {
    let mut package = Package::open(path)?;
    // Inputs that may have one of several shapes have the last one.
    for description in package.model.functions.clone() {
        for input in &description.inputs {
            if let FeatureKind::Array(array) = &input.kind
                && let Some(shape) = array.shapes.last()
            {
                package = package.with_shape(&description.name, &input.name, shape)?;
            }
        }
    }
    let precisions =
        [("half", Precision::F16), ("steps", Precision::F16Steps), ("single", Precision::F32)];
    let interpreters = precisions
        .map(|(name, precision)| Ok((name, Interpreter::new(&package, precision, pool.clone())?)));
    let interpreters: Vec<_> = interpreters.into_iter().collect::<Outcome<_>>()?;
    let mut runs = Map::new();
    for (name, function) in &package.model.program.functions {
        runs.insert(name.clone(), run(&interpreters, name, function)?);
    }
    std::fs::write(path.with_extension("json"), serde_json::to_string(&runs)?)?;
    Ok(())
}

fn run(interpreters: &[(&str, Interpreter)], name: &str, function: &Function) -> Outcome<Json> {
    let mut random = Random::new(9);
    let mut floats = |shape: &[usize]| {
        let n = shape.iter().product();
        let values = (0..n).map(|_| half::f16::from_f32(random.signed()).to_f32());
        Tensor::floats(shape, values.collect())
    };
    let inputs: Vec<(&str, Tensor)> = function
        .tensor_inputs()
        .map(|(name, ty)| match ty.dtype {
            DataType::Int32 => (name, Tensor::ints(&ty.shape, vec![5; ty.shape.iter().product()])),
            _ => (name, floats(&ty.shape)),
        })
        .collect();
    let mut states = States::default();
    function.states().for_each(|(name, ty)| states.set(name, floats(&ty.shape)));
    let held = |states: &States| -> Map<String, Json> {
        let state = |(name, _)| (String::from(name), json(states.get(name).expect("it was set")));
        function.states().map(state).collect()
    };
    let named = |pairs: &mut dyn Iterator<Item = (&str, &Tensor)>| -> Map<String, Json> {
        pairs.map(|(name, tensor)| (name.to_owned(), json(tensor))).collect()
    };
    let mut said = json!({
        "inputs": named(&mut inputs.iter().map(|(name, tensor)| (*name, tensor))),
        "states": held(&states),
    });
    for (precision, interpreter) in interpreters {
        let mut states = states.clone();
        let outputs = interpreter.run(name, &inputs, &mut states)?;
        let outputs = named(&mut outputs.iter().map(|(name, tensor)| (name.as_str(), tensor)));
        said[*precision] = json!({ "outputs": outputs, "states": held(&states) });
    }
    Ok(said)
}

fn json(tensor: &Tensor) -> Json {
    match tensor.values() {
        Values::Floats(values) => json!({ "shape": tensor.shape(), "floats": **values }),
        Values::Ints(values) => json!({ "shape": tensor.shape(), "ints": **values }),
        Values::Bools(values) => json!({ "shape": tensor.shape(), "bools": **values }),
    }
}
