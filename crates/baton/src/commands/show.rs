//! `baton show`: what a model is made of.

mod facts;

use std::io::{self, IsTerminal, Write};

use crate::failure::note;
use crate::{format, models};
use facts::Facts;

/// Shown below the help.
pub const EXAMPLES: &str = "\
Examples:
  baton show smollm2                 everything in short
  baton show smollm2 --template      the chat template, as it is
  baton show smollm2 --license       the licence
  baton show smollm2 --parameters    the sampling parameters recommended
  baton show ./model.gguf --metadata every key of a GGUF file, long values in short
  baton show smollm2 --json          for programs";

/// Arguments of `baton show`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The model
    #[arg(value_name = "MODEL")]
    model: String,
    /// Print the chat template
    #[arg(long, group = "part")]
    template: bool,
    /// Print the licence
    #[arg(long, visible_alias = "licence", group = "part")]
    license: bool,
    /// Print the sampling parameters that the model's files or the catalog recommend
    #[arg(long, group = "part")]
    parameters: bool,
    /// Print the metadata of the file
    #[arg(long, group = "part")]
    metadata: bool,
    /// Print JSON
    #[arg(long, group = "part")]
    json: bool,
}

/// Prints it.
///
/// # Errors
/// If the model cannot be had or its files are damaged.
pub fn execute(args: &Args) -> anyhow::Result<()> {
    let store = models::store()?;
    let reference = models::resolve(&store, &args.model)?;
    let local = models::get(&store, &reference)?;
    let mut out = format::stdout();
    if args.metadata {
        // Also of a file whose architecture is unknown.
        for line in facts::metadata(&local)? {
            writeln!(out, "{}", format::in_line(&line))?;
        }
        return Ok(());
    }
    let entry = store.catalog().get(&local.name);
    let facts = Facts::gather(local, entry)?;
    if args.template {
        match facts.template_source() {
            Some(source) => {
                let source = source.trim_end_matches('\n');
                // Exactly as it is for a program; a terminal would obey what it should show.
                match io::stdout().is_terminal() {
                    true => writeln!(out, "{source}")?,
                    false => writeln!(io::stdout().lock(), "{source}")?,
                }
            }
            None => note("this model has no chat template"),
        }
    } else if args.license {
        match &facts.license {
            Some(license) => writeln!(out, "{license}")?,
            None => note("the model's files name no licence; see the page it came from"),
        }
    } else if args.parameters {
        for [name, value] in facts.parameters() {
            writeln!(out, "{name} {value}")?;
        }
    } else if args.json {
        writeln!(out, "{}", serde_json::to_string_pretty(&facts.json())?)?;
    } else {
        for line in format::table(&facts.rows()) {
            writeln!(out, "{line}")?;
        }
    }
    out.flush()?;
    Ok(())
}
