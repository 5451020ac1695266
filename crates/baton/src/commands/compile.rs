//! `baton compile`: a model as a Core ML package, or a package rewritten.

pub mod rewrite;

mod manifest;
mod text;
mod tokenizer;
mod weights;

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use anyhow::Context;
use baton_coreml::lower::{Chunks, Lowering, MilLowering, Part, Sample, WEIGHTS_NOTE};
use baton_coreml::{
    Calibration, Draft, FOLDER_FILE, FOLDER_FORMAT, Model as Program, Package, PackageWriter,
    calibrate, describe_files, measure,
};
use baton_cpu::{Isa, Pool, physical_cores};
use baton_engine::ModelText;
use baton_graph::{Graph, Logits, hex};
use baton_hub::Sha256;
use baton_models::{BuildOptions, Model};
use baton_weights::Weights;
use serde_json::{Value, json};

use self::manifest::Measured;
use crate::computing::Threads;
use crate::failure::{hinted, usage};
use crate::interrupt::Unfinished;
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
  baton compile smollm2 -o out --text notes.txt     calibrated and measured on a text of your own
  baton compile X.mlpackage -o out                  a package of anybody, rewritten for the Neural Engine
  baton compile X.mlpackage -o out --passes pow_to_mul,split_head     by these passes alone
  baton compile --passes help                       what passes there are

The package has a function prefill_S_hH for chunks of S tokens behind a history of up to H, decode for
single tokens with the cache as a state, and head for logits, all over one file of weights, for iOS 18
and macOS 15. It is written and checked on any machine; there is no Core ML needed.";

/// Tokens of a chunk, if nothing else is asked for.
const TOKENS: u16 = 64;
/// Tokens of the text by which the model is calibrated, and those behind them on which it is measured.
const SAMPLE: usize = 128;
/// The context, if the model has one as long.
const CONTEXT: usize = 2048;

/// Arguments of `baton compile`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The model, or a package X.mlpackage to rewrite
    #[arg(value_name = "MODEL", required_unless_present = "passes")]
    model: Option<String>,
    /// The folder to write, which must not exist yet
    #[arg(long, short, value_name = "DIR", required_unless_present = "passes")]
    output: Option<PathBuf>,
    /// Most tokens of a text, prompt and answer (default: what the model can, at most 2048)
    #[arg(long, short = 'c', value_name = "N")]
    context: Option<usize>,
    /// Tokens of a chunk of a prompt; a list makes functions for each
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_values_t = [TOKENS])]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=4096))]
    tokens: Vec<u16>,
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
    let (Some(name), Some(output)) = (&args.model, &args.output) else {
        return Err(usage("name the package to rewrite, and the folder to write with --output"));
    };
    if output.exists() {
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
        return rewrite::execute(name, output, &args.rewrite, args.chunk_bytes());
    }
    if let Some(option) = args.rewrite.given() {
        return Err(usage(format!("{option} is for packages; {name} is a model")));
    }
    let store = models::store()?;
    let model = models::get(&store, &models::resolve(&store, name)?)?;
    let model = Model::open(&model.path)?;
    if let Some(folder) = model.packages() {
        let shown = folder.display();
        return Err(hinted(
            format!("{shown} holds packages already, not the weights that they were made of"),
            "name the model itself",
        ));
    }
    let trained = model.config().context_length;
    let context = args.context.unwrap_or(trained.min(CONTEXT));
    if context == 0 || context > trained {
        return Err(usage(format!("--context {context}: this model has 1 to {trained}")));
    }
    let start = Instant::now();
    let compiler = Compiler::new(&model, context, args)?;
    let (packages, measured) = whole_folder(output, |folder| {
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
        let measured = match args.no_quality {
            true => None,
            false => Some(compiler.measure(&mut packages, &logits)?),
        };
        let mut manifest = compiler.manifest(&lowering, &packages, measured.as_ref());
        tokenizer::copy(&model, folder, !args.no_embeddings)?;
        let packages = packages.into_iter().map(Written::finish);
        let packages = packages.collect::<anyhow::Result<Vec<_>>>()?;
        manifest["files"] = describe_files(folder)?;
        let text = serde_json::to_string_pretty(&manifest)? + "\n";
        fs::write(folder.join(FOLDER_FILE), text)
            .with_context(|| format!("cannot write {}", output.join(FOLDER_FILE).display()))?;
        Ok((packages, measured))
    })?;
    report(output, &packages, measured.as_ref(), start)
}

/// Writes the folder `output`: all of it lies beside its place until it is whole.
fn whole_folder<T>(
    output: &Path,
    write: impl FnOnce(&Path) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let parent = output.parent().filter(|path| !path.as_os_str().is_empty());
    let partial = partial_folder(parent.unwrap_or(Path::new(".")))
        .with_context(|| format!("cannot write beside {}", output.display()))?;
    let partial = Unfinished::new(partial);
    // Errors name the place that was asked for.
    let made = write(partial.path()).map_err(|error| match error.downcast() {
        Ok(error) => baton_coreml::Error::moved(error, partial.path(), output).into(),
        Err(error) => error,
    })?;
    partial.finish(output).with_context(|| format!("cannot write {}", output.display()))?;
    Ok(made)
}

/// A folder that becomes the output, with the permissions that a folder made at once would have.
fn partial_folder(parent: &Path) -> io::Result<tempfile::TempDir> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(".baton-compile-");
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        // What the umask leaves of them; otherwise they would be those of something private.
        builder.permissions(fs::Permissions::from_mode(0o777));
    }
    builder.tempdir_in(parent)
}

/// A package whose weights are written.
struct Written {
    file: String,
    part: Part,
    draft: Draft,
    package: Package,
}

impl Written {
    /// Writes the rest of it.
    fn finish(self) -> anyhow::Result<(String, Package)> {
        self.draft.finish(&self.package.model)?;
        Ok((self.file, self.package))
    }
}

struct Compiler<'a> {
    model: &'a Model,
    context: usize,
    chunks: Chunks,
    graph: Graph,
    weights: Weights,
    /// The text to calibrate and measure on.
    tokens: Vec<u32>,
    /// The tokens that weights are chosen by. The package is measured on the others.
    seen: usize,
    pool: Arc<Pool>,
}

impl<'a> Compiler<'a> {
    fn new(model: &'a Model, context: usize, args: &Args) -> anyhow::Result<Compiler<'a>> {
        let threads = args.threads.number().unwrap_or_else(physical_cores);
        let pool = Arc::new(Pool::new(threads, Isa::from_env()?)?);
        let (graph, weights) = model.build(&BuildOptions { context })?;
        let text = text::text(args.text.as_deref())?;
        let mut tokens = ModelText::of(model)?.tokenizer.encode(&text, true)?;
        tokens.truncate((2 * SAMPLE).min(context));
        if tokens.is_empty() {
            return Err(usage("the text to calibrate on is empty"));
        }
        let seen = SAMPLE.min(tokens.len() / 2);
        let chunks = match (args.chunk_bytes(), args.chunks) {
            (Some(size), _) => Chunks::Bytes(size),
            (None, Some(n)) => Chunks::Count(n),
            (None, None) => Chunks::Whole,
        };
        Ok(Compiler { model, context, chunks, graph, weights, tokens, seen, pool })
    }

    fn lowering(&self, args: &Args) -> MilLowering {
        let mut columns: Vec<usize> =
            args.tokens.iter().map(|&n| usize::from(n).min(self.context)).collect();
        columns.sort_unstable();
        columns.dedup();
        let decode = (!args.no_decode).then_some(self.context);
        MilLowering { decode, ..MilLowering::for_context(self.context, &columns) }
    }

    /// Writes the weights of every package into a folder.
    fn write(&self, folder: &Path, lowering: &MilLowering) -> anyhow::Result<Vec<Written>> {
        let parts = lowering.parts(&self.graph, self.chunks)?;
        let files = file_names(&parts);
        let mut written = Vec::new();
        for (part, file) in parts.into_iter().zip(files) {
            let _spinner = Spinner::start(&format!("writing {file}"));
            let mut writer = PackageWriter::create(&folder.join(&file))?;
            let blobs = &mut writer.weights;
            let mut program = lowering.lower_part(&self.graph, &self.weights, &part, blobs)?;
            program.metadata.description = self.model.name().to_owned();
            program.metadata.version = concat!("baton ", env!("CARGO_PKG_VERSION")).into();
            program.metadata.licence = self.model.licence().unwrap_or_default().to_owned();
            let draft = writer.seal()?;
            let package = draft.package(program)?;
            written.push(Written { file, part, draft, package });
        }
        Ok(written)
    }

    /// Runs the packages with every intermediate result in half precision, and takes note in them of how
    /// far they are from the model in single.
    fn measure(&self, written: &mut [Written], expected: &Logits) -> anyhow::Result<Measured> {
        let _spinner = Spinner::start("comparing with the model");
        let packages: Vec<&Package> = written.iter().map(|written| &written.package).collect();
        let (graph, weights, tokens) = (&self.graph, &self.weights, &self.tokens);
        let (quality, extremes) =
            measure(graph, weights, &packages, tokens, self.seen, expected, &self.pool)?;
        let ids: Vec<u8> = tokens.iter().flat_map(|id| id.to_le_bytes()).collect();
        let measured = Measured { quality, extremes, text: Sha256::of(&ids).to_string() };
        let note = measured.to_json().to_string();
        for written in written {
            let user = &mut written.package.model.metadata.user;
            user.insert(manifest::QUALITY.into(), note.clone());
        }
        Ok(measured)
    }

    fn manifest(
        &self,
        lowering: &MilLowering,
        packages: &[Written],
        measured: Option<&Measured>,
    ) -> Value {
        let forms = &lowering.forms;
        let weights = match forms.by_name.is_empty() {
            true => forms.each.to_string(),
            false => "mixed".to_owned(),
        };
        let by_name = forms.by_name.iter();
        let by_name = by_name.map(|(name, form)| (name.clone(), form.to_string().into()));
        let package = |w: &Written| {
            manifest::package(&w.file, &w.part, &w.package.model, w.package.weight_bytes())
        };
        json!({
            "format": FOLDER_FORMAT,
            "model": self.model.name(),
            "architecture": self.model.architecture(),
            "fingerprint": hex(self.graph.fingerprint()),
            "context": self.context,
            "weights": weights,
            "forms": by_name.collect::<serde_json::Map<_, _>>(),
            "weight_bytes": packages.iter().map(|w| w.package.weight_bytes()).sum::<u64>(),
            "packages": packages.iter().map(package).collect::<Vec<_>>(),
            "metadata": packages.first().map(|w| &w.package.model.metadata.user),
            "quality": measured.map(Measured::to_json),
        })
    }
}

/// A file for each part, in an order that names keep.
fn file_names(parts: &[Part]) -> Vec<String> {
    let chunks = parts.iter().filter(|part| part.has_layers()).count();
    let name = |(i, part): (usize, &Part)| {
        let (kind, at, of) = match part.has_layers() {
            _ if parts.len() == 1 => return "model.mlpackage".to_owned(),
            true => ("chunk", i + 1, chunks),
            false => ("head", i + 1 - chunks, parts.len() - chunks),
        };
        match of {
            1 => format!("model_{kind}.mlpackage"),
            _ => format!("model_{kind}_{at:02}_of_{of:02}.mlpackage"),
        }
    };
    parts.iter().enumerate().map(name).collect()
}

fn report(
    output: &Path,
    packages: &[(String, Package)],
    measured: Option<&Measured>,
    start: Instant,
) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    let bytes = packages.iter().map(|(_, package)| package.weight_bytes()).sum();
    writeln!(
        out,
        "{}: {} of weights, in {}",
        output.display(),
        format::bytes(bytes),
        format::time(start.elapsed())
    )?;
    for (file, package) in packages {
        let program: &Program = &package.model;
        if packages.len() > 1 {
            writeln!(out, "{file}: {}", format::bytes(package.weight_bytes()))?;
        }
        let functions = program.program.functions.iter();
        let operations = functions.map(|(name, function)| {
            let ops = function.body.ops.iter().filter(|op| !op.is_constant()).count();
            [name.clone(), format!("{ops} operations")]
        });
        for line in format::table(&operations.collect::<Vec<_>>()) {
            writeln!(out, "  {line}")?;
        }
        if let Some(note) = program.metadata.user.get(WEIGHTS_NOTE) {
            writeln!(out, "  {note}")?;
        }
    }
    if let Some(measured) = measured {
        let q = measured.quality;
        writeln!(
            out,
            "over {} tokens in half precision: KL {:.5}, same likeliest token {:.1} %, perplexity {:.3} \
             (the model's own: {:.3})",
            q.rows,
            q.divergence,
            100.0 * q.top1,
            q.perplexity,
            q.reference_perplexity
        )?;
        if let Some(largest) = measured.largest() {
            let (value, op) = (largest.largest, &largest.op);
            writeln!(out, "largest result: {value:.0} of {op} in {}", largest.function)?;
        }
        let n = measured.overflows().count();
        if let Some(first) = measured.overflows().next() {
            let (op, function) = (&first.op, &first.function);
            writeln!(
                out,
                "warning: {n} operations leave half precision, first {op} in {function}; calibrate on a \
                 text that is like yours with --text"
            )?;
        }
    }
    out.flush()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(unix)]
    #[test]
    fn the_folder_has_the_permissions_of_one_made_at_once() {
        use std::os::unix::fs::PermissionsExt;
        let parent = tempfile::tempdir().unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode();
        let plain = parent.path().join("plain");
        fs::create_dir(&plain).unwrap();
        let folder = partial_folder(parent.path()).unwrap();
        assert_eq!(mode(folder.path()), mode(&plain));
    }
}
