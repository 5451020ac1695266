//! `baton compile`: a model as a Core ML package, or a package rewritten.

pub mod rewrite;

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use anyhow::Context;
use baton_coreml::interpret::{Interpreter, Precision};
use baton_coreml::lower::{Lowering, MilLowering, PALETTE_BITS, Palette, Ranges};
use baton_coreml::mil::TensorType;
use baton_coreml::{
    Model as Program, Package, PackageExecutor, PackageWriter, Quality, calibrate, compare,
};
use baton_cpu::{Isa, Pool, physical_cores};
use baton_engine::ModelText;
use baton_graph::{Batch, Executor, Graph, Limits, Rows, SeqId, hex, reference};
use baton_models::{BuildOptions, Model};
use baton_weights::Weights;
use serde_json::{Value, json};

use crate::computing::Threads;
use crate::failure::{hinted, usage};
use crate::interrupt::Unfinished;
use crate::progress::Spinner;
use crate::{format, models};

/// Shown below the help.
pub const EXAMPLES: &str = "\
Examples:
  baton compile smollm2 -o smollm2-ane              a folder with model.mlpackage and baton.json
  baton compile ./model.gguf -o out --context 4096  for longer texts
  baton compile smollm2 -o out --tokens 64,512      functions for chunks of 64 and of 512 tokens
  baton compile smollm2 -o out --bits 6             weights as indices into tables of 64 values
  baton compile smollm2 -o out --text notes.txt     calibrated and measured on a text of your own
  baton compile X.mlpackage -o out                  a package of anybody, rewritten for the Neural Engine
  baton compile X.mlpackage -o out --passes pow_to_mul,split_head     by these passes alone
  baton compile --passes help                       what passes there are

The package has a function prefill_S_hH for chunks of S tokens behind a history of up to H, decode for
single tokens with the cache as a state, and head for logits, all over one file of weights, for iOS 18
and macOS 15. It is written and checked on any machine; there is no Core ML needed.";

/// Output channels that share a table, if nothing else is asked for.
const GROUP: usize = 16;
/// Tokens of a chunk, if nothing else is asked for.
const TOKENS: u16 = 64;
/// The package in the output folder.
const PACKAGE: &str = "model.mlpackage";
/// What a program that uses the package must know.
const MANIFEST: &str = "baton.json";
/// Bits of a weight in half precision.
const HALF: u8 = 16;
/// Tokens of the text that are run.
const SAMPLE: usize = 128;
/// The context, if the model has one as long.
const CONTEXT: usize = 2048;

/// Most bytes of a text that are read: many times what [`SAMPLE`] tokens take.
const MOST_TEXT: usize = 64 << 10;

/// What the model is calibrated and measured on.
const TEXT: &str = "The harbour lay still in the early light, and the boats that had come in with the night \
    tide were tied up three deep along the wall. A man in a blue coat counted the boxes as they were \
    lifted ashore: forty-two of herring, nine of cod, and one, at the very end, that held nothing but a \
    brass clock packed in straw. Nobody knew whose it was. \"Leave it by the office,\" he said, \"and write \
    the time on the slip, so that there is no question later.\" By noon the sun had burned off the haze, \
    the prices stood in chalk on the board, and the clock, which had not been wound, showed ten past four.";

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
    /// Bits of a weight: 16 are half precision, fewer an index into a table of values
    #[arg(long, value_name = "N", default_value_t = HALF, value_parser = bits)]
    bits: u8,
    /// Output channels that share a table of values; 0 for one table for each matrix
    #[arg(long, value_name = "N", default_value_t = GROUP)]
    group: usize,
    /// Leave out the function for single tokens
    #[arg(long)]
    no_decode: bool,
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
    /// An option that was given and says how a model is compiled.
    fn of_models(&self) -> Option<&'static str> {
        let given = [
            (self.context.is_some(), "--context"),
            (self.tokens != [TOKENS], "--tokens"),
            (self.bits != HALF, "--bits"),
            (self.group != GROUP, "--group"),
            (self.no_decode, "--no-decode"),
            (self.text.is_some(), "--text"),
            (self.no_quality, "--no-quality"),
            (self.threads.number().is_some(), "--threads"),
        ];
        given.into_iter().find(|(given, _)| *given).map(|(_, option)| option)
    }
}

fn bits(text: &str) -> Result<u8, String> {
    let found = text.parse().ok().filter(|bits| *bits == HALF || PALETTE_BITS.contains(bits));
    found.ok_or_else(|| format!("16, or one of {PALETTE_BITS:?}"))
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
        return rewrite::execute(name, output, &args.rewrite);
    }
    if let Some(option) = args.rewrite.given() {
        return Err(usage(format!("{option} is for packages; {name} is a model")));
    }
    let store = models::store()?;
    let model = models::get(&store, &models::resolve(&store, name)?)?;
    let model = Model::open(&model.path)?;
    let trained = model.config().context_length;
    let context = args.context.unwrap_or(trained.min(CONTEXT));
    if context == 0 || context > trained {
        return Err(usage(format!("--context {context}: this model has 1 to {trained}")));
    }
    let threads = args.threads.number().unwrap_or_else(physical_cores);
    let pool = Arc::new(Pool::new(threads, Isa::from_env()?)?);
    let start = Instant::now();
    let compiler = Compiler::new(&model, context, args, pool)?;
    let (program, package, quality) = whole_folder(output, |folder| {
        let ranges = compiler.ranges()?;
        let program = compiler.write(&folder.join(PACKAGE), ranges)?;
        let package = Package::open(&folder.join(PACKAGE))?;
        let quality = match args.no_quality {
            true => None,
            false => Some(compiler.quality(&package)?),
        };
        let manifest = compiler.manifest(&program, &package, quality);
        let text = serde_json::to_string_pretty(&manifest)? + "\n";
        fs::write(folder.join(MANIFEST), text)
            .with_context(|| format!("cannot write {}", output.join(MANIFEST).display()))?;
        Ok((program, package, quality))
    })?;
    report(output, &program, &package, quality, start)
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

/// The text that a file begins with, at most [`MOST_TEXT`] bytes of it.
fn beginning(path: &Path) -> anyhow::Result<String> {
    let mut bytes = Vec::new();
    File::open(path)
        .and_then(|file| file.take(MOST_TEXT as u64 + 1).read_to_end(&mut bytes))
        .with_context(|| format!("cannot read {}", path.display()))?;
    if bytes.len() > MOST_TEXT {
        bytes.truncate(MOST_TEXT);
        // The last character may be cut in two.
        if let Err(error) = std::str::from_utf8(&bytes)
            && error.error_len().is_none()
        {
            bytes.truncate(error.valid_up_to());
        }
    }
    String::from_utf8(bytes).map_err(|_| {
        let problem = format!("{} is no UTF-8 text", path.display());
        hinted(problem, "convert it first, as with iconv")
    })
}

struct Compiler<'a> {
    model: &'a Model,
    context: usize,
    lowering: MilLowering,
    graph: Graph,
    weights: Weights,
    /// The text to calibrate and measure on.
    tokens: Vec<u32>,
    pool: Arc<Pool>,
}

impl<'a> Compiler<'a> {
    fn new(
        model: &'a Model,
        context: usize,
        args: &Args,
        pool: Arc<Pool>,
    ) -> anyhow::Result<Compiler<'a>> {
        let (graph, weights) = model.build(&BuildOptions { context })?;
        let text = match &args.text {
            Some(path) => beginning(path)?,
            None => TEXT.to_owned(),
        };
        let mut tokens = ModelText::of(model)?.tokenizer.encode(&text, true)?;
        tokens.truncate(SAMPLE.min(context));
        if tokens.is_empty() {
            return Err(usage("the text to calibrate on is empty"));
        }
        let mut columns: Vec<usize> =
            args.tokens.iter().map(|&n| usize::from(n).min(context)).collect();
        columns.sort_unstable();
        columns.dedup();
        let decode = (!args.no_decode).then_some(context);
        let palette = (args.bits != HALF).then_some(Palette { bits: args.bits, group: args.group });
        let lowering =
            MilLowering { decode, palette, ..MilLowering::for_context(context, &columns) };
        Ok(Compiler { model, context, lowering, graph, weights, tokens, pool })
    }

    fn ranges(&self) -> anyhow::Result<Ranges> {
        let _spinner = Spinner::start("calibrating");
        Ok(calibrate(&self.graph, &self.weights, &self.tokens, &self.pool)?)
    }

    fn write(&self, path: &Path, ranges: Ranges) -> baton_coreml::Result<Program> {
        let _spinner = Spinner::start("writing the package");
        let lowering = MilLowering { ranges, ..self.lowering.clone() };
        let mut writer = PackageWriter::create(path)?;
        let mut program = lowering.lower(&self.graph, &self.weights, &mut writer.weights)?;
        program.metadata.description = self.model.name().to_owned();
        program.metadata.version = concat!("baton ", env!("CARGO_PKG_VERSION")).into();
        program.metadata.licence = self.model.licence().unwrap_or_default().to_owned();
        writer.finish(&program)?;
        Ok(program)
    }

    /// Runs the package with every intermediate result in half precision, and the model in single.
    fn quality(&self, package: &Package) -> anyhow::Result<Quality> {
        let _spinner = Spinner::start("comparing with the model");
        let expected = reference::logits(&self.graph, &self.weights, &self.tokens)?;
        let n = self.tokens.len();
        let limits = Limits { context: n, kv_tokens: n, batch_tokens: n };
        let interpreter = Interpreter::new(package, Precision::F16, self.pool.clone())?;
        let executor =
            PackageExecutor::new(&self.graph, &self.weights, package, interpreter, limits);
        let batch = Batch::one(SeqId(0), self.tokens.clone(), Rows::All);
        Ok(compare(&self.tokens, &executor?.forward(&batch)?, &expected))
    }

    fn manifest(&self, program: &Program, package: &Package, quality: Option<Quality>) -> Value {
        let tensor = |(name, ty): (&str, &TensorType)| json!({ "name": name, "shape": ty.shape, "type": ty.dtype.name() });
        let functions = program.program.functions.iter().map(|(name, function)| {
            json!({
                "name": name,
                "inputs": function.tensor_inputs().map(tensor).collect::<Vec<_>>(),
                "outputs": function.outputs().map(tensor).collect::<Vec<_>>(),
                "states": function.states().map(tensor).collect::<Vec<_>>(),
            })
        });
        let weights = match self.lowering.palette {
            None => "fp16".to_owned(),
            Some(palette) => format!("lut{}", palette.bits),
        };
        json!({
            "format": 1,
            "model": self.model.name(),
            "architecture": self.model.architecture(),
            "fingerprint": hex(self.graph.fingerprint()),
            "package": PACKAGE,
            "context": self.context,
            "weights": weights,
            "group": self.lowering.palette.map(|palette| palette.group),
            "weight_bytes": package.weight_bytes(),
            "functions": functions.collect::<Vec<_>>(),
            "metadata": program.metadata.user,
            "quality": quality.map(|q| json!({
                "tokens": q.rows,
                "divergence": q.divergence,
                "top1": q.top1,
                "perplexity": q.perplexity,
                "reference_perplexity": q.reference_perplexity,
            })),
        })
    }
}

fn report(
    output: &Path,
    program: &Program,
    package: &Package,
    quality: Option<Quality>,
    start: Instant,
) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(
        out,
        "{}: {} of weights, in {}",
        output.display(),
        format::bytes(package.weight_bytes()),
        format::time(start.elapsed())
    )?;
    let rows: Vec<_> = program
        .program
        .functions
        .iter()
        .map(|(name, function)| {
            let ops = function.body.ops.iter().filter(|op| !op.is_constant()).count();
            [name.clone(), format!("{ops} operations")]
        })
        .collect();
    for line in format::table(&rows) {
        writeln!(out, "  {line}")?;
    }
    if let Some(q) = quality {
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
    }
    out.flush()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_read_up_to_a_character_near_its_bound() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("text");
        let read = |bytes: &[u8]| {
            fs::write(&path, bytes).unwrap();
            beginning(&path)
        };
        assert_eq!(read("grüße".as_bytes()).unwrap(), "grüße");
        // 64 KiB are no multiple of three bytes.
        let long = "\u{20ac}".repeat(MOST_TEXT);
        assert_eq!(read(long.as_bytes()).unwrap(), long[..MOST_TEXT / 3 * 3]);
        let exact = "a".repeat(MOST_TEXT);
        assert_eq!(read(exact.as_bytes()).unwrap(), exact);
        // What ends in half a character by itself is no text, nor is one with other bytes in it.
        for bytes in [&b"gr\xc3"[..], b"\xff\xfe", &[b"\xff".as_slice(), long.as_bytes()].concat()]
        {
            let error = read(bytes).unwrap_err().to_string();
            assert!(error.contains("is no UTF-8 text"), "{error}");
        }
        let error = beginning(&folder.path().join("none")).unwrap_err().to_string();
        assert!(error.contains("cannot read"), "{error}");
    }

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
