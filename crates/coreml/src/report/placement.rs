//! Where Core ML itself says that operations run, beside what was predicted.

use std::collections::BTreeMap;

use super::{FunctionReport, Placed, Report};

/// Where Core ML places an operation.
#[derive(Clone, Debug, PartialEq)]
pub struct Placement {
    /// What it does, as `ios18.conv` or `conv`.
    pub kind: String,
    /// The names of its results.
    pub results: Vec<String>,
    /// Where it runs; none if Core ML does not say.
    pub unit: Option<MeasuredUnit>,
    /// Its share of the function's time, as Core ML estimates it.
    pub cost: Option<f64>,
}

/// A unit that Core ML has placed an operation on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MeasuredUnit {
    /// The Neural Engine.
    NeuralEngine,
    /// The GPU.
    Gpu,
    /// The CPU.
    Cpu,
}

impl MeasuredUnit {
    /// Its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            MeasuredUnit::NeuralEngine => "Neural Engine",
            MeasuredUnit::Gpu => "GPU",
            MeasuredUnit::Cpu => "CPU",
        }
    }
}

impl Report {
    /// Adds where Core ML has placed the operations of functions, by the functions' names.
    pub fn add_placements(&mut self, placements: &BTreeMap<String, Vec<Placement>>) {
        for function in &mut self.functions {
            if let Some(placements) = placements.get(&function.name) {
                function.add_placements(placements);
            }
        }
    }
}

impl FunctionReport {
    /// Operations are found again by a result's name, which Core ML keeps as a rule. Those that it has made
    /// itself, or renamed, are found by their kind, if as many of it are left over on both sides.
    fn add_placements(&mut self, placements: &[Placement]) {
        let by_result: BTreeMap<&str, usize> = (placements.iter().enumerate())
            .flat_map(|(i, placement)| placement.results.iter().map(move |name| (name.as_str(), i)))
            .collect();
        let mut taken = vec![false; placements.len()];
        let mut left: BTreeMap<String, (Vec<&mut Placed>, Vec<&Placement>)> = BTreeMap::new();
        for op in &mut self.ops {
            let found = op.results.iter().find_map(|name| by_result.get(name.as_str()));
            match found {
                Some(&i) if plain(&placements[i].kind) == op.kind => {
                    (op.measured, taken[i]) = (placements[i].unit, true);
                }
                _ => left.entry(op.kind.clone()).or_default().0.push(op),
            }
        }
        for (placement, _) in placements.iter().zip(&taken).filter(|(_, taken)| !**taken) {
            if let Some((_, unnamed)) = left.get_mut(plain(&placement.kind)) {
                unnamed.push(placement);
            }
        }
        for (ops, placements) in left.into_values().filter(|(a, b)| a.len() == b.len()) {
            for (op, placement) in ops.into_iter().zip(placements) {
                op.measured = placement.unit;
            }
        }
        let (mut total, mut on_engine) = (0.0, 0.0);
        for placement in placements {
            let cost = placement.cost.unwrap_or(0.0);
            total += cost;
            if placement.unit == Some(MeasuredUnit::NeuralEngine) {
                on_engine += cost;
            }
        }
        self.measured_share = (total > 0.0).then(|| on_engine / total);
    }

    /// Whether Core ML has said where an operation runs.
    pub fn is_measured(&self) -> bool {
        self.ops.iter().any(|op| op.measured.is_some())
    }
}

/// The kind without the set of operations that it is of.
fn plain(kind: &str) -> &str {
    kind.rsplit_once('.').map_or(kind, |(_, kind)| kind)
}

#[cfg(test)]
mod tests {
    use super::super::tests::{f16, report, unary};
    use super::*;
    use MeasuredUnit::{Cpu, Gpu, NeuralEngine};

    fn placement(kind: &str, result: &str, unit: MeasuredUnit, cost: f64) -> Placement {
        Placement {
            kind: kind.into(),
            results: vec![result.into()],
            unit: Some(unit),
            cost: Some(cost),
        }
    }

    /// A function of three operations, with what Core ML says of them.
    fn placed(placements: &[Placement]) -> FunctionReport {
        let mut report = report(|b| {
            let x = b.input("x", f16(&[1, 4]));
            let y = unary(b, "tanh", &x, &[]);
            let z = b.op("tanh", "z", &[("x", (&y).into())]).unwrap();
            vec![b.op("exp", "e", &[("x", (&z).into())]).unwrap()]
        });
        report.add_placements(placements);
        report
    }

    fn units(report: &FunctionReport) -> Vec<Option<MeasuredUnit>> {
        report.ops.iter().map(|op| op.measured).collect()
    }

    #[test]
    fn operations_are_found_by_their_results_whatever_their_order() {
        let report = placed(&[
            placement("ios18.exp", "e", Cpu, 0.1),
            placement("ios18.tanh", "z", Gpu, 0.2),
            placement("ios16.tanh", "tanh", NeuralEngine, 0.5),
            placement("ios18.cast", "made_by_core_ml", Cpu, 0.2),
        ]);
        assert_eq!(units(&report), [Some(NeuralEngine), Some(Gpu), Some(Cpu)]);
        assert_eq!(report.measured_share, Some(0.5));
        assert!(report.is_measured());
    }

    #[test]
    fn what_was_renamed_is_found_by_its_kind_if_nothing_speaks_against_it() {
        let renamed = [
            placement("tanh", "tanh_cast_fp16", NeuralEngine, 1.0),
            placement("tanh", "z", Gpu, 1.0),
            placement("exp", "e_cast_fp16", Cpu, 1.0),
        ];
        let report = placed(&renamed);
        assert_eq!(units(&report), [Some(NeuralEngine), Some(Gpu), Some(Cpu)]);
        // One more of the kind: which is which cannot be said.
        let more = [&renamed[..], &[placement("tanh", "another", Cpu, 0.0)]].concat();
        assert_eq!(units(&placed(&more)), [None, Some(Gpu), Some(Cpu)]);
        // A name that stands for something else now.
        let other = [placement("cast", "e", Cpu, 0.0), placement("exp", "f", Gpu, 0.0)];
        let report = placed(&other);
        assert_eq!(units(&report), [None, None, Some(Gpu)]);
        assert_eq!(report.measured_share, None, "nobody said what they cost");
    }

    #[test]
    fn pages_and_json_show_the_plan_beside_the_prediction() {
        let planned =
            placed(&[placement("tanh", "tanh", Gpu, 3.0), placement("exp", "e", Cpu, 1.0)]);
        let report = Report { functions: vec![planned], warnings: Vec::new() };
        let html = report.to_html("a model");
        assert!(html.contains("<th>Core ML</th>") && html.contains("<td>GPU</td>"), "{html}");
        assert!(html.contains("By Core ML's plan 0.0 % of its time is there"), "{html}");
        let json = report.to_json();
        let rows = json["functions"][0]["rows"].as_array().unwrap();
        let units: Vec<_> = rows.iter().map(|row| row["measured"].as_str()).collect();
        assert!(units.contains(&Some("GPU")) && units.contains(&Some("CPU")), "{units:?}");
        assert!(units.contains(&None), "one of them is not known");
        assert!(json["note"].as_str().unwrap().contains("where Core ML plans"));
    }

    #[test]
    fn without_a_plan_nothing_is_measured() {
        let mut report = Report { functions: vec![placed(&[])], warnings: Vec::new() };
        assert!(!report.functions[0].is_measured());
        let other = [("other".to_owned(), vec![placement("exp", "e", Gpu, 1.0)])].into();
        report.add_placements(&other);
        assert_eq!(units(&report.functions[0]), [None; 3]);
        assert_eq!(report.functions[0].measured_share, None);
        assert!(!report.to_html("a model").contains("<th>Core ML</th>"));
        assert!(report.note().contains("nothing was measured"));
    }
}
