//! `baton compile`: a model as Core ML packages, or a package rewritten.

pub mod install;
pub mod rewrite;

mod compiler;
mod folder;
mod layout;
mod manifest;
mod text;
mod tokenizer;
mod told;
mod weights;

use std::fs;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::Context;
use baton_coreml::lower::{MilLowering, Sample};
use baton_coreml::{Calibration, FOLDER_FILE, calibrate, describe_files};
use baton_engine::open_model;

use self::compiler::{Compiler, Written};
use crate::computing::Threads;
use crate::failure::{hinted, usage};
use crate::progress::Spinner;
use crate::{format, models};

/// Shown below the help.
pub const EXAMPLES: &str = "\
Examples:
  baton compile smollm2 -o smollm2-ane              a folder with model.mlpackage and baton.json
  baton run ./smollm2-ane \"Why is the sky blue?\"    runs it
  baton compile ./model.gguf -o out --context 4096  for longer texts
  baton compile smollm2 -o out --tokens 64,512      functions for chunks of 64 and of 512 tokens
  baton compile smollm2 -o out --bits 6             weights as indices into tables of 64 values
  baton compile smollm2 -o out --bits 4.5           tables of few values, larger where it matters most
  baton compile smollm2 -o out --quantize int8      weights as integers with a scale for each channel
  baton compile smollm2 -o out --chunk-size 950MB   several packages: layers, then the head
  baton compile smollm2 -o out --layout anemll      for the programs of the project Anemll
  baton compile smollm2 -o out --text notes.txt     calibrated and measured on a text of your own
  baton compile X.mlpackage -o out                  a package of anybody, rewritten for the Neural Engine
  baton compile X.mlpackage -o out --passes pow_to_mul,split_head     by these passes alone
  baton compile --passes help                       what passes there are
  baton compile ./smollm2-ane --install             on a Mac: a folder from elsewhere, made ready for it

The package has a function prefill_S_hH for chunks of S tokens behind a history of up to H, decode for
single tokens with the cache as a state, and head for logits, all over one file of weights, for iOS 18
and macOS 15. It is written and checked on any machine; there is no Core ML needed. On a Mac, Core ML then
compiles it for that machine, so that it loads at once. The layouts of others have their own functions: see
docs/coreml.md.";

/// Tokens of a chunk, if nothing else is asked for.
const TOKENS: u16 = 64;
/// A prompt has a token at least, and so has an answer.
const LEAST_CONTEXT: usize = 2;
/// The context, if the model has one as long.
const CONTEXT: usize = 2048;

/// Arguments of `baton compile`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The model, a package X.mlpackage to rewrite, or with --install alone what was compiled
    #[arg(value_name = "MODEL", required_unless_present = "passes")]
    model: Option<String>,
    /// The folder to write, which must not exist yet
    #[arg(long, short, value_name = "DIR", required_unless_present_any = ["passes", "install"])]
    output: Option<PathBuf>,
    /// Most tokens of a text, prompt and answer (default: what the model can, at most 2048)
    #[arg(long, short = 'c', value_name = "N")]
    context: Option<usize>,
    /// Tokens of a chunk of a prompt; a list makes functions for each
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_values_t = [TOKENS])]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=4096))]
    tokens: Vec<u16>,
    #[command(flatten)]
    layout: layout::Args,
    #[command(flatten)]
    weights: weights::Args,
    /// Cut the model, or the functions of a package, into packages of at most this size, counted in half
    /// precision
    #[arg(long, value_name = "SIZE", value_parser = format::parse_memory, conflicts_with = "chunks")]
    chunk_size: Option<u64>,
    /// The same in megabytes, as it was once called for packages
    #[arg(long, hide = true, value_name = "N", conflicts_with_all = ["chunk_size", "chunks"])]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    chunk_mb: Option<u64>,
    /// Cut the model into so many packages of layers, and one for the head
    #[arg(long, value_name = "N")]
    chunks: Option<usize>,
    /// Leave out the function for single tokens
    #[arg(long)]
    no_decode: bool,
    /// Leave out the embeddings, without which the folder runs only beside the model (--packages)
    #[arg(long)]
    no_embeddings: bool,
    /// Calibrate and measure on the beginning of this text instead of a built-in one
    #[arg(long, value_name = "FILE")]
    text: Option<PathBuf>,
    /// Do not compare the package's answers with the model's
    #[arg(long)]
    no_quality: bool,
    #[command(flatten)]
    threads: Threads,
    #[command(flatten)]
    rewrite: rewrite::Args,
    #[command(flatten)]
    install: install::Args,
}

impl Args {
    /// Most bytes of a package's weights, if it was said.
    fn chunk_bytes(&self) -> Option<u64> {
        self.chunk_size.or(self.chunk_mb.map(|n| n * 1_000_000))
    }

    /// An option that was given and says how a model is compiled.
    fn of_models(&self) -> Option<&'static str> {
        given([
            (self.context.is_some(), "--context"),
            (self.tokens != [TOKENS], "--tokens"),
            (self.chunks.is_some(), "--chunks"),
            (self.no_decode, "--no-decode"),
            (self.no_embeddings, "--no-embeddings"),
            (self.text.is_some(), "--text"),
            (self.no_quality, "--no-quality"),
            (self.threads.number().is_some(), "--threads"),
        ])
        .or_else(|| self.layout.given())
        .or_else(|| self.weights.given())
    }
}

/// The first option of those that were given.
fn given(options: impl IntoIterator<Item = (bool, &'static str)>) -> Option<&'static str> {
    options.into_iter().find(|(given, _)| *given).map(|(_, option)| option)
}

/// Compiles it.
///
/// # Errors
/// If the model cannot be had or has no form in Core ML, or the folder cannot be written.
pub fn execute(args: &Args) -> anyhow::Result<()> {
    if args.rewrite.asks_for_help() {
        return rewrite::list();
    }
    if let (Some(name), None, true) = (&args.model, &args.output, args.install.asked()) {
        if let Some(option) = args.of_models().or_else(|| args.rewrite.given()) {
            return Err(usage(format!("{option} needs a folder to write, --output")));
        }
        return install::there(name);
    }
    let (Some(name), Some(output)) = (&args.model, &args.output) else {
        return Err(usage("name the package to rewrite, and the folder to write with --output"));
    };
    // Also a link that leads nowhere, which nothing could take the place of.
    if output.symlink_metadata().is_ok() {
        let shown = output.display();
        return Err(hinted(
            format!("{shown} exists already"),
            "name another folder, or remove that one",
        ));
    }
    if rewrite::is_package(name) {
        if let Some(option) = args.of_models() {
            return Err(usage(format!("{option} is for models; {name} is a package already")));
        }
        let device = args.install.device(false)?;
        let written = rewrite::execute(name, output, &args.rewrite, args.chunk_bytes())?;
        return device.map_or(Ok(()), |device| install::packages(&device, &written));
    }
    if let Some(option) = args.rewrite.given() {
        return Err(usage(format!("{option} is for packages; {name} is a model")));
    }
    let store = models::store()?;
    let model = models::get(&store, &models::resolve(&store, name)?)?;
    let model = open_model(&model.path)?;
    if let Some(folder) = model.packages() {
        let shown = folder.display();
        return Err(hinted(
            format!("{shown} holds packages already, not the weights that they were made of"),
            "name the model itself",
        ));
    }
    let trained = model.config().context_length;
    let default = || args.layout.default_context(trained.min(CONTEXT), &args.tokens);
    let context = args.context.unwrap_or_else(default);
    if !(LEAST_CONTEXT..=trained).contains(&context) {
        return Err(usage(format!(
            "--context {context}: this model has {LEAST_CONTEXT}, for a token and its answer, to {trained}"
        )));
    }
    let of_own_layout = [
        (args.no_decode, "--no-decode"),
        (args.no_embeddings, "--no-embeddings"),
        (args.no_quality, "--no-quality"),
    ];
    let layout = args.layout.layout(&model, context, &args.tokens, &of_own_layout)?;
    let device = args.install.device(true)?;
    let start = Instant::now();
    folder::can_be_written(output)?;
    let compiler = Compiler::new(&model, context, layout.clone(), args)?;
    let least = compiler.least_bytes(args.weights.least_bits(), !args.no_embeddings)?;
    folder::has_room(output, least)?;
    let (packages, measured) = folder::whole_folder(output, |folder| {
        let Calibration { ranges, energies, logits } = {
            let _spinner = Spinner::start("calibrating");
            calibrate(&compiler.graph, &compiler.weights, &compiler.tokens, compiler.seen)?
        };
        let energies = args.weights.energies(energies);
        let forms = {
            let _spinner = Spinner::start("choosing bits");
            let sample = Sample { tokens: &compiler.tokens[..compiler.seen], logits: &logits };
            args.weights.forms(&compiler.graph, &compiler.weights, &energies, sample)?
        };
        let lowering = MilLowering { ranges, energies, forms, ..compiler.lowering(args) };
        let mut packages = compiler.write(folder, &lowering)?;
        let measured = match args.no_quality || !compiler.can_measure() {
            true => None,
            false => Some(compiler.measure(&mut packages, &logits)?),
        };
        let mut manifest = compiler.manifest(&lowering, &packages, measured.as_ref());
        let write = |name: &str, text: String| {
            fs::write(folder.join(name), text)
                .with_context(|| format!("cannot write {}", output.join(name).display()))
        };
        if let Some((name, text)) = compiler.note(&lowering, &packages)? {
            write(name, text)?;
        }
        tokenizer::copy(&model, folder, compiler.can_measure() && !args.no_embeddings)?;
        let packages = packages.into_iter().map(Written::finish);
        let packages = packages.collect::<anyhow::Result<Vec<_>>>()?;
        manifest["files"] = describe_files(folder)?;
        write(FOLDER_FILE, serde_json::to_string_pretty(&manifest)? + "\n")?;
        Ok((packages, measured))
    })?;
    told::report(output, &layout, &packages, measured.as_ref(), start)?;
    device.map_or(Ok(()), |device| args.install.written(&device, output))
}
