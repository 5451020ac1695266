//! `baton cache`: the packed weights, and what Core ML has compiled, on the disk.

use std::io::Write;
use std::time::SystemTime;

use anyhow::Context;
use baton_engine::{CompiledEntry, PackedFile};

use crate::failure::{eprintln_quietly, note};
use crate::{format, models, packing};

/// Shown below the help.
pub const EXAMPLES: &str = "\
Examples:
  baton cache           which models have packed weights here, and how large they are
  baton cache --clear   delete them; the next load of each model makes them again

When a model is loaded for the first time, its weights are put into the order in which this processor
reads them, and kept in the folder `packed` of BATON_HOME. The least recently used make room for new
ones; --packed-limit of the commands that load models, or BATON_PACKED_LIMIT, says how much there is.

On a Mac the folder `coreml` holds the packages that were made of models for the Neural Engine, and what
Core ML has compiled of them and of others; nothing makes room there but --clear, which
leaves what a running program uses.";

/// Arguments of `baton cache`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Delete all packed weights and all that Core ML has compiled
    #[arg(long)]
    clear: bool,
}

/// Lists or clears.
///
/// # Errors
/// If the folder cannot be read or changed.
pub fn execute(args: &Args) -> anyhow::Result<()> {
    let store = models::store()?;
    let (cache, compiled) = (packing::existing(&store), packing::compiled(&store));
    let folder = cache.folder().display().to_string();
    let compiled_folder = compiled.folder().display().to_string();
    if args.clear {
        let packed = cache.clear().with_context(|| format!("cannot clear {folder}"))?;
        let compiled =
            compiled.clear().with_context(|| format!("cannot clear {compiled_folder}"))?;
        eprintln_quietly(format_args!("{} freed", format::bytes(packed + compiled.freed)));
        if compiled.in_use > 0 {
            note(format_args!(
                "{} of {compiled_folder} are left: running programs use or make them",
                compiled.in_use
            ));
        }
        return Ok(());
    }
    let files = cache.list().with_context(|| format!("cannot read {folder}"))?;
    let mut out = format::stdout();
    let mut rows = vec![["MODEL", "SIZE", "LAST USED"].map(str::to_owned)];
    rows.extend(files.iter().rev().map(row));
    for line in format::table(&rows) {
        writeln!(out, "{line}")?;
    }
    let total = files.iter().map(|file| file.bytes).sum();
    writeln!(out, "{} in {folder}", format::bytes(total))?;
    let entries = compiled.list().with_context(|| format!("cannot read {compiled_folder}"))?;
    if !entries.is_empty() {
        let mut rows = vec![["CORE ML", "SIZE", "LAST USED"].map(str::to_owned)];
        rows.extend(entries.iter().rev().map(compiled_row));
        writeln!(out)?;
        for line in format::table(&rows) {
            writeln!(out, "{line}")?;
        }
        let total = entries.iter().map(|entry| entry.bytes).sum();
        writeln!(out, "{} in {compiled_folder}", format::bytes(total))?;
    }
    out.flush()?;
    Ok(())
}

fn row(file: &PackedFile) -> [String; 3] {
    let model = file.source.as_ref().map(|path| path.display().to_string());
    cells(model.as_deref().unwrap_or("unknown"), file.bytes, file.used)
}

fn compiled_row(entry: &CompiledEntry) -> [String; 3] {
    let made = entry.path.extension().is_some_and(|end| end == "mlpackage");
    let what = if made { "package of " } else { "compiled " };
    let source = entry.source.as_deref().unwrap_or("something unknown");
    cells(&format!("{what}{source}"), entry.bytes, entry.used)
}

fn cells(name: &str, bytes: u64, used: SystemTime) -> [String; 3] {
    let age = SystemTime::now().duration_since(used).unwrap_or_default();
    [name.to_owned(), format::bytes(bytes), format::ago(age)]
}
