//! `baton prefill-server`: reads prompts for other machines.

use std::fs::OpenOptions;
use std::io::Write;
use std::net::TcpListener;
use std::path::{Path, PathBuf};

use anyhow::Context;
use baton_engine::{
    Compiled, Key, LoadOptions, PrefillServer, UnitChoice, UnitKind, compile_model, open_model,
};

use crate::computing::Computing;
use crate::failure::{eprintln_quietly, hinted, usage};
use crate::progress::Spinner;
use crate::{interrupt, models, units};

/// Shown below the help.
pub const EXAMPLES: &str = "\
Examples:
  baton prefill-server qwen3:8b                          for programs on this machine
  baton prefill-server qwen3:8b --listen 0.0.0.0:7070    for other machines

Then, on another machine that has the same model, and the same key in a file:
  baton run --prefill remote://HOST:7070 --prefill-key KEYFILE qwen3:8b \"Summarize this: ...\"

The other machine keeps the conversation and writes the answers; this one reads long prompts and sends
their cache. Everything is encrypted, and only who has the key can connect. The key is made when there
is none yet: copy its file to the other machine in a way that nobody else can read.";

/// Arguments of `baton prefill-server`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The model (default: the default model)
    #[arg(value_name = "MODEL")]
    model: Option<String>,
    /// Address to listen at
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:7070")]
    listen: String,
    /// File with the key [default: prefill-key in BATON_HOME]; made if it is not there
    #[arg(long, value_name = "FILE", env = "BATON_PREFILL_KEY")]
    prefill_key: Option<PathBuf>,
    /// Unit to compute on: cpu, gpu or coreml (default: the best for prompts)
    #[arg(long, value_name = "UNIT", value_parser = units::kind)]
    unit: Option<UnitKind>,
    /// Context size in tokens
    #[arg(long, short, visible_alias = "ctx-size", aliases = ["num-ctx", "context"])]
    #[arg(value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(2..))]
    ctx: Option<u32>,
    /// Tokens of all conversations that are kept; at least one context
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(2..))]
    kv_tokens: Option<u32>,
    #[command(flatten)]
    computing: Computing,
}

/// Serves until Ctrl-C or SIGTERM.
///
/// # Errors
/// If the model cannot be had or loaded, the key not be read or made, or the address not be used.
pub fn execute(args: &Args) -> anyhow::Result<()> {
    let store = models::store()?;
    models::warn_if_unusable(&store)?;
    let local = models::named_or_default(&store, args.model.as_deref())?;
    let key = key(&args.prefill_key.clone().unwrap_or_else(|| units::key_path(&store)))?;
    let model = open_model(&local.path)?;
    if model.is_embedding() {
        return Err(usage(format_args!(
            "{} makes vectors; there is nothing to hand over",
            local.name
        )));
    }
    let listener = TcpListener::bind(&args.listen).map_err(|error| {
        let hint = "--listen chooses another address";
        hinted(format_args!("cannot listen at {}: {error}", args.listen), hint)
    })?;
    let address = listener.local_addr()?;
    let options = LoadOptions {
        context: args.ctx.map(|n| n as usize),
        kv_tokens: args.kv_tokens.map(|n| n as usize),
        conversations: 4,
        ..args.computing.options(&store)
    };
    let choice = UnitChoice {
        prefill: args.unit,
        decode: args.unit,
        profiles: Some(units::profiles(&store, &options)),
        ..UnitChoice::default()
    };
    let unit = choice.choose(&model, &options)?.prefill;
    let spinner = Spinner::start("loading the model");
    let Compiled { executor, .. } = compile_model(&model, &LoadOptions { unit, ..options })?;
    drop(spinner);
    let context = executor.limits().context;
    let server = PrefillServer::new(executor, key)?;
    let scope = interrupt::Scope::enter();
    eprintln_quietly(format_args!(
        "{} on {unit}, with a context of {context} tokens, reads prompts at {address}",
        local.name
    ));
    server.serve(&listener, || scope.interrupted()).context("nobody can connect any more")
}

/// The key in a file, or a new one that is put there.
fn key(path: &Path) -> anyhow::Result<Key> {
    if path.exists() {
        return units::read_key(path);
    }
    let key = Key::generate().context("cannot make a key")?;
    let written = || -> std::io::Result<()> {
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        let mut options = OpenOptions::new();
        options.write(true).create_new(true);
        // Nobody else is to read it.
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let mut file = options.open(path)?;
        writeln!(file, "{}", key.to_hex()).inspect_err(|_| {
            // Part of a key would be in the way of the next start.
            let _ = std::fs::remove_file(path);
        })
    };
    written().with_context(|| format!("cannot write the key to {}", path.display()))?;
    eprintln_quietly(format_args!("made a key in {}", path.display()));
    Ok(key)
}
