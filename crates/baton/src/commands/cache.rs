//! `baton cache`: the packed weights on the disk.

use std::io::{self, Write};
use std::time::SystemTime;

use anyhow::Context;
use baton_engine::PackedFile;

use crate::failure::eprintln_quietly;
use crate::{format, models, packing};

/// Shown below the help.
pub const EXAMPLES: &str = "\
Examples:
  baton cache           which models have packed weights here, and how large they are
  baton cache --clear   delete them; the next load of each model makes them again

When a model is loaded for the first time, its weights are put into the order in which this processor
reads them, and kept in the folder `packed` of BATON_HOME. The least recently used make room for new
ones; --packed-limit of the commands that load models, or BATON_PACKED_LIMIT, says how much there is.";

/// Arguments of `baton cache`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Delete all packed weights
    #[arg(long)]
    clear: bool,
}

/// Lists or clears.
///
/// # Errors
/// If the folder cannot be read or changed.
pub fn execute(args: &Args) -> anyhow::Result<()> {
    let cache = packing::existing(&models::store()?);
    let folder = cache.folder().display().to_string();
    if args.clear {
        let freed = cache.clear().with_context(|| format!("cannot clear {folder}"))?;
        eprintln_quietly(format_args!("{} freed", format::bytes(freed)));
        return Ok(());
    }
    let files = cache.list().with_context(|| format!("cannot read {folder}"))?;
    let mut out = io::stdout().lock();
    let mut rows = vec![["MODEL", "SIZE", "LAST USED"].map(str::to_owned)];
    rows.extend(files.iter().rev().map(row));
    for line in format::table(&rows) {
        writeln!(out, "{line}")?;
    }
    let total = files.iter().map(|file| file.bytes).sum();
    writeln!(out, "{} in {folder}", format::bytes(total))?;
    out.flush()?;
    Ok(())
}

fn row(file: &PackedFile) -> [String; 3] {
    let model = file.source.as_ref().map(|path| path.display().to_string());
    let model = model.unwrap_or_else(|| "unknown".into());
    let age = SystemTime::now().duration_since(file.used).unwrap_or_default();
    [format::harmless(&model).into_owned(), format::bytes(file.bytes), format::ago(age)]
}
