//! `baton compile X.mlpackage`: packages rewritten by passes.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use baton_coreml::Package;
use baton_coreml::passes::{Change, Draft, Options, PASSES, Pass, pass};

use super::folder::whole_folder;
use crate::failure::usage;
use crate::format;

/// Said instead of the names of passes to have them listed.
const HELP: &str = "help";
/// What the name of a package ends in.
const ENDING: &str = ".mlpackage";
/// Changes of a pass that are printed.
const SHOWN: usize = 3;

/// Arguments about packages that are there.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Rewrite a package by these passes, in this order (default: what suits the Neural Engine;
    /// `help` lists them)
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    pub passes: Option<Vec<String>>,
    /// Slice attention from so many queries on
    #[arg(long, value_name = "N", default_value_t = Options::default().min_queries)]
    min_queries: usize,
    /// Into so many slices
    #[arg(long, value_name = "N", default_value_t = Options::default().query_divider)]
    query_divider: usize,
    /// Most rows of a product with a matrix
    #[arg(long, value_name = "N", default_value_t = Options::default().head_piece)]
    head_piece: usize,
}

impl Args {
    /// Whether the passes are to be listed.
    pub fn asks_for_help(&self) -> bool {
        self.passes.as_ref().is_some_and(|names| names.iter().any(|name| name == HELP))
    }

    /// An option that was given and says how a package is rewritten.
    pub fn given(&self) -> Option<&'static str> {
        let (options, default) = (self.options(None), Options::default());
        super::given([
            (self.passes.is_some(), "--passes"),
            (options.min_queries != default.min_queries, "--min-queries"),
            (options.query_divider != default.query_divider, "--query-divider"),
            (options.head_piece != default.head_piece, "--head-piece"),
        ])
    }

    fn options(&self, chunk_bytes: Option<u64>) -> Options {
        Options {
            min_queries: self.min_queries,
            query_divider: self.query_divider,
            head_piece: self.head_piece,
            chunk_bytes: chunk_bytes.unwrap_or(Options::default().chunk_bytes),
        }
    }

    fn chosen(&self) -> anyhow::Result<Vec<&'static Pass>> {
        let Some(names) = &self.passes else {
            return Ok(PASSES.iter().filter(|pass| pass.default).collect());
        };
        let named = names.iter().map(|name| {
            let unknown = || usage(format!("--passes {name}: no such pass; `help` lists them"));
            pass(name.trim()).ok_or_else(unknown)
        });
        named.collect()
    }
}

/// Whether a model's name is that of a package.
pub fn is_package(model: &str) -> bool {
    model.trim_end_matches('/').ends_with(ENDING)
}

/// Lists the passes.
///
/// # Errors
/// If they cannot be printed.
pub fn list() -> anyhow::Result<()> {
    let mut out = format::stdout();
    let rows = PASSES.iter().map(|pass| {
        let default = if pass.default { "" } else { " (only if named)" };
        [pass.name.to_owned(), format!("{}{default}", pass.about)]
    });
    for line in format::table(&rows.collect::<Vec<_>>()) {
        writeln!(out, "{line}")?;
    }
    out.flush()?;
    Ok(())
}

/// Rewrites a package into the folder `output`, with no more than `chunk_bytes` of weights in a package. Returns
/// what was written.
///
/// # Errors
/// If it cannot be read, a pass fails, or the folder cannot be written.
pub fn execute(
    package: &str,
    output: &Path,
    args: &Args,
    chunk_bytes: Option<u64>,
) -> anyhow::Result<Vec<(PathBuf, Package)>> {
    let passes = args.chosen()?;
    let path = Path::new(package);
    let stem = path.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
    let options = args.options(chunk_bytes);
    let mut drafts = vec![Draft::new(Package::open(path)?)];
    let mut out = format::stdout();
    for pass in passes {
        let mut changes = Vec::new();
        let mut made = Vec::new();
        for draft in drafts {
            let (drafts, more) = draft.apply(pass, &options)?;
            made.extend(drafts);
            changes.extend(more);
        }
        drafts = made;
        say(&mut out, pass, &changes)?;
    }
    let name = |draft: &Draft| match draft.part.as_str() {
        "" => format!("{stem}{ENDING}"),
        part => format!("{stem}_{part}{ENDING}"),
    };
    whole_folder(output, |folder| {
        for draft in &drafts {
            draft.write(&folder.join(name(draft)))?;
        }
        Ok(())
    })?;
    let written = drafts.iter().map(|draft| {
        let path = output.join(name(draft));
        writeln!(out, "{}", path.display())?;
        let package = Package::open(&path)?;
        Ok((path, package))
    });
    let written = written.collect::<anyhow::Result<_>>()?;
    out.flush()?;
    Ok(written)
}

/// Says what a pass changed, and what it left and why.
fn say(out: &mut impl Write, pass: &Pass, changes: &[Change]) -> io::Result<()> {
    let done = changes.iter().filter(|change| change.done).count();
    let text = match done {
        0 => "nothing changed".to_owned(),
        1 => "1 change".to_owned(),
        n => format!("{n} changes"),
    };
    writeln!(out, "{}: {text}", pass.name)?;
    for (which, word) in [(true, ""), (false, "left: ")] {
        let all: Vec<_> = changes.iter().filter(|change| change.done == which).collect();
        for Change { place, text, .. } in all.iter().take(SHOWN) {
            writeln!(out, "  {word}{}: {text}", format::in_line(place))?;
        }
        if all.len() > SHOWN {
            writeln!(out, "  {word}and {} more", all.len() - SHOWN)?;
        }
    }
    Ok(())
}
