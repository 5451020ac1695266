//! What a model's weights in different forms are worth: a table of sizes and of how far each is from the
//! model itself, over a text of which the first half chooses and the second measures:
//!
//! `cargo run --release -p baton-coreml --example forms -- MODEL.gguf TEXT FORM...`
//!
//! A form is `fp16`, `lut4-g16` (bits and channels of a table), `int4-g32` (bits and block), or a number
//! such as `4.5`, the average of tables of 16 channels; `/plain` behind it counts all errors alike.

use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use baton_coreml::lower::{
    Energies, Form, Forms, Integer, Lowering, MilLowering, Palette, Sample, mixed_palettes,
};
use baton_coreml::{Calibration, PackageWriter, calibrate, measure};
use baton_cpu::{Isa, Pool, physical_cores};
use baton_graph::Graph;
use baton_models::{BuildOptions, Model};
use baton_text::Tokenizer;
use baton_weights::{GgufFile, Weights};

type Outcome<T> = Result<T, Box<dyn Error>>;

/// Tokens of the text.
const TOKENS: usize = 256;

fn main() -> Outcome<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [model, text, forms @ ..] = &args[..] else {
        return Err("usage: forms MODEL.gguf TEXT FORM...".into());
    };
    let tokenizer = Tokenizer::from_gguf(GgufFile::open(model)?.metadata())?;
    let (graph, weights) = Model::open(model)?.build(&BuildOptions { context: TOKENS })?;
    let mut tokens = tokenizer.encode(&std::fs::read_to_string(text)?, true)?;
    tokens.truncate(TOKENS);
    let pool = Arc::new(Pool::new(physical_cores(), Isa::from_env()?)?);
    let start = Instant::now();
    let half = tokens.len() / 2;
    let Calibration { ranges, energies, logits } = calibrate(&graph, &weights, &tokens, half)?;
    let sample = Sample { tokens: &tokens[..half], logits: &logits };
    println!("calibrated in {:.1} s", start.elapsed().as_secs_f64());
    println!("| form | weights | written in | KL | same likeliest token | perplexity |");
    println!("|---|---|---|---|---|---|");
    let folder = tempfile::tempdir()?;
    for text in forms {
        let start = Instant::now();
        let (name, energies) = match text.strip_suffix("/plain") {
            Some(name) => (name, Energies::new()),
            None => (text.as_str(), energies.clone()),
        };
        let forms = forms_of(name, &graph, &weights, &energies, sample)?;
        let prefill = vec![(64, 0), (64, TOKENS)];
        let ranges = ranges.clone();
        let lowering = MilLowering { prefill, ranges, energies, forms, ..MilLowering::default() };
        let path = folder.path().join("model.mlpackage");
        let mut writer = PackageWriter::create(Path::new(&path))?;
        let model = lowering.lower(&graph, &weights, &mut writer.weights)?;
        let draft = writer.seal()?;
        let package = draft.package(model)?;
        let seconds = start.elapsed().as_secs_f64();
        let (q, extremes) = measure(&graph, &weights, &[&package], &tokens, half, &logits, &pool)?;
        println!(
            "| {text} | {:.0} MB | {seconds:.0} s | {:.5} | {:.1} % | {:.2}, {:.2} |{}",
            package.weight_bytes() as f64 / 1e6,
            q.divergence,
            100.0 * q.top1,
            q.perplexity,
            q.reference_perplexity,
            if extremes.iter().any(|e| e.overflows()) { " overflows" } else { "" },
        );
    }
    Ok(())
}

fn forms_of(
    name: &str,
    graph: &Graph,
    weights: &Weights,
    energies: &Energies,
    sample: Sample<'_>,
) -> Outcome<Forms> {
    if let Ok(average) = name.parse() {
        return Ok(mixed_palettes(graph, weights, energies, average, 16, sample)?);
    }
    if name == "fp16" {
        return Ok(Form::Half.into());
    }
    let (kind, each) = name.split_once("-g").unwrap_or((name, "0"));
    let each = each.parse()?;
    Ok(match (kind.strip_prefix("lut"), kind.strip_prefix("int")) {
        (Some(bits), _) => Form::Palette(Palette { bits: bits.parse()?, group: each }).into(),
        (_, Some(bits)) => Form::Integer(Integer { bits: bits.parse()?, block: each }).into(),
        _ => return Err(format!("{name:?} is no form").into()),
    })
}
