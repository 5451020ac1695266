//! The `baton` program: one file per command in `commands/`, and what they share beside it.
//!
//! Answers and tables go to standard output, everything else to standard error.
#![forbid(unsafe_code)]

mod bench;
mod cli;
mod commands;
mod computing;
mod failure;
mod format;
mod guesses;
mod interrupt;
mod loaded;
mod logging;
mod models;
mod packing;
mod paths;
mod progress;
mod repl;
mod sampling;
mod units;

use std::panic;
use std::process::ExitCode;
use std::thread;

use clap::Parser;

fn main() -> ExitCode {
    // While this is the only thread.
    baton_engine::quiet_drivers();
    panic::set_hook(Box::new(|info| {
        // A fault of a chat template, which becomes an error.
        if thread::current().name() == Some(baton_text::TEMPLATE_THREAD) {
            return;
        }
        let place = info.location().map(|at| format!(" at {at}")).unwrap_or_default();
        let payload = info.payload();
        let text = payload.downcast_ref::<String>().map(String::as_str);
        let what = text.or(payload.downcast_ref::<&str>().copied()).unwrap_or("no reason is known");
        failure::say(
            &format!("baton {} has a bug{place}: {what}", env!("CARGO_PKG_VERSION")),
            Some("please report this line, with the command that you gave, to the developers"),
        );
    }));
    let outcome = panic::catch_unwind(|| {
        let arguments = commands::bench::respelled(std::env::args_os());
        let cli = cli::Cli::parse_from(arguments);
        logging::start()?;
        interrupt::install();
        cli.command.execute()
    });
    match outcome {
        Ok(result) => failure::report(result),
        // The hook has said everything.
        Err(_) => ExitCode::from(failure::FAILED),
    }
}
