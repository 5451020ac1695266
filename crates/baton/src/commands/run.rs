//! `baton run`: asks a model once, or opens a chat with it.

mod answer;
mod ask;
mod request;
mod stats;
mod stdin;
mod structure;
mod thresholds;
mod verify;

use std::io::IsTerminal;

use baton_engine::LoadOptions;
use baton_hub::Reference;

use crate::computing::Computing;
use crate::failure::{eprintln_quietly, usage};
use crate::guesses::Guesses;
use crate::loaded::Loaded;
use crate::sampling::Sampling;
use crate::units::{Trace, Units};
use crate::{models, repl};

pub use answer::{Answer, Sink};
pub use ask::fills_context;
pub use stats::print as print_stats;
pub use thresholds::Thresholds;

/// Shown below the help.
pub const EXAMPLES: &str = "\
Examples:
  baton run \"Why is the sky blue?\"                the default model
  baton run                                       a chat with it; /help there shows what can be said
  baton run qwen3:0.6b \"Write a haiku\"            another model
  baton run --raw gemma3:270m \"The sea is\"        a base model, which continues a text
  baton run hf:Qwen/Qwen3-0.6B-GGUF:Q8_0 \"Hi\"      one from the Hugging Face hub
  baton run ./model.gguf --system \"Be brief.\"     a file of yours, with a system prompt
  cat notes.txt | baton run \"Summarize this:\"     what is piped in follows the prompt
  baton run --temp 0 --seed 1 -n 100 --verbose \"Count to ten\"
  baton run --json \"Hi\" | jq -r .text
  baton run --format json \"Describe a cat\"       the answer is a JSON object
  baton run --draft qwen3:0.6b qwen3:8b \"Hi\"       a small model guesses what the large one writes
  baton run --prefill cpu --trace t.json \"Hi\"      what ran where and when
  baton run -j @cat.json \"Describe a cat\"         and here one that the schema in cat.json describes

A lone argument that names no model is the prompt for the default model.

With --json one object is printed at the end:
  {\"model\", \"text\", \"finish_reason\": \"stop\" | \"length\" | \"cancelled\", \"stop\", \"seed\",
   \"tokens\":  {\"prompt\", \"reused\", \"prefilled\", \"handed_over\", \"generated\"},
   \"timings\": {\"load_s\", \"ttft_s\", \"prefill_s\", \"decode_s\",
               \"prefill_tokens_per_s\", \"decode_tokens_per_s\", \"tpot_s\"},
   \"phases\":  {\"prefill_unit\", \"prefill_utilisation\", \"prefill_joules\",
               \"prefill_rails\": {\"cpu\", \"gpu\", \"ane\"}, \"decode_unit\",
               \"decode_utilisation\", \"decode_joules\", \"decode_rails\"},
   \"guesses\": {\"guessed\", \"right\", \"acceptance\", \"tokens_per_step\"},
   \"peak_memory_bytes\"}";

/// Arguments of `baton run`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The model, then the prompt; one argument that names no model is the prompt
    #[arg(value_name = "MODEL] [PROMPT")]
    words: Vec<String>,
    /// The model; all other arguments are then the prompt
    #[arg(long, short, visible_alias = "repo-id", value_name = "MODEL")]
    model: Option<String>,
    /// The prompt
    #[arg(long, short, value_name = "TEXT")]
    prompt: Option<String>,
    /// What the model is to know or to be before the conversation begins
    #[arg(long, visible_aliases = ["system-prompt"], value_name = "TEXT", conflicts_with = "raw")]
    system: Option<String>,
    /// Chat, also when there is a prompt or standard input is no terminal
    #[arg(long, short, conflicts_with_all = ["json", "raw"])]
    interactive: bool,
    /// Continue the prompt as it is, without the model's chat template
    #[arg(long)]
    raw: bool,
    /// Print timings and memory after the answer
    #[arg(long, short)]
    verbose: bool,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
    /// Context size in tokens; at least 2, for a prompt and an answer
    #[arg(long, short, visible_alias = "ctx-size", aliases = ["num-ctx", "context"])]
    #[arg(value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(2..))]
    #[arg(allow_negative_numbers = true)]
    ctx: Option<u32>,
    #[command(flatten)]
    computing: Computing,
    #[command(flatten)]
    thresholds: Thresholds,
    #[command(flatten)]
    units: Units,
    /// Compare answers across the two units with those of the unit for answers alone, and say how far
    /// they are apart, instead of answering
    #[arg(long, conflicts_with_all = ["interactive", "json", "trace"])]
    verify_handoff: bool,
    #[command(flatten)]
    guesses: Guesses,
    #[command(flatten)]
    sampling: Sampling,
    #[command(flatten)]
    structure: structure::Structure,
}

/// Answers, or chats.
///
/// # Errors
/// If there is nothing to ask, or the model cannot be had, loaded or run.
pub fn execute(args: Args) -> anyhow::Result<()> {
    let store = models::store()?;
    models::warn_if_unusable(&store)?;
    let grammar = args.structure.grammar()?;
    args.guesses.check()?;
    let request = request::understand(&args, &store)?;
    // A path that leads nowhere is said before anything else; what is to be fetched can wait.
    let given = match &request.model {
        Reference::Path(_) => Some(models::get(&store, &request.model)?),
        _ => None,
    };
    // A chat reads its lines from standard input, whatever that is.
    let piped = if args.interactive { None } else { stdin::piped(request.prompt.is_some())? };
    let prompt = request::join(request.prompt, piped);
    let chats = args.interactive || prompt.is_none();
    if chats && (args.json || args.raw) {
        let flag = if args.json { "--json" } else { "--raw" };
        return Err(usage(format_args!("{flag} needs a prompt")));
    }
    if chats && !args.interactive && !std::io::stdin().is_terminal() {
        return Err(usage("there is no prompt: standard input was empty"));
    }
    let model = match given {
        Some(model) => model,
        None => models::get(&store, &request.model)?,
    };
    let options = LoadOptions {
        context: args.ctx.map(|n| n as usize),
        draft: args.guesses.draft(&store)?,
        speculate: args.guesses.speculate(),
        ..args.computing.options(&store)
    };
    let (options, trace) = args.units.apply(&store, options)?;
    if args.verify_handoff {
        let prompt = prompt.ok_or_else(|| usage("--verify-handoff needs a prompt"))?;
        return verify::compare(&model.path, options, &prompt);
    }
    let loaded = Loaded::open(&model, store.catalog().get(&model.name), &options)?;
    if args.verbose {
        loaded.units().iter().for_each(|line| eprintln_quietly(format_args!("{line}")));
    }
    let finished = if chats {
        let chat = repl::Start {
            system: args.system,
            prompt,
            sampling: args.sampling,
            grammar,
            verbose: args.verbose,
            thresholds: args.thresholds,
        };
        repl::run(&loaded, chat)
    } else {
        let question = ask::Question {
            prompt: prompt.unwrap_or_default(),
            system: args.system,
            raw: args.raw,
            sampling: args.sampling,
            grammar,
            thresholds: args.thresholds,
        };
        ask::once(&loaded, question, args.json, args.verbose)
    };
    // What was done is told also if it was interrupted.
    let traced = trace.map_or(Ok(()), Trace::finish);
    finished.and(traced)
}
