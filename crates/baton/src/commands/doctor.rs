//! `baton doctor`: what this machine can do, what is wrong, and what to do about it.

mod machine;
mod online;
mod report;

use std::io::{self, Write};

use console::style;

use crate::failure::Stop;
use crate::format;
use report::{Level, Report};

/// Shown below the help.
pub const EXAMPLES: &str = "\
Examples:
  baton doctor             look at this machine; nothing leaves it
  baton doctor --online    also ask whether the sources of models can be reached
  baton doctor --json      for programs, and for bug reports

The exit code is 1 if something is wrong that keeps models from being fetched or run.";

/// Arguments of `baton doctor`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Also check that the sources of models can be reached
    #[arg(long)]
    online: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Looks at everything and prints what it finds.
///
/// # Errors
/// If something is seriously wrong, or the report cannot be printed.
pub fn execute(args: &Args) -> anyhow::Result<()> {
    let report = report::make(args.online);
    let mut out = io::stdout().lock();
    if args.json {
        writeln!(out, "{}", serde_json::to_string_pretty(&report)?)?;
    } else {
        print(&report, &mut out)?;
    }
    out.flush()?;
    let broken = report.problems.iter().any(|problem| problem.level == Level::Error);
    if broken { Err(Stop::Said.into()) } else { Ok(()) }
}

fn print(report: &Report, out: &mut impl Write) -> io::Result<()> {
    let cpu = &report.cpu;
    let mut rows = vec![
        ["Baton".into(), report.version.to_owned()],
        ["System".into(), format!("{}, {}", report.system.os, report.system.arch)],
        ["CPU".into(), format!("{} ({} cores)", cpu.name, cpu.cores)],
        ["  features".into(), cpu.features.join(" ")],
        ["  kernels".into(), cpu.kernels_line()],
        ["  threads".into(), format!("{} used unless --threads says otherwise", cpu.threads)],
    ];
    let memory = report.memory;
    let (total, available) =
        (format::memory(memory.total_bytes), format::memory(memory.available_bytes));
    rows.push(["Memory".into(), format!("{total}, {available} available")]);
    for (i, unit) in report.units.iter().enumerate() {
        let title = if i == 0 { "Units" } else { "" };
        let mark = if unit.available { "yes" } else { "no" };
        rows.push([title.into(), format!("{}: {mark}; {}", unit.name, unit.note)]);
    }
    if let Some(store) = &report.store {
        rows.push(["Models".into(), store.path.display().to_string()]);
        let (size, models) = (format::bytes(store.size_bytes), store.models);
        let plural = if models == 1 { "" } else { "s" };
        let free = store.free_bytes.map_or_else(|| "unknown".into(), format::bytes);
        let writable = if store.writable { "writable" } else { "not writable" };
        let line = format!("{models} model{plural}, {size}; {free} free on the disk; {writable}");
        rows.push([String::new(), line]);
    }
    for (i, source) in report.sources.iter().flatten().enumerate() {
        let title = if i == 0 { "Sources" } else { "" };
        let answer = source.problem.as_deref().unwrap_or("answers");
        rows.push([title.into(), format!("{}: {answer}", source.name)]);
    }
    for line in format::table(&rows) {
        writeln!(out, "{line}")?;
    }
    writeln!(out)?;
    if report.problems.is_empty() {
        return writeln!(out, "{}", style("Nothing is wrong.").green());
    }
    for problem in &report.problems {
        let mark = match problem.level {
            Level::Error => style("wrong:").red().bold(),
            Level::Warning => style("mind:").yellow().bold(),
        };
        writeln!(out, "{mark} {}\n       {}", problem.what, problem.advice)?;
    }
    Ok(())
}
