//! `baton rm`: removes models from the store.

use crate::failure::{Stop, eprintln_quietly, one_line, say};
use crate::{format, models, packing};

/// Shown below the help.
pub const EXAMPLES: &str = "\
Examples:
  baton rm smollm2
  baton rm gemma3:270m hf:Qwen/Qwen3-0.6B-GGUF:Q8_0

Only what Baton has fetched is removed: files that you named by their path, and those in the Hugging
Face cache, stay.";

/// Arguments of `baton rm`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The models, as `baton list` names them
    #[arg(value_name = "MODEL", required = true)]
    models: Vec<String>,
}

/// Removes each; goes on with the others if one cannot be removed.
///
/// # Errors
/// If one or more could not be removed.
pub fn execute(args: &Args) -> anyhow::Result<()> {
    let store = models::store()?;
    let mut failures = 0;
    for name in &args.models {
        match store.remove(name) {
            Ok(freed) => {
                // What was packed of it is of no use any more; that it cannot be deleted is no
                // reason to keep the model.
                let freed = freed + packing::existing(&store).sweep().unwrap_or(0);
                eprintln_quietly(format_args!("removed {name}: {} freed", format::bytes(freed)));
            }
            Err(error) if args.models.len() == 1 => return Err(models::explain(error)),
            Err(error) => {
                failures += 1;
                say(&one_line(&models::explain(error)), None);
            }
        }
    }
    if failures > 0 { Err(Stop::Said.into()) } else { Ok(()) }
}
