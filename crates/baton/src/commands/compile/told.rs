//! What is told of the packages that were written.

use std::io::Write;
use std::path::Path;
use std::time::Instant;

use baton_coreml::layout::{Layout, names};
use baton_coreml::lower::WEIGHTS_NOTE;
use baton_coreml::{Model as Program, Package};

use super::manifest::Measured;
use crate::format;

/// The tokenizer that other programs read.
const TOKENIZER: &str = "tokenizer.json";

/// Tells of it.
pub fn report(
    output: &Path,
    layout: &Layout,
    packages: &[(String, Package)],
    measured: Option<&Measured>,
    start: Instant,
) -> anyhow::Result<()> {
    let mut out = format::stdout();
    let bytes = packages.iter().map(|(_, package)| package.weight_bytes()).sum();
    writeln!(
        out,
        "{}: {} of weights, in {}",
        output.display(),
        format::bytes(bytes),
        format::time(start.elapsed())
    )?;
    for (file, package) in packages {
        let program: &Program = &package.model;
        if packages.len() > 1 {
            writeln!(out, "{file}: {}", format::bytes(package.weight_bytes()))?;
        }
        let functions = program.program.functions.iter();
        let operations = functions.map(|(name, function)| {
            let ops = function.body.ops.iter().filter(|op| !op.is_constant()).count();
            [name.clone(), format!("{ops} operations")]
        });
        for line in format::table(&operations.collect::<Vec<_>>()) {
            writeln!(out, "  {line}")?;
        }
        if let Some(note) = program.metadata.user.get(WEIGHTS_NOTE) {
            writeln!(out, "  {note}")?;
        }
    }
    if let Some(measured) = measured {
        let q = measured.quality;
        writeln!(
            out,
            "over {} tokens in half precision: KL {:.5}, same likeliest token {:.1} %, perplexity {:.3} \
             (the model's own: {:.3})",
            q.rows,
            q.divergence,
            100.0 * q.top1,
            q.perplexity,
            q.reference_perplexity
        )?;
        if let Some(largest) = measured.largest() {
            let (value, op) = (largest.largest, &largest.op);
            writeln!(out, "largest result: {value:.0} of {op} in {}", largest.function)?;
        }
        let n = measured.overflows().count();
        if let Some(first) = measured.overflows().next() {
            let (op, function) = (&first.op, &first.function);
            writeln!(
                out,
                "warning: {n} operations leave half precision, first {op} in {function}; calibrate on a \
                 text that is like yours with --text"
            )?;
        }
    }
    for line in next_steps(layout, output) {
        writeln!(out, "{line}")?;
    }
    out.flush()?;
    Ok(())
}

/// What is to be done before the programs of others can run the packages.
fn next_steps(layout: &Layout, output: &Path) -> Vec<String> {
    let folder = quoted(&output.display().to_string());
    let run = match layout {
        Layout::Baton => return Vec::new(),
        Layout::Anemll(_) => {
            let meta = output.join(names::anemll::META);
            format!("anemllcli --meta {} --prompt TEXT", quoted(&meta.display().to_string()))
        }
        Layout::LlmCli(llm_cli) => format!(
            "LLMCLI --local-model-directory {folder} --local-model-prefix {} --tokenizer-name REPOSITORY TEXT",
            llm_cli.prefix()
        ),
    };
    let package = names::PACKAGE;
    let mut lines = vec![
        "not compared with the model; the same weights are with --layout baton".to_owned(),
        format!("  baton run {folder} TEXT"),
        "for their own programs, on a Mac, compile the packages first:".to_owned(),
        format!(
            "  for p in {folder}/*.{package}; do xcrun coremlcompiler compile \"$p\" {folder}; done"
        ),
        format!("  {run}"),
    ];
    if !output.join(TOKENIZER).exists() {
        lines.push(format!(
            "put {TOKENIZER} and tokenizer_config.json of the model's repository beside them: its own \
             file has none that these programs read"
        ));
    }
    lines
}

/// A text that a shell takes as it is.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use baton_coreml::layout::{Anemll, LlmCli, Prefix};

    use super::*;

    #[test]
    fn a_shell_runs_nothing_of_a_folders_name() {
        let prefix = || Prefix::new("a").unwrap();
        let folder = Path::new("it's $(x) `y`");
        let shown = r"'it'\''s $(x) `y`";
        for (layout, run) in [
            (
                Layout::Anemll(Anemll::new(prefix(), 64, 8, "Llama").unwrap()),
                format!("--meta {shown}/meta.yaml' "),
            ),
            (
                Layout::LlmCli(LlmCli::new(prefix(), 64, 8).unwrap()),
                format!("--local-model-directory {shown}' "),
            ),
        ] {
            let lines = next_steps(&layout, folder).join("\n");
            assert!(lines.contains(&run), "{lines}");
            assert!(lines.contains(&format!("in {shown}'/*.mlpackage;")), "{lines}");
            assert!(lines.contains(&format!("\"$p\" {shown}'; done")), "{lines}");
        }
    }
}
