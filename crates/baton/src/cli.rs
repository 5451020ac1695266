//! The command line as a whole; each command's own arguments stand in its file.

use clap::{Parser, Subcommand};

use crate::commands::{
    bench, cache, compile, completions, doctor, embed, list, prefill_server, pull, report, rm, run,
    serve, show, tokenize, tune,
};

const EXAMPLES: &str = "\
Examples:
  baton run \"Why is the sky blue?\"        ask the default model; the first time, it is fetched
  baton run                               chat with it
  baton run qwen3:0.6b \"Write a haiku\"    ask another model of the catalog
  baton run ./model.gguf                  chat with a file of your own
  git diff | baton run \"Review this:\"     what is piped in follows the prompt
  baton serve                             an HTTP server that other programs can ask
  baton list --all                        models here, and names that can be pulled
  baton doctor                            what this machine can do, and what is wrong

Naming a model:
  smollm2, gemma3:270m, …                 a name of the catalog
  hf:ORG/REPO[@REVISION][:FILE-OR-QUANT]  a repository on the Hugging Face hub
  https://…/model.gguf                    a file on a web server
  ./model.gguf, ./checkpoint/             a file, or a folder with config.json and safetensors

Environment:
  BATON_HOME    folder for models                BATON_LOG     what is logged (default: warn)
  BATON_CONFIG  folder with your catalog.toml    BATON_CPU     instruction set to use (portable, avx2, …)
  BATON_PYTHON  the Python whose pip is used     NO_COLOR      no colours
  BATON_PACKED_LIMIT  room for weights that are kept ready (see baton cache)
  HF_TOKEN, HF_ENDPOINT, HF_HOME, HF_HUB_OFFLINE as for other Hugging Face tools

Exit codes:
  0  done    1  failed    2  wrong command line    130  stopped by Ctrl-C";

/// Run large language models on your own machine
#[derive(Debug, Parser)]
#[command(name = "baton", version, after_long_help = EXAMPLES, arg_required_else_help = true)]
#[command(max_term_width = 100, infer_long_args = false)]
#[command(args_override_self = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Ask a model, or chat with it
    #[command(visible_alias = "chat", after_long_help = run::EXAMPLES)]
    #[command(override_usage = "baton run [OPTIONS] [MODEL] [PROMPT]...")]
    Run(Box<run::Args>),
    /// Answer over HTTP, for programs that speak to OpenAI, Ollama, Anthropic or llama-server
    #[command(after_long_help = serve::EXAMPLES)]
    Serve(Box<serve::Args>),
    /// Read prompts for other machines, which write the answers
    #[command(after_long_help = prefill_server::EXAMPLES)]
    PrefillServer(prefill_server::Args),
    /// Print the vectors that an embedding model makes of texts
    #[command(after_long_help = embed::EXAMPLES)]
    Embed(embed::Args),
    /// Fetch a model
    #[command(after_long_help = pull::EXAMPLES)]
    Pull(pull::Args),
    /// List the models that are here
    #[command(visible_alias = "ls", after_long_help = list::EXAMPLES)]
    List(list::Args),
    /// Show what a model is made of
    #[command(after_long_help = show::EXAMPLES)]
    Show(show::Args),
    /// Remove models
    #[command(after_long_help = rm::EXAMPLES)]
    Rm(rm::Args),
    /// Show or delete the weights that are kept ready for this processor
    #[command(after_long_help = cache::EXAMPLES)]
    Cache(cache::Args),
    /// Show how a model splits a text into tokens
    #[command(after_long_help = tokenize::EXAMPLES)]
    Tokenize(tokenize::Args),
    /// Measure how fast a model runs here
    #[command(after_long_help = bench::EXAMPLES)]
    Bench(Box<bench::Args>),
    /// Measure which unit of this machine is best at what
    #[command(after_long_help = tune::EXAMPLES)]
    Tune(tune::Args),
    /// Write a model as a Core ML package for the Neural Engine, or rewrite a package
    #[command(after_long_help = compile::EXAMPLES)]
    Compile(Box<compile::Args>),
    /// Predict where the operations of a Core ML package run, and why
    #[command(after_long_help = report::EXAMPLES)]
    Report(report::Args),
    /// Say what this machine can do, what is wrong, and what to do about it
    #[command(after_long_help = doctor::EXAMPLES)]
    Doctor(doctor::Args),
    /// Print a completion script for a shell
    #[command(after_long_help = completions::EXAMPLES)]
    Completions(completions::Args),
}

impl Command {
    /// Does it.
    ///
    /// # Errors
    /// Whatever keeps it from being done.
    pub fn execute(self) -> anyhow::Result<()> {
        match self {
            Command::Run(args) => run::execute(*args),
            Command::Serve(args) => serve::execute(*args),
            Command::PrefillServer(args) => prefill_server::execute(&args),
            Command::Embed(args) => embed::execute(args),
            Command::Pull(args) => pull::execute(&args),
            Command::List(args) => list::execute(&args),
            Command::Show(args) => show::execute(&args),
            Command::Rm(args) => rm::execute(&args),
            Command::Cache(args) => cache::execute(&args),
            Command::Tokenize(args) => tokenize::execute(&args),
            Command::Bench(args) => bench::execute(&args),
            Command::Tune(args) => tune::execute(&args),
            Command::Compile(args) => compile::execute(&args),
            Command::Report(args) => report::execute(&args),
            Command::Doctor(args) => doctor::execute(&args),
            Command::Completions(args) => completions::execute(&args),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_definitions_are_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_teaches_by_example() {
        for command in Cli::command().get_subcommands() {
            let help = command.get_after_long_help().map(ToString::to_string).unwrap_or_default();
            assert!(help.contains("baton "), "{}", command.get_name());
        }
    }
}
