//! `baton report`: where the operations of a Core ML package would run, and why.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::Context;
use baton_coreml::Package;
use baton_coreml::report::{FunctionReport, MeasuredUnit, Report, Warning};
use baton_engine::core_ml;
use serde_json::json;

use crate::failure::{hinted, usage};
use crate::{format, models, packing};

/// Shown below the help.
pub const EXAMPLES: &str = "\
Examples:
  baton report smollm2-ane                    a package that baton compile has made
  baton report Model.mlpackage                or one of anybody
  baton report smollm2-anemll                 all packages of a folder, one after the other
  baton report Model.mlpackage --html r.html  a page with a picture of a layer, coloured by unit
  baton report Model.mlpackage --json | jq .least_flops_share
  baton report Model.mlpackage --fail-below 0.8  for scripts: fails if less is on the Neural Engine

What is said is predicted from rules that others have published, each named with its source, and chips
and systems differ. On a Mac the package is compiled, and where Core ML plans to run each operation is told
beside that.";

/// The package in a folder that `baton compile` made of a model.
const PACKAGE: &str = "model.mlpackage";

/// Arguments of `baton report`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The package, or a folder of packages
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
    let inside = args.package.join(PACKAGE);
    let path: &Path = if inside.is_dir() { &inside } else { &args.package };
    let paths = packages(path)?;
    let device = core_ml(packing::compiled(&models::store()?))?;
    let mut reports = Vec::new();
    for path in &paths {
        let package = Package::open(path)?;
        let mut report = Report::of(&package);
        if let Some(device) = &device {
            report.add_placements(&device.placements(path, &package)?);
        }
        reports.push(report);
    }
    if let Some(file) = &args.html {
        let [report] = &reports[..] else {
            return Err(usage("--html is for one package; name one of those in the folder"));
        };
        let title = format!("Where {} would run", args.package.display());
        fs::write(file, report.to_html(&title))
            .with_context(|| format!("cannot write {}", file.display()))?;
    }
    let least = |reports: &[Report]| {
        let shares = reports.iter().map(Report::least_share);
        shares.fold(1.0, f64::min)
    };
    let mut out = io::stdout().lock();
    match &reports[..] {
        [report] if args.json => {
            writeln!(out, "{}", serde_json::to_string_pretty(&report.to_json())?)?;
        }
        [report] => print(&mut out, report)?,
        _ if args.json => {
            let named = paths.iter().zip(&reports);
            let packages = named.map(|(path, report)| (file_name(path), report.to_json()));
            let packages: serde_json::Map<_, _> = packages.collect();
            let all = json!({ "least_flops_share": least(&reports), "packages": packages });
            writeln!(out, "{}", serde_json::to_string_pretty(&all)?)?;
        }
        _ => {
            for (i, (path, report)) in paths.iter().zip(&reports).enumerate() {
                let blank = if i == 0 { "" } else { "\n" };
                writeln!(out, "{blank}{}", format::harmless(&file_name(path)))?;
                print(&mut out, report)?;
            }
        }
    }
    out.flush()?;
    let found = least(&reports);
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

/// The packages at a path: one, or all in a folder, by their names.
fn packages(path: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let is_package = |path: &Path| path.join("Manifest.json").is_file();
    if is_package(path) {
        return Ok(vec![path.to_owned()]);
    }
    let entries = fs::read_dir(path).into_iter().flatten().filter_map(Result::ok);
    let mut found: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    let compiled = found.iter().any(|path| path.extension().is_some_and(|end| end == "mlmodelc"));
    found.retain(|path| is_package(path));
    found.sort();
    if !found.is_empty() {
        return Ok(found);
    }
    let shown = path.display();
    let hint = match compiled {
        true => {
            "what is compiled has no operations to report on; get the .mlpackage that it was made of"
        }
        false => "name a folder X.mlpackage; baton compile makes one of a model",
    };
    Err(hinted(format!("{shown} is no Core ML package"), hint))
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}

fn print(out: &mut impl Write, report: &Report) -> io::Result<()> {
    writeln!(out, "{}", report.note())?;
    warnings(out, &report.warnings)?;
    report.functions.iter().try_for_each(|function| print_function(out, function))
}

fn print_function(out: &mut impl Write, function: &FunctionReport) -> io::Result<()> {
    let (flops, bytes) = function.share();
    writeln!(
        out,
        "\n{}: on the Neural Engine {} of the floating-point operations, {} of the bytes",
        format::harmless(&function.name),
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
        writeln!(out, "  {} ({}{more}): {}", rule.name, format::harmless(text), rule.reason)?;
        writeln!(out, "    {}; source: {}", rule.instead, rule.source)?;
    }
    Ok(())
}
