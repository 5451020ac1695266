//! Where the operations of a package would run, and why.
//!
//! It is a prediction, by rules that others have published; nothing is measured, and what a device does may
//! differ with its chip and system. Every rule is in [`RULES`], with its source.
//!
//! ```text
//! rules     what is known of the Neural Engine
//! cost      operations and bytes that an operation takes
//! placement where Core ML says that they run, on a Mac
//! layer     which operations are one of many layers that are alike
//! several   the reports of a model in several packages
//! html      a report as a page, with a picture of a layer
//! ```

mod cost;
mod html;
mod layer;
mod placement;
mod rules;
mod several;

use std::collections::BTreeMap;

use serde_json::{Value as Json, json};

pub use self::cost::Cost;
pub use self::placement::{MeasuredUnit, Placement};
pub use self::rules::{RULES, Rule, Verdict};
pub use self::several::{Reports, Whole};
use crate::Package;
use crate::mil::Function;
use crate::mil::view::View;

/// What reports say of themselves.
const NOTE: &str =
    "A prediction from published rules; nothing was measured, and chips and systems differ.";
/// And if Core ML has said where operations run.
const PLANNED: &str = "A prediction from published rules, and beside it where Core ML plans to run each operation here.";

/// Where an operation would run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Unit {
    /// The Neural Engine.
    NeuralEngine,
    /// The CPU, or with it the GPU, if Core ML may use that.
    Cpu,
    /// Nowhere on the Neural Engine: loading or running fails, or all of the function falls back.
    Fails,
}

impl Unit {
    /// Its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Unit::NeuralEngine => "Neural Engine",
            Unit::Cpu => "CPU",
            Unit::Fails => "fails",
        }
    }
}

/// What is predicted for a package.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// Each function.
    pub functions: Vec<FunctionReport>,
    /// What concerns the package as a whole.
    pub warnings: Vec<Warning>,
}

/// What is predicted for a function.
#[derive(Clone, Debug, PartialEq)]
pub struct FunctionReport {
    /// Its name.
    pub name: String,
    /// Each operation that is no constant, in order.
    pub ops: Vec<Placed>,
    /// What concerns the function, or some of its operations.
    pub warnings: Vec<Warning>,
    /// The share of its time on the Neural Engine, as Core ML estimates it, if it does.
    pub measured_share: Option<f64>,
}

/// An operation with its place.
#[derive(Clone, Debug, PartialEq)]
pub struct Placed {
    /// Its name.
    pub name: String,
    /// What it does.
    pub kind: String,
    /// The names of its results.
    pub results: Vec<String>,
    /// Where it would run.
    pub unit: Unit,
    /// Where Core ML says that it runs, if that is known.
    pub measured: Option<MeasuredUnit>,
    /// The rule by which it is not on the Neural Engine.
    pub rule: Option<&'static Rule>,
    /// What it takes.
    pub cost: Cost,
    /// The shape of its first result.
    pub shape: Vec<usize>,
    /// The operations that it waits for, by their index here.
    pub after: Vec<usize>,
}

/// A rule that applies.
#[derive(Clone, Debug, PartialEq)]
pub struct Warning {
    /// The rule.
    pub rule: &'static Rule,
    /// The operation or the state that it applies to, and what more is to say.
    pub text: String,
    /// To how many operations it applies.
    pub count: usize,
}

/// Operations of one kind that run at one place for one reason.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// What they do.
    pub kind: String,
    /// Where they would run.
    pub unit: Unit,
    /// Where Core ML says that they run, if that is known.
    pub measured: Option<MeasuredUnit>,
    /// Why.
    pub rule: Option<&'static Rule>,
    /// How many they are.
    pub count: usize,
    /// What they take together.
    pub cost: Cost,
}

impl Report {
    /// The report of a package.
    pub fn of(package: &Package) -> Report {
        let functions = package.model.program.functions.iter();
        let functions = functions.map(|(name, function)| FunctionReport::of(name, function));
        let warnings = RULES.iter().filter_map(|rule| {
            let text = (rule.package?)(package)?;
            Some(Warning { rule, text, count: 1 })
        });
        Report { functions: functions.collect(), warnings: warnings.collect() }
    }

    /// How far what it says can be trusted.
    pub fn note(&self) -> &'static str {
        if self.functions.iter().any(FunctionReport::is_measured) { PLANNED } else { NOTE }
    }

    /// The least share of a function's operations, by their cost, that is on the Neural Engine.
    pub fn least_share(&self) -> f64 {
        self.functions.iter().map(|f| f.share().0).fold(1.0, f64::min)
    }

    /// The report as JSON.
    pub fn to_json(&self) -> Json {
        let warning = |w: &Warning| {
            json!({
                "rule": w.rule.name,
                "verdict": w.rule.verdict.name(),
                "text": w.text,
                "count": w.count,
                "reason": w.rule.reason,
                "instead": w.rule.instead,
                "source": w.rule.source,
            })
        };
        let functions = self.functions.iter().map(|function| {
            let (flops, bytes) = function.share();
            let total = function.total();
            let rows = function.rows().into_iter().map(|row| {
                let (flop_share, byte_share) = row.cost.share_of(total);
                json!({
                    "op": row.kind,
                    "count": row.count,
                    "unit": row.unit.name(),
                    "measured": row.measured.map(MeasuredUnit::name),
                    "rule": row.rule.map(|rule| rule.name),
                    "reason": row.reason(),
                    "flops": row.cost.flops,
                    "flops_share": flop_share,
                    "bytes": row.cost.bytes,
                    "bytes_share": byte_share,
                })
            });
            json!({
                "name": function.name,
                "neural_engine": { "flops_share": flops, "bytes_share": bytes },
                "measured_share": function.measured_share,
                "rows": rows.collect::<Vec<_>>(),
                "warnings": function.warnings.iter().map(warning).collect::<Vec<_>>(),
            })
        });
        json!({
            "format": 1,
            "note": self.note(),
            "least_flops_share": self.least_share(),
            "functions": functions.collect::<Vec<_>>(),
            "warnings": self.warnings.iter().map(warning).collect::<Vec<_>>(),
        })
    }

    /// The report as a page that needs no other file; `title` says of what.
    pub fn to_html(&self, title: &str) -> String {
        html::page(&[(None, self)], title)
    }
}

impl Row {
    /// Why they are there.
    pub fn reason(&self) -> &'static str {
        self.rule.map_or("no rule is against it", |rule| rule.reason)
    }
}

impl FunctionReport {
    fn of(name: &str, function: &Function) -> FunctionReport {
        let view = View::new(function);
        let mut warnings: Vec<Warning> = Vec::new();
        let mut warn = |rule: &'static Rule, text: String| match warnings
            .iter_mut()
            .find(|w| std::ptr::eq(w.rule, rule) && rule.op.is_some())
        {
            Some(warning) => warning.count += 1,
            None => warnings.push(Warning { rule, text, count: 1 }),
        };
        // A rule about the function that keeps all of it from the Neural Engine.
        let mut whole: Option<&'static Rule> = None;
        for rule in RULES {
            for text in rule.function.map_or(Vec::new(), |applies| applies(&view)) {
                warn(rule, text);
                if rule.verdict == Verdict::Fails {
                    whole = whole.or(Some(rule));
                }
            }
        }
        let mut places = BTreeMap::new();
        let mut ops: Vec<Placed> = Vec::new();
        for (at, op) in function.body.ops.iter().enumerate().filter(|(_, op)| !op.is_constant()) {
            let applies = |rule: &&'static Rule| rule.op.is_some_and(|applies| applies(&view, op));
            let found: Vec<&'static Rule> = RULES.iter().filter(applies).collect();
            found.iter().for_each(|rule| warn(rule, op.name().to_owned()));
            let of = |verdict| found.iter().copied().find(|rule| rule.verdict == verdict);
            let rule = of(Verdict::Fails).or(whole).or_else(|| of(Verdict::Cpu));
            let unit = match rule.map(|rule| rule.verdict) {
                Some(Verdict::Fails) => Unit::Fails,
                Some(Verdict::Cpu) => Unit::Cpu,
                _ => Unit::NeuralEngine,
            };
            let makers = op.operands().filter_map(|name| view.maker(name));
            let mut after: Vec<usize> = makers.filter_map(|i| places.get(&i).copied()).collect();
            after.dedup();
            places.insert(at, ops.len());
            ops.push(Placed {
                name: op.name().to_owned(),
                kind: op.kind.clone(),
                results: op.outputs.iter().map(|result| result.name.clone()).collect(),
                unit,
                measured: None,
                rule,
                cost: Cost::of(&view, op),
                shape: view.result_type(op).map_or(Vec::new(), |ty| ty.shape.clone()),
                after,
            });
        }
        FunctionReport { name: name.to_owned(), ops, warnings, measured_share: None }
    }

    /// What all operations take.
    pub fn total(&self) -> Cost {
        self.ops.iter().map(|op| op.cost).sum()
    }

    /// The share of what all operations take that is on the Neural Engine: of floating-point operations,
    /// and of bytes. Where there is nothing to do, all is.
    pub fn share(&self) -> (f64, f64) {
        self.there().share_of(self.total())
    }

    /// What the operations take that are on the Neural Engine.
    fn there(&self) -> Cost {
        let there = self.ops.iter().filter(|op| op.unit == Unit::NeuralEngine);
        there.map(|op| op.cost).sum()
    }

    /// The operations by kind, unit and reason; the costliest first.
    pub fn rows(&self) -> Vec<Row> {
        let mut rows: Vec<Row> = Vec::new();
        for op in &self.ops {
            let same = |row: &&mut Row| {
                let rules = (row.rule.map(|r| r.name), op.rule.map(|r| r.name));
                let units = (row.unit, row.measured) == (op.unit, op.measured);
                row.kind == op.kind && units && rules.0 == rules.1
            };
            match rows.iter_mut().find(same) {
                Some(row) => {
                    row.count += 1;
                    row.cost = [row.cost, op.cost].into_iter().sum();
                }
                None => rows.push(Row {
                    kind: op.kind.clone(),
                    unit: op.unit,
                    measured: op.measured,
                    rule: op.rule,
                    count: 1,
                    cost: op.cost,
                }),
            }
        }
        rows.sort_by(|a, b| (b.cost, &a.kind).cmp(&(a.cost, &b.kind)));
        rows
    }
}

#[cfg(test)]
mod tests;
