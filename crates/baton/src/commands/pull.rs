//! `baton pull`: fetches a model.

use baton_engine::core_ml;

use super::compile::install;
use crate::failure::eprintln_quietly;
use crate::{format, models, packing};

/// Shown below the help.
pub const EXAMPLES: &str = "\
Examples:
  baton pull smollm2                              a name of the catalog
  baton pull hf:Qwen/Qwen3-0.6B-GGUF:Q8_0         a quantization from the Hugging Face hub
  baton pull hf:HuggingFaceTB/SmolLM2-135M-Instruct   a safetensors checkpoint
  baton pull https://example.com/model.gguf       any web server

A folder of Core ML packages is made ready for this machine, if it is a Mac: see baton compile --install.
Sources are tried in order, downloads resume, and sizes and SHA-256 sums are checked. Files that
other tools have put into the Hugging Face cache are used where they are.";

/// Arguments of `baton pull`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The model: a name, hf:ORG/REPO[:FILE-OR-QUANT], or https://…/x.gguf
    #[arg(value_name = "MODEL")]
    model: String,
}

/// Fetches it.
///
/// # Errors
/// If no source delivers it.
pub fn execute(args: &Args) -> anyhow::Result<()> {
    let store = models::store()?;
    let reference = models::resolve(&store, &args.model)?;
    let model = models::get(&store, &reference)?;
    let (size, path) = (format::bytes(model.size), model.path.display());
    if install::is_folder(&model.path)?
        && let Some(device) = core_ml(packing::compiled(&store))?
    {
        install::or_note(install::folder(&device, &model.path));
    }
    eprintln_quietly(format_args!("{} is ready: {size}, {path}", model.name));
    Ok(())
}
