//! A model in several packages: the report of each, and what its functions take in all of them.

use std::collections::BTreeMap;

use serde_json::{Value as Json, json};

use super::{Cost, Report, html};

/// The reports of packages by their names, in their order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reports(pub Vec<(String, Report)>);

/// A function in all packages that have one of its name, which are run one after the other.
#[derive(Clone, Debug, PartialEq)]
pub struct Whole {
    /// Its name.
    pub name: String,
    /// How many packages have it.
    pub packages: usize,
    /// What it takes in all of them.
    pub total: Cost,
    /// What of that is on the Neural Engine.
    pub there: Cost,
}

impl Whole {
    /// The share on the Neural Engine: of floating-point operations, and of bytes.
    pub fn share(&self) -> (f64, f64) {
        self.there.share_of(self.total)
    }
}

impl Reports {
    /// The functions of the whole model, by their names.
    pub fn functions(&self) -> Vec<Whole> {
        let mut found: BTreeMap<&str, Whole> = BTreeMap::new();
        for function in self.0.iter().flat_map(|(_, report)| &report.functions) {
            let whole = found.entry(&function.name).or_insert_with(|| Whole {
                name: function.name.clone(),
                packages: 0,
                total: Cost::default(),
                there: Cost::default(),
            });
            whole.packages += 1;
            whole.total = [whole.total, function.total()].into_iter().sum();
            whole.there = [whole.there, function.there()].into_iter().sum();
        }
        found.into_values().collect()
    }

    /// The least share of a function of a package that is on the Neural Engine.
    pub fn least_share(&self) -> f64 {
        self.0.iter().map(|(_, report)| report.least_share()).fold(1.0, f64::min)
    }

    /// All of it as JSON; of one package alone, that of its report.
    pub fn to_json(&self) -> Json {
        if let [(_, report)] = &self.0[..] {
            return report.to_json();
        }
        let functions = self.functions().into_iter().map(|whole| {
            let (flops, bytes) = whole.share();
            json!({
                "name": whole.name,
                "packages": whole.packages,
                "neural_engine": { "flops_share": flops, "bytes_share": bytes },
            })
        });
        let packages = self.0.iter().map(|(file, report)| {
            let mut report = report.to_json();
            report["file"] = file.as_str().into();
            report
        });
        json!({
            "format": 1,
            "least_flops_share": self.least_share(),
            "functions": functions.collect::<Vec<_>>(),
            "packages": packages.collect::<Vec<_>>(),
        })
    }

    /// The reports as one page that needs no other file; `title` says of what.
    pub fn to_html(&self, title: &str) -> String {
        if let [(_, report)] = &self.0[..] {
            return report.to_html(title);
        }
        let parts = self.0.iter().map(|(file, report)| (Some(file.as_str()), report));
        html::page(&parts.collect::<Vec<_>>(), title)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mil::{DataType, FunctionBuilder, Program, TensorType, Value};
    use crate::{Model, Package};

    /// A package whose function adds to a tensor, and for `slow` ones gathers rows by index as well.
    fn report(slow: bool) -> Report {
        let mut b = FunctionBuilder::new();
        let x = b.input("x", TensorType::new(DataType::Float16, &[1, 64, 1, 8]));
        let mut y = b.op("add", "y", &[("x", (&x).into()), ("y", Value::f16(1.0).into())]).unwrap();
        if slow {
            let two = Value::f16(2.0);
            y = b.op("pow", "z", &[("x", (&y).into()), ("y", two.into())]).unwrap();
        }
        let functions = [("main".to_owned(), b.finish(&[y]))];
        let program = Program { functions: functions.into(), ..Program::default() };
        Report::of(&Package::new(Model::new(program, None).unwrap(), None).unwrap())
    }

    #[test]
    fn functions_of_several_packages_are_added_and_the_least_counts() {
        let (plain, slow) = (report(false), report(true));
        let least = slow.least_share();
        assert!(least < plain.least_share(), "{least}");
        let reports = Reports(vec![("a<b".into(), plain.clone()), ("c".into(), slow)]);
        let [whole] = &reports.functions()[..] else { panic!("one name") };
        assert_eq!((&*whole.name, whole.packages), ("main", 2));
        assert!(least < whole.share().0 && whole.share().0 < 1.0, "{whole:?}");
        assert_eq!(reports.least_share(), least);
        let json = reports.to_json();
        assert_eq!(json["packages"].as_array().unwrap().len(), 2);
        assert_eq!(
            (&json["packages"][1]["file"], &json["least_flops_share"]),
            (&"c".into(), &least.into())
        );
        let page = reports.to_html("both");
        assert!(page.contains("a&lt;b") && page.matches("<h2>main</h2>").count() == 2, "{page}");
        // One alone is as it always was.
        let one = Reports(vec![("a".into(), plain.clone())]);
        assert_eq!((one.to_json(), one.to_html("t")), (plain.to_json(), plain.to_html("t")));
    }
}
