//! `baton tune`: measures the units of this machine with a model.

use std::time::Duration;

use baton_engine::{TuneOptions, UnitChoice, UnitKind, open_model, tune};

use crate::computing::Computing;
use crate::failure::{eprintln_quietly, hinted};
use crate::{models, units};

/// Shown below the help.
pub const EXAMPLES: &str = "\
Examples:
  baton tune                  how fast each unit of this machine runs the default model
  baton tune qwen3:0.6b       another model
  baton tune --seconds 10     less thoroughly
  baton tune --units gpu      one unit; what is known of the others stays

Reads prompts of several lengths and writes some tokens on each unit, hands a cache over, and keeps
what it measured in the folder `profiles` of BATON_HOME, for this machine, these devices and this type of
cache. Commands that load a model then choose by it
what --prefill auto and --decode auto stand for, from which length on a prompt is handed over, and in
which pieces; without it they go by what the hardware could do at best.";

/// Arguments of `baton tune`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The model (default: the default model)
    #[arg(value_name = "MODEL")]
    model: Option<String>,
    /// Units to measure (default: all that are here)
    #[arg(long, value_name = "UNIT", value_delimiter = ',', value_parser = units::kind)]
    units: Vec<UnitKind>,
    /// Time to measure for, loading the model left out
    #[arg(long, value_name = "N", default_value_t = 40)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=600))]
    seconds: u16,
    #[command(flatten)]
    computing: Computing,
}

/// Measures, and keeps what it measured.
///
/// # Errors
/// If the model cannot be had, loaded or run, or the profile cannot be written.
pub fn execute(args: &Args) -> anyhow::Result<()> {
    let store = models::store()?;
    models::warn_if_unusable(&store)?;
    let local = models::named_or_default(&store, args.model.as_deref())?;
    let model = open_model(&local.path)?;
    if model.is_embedding() {
        let problem = format!("{} makes vectors, which always happens on one unit", local.name);
        return Err(hinted(problem, "there is nothing to choose; measure a model that answers"));
    }
    if let Some(folder) = model.packages() {
        let shown = folder.display();
        let problem = format!("{shown} holds packages, which the unit coreml runs alone");
        let hint = "there is nothing to choose; measure the model that they were made of, or this folder \
                    with baton bench";
        return Err(hinted(problem, hint));
    }
    let load = args.computing.options(&store);
    let mut options =
        TuneOptions { budget: Duration::from_secs(args.seconds.into()), ..TuneOptions::default() };
    if !args.units.is_empty() {
        options.units.clone_from(&args.units);
    }
    let results = tune(&model, &load, &options, |unit, line| {
        eprintln_quietly(format_args!("{unit}: {line}"))
    });
    let (mut measured, mut failed) = (Vec::new(), None);
    for (unit, result) in results {
        match result {
            Ok(speeds) => measured.push(speeds),
            Err(error) => {
                eprintln_quietly(format_args!("{unit} cannot be measured: {error}"));
                failed = failed.or(Some(error));
            }
        }
    }
    if let Some(error) = failed.filter(|_| measured.is_empty()) {
        return Err(error.into());
    }
    let profiles = units::profiles(&store, &load);
    let path = profiles.keep(&model.fingerprint(), measured)?;
    eprintln_quietly(format_args!("kept in {}", path.display()));
    let choice = UnitChoice { profiles: Some(profiles), ..UnitChoice::default() };
    for line in choice.choose(&model, &load)?.why {
        eprintln_quietly(format_args!("{line}"));
    }
    Ok(())
}
