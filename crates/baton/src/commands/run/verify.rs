//! What handing the cache over changes.

use std::io::Write;
use std::path::Path;

use baton_engine::{
    Choice, Compiled, LoadOptions, ModelText, RelayOptions, compare_handoff, compile_model,
    open_model,
};

use crate::failure::{hinted, usage};
use crate::format;
use crate::progress::Spinner;

/// Tokens of the answer that is compared.
const ANSWER: usize = 64;

/// Lets the unit for answers alone, and both units together, continue a prompt as it is, and prints how
/// far their logits are apart.
///
/// # Errors
/// If there are not two units, the model cannot be loaded, or the prompt does not fit.
pub fn compare(path: &Path, options: LoadOptions, prompt: &str) -> anyhow::Result<()> {
    let spinner = Spinner::start("loading the model twice");
    let model = open_model(path)?;
    let tokens = ModelText::of(&model)?.tokenizer.encode(prompt, true)?;
    let chosen = options.choice.clone().unwrap_or_default().choose(&model, &options)?;
    let remote = options.remote.as_ref().map(|remote| remote.address.clone());
    if chosen.prefill == chosen.decode && remote.is_none() {
        return Err(usage(format_args!(
            "there is nothing to compare: prompts and answers are on {}; name two units with \
             --prefill and --decode",
            chosen.decode
        )));
    }
    // All of the prompt is to be handed over, in several blocks.
    let relay = RelayOptions { crossover: 1, chunk: (tokens.len() / 3).max(1), ..chosen.relay };
    let (unit, prefill) = (chosen.decode, Some(chosen.prefill));
    let single = LoadOptions { unit, prefill: None, remote: None, choice: None, ..options.clone() };
    let both = LoadOptions { unit, prefill, relay, choice: None, ..options };
    let Compiled { executor: mut reference, .. } = compile_model(&model, &single)?;
    let Compiled { executor: mut relay, .. } = compile_model(&model, &both)?;
    drop(spinner);
    let spinner = Spinner::start("comparing");
    let (result, handed_over) = compare_handoff(&mut *relay, &mut *reference, &tokens, ANSWER)?;
    drop(spinner);
    let from = remote.unwrap_or_else(|| chosen.prefill.to_string());
    let wanted = tokens.len() - 1;
    if handed_over == 0 {
        let hint = "BATON_LOG=debug says why";
        return Err(hinted(
            format_args!("nothing was compared: {from} handed over none of {wanted} tokens"),
            hint,
        ));
    }
    let (agreed, rows) = (result.top1_agreement * result.rows as f64, result.rows);
    let mut out = format::stdout();
    writeln!(out, "{from} to {unit}: {handed_over} of {wanted} tokens handed over")?;
    writeln!(
        out,
        "the most likely token is the same for {agreed:.0} of {rows} ({:.1} %)",
        100.0 * result.top1_agreement
    )?;
    writeln!(out, "KL divergence: {:.2e} nats, at most {:.2e}", result.mean_kl, result.max_kl)?;
    writeln!(out, "logits differ by at most {:.3}", result.max_difference)?;
    if let Some(Choice { row, margin, found }) = result.closest {
        writeln!(
            out,
            "closest choice: token {} of the answer, whose two likeliest logits are {margin:.4} apart, and \
             {found:.4} behind the hand-off",
            row + 1
        )?;
    }
    out.flush()?;
    Ok(())
}
