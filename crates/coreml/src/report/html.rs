//! A report as one page: no scripts, and nothing from elsewhere.

mod picture;

use std::fmt::Write;

use super::layer::layer;
use super::{FunctionReport, MeasuredUnit, Report, Unit, Warning};

const STYLE: &str = "
body { font: 15px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; color: #222; background: #fff; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.2rem; margin-top: 2.5rem; border-bottom: 1px solid #ccc; }
.note { background: #fff6d6; border-left: 4px solid #d9a400; padding: .5rem 1rem; }
table { border-collapse: collapse; width: 100%; } th { text-align: left; }
th, td { padding: .2rem .6rem; border-bottom: 1px solid #e5e5e5; vertical-align: top; }
td.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.bar { display: flex; height: 1.2rem; border-radius: 4px; overflow: hidden; margin: .3rem 0 1rem; }
.key { display: inline-block; width: .8em; height: .8em; border-radius: 2px; margin: 0 .3em 0 1em; }
.picture { overflow-x: auto; border: 1px solid #e5e5e5; border-radius: 4px; margin: .5rem 0; }
.source { color: #666; font-size: .85em; }
svg text { font: 11px system-ui, sans-serif; }
";

/// The colour of a unit.
fn colour(unit: Unit) -> &'static str {
    match unit {
        Unit::NeuralEngine => "#7bc47f",
        Unit::Cpu => "#f2b45a",
        Unit::Fails => "#e0605e",
    }
}

/// The text as it stands in a page.
fn escaped(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        match c {
            '&' => out += "&amp;",
            '<' => out += "&lt;",
            '>' => out += "&gt;",
            '"' => out += "&quot;",
            '\'' => out += "&#39;",
            c => out.push(c),
        }
    }
    out
}

fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}

/// The page of reports, each below its name where it has one.
pub(super) fn page(reports: &[(Option<&str>, &Report)], title: &str) -> String {
    let (title, note) = (escaped(title), reports.first().map_or("", |(_, report)| report.note()));
    let mut out = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<title>{title}</title>\n\
         <style>{STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>\n<p class=\"note\">{note}</p>\n<p>"
    );
    for unit in [Unit::NeuralEngine, Unit::Cpu, Unit::Fails] {
        add(&mut out, format_args!("{}{}", key(unit), unit.name()));
    }
    out += "</p>\n";
    for (name, report) in reports {
        if let Some(name) = name {
            add(&mut out, format_args!("<h1>{}</h1>\n", escaped(name)));
        }
        warnings(&mut out, &report.warnings);
        for function in &report.functions {
            section(&mut out, function);
        }
    }
    out + "</body>\n</html>\n"
}

fn add(out: &mut String, text: std::fmt::Arguments<'_>) {
    out.write_fmt(text).expect("a text takes all");
}

fn key(unit: Unit) -> String {
    format!("<span class=\"key\" style=\"background:{}\"></span>", colour(unit))
}

fn section(out: &mut String, function: &FunctionReport) {
    let (flops, bytes) = function.share();
    add(out, format_args!("<h2>{}</h2>\n", escaped(&function.name)));
    add(
        out,
        format_args!(
            "<p>On the Neural Engine: {} of the floating-point operations, {} of the bytes moved.</p>\n",
            percent(flops),
            percent(bytes)
        ),
    );
    if let Some(share) = function.measured_share {
        let share = percent(share);
        add(out, format_args!("<p>By Core ML's plan {share} of its time is there.</p>\n"));
    }
    out.push_str("<div class=\"bar\">");
    let total = function.total();
    for unit in [Unit::NeuralEngine, Unit::Cpu, Unit::Fails] {
        let there = function.ops.iter().filter(|op| op.unit == unit).map(|op| op.cost);
        let (share, _) = there.sum::<super::Cost>().share_of(total);
        let width = 100.0 * if total.flops == 0 { 0.0 } else { share };
        let background = colour(unit);
        add(out, format_args!("<div style=\"width:{width:.2}%;background:{background}\"></div>"));
    }
    out.push_str("</div>\n");
    let (range, layers) = layer(&function.ops);
    let of = match layers {
        1 if range.len() < function.ops.len() => format!("The first {} operations", range.len()),
        1 => "All operations".to_owned(),
        n => format!("One of {n} layers that are alike"),
    };
    add(out, format_args!("<p>{of}:</p>\n<div class=\"picture\">"));
    picture::draw(out, &function.ops, range);
    out.push_str("</div>\n");
    let measured = function.is_measured();
    let planned = if measured { "<th>Core ML</th>" } else { "" };
    add(
        out,
        format_args!(
            "<table>\n<tr><th>operation</th><th></th><th>unit</th>{planned}<th>why</th>\
             <th>operations</th><th>bytes</th></tr>\n"
        ),
    );
    for row in function.rows() {
        let (flops, bytes) = row.cost.share_of(total);
        let planned = row.measured.map_or("", MeasuredUnit::name);
        let planned = if measured { format!("<td>{planned}</td>") } else { String::new() };
        add(
            out,
            format_args!(
                "<tr><td>{}</td><td class=\"n\">{}</td><td>{}{}</td>{planned}<td>{}</td>\
                 <td class=\"n\">{}</td><td class=\"n\">{}</td></tr>\n",
                escaped(&row.kind),
                row.count,
                key(row.unit),
                row.unit.name(),
                row.reason(),
                percent(flops),
                percent(bytes)
            ),
        );
    }
    out.push_str("</table>\n");
    warnings(out, &function.warnings);
}

fn warnings(out: &mut String, warnings: &[Warning]) {
    if warnings.is_empty() {
        return;
    }
    out.push_str("<ul>\n");
    for warning in warnings {
        let rule = warning.rule;
        let more = match warning.count {
            1 => String::new(),
            n => format!(" and {} more", n - 1),
        };
        add(
            out,
            format_args!(
                "<li><b>{}</b> ({}{more}): {}; {}. <span class=\"source\">{}</span></li>\n",
                rule.name,
                escaped(&warning.text),
                rule.reason,
                rule.instead,
                rule.source
            ),
        );
    }
    out.push_str("</ul>\n");
}
