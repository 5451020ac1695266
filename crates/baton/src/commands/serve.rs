//! `baton serve`: answers over HTTP, as the clients of other servers expect it.

mod address;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use baton_engine::{LoadOptions, SchedulerOptions};
use baton_hub::{Reference, Store};
use baton_server::{KeepAlive, ModelOptions, Models, ServeOptions, Server};
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};

use crate::computing::Computing;
use crate::failure::{eprintln_quietly, hinted, note, usage};
use crate::guesses::Guesses;
use crate::units::{Trace, Units};
use crate::{format, interrupt, models};
use address::Address;

/// Shown below the help.
pub const EXAMPLES: &str = "\
Examples:
  baton serve                                    models of this machine, loaded when asked for
  baton serve --model smollm2                    with one in memory from the start
  baton serve --model qwen3:8b --draft qwen3:0.6b   a small model guesses what the large one writes
  baton serve --port 8080 --ctx 16384            another port, a larger context
  baton serve --host 0.0.0.0 --api-key SECRET    for other machines too
  baton serve --cors http://localhost:3000       for a web page of yours

Then, for example:
  curl http://127.0.0.1:11434/v1/chat/completions \\
    -d '{\"model\": \"smollm2\", \"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}]}'

It speaks the interfaces of OpenAI (/v1), Anthropic (/v1/messages), Ollama (/api) and llama-server;
docs/api.md and GET /openapi.json list all endpoints. Ctrl-C lets running answers finish; a second
one ends at once.";

/// How often Ctrl-C is looked for.
const WATCH: Duration = Duration::from_millis(100);
/// At the end, how long models may take to finish the step that they compute.
const LAST_STEP: Duration = Duration::from_secs(5);
/// Conversations of full length that a model's cache has room for, if memory allows.
const CONVERSATIONS: usize = 4;
/// Threads for what may block: templates, tokenizers, files, downloads.
const BLOCKING_THREADS: usize = 32;
/// Threads for connections, which need little.
const CONNECTION_THREADS: usize = 2;

/// Arguments of `baton serve`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Address to listen at: HOST, HOST:PORT or http://HOST:PORT
    #[arg(long, env = "BATON_HOST", value_name = "HOST", default_value = "127.0.0.1")]
    host: Address,
    /// Port to listen at [default: 11434]
    #[arg(long, value_name = "PORT")]
    port: Option<u16>,
    /// Key that clients must give
    #[arg(long, env = "BATON_API_KEY", hide_env_values = true, value_name = "KEY")]
    api_key: Option<String>,
    /// Addresses of web pages that may use the server, such as http://localhost:3000; * for all
    #[arg(long, visible_alias = "allowed-origins", value_name = "ORIGIN", value_delimiter = ',')]
    cors: Vec<String>,
    /// Names by which the server may be called besides localhost; * for any
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    allowed_hosts: Vec<String>,
    /// Model to load at the start, fetched if it is not here
    #[arg(long, short, value_name = "MODEL")]
    model: Option<String>,
    /// Context size in tokens of each model
    #[arg(long, short, visible_alias = "ctx-size", aliases = ["num-ctx", "context"])]
    #[arg(value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(2..))]
    ctx: Option<u32>,
    /// Tokens of all conversations that a model keeps in its cache; at least one context, and by
    /// default four if they fit into a quarter of the free memory
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(2..))]
    kv_tokens: Option<u32>,
    #[command(flatten)]
    computing: Computing,
    #[command(flatten)]
    guesses: Guesses,
    /// How long a model stays in memory after its last request: 5m, 1h30m, seconds; -1 for ever
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = keep_alive)]
    #[arg(allow_negative_numbers = true)]
    keep_alive: KeepAlive,
    /// Most answers that a model makes at the same time
    #[arg(long, visible_alias = "parallel", value_name = "N", default_value_t = 16)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=1024))]
    max_running: u16,
    /// Most requests that wait for a model; more are refused
    #[arg(long, value_name = "N", default_value_t = 512)]
    max_waiting: usize,
    /// Most models in memory at the same time
    #[arg(long, value_name = "N", default_value_t = 3)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..))]
    max_models: u16,
    /// Folder in which clients may save the caches of models, by POST /slots/0?action=save
    #[arg(long, value_name = "FOLDER")]
    slot_save_path: Option<PathBuf>,
    /// Most memory for all models, such as 8GiB; by default what the system can give
    #[arg(long, value_name = "SIZE", value_parser = format::parse_memory)]
    memory: Option<u64>,
    #[command(flatten)]
    units: Units,
}

/// Serves until Ctrl-C or SIGTERM.
///
/// # Errors
/// If the address cannot be used, or the model named cannot be had.
pub fn execute(args: Args) -> anyhow::Result<()> {
    if args.api_key.as_ref().is_some_and(|key| key.trim().is_empty()) {
        return Err(usage("the API key is empty"));
    }
    args.guesses.check()?;
    if args.guesses.has_draft() && args.model.is_none() {
        return Err(usage("--draft needs --model, the model that it guesses for"));
    }
    if let Some(folder) = args.slot_save_path.as_ref().filter(|folder| !folder.is_dir()) {
        return Err(usage(format_args!("{} is no folder", folder.display())));
    }
    let store = models::store()?;
    models::warn_if_unusable(&store)?;
    let preload = args.model.as_deref().map(|name| fetched(&store, name)).transpose()?;
    let draft = args.guesses.draft(&store)?;
    let runtime = runtime()?;
    runtime.block_on(serve(args, store, preload, draft))?;
    // Nothing more is to come from threads that still compute.
    runtime.shutdown_background();
    Ok(())
}

fn runtime() -> anyhow::Result<Runtime> {
    Builder::new_multi_thread()
        .worker_threads(CONNECTION_THREADS)
        .max_blocking_threads(BLOCKING_THREADS)
        .enable_all()
        .thread_name("baton-server")
        .build()
        .context("cannot start the server's threads")
}

/// The model's reference, once its files are here.
fn fetched(store: &Store, name: &str) -> anyhow::Result<Reference> {
    let reference = models::resolve(store, name)?;
    models::get(store, &reference)?;
    Ok(reference)
}

async fn serve(
    args: Args,
    store: Store,
    preload: Option<Reference>,
    draft: Option<PathBuf>,
) -> anyhow::Result<()> {
    let scope = interrupt::Scope::enter();
    let (host, port) = args.host.with_port(args.port);
    let listener = TcpListener::bind((host.as_str(), port)).await.map_err(|error| {
        let hint = "is a server running there already? --port chooses another";
        hinted(format_args!("cannot listen at {host}:{port}: {error}"), hint)
    })?;
    let address = listener.local_addr()?;
    if !address.ip().is_loopback() && args.api_key.is_none() {
        note(format_args!(
            "everyone who can reach {address} can use this server; --api-key asks for a key"
        ));
    }
    let (options, trace) = model_options(&args, &store)?;
    let models = Models::new(store, options)?;
    if let Some(reference) = preload {
        load(&models, reference, draft).await?;
    }
    let mut allowed_hosts = args.allowed_hosts;
    allowed_hosts.push(host);
    let options = ServeOptions {
        api_key: args.api_key.map(|key| key.trim().to_owned()),
        cors_origins: args.cors,
        allowed_hosts,
        ..ServeOptions::default()
    };
    eprintln_quietly(format_args!("listening on http://{address}"));
    let interrupted = async {
        while !scope.interrupted() {
            tokio::time::sleep(WATCH).await;
        }
        eprintln_quietly(format_args!("letting running answers finish; Ctrl-C ends at once"));
    };
    Server::new(models.clone(), options).serve(listener, interrupted).await;
    unload(models).await;
    trace.map_or(Ok(()), Trace::finish)
}

/// Takes the models out of memory. One in the middle of a step cannot be interrupted, and a step may
/// take long where a model hardly fits into memory: the process then ends without it.
async fn unload(models: Models) {
    let unloaded = tokio::task::spawn_blocking(move || drop(models));
    if tokio::time::timeout(LAST_STEP, unloaded).await.is_err() {
        tracing::warn!("the last step of a model was not waited for");
    }
}

/// Loads the model that was named, which then stays, and its draft model.
async fn load(models: &Models, reference: Reference, draft: Option<PathBuf>) -> anyhow::Result<()> {
    let name = match reference {
        Reference::Path(path) => models.give(path).await?,
        other => other.to_string(),
    };
    if let Some(draft) = draft {
        models.set_draft(&name, draft)?;
    }
    let lease = models.lease(&name, Some(KeepAlive::Forever)).await?;
    let context = lease.context_length();
    eprintln_quietly(format_args!("{name} is loaded, with a context of {context} tokens"));
    Ok(())
}

fn model_options(args: &Args, store: &Store) -> anyhow::Result<(ModelOptions, Option<Trace>)> {
    let load = LoadOptions {
        context: args.ctx.map(|n| n as usize),
        kv_tokens: args.kv_tokens.map(|n| n as usize),
        conversations: CONVERSATIONS,
        speculate: args.guesses.speculate(),
        ..args.computing.options(store)
    };
    let (load, trace) = args.units.apply(store, load)?;
    let options = ModelOptions {
        load,
        scheduler: SchedulerOptions {
            max_running: args.max_running.into(),
            max_waiting: args.max_waiting,
        },
        keep_alive: args.keep_alive,
        max_models: args.max_models.into(),
        memory: args.memory,
        cache_folder: args.slot_save_path.clone(),
        ..ModelOptions::default()
    };
    Ok((options, trace))
}

fn keep_alive(text: &str) -> Result<KeepAlive, String> {
    KeepAlive::parse(text)
        .ok_or_else(|| "expected a time such as 5m, 1h30m or 300 (seconds); -1 for ever".into())
}
