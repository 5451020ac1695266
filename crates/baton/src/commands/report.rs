//! `baton report`: where the operations of a Core ML package would run, and why.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::Context;
use baton_coreml::Package;
use baton_coreml::layout::names;
use baton_coreml::report::{FunctionReport, MeasuredUnit, Report, Reports, Warning};
use baton_engine::core_ml;

use crate::failure::hinted;
use crate::{format, models, packing};

/// Shown below the help.
pub const EXAMPLES: &str = "\
Examples:
  baton report smollm2-ane                    a package that baton compile has made
  baton report Model.mlpackage                or one of anybody
  baton report Model.mlpackage --html r.html  a page with a picture of a layer, coloured by unit
  baton report Model.mlpackage --json | jq .least_flops_share
  baton report Model.mlpackage --fail-below 0.8  for scripts: fails if less is on the Neural Engine

What is said is predicted from rules that others have published, each named with its source, and chips
and systems differ. On a Mac the package is compiled, and where Core ML plans to run each operation is told
beside that.";

/// Arguments of `baton report`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The package, or a folder with packages, such as baton compile makes
    #[arg(value_name = "PACKAGE")]
    package: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Write a page to this file
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Fail if a function has a smaller share of its floating-point operations on the Neural Engine
    #[arg(long, value_name = "SHARE", value_parser = share)]
    fail_below: Option<f64>,
}

fn share(text: &str) -> Result<f64, String> {
    let found = text.parse().ok().filter(|share| (0.0..=1.0).contains(share));
    found.ok_or_else(|| "a share is a number from 0 to 1".to_owned())
}

/// Prints it.
///
/// # Errors
/// If the package cannot be read or the page not be written, or too little is on the Neural Engine.
pub fn execute(args: &Args) -> anyhow::Result<()> {
    let paths = packages(&args.package)?;
    let device = core_ml(packing::compiled(&models::store()?))?;
    let mut reports = Reports::default();
    for path in &paths {
        let package = Package::open(path)?;
        let mut report = Report::of(&package);
        if let Some(device) = &device {
            report.add_placements(&device.placements(path, &package)?);
        }
        let name = path.file_name().unwrap_or(path.as_os_str());
        reports.0.push((name.to_string_lossy().into_owned(), report));
    }
    if let Some(file) = &args.html {
        let title = format!("Where {} would run", args.package.display());
        fs::write(file, reports.to_html(&title))
            .with_context(|| format!("cannot write {}", file.display()))?;
    }
    let mut out = format::stdout();
    if args.json {
        writeln!(out, "{}", serde_json::to_string_pretty(&reports.to_json())?)?;
    } else {
        print(&mut out, &reports)?;
    }
    out.flush()?;
    let found = reports.least_share();
    match args.fail_below {
        Some(wanted) if found < wanted => {
            let (found, wanted) = (percent(found), percent(wanted));
            let text = format!(
                "a function has {found} of its operations on the Neural Engine, less than {wanted}"
            );
            Err(hinted(text, "its warnings name the rules, and what to do"))
        }
        _ => Ok(()),
    }
}

/// The package at a path, or all packages in the folder there, by their names.
fn packages(path: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let is_package = |path: &Path| path.join("Manifest.json").is_file();
    if is_package(path) {
        return Ok(vec![path.to_owned()]);
    }
    // What is no folder has no entries.
    let entries = fs::read_dir(path).into_iter().flatten();
    let inside = entries.filter_map(|entry| entry.ok().map(|entry| entry.path()));
    let is_named = |path: &PathBuf| path.extension().is_some_and(|end| end == names::PACKAGE);
    let (mut found, others): (Vec<_>, Vec<_>) =
        inside.partition(|path| is_named(path) && is_package(path));
    found.sort();
    if !found.is_empty() {
        return Ok(found);
    }
    let is_compiled = |path: &PathBuf| path.extension().is_some_and(|end| end == names::COMPILED);
    let hint = match others.iter().any(is_compiled) {
        true => {
            "what is compiled has no operations to report on; get the .mlpackage that it was made of"
        }
        false => {
            "name a folder X.mlpackage, or one with such folders; baton compile makes one of a model"
        }
    };
    Err(hinted(format!("{} is no Core ML package", path.display()), hint))
}

fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}

fn print(out: &mut impl Write, reports: &Reports) -> io::Result<()> {
    let several = reports.0.len() > 1;
    for (i, (name, report)) in reports.0.iter().enumerate() {
        if i == 0 {
            writeln!(out, "{}", report.note())?;
        }
        if several {
            writeln!(out, "\n== {}", format::in_line(name))?;
        }
        warnings(out, &report.warnings)?;
        report.functions.iter().try_for_each(|function| print_function(out, function))?;
    }
    if several {
        writeln!(out, "\n== all packages, one after the other")?;
        let titles = ["FUNCTION", "PACKAGES", "FLOPS ON IT", "BYTES ON IT"].map(str::to_owned);
        let rows = reports.functions().into_iter().map(|whole| {
            let (flops, bytes) = whole.share();
            [whole.name, whole.packages.to_string(), percent(flops), percent(bytes)]
        });
        for line in format::table(&[titles].into_iter().chain(rows).collect::<Vec<_>>()) {
            writeln!(out, "  {line}")?;
        }
    }
    Ok(())
}

fn print_function(out: &mut impl Write, function: &FunctionReport) -> io::Result<()> {
    let (flops, bytes) = function.share();
    writeln!(
        out,
        "\n{}: on the Neural Engine {} of the floating-point operations, {} of the bytes",
        format::in_line(&function.name),
        percent(flops),
        percent(bytes)
    )?;
    if let Some(share) = function.measured_share {
        writeln!(out, "  by Core ML's plan {} of its time is there", percent(share))?;
    }
    for line in table(function) {
        writeln!(out, "  {line}")?;
    }
    warnings(out, &function.warnings)
}

/// The operations, with what Core ML plans in a column of its own if that is known.
fn table(function: &FunctionReport) -> Vec<String> {
    let total = function.total();
    let titles = ["OPERATION", "", "UNIT", "CORE ML", "FLOPS", "BYTES", "WHY"].map(str::to_owned);
    let rows = function.rows().into_iter().map(|row| {
        let (flops, bytes) = row.cost.share_of(total);
        [
            row.kind.clone(),
            row.count.to_string(),
            row.unit.name().to_owned(),
            row.measured.map_or("", MeasuredUnit::name).to_owned(),
            percent(flops),
            percent(bytes),
            row.reason().to_owned(),
        ]
    });
    let rows: Vec<_> = [titles].into_iter().chain(rows).collect();
    if function.is_measured() {
        return format::table(&rows);
    }
    let without = |[kind, count, unit, _, flops, bytes, why]: [String; 7]| {
        [kind, count, unit, flops, bytes, why]
    };
    format::table(&rows.into_iter().map(without).collect::<Vec<_>>())
}

fn warnings(out: &mut impl Write, warnings: &[Warning]) -> io::Result<()> {
    for Warning { rule, text, count } in warnings {
        let more = if *count > 1 { format!(" and {} more", count - 1) } else { String::new() };
        writeln!(out, "  {} ({}{more}): {}", rule.name, format::in_line(text), rule.reason)?;
        writeln!(out, "    {}; source: {}", rule.instead, rule.source)?;
    }
    Ok(())
}
