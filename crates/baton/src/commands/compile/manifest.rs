//! `baton.json`: what a program that uses the packages must know.

use baton_coreml::interpret::Extreme;
use baton_coreml::lower::Part;
use baton_coreml::mil::TensorType;
use baton_coreml::{Model as Program, Quality};
use serde_json::{Map, Value, json};

/// The key of a package's metadata for how good it is.
pub const QUALITY: &str = "baton.quality";

/// Operations named whose results leave half precision.
const LISTED: usize = 20;

/// What was measured of the packages.
#[derive(Debug)]
pub struct Measured {
    pub quality: Quality,
    /// SHA-256 of the tokens that were run, 32 bits each, little-endian.
    pub text: String,
    /// The largest result of each operation.
    pub extremes: Vec<Extreme>,
}

impl Measured {
    /// The operations whose results leave half precision, in the order in which they came to.
    pub fn overflows(&self) -> impl Iterator<Item = &Extreme> {
        self.extremes.iter().filter(|extreme| extreme.overflows())
    }

    /// The largest result of all.
    pub fn largest(&self) -> Option<&Extreme> {
        self.extremes.iter().max_by(|a, b| a.largest.total_cmp(&b.largest))
    }

    pub fn to_json(&self) -> Value {
        let extreme = |extreme: &Extreme| {
            // None for what is no number, and for infinity.
            json!({
                "function": extreme.function,
                "operation": format!("{} {}", extreme.kind, extreme.op),
                "value": extreme.largest.is_finite().then_some(extreme.largest),
            })
        };
        let q = self.quality;
        json!({
            "tokens": q.rows,
            "text": self.text,
            "divergence": q.divergence,
            "top1": q.top1,
            "perplexity": q.perplexity,
            "reference_perplexity": q.reference_perplexity,
            "largest": self.largest().map(extreme),
            "overflows": self.overflows().take(LISTED).map(extreme).collect::<Vec<_>>(),
        })
    }
}

/// One package: its file, what it holds, its functions.
pub fn package(file: &str, part: Option<&Part>, program: &Program, weight_bytes: u64) -> Value {
    let tensor = |(name, ty): (&str, &TensorType)| json!({ "name": name, "shape": ty.shape, "type": ty.dtype.name() });
    let functions = program.program.functions.iter().map(|(name, function)| {
        json!({
            "name": name,
            "inputs": function.tensor_inputs().map(tensor).collect::<Vec<_>>(),
            "outputs": function.outputs().map(tensor).collect::<Vec<_>>(),
            "states": function.states().map(tensor).collect::<Vec<_>>(),
        })
    });
    let range = |range: &std::ops::Range<usize>| json!([range.start, range.end]);
    let mut entry = Map::new();
    entry.insert("file".into(), file.into());
    if let Some(part) = part.filter(|part| part.has_layers()) {
        entry.insert("layers".into(), range(&part.layers));
    }
    if let Some(rows) = part.and_then(|part| part.head.as_ref()) {
        entry.insert("head_rows".into(), range(rows));
    }
    entry.insert("weight_bytes".into(), weight_bytes.into());
    entry.insert("functions".into(), functions.collect());
    entry.into()
}
