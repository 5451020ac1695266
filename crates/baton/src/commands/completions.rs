//! `baton completions`: a script that lets a shell complete our commands and flags.

use std::io::{self, Write};

use clap::CommandFactory;
use clap_complete::Shell;

use crate::cli::Cli;

/// Shown below the help.
pub const EXAMPLES: &str = "\
Examples:
  bash:  baton completions bash > ~/.local/share/bash-completion/completions/baton
  zsh:   baton completions zsh > ~/.zfunc/_baton        (with fpath+=~/.zfunc before compinit)
  fish:  baton completions fish > ~/.config/fish/completions/baton.fish";

/// Arguments of `baton completions`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The shell
    shell: Shell,
}

/// Prints the script.
///
/// # Errors
/// If standard output cannot be written.
pub fn execute(args: &Args) -> anyhow::Result<()> {
    // Into memory first: the generator panics if it cannot write.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "baton", &mut script);
    let mut out = io::stdout().lock();
    out.write_all(&script)?;
    out.flush()?;
    Ok(())
}
