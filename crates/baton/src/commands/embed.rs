//! `baton embed`: vectors of texts.

use std::io::{self, IsTerminal, Read, Write};
use std::time::Instant;

use anyhow::Context;
use baton_engine::{EmbedOptions, Embedder, Embedding, Error, LoadOptions, open_model};
use serde_json::json;

use crate::computing::Threads;
use crate::failure::{Stop, hinted, note, usage};
use crate::packing::Packing;
use crate::progress::Spinner;
use crate::{interrupt, models};

/// More than this on standard input is taken for a mistake.
const MOST: u64 = 64 << 20;
/// Texts given to the model at once: between two such groups Ctrl-C is looked at.
const GROUP: usize = 32;

/// Shown below the help.
pub const EXAMPLES: &str = "\
Examples:
  baton embed nomic-embed-text \"search_query: why is the sky blue?\"
  baton embed ./all-MiniLM-L6-v2 \"one text\" \"another\"     a vector for each text, a line each
  baton embed ./model.gguf < lines.txt                   a vector for each line
  baton embed ./embeddinggemma -d 256 \"a text\"           shorter vectors, if the model can do that
  baton embed nomic-embed-text --json \"a text\" | jq .embeddings[0]

Vectors have length 1: the dot product of two says how alike their texts are. Many models want to be
told what a text is for by words before it, such as `search_query: `; their pages say which.

With --json one object is printed:
  {\"model\", \"dimensions\", \"embeddings\": [[…], …], \"tokens\": [N, …], \"truncated\": [false, …]}";

/// Arguments of `baton embed`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The embedding model, then the texts; without texts each line of standard input is one
    #[arg(value_name = "MODEL] [TEXT")]
    words: Vec<String>,
    /// The model; all other arguments are then texts
    #[arg(long, short, visible_alias = "repo-id", value_name = "MODEL")]
    model: Option<String>,
    /// Elements of a vector; without it as many as the model has
    #[arg(long, short, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    dimensions: Option<u32>,
    /// Cut texts that are too long for the model; else they are an error
    #[arg(long)]
    truncate: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Most tokens of a text
    #[arg(long, short, visible_alias = "ctx-size", value_name = "TOKENS")]
    #[arg(value_parser = clap::value_parser!(u32).range(4..))]
    ctx: Option<u32>,
    #[command(flatten)]
    threads: Threads,
    #[command(flatten)]
    packing: Packing,
}

/// Prints them.
///
/// # Errors
/// If there is no text, the model cannot be had or makes no vectors, or a text is too long.
pub fn execute(args: Args) -> anyhow::Result<()> {
    let mut words = args.words.into_iter();
    let Some(name) = args.model.or_else(|| words.next()) else {
        return Err(usage(
            "name an embedding model, as in `baton embed nomic-embed-text \"a text\"`",
        ));
    };
    let mut texts: Vec<String> = words.collect();
    if texts.is_empty() {
        texts = lines()?;
    }
    let store = models::store()?;
    let reference = models::resolve(&store, &name)?;
    let local = models::get(&store, &reference)?;
    let spinner = Spinner::start("loading the model");
    let started = Instant::now();
    let options = LoadOptions {
        context: args.ctx.map(|n| n as usize),
        threads: args.threads.number(),
        packed: args.packing.cache(&store),
        ..LoadOptions::default()
    };
    let embedder = Embedder::from_model(&open_model(&local.path)?, &options, started)?;
    drop(spinner);
    let dimensions = args.dimensions.map(|n| n as usize);
    let options = EmbedOptions { dimensions, truncate: args.truncate, ..EmbedOptions::default() };
    let width = dimensions.unwrap_or(embedder.dimensions());
    let mut all = Vec::new();
    let scope = interrupt::Scope::enter();
    let mut out = io::stdout().lock();
    for (group, texts) in texts.chunks(GROUP).enumerate() {
        if scope.interrupted() {
            return Err(Stop::Interrupted.into());
        }
        let first = group * GROUP;
        let embeddings = embedder.embed(texts, &options).map_err(|e| renumbered(e, first))?;
        let cut = embeddings.iter().filter(|embedding| embedding.truncated).count();
        if cut > 0 && !args.json {
            note(format_args!("{cut} texts were cut to {} tokens", embedder.context()));
        }
        if args.json {
            all.extend(embeddings);
            continue;
        }
        for embedding in embeddings {
            let numbers: Vec<String> = embedding.vector.iter().map(f32::to_string).collect();
            writeln!(out, "{}", numbers.join(" "))?;
        }
    }
    if args.json {
        writeln!(out, "{}", object(&local.name, width, &all))?;
    }
    out.flush()?;
    Ok(())
}

/// The error with the number that a text has among all, `first` being that of its group's first.
fn renumbered(error: Error, first: usize) -> Error {
    match error {
        Error::TextTooLong { index, tokens, counted, context } => {
            Error::TextTooLong { index: first + index, tokens, counted, context }
        }
        Error::EmptyText { index } => Error::EmptyText { index: first + index },
        other => other,
    }
}

fn object(model: &str, dimensions: usize, all: &[Embedding]) -> serde_json::Value {
    json!({
        "model": model,
        "dimensions": dimensions,
        "embeddings": all.iter().map(|e| &e.vector).collect::<Vec<_>>(),
        "tokens": all.iter().map(|e| e.tokens).collect::<Vec<_>>(),
        "truncated": all.iter().map(|e| e.truncated).collect::<Vec<_>>(),
    })
}

/// The lines of standard input, empty ones left out.
fn lines() -> anyhow::Result<Vec<String>> {
    let stdin = io::stdin();
    if stdin.is_terminal() {
        return Err(usage("there is no text: give some, or pipe in lines"));
    }
    let mut bytes = Vec::new();
    stdin.lock().take(MOST + 1).read_to_end(&mut bytes).context("cannot read standard input")?;
    if bytes.len() as u64 > MOST {
        return Err(hinted("standard input is longer than 64 MiB", "give it in parts"));
    }
    let text = String::from_utf8(bytes).map_err(|_| {
        hinted("standard input is no UTF-8 text", "convert it first, as with iconv")
    })?;
    let lines: Vec<String> =
        text.lines().filter(|line| !line.trim().is_empty()).map(str::to_owned).collect();
    match lines.is_empty() {
        true => Err(usage("there is no text: standard input was empty")),
        false => Ok(lines),
    }
}
