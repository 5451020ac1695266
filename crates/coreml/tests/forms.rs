//! Weights in every form: what packages with them answer, and how that is measured.

use std::sync::Arc;

use baton_coreml::lower::{
    Form, Forms, Integer, Lowering, MilLowering, Palette, Ranges, Sample, WEIGHTS_NOTE,
    mixed_palettes,
};
use baton_coreml::{Blobs, Calibration, Package, Quality, calibrate, in_memory, measure};
use baton_cpu::{Isa, Pool};
use baton_graph::testing::{Tiny, random_tokens, random_weights};
use baton_graph::{Graph, Op};
use baton_weights::{DType, Tensor, Weight, Weights};

struct Model {
    graph: Graph,
    weights: Weights,
    tokens: Vec<u32>,
    seen: Calibration,
}

impl Model {
    fn of(weights: impl FnOnce(&Graph) -> Weights) -> Model {
        let tiny = Tiny::default();
        let graph = tiny.graph().unwrap();
        let weights = weights(&graph);
        let tokens = random_tokens(40, tiny.vocab, 6);
        let seen = calibrate(&graph, &weights, &tokens, 20).unwrap();
        Model { graph, weights, tokens, seen }
    }

    fn lowering(&self, forms: impl Into<Forms>) -> MilLowering {
        MilLowering {
            prefill: vec![(8, 0), (8, 40)],
            forms: forms.into(),
            ranges: self.seen.ranges.clone(),
            energies: self.seen.energies.clone(),
            ..MilLowering::default()
        }
    }

    fn package(&self, lowering: &MilLowering) -> Package {
        let mut blobs = in_memory();
        let model = lowering.lower(&self.graph, &self.weights, &mut blobs).unwrap();
        let blobs = Blobs::from_bytes(blobs.finish().unwrap().into_inner()).unwrap();
        Package::new(model, Some(blobs)).unwrap()
    }

    fn measure(&self, package: &Package) -> (Quality, Vec<baton_coreml::interpret::Extreme>) {
        let pool = Arc::new(Pool::new(1, Isa::detect()).unwrap());
        let Model { graph, weights, tokens, seen } = self;
        measure(graph, weights, &[package], tokens, 20, &seen.logits, &pool).unwrap()
    }
}

#[test]
fn more_bits_and_smaller_groups_come_nearer_to_the_model() {
    let model = Model::of(|graph| random_weights(graph, 3));
    let divergence = |form: Form| {
        let (quality, extremes) = model.measure(&model.package(&model.lowering(form)));
        assert_eq!(quality.rows, 20);
        assert!(!extremes.is_empty() && extremes.iter().all(|extreme| !extreme.overflows()));
        quality.divergence
    };
    let lut = |bits, group| divergence(Form::Palette(Palette { bits, group }));
    let int = |bits, block| divergence(Form::Integer(Integer { bits, block }));
    let half = divergence(Form::Half);
    let luts = [8, 6, 4, 3, 2].map(|bits| lut(bits, 8));
    assert!(half < luts[0] && luts.is_sorted(), "{half}, {luts:?}");
    let ints = [int(8, 0), int(4, 16), int(4, 0)];
    assert!(half < ints[0] && ints.is_sorted(), "{ints:?}");
    assert!(ints[0] < 1e-3 && luts[0] < 1e-3, "8 bits lose next to nothing: {ints:?} {luts:?}");
}

#[test]
fn an_average_of_bits_is_better_than_the_next_lower_size() {
    let model = Model::of(|graph| random_weights(graph, 3));
    let energies = &model.seen.energies;
    let sample = Sample { tokens: &model.tokens[..20], logits: &model.seen.logits };
    let mixed = mixed_palettes(&model.graph, &model.weights, energies, 5.0, 8, sample).unwrap();
    let used: Vec<u8> = mixed.by_name.values().map(Form::bits).collect();
    assert!(used.iter().any(|bits| *bits != used[0]), "{used:?}");
    let divergence =
        |forms: Forms| model.measure(&model.package(&model.lowering(forms))).0.divergence;
    let four = divergence(Form::Palette(Palette { bits: 4, group: 8 }).into());
    let found = divergence(mixed);
    assert!(found < four, "{found}, with 4 bits {four}");
}

/// A model whose matrices of products are in a file's 4 bits, but one.
fn quantized(one: DType) -> Model {
    Model::of(|graph| {
        let mut weights = random_weights(graph, 3);
        for node in graph.nodes() {
            let Op::Linear(linear) = &node.op else { continue };
            let name = &graph.weights()[linear.parts[0].weight.index()].name;
            let tensor = weights.tensor(name).unwrap();
            let dtype = if name == "1.up" { one } else { DType::Q4_0 };
            let tensor = Tensor::quantize(name, dtype, tensor.shape(), &tensor.to_f32()).unwrap();
            weights.insert(name, Weight::One(tensor));
        }
        weights
    })
}

#[test]
fn blocks_of_the_source_lose_nothing_and_others_are_counted() {
    let measure = |model: &Model, block| {
        let form = Form::Integer(Integer { bits: 4, block });
        let package = model.package(&model.lowering(form));
        let note = package.model.metadata.user[WEIGHTS_NOTE].clone();
        (model.measure(&package).0.divergence, note)
    };
    let same = quantized(DType::Q4_0);
    let (kept, note) = measure(&same, 32);
    assert_eq!(note, "quantized matrices: 22 as in the source");
    let (anew, note) = measure(&same, 16);
    assert_eq!(note, "quantized matrices: 22 anew from decoded Q4_0");
    assert!(kept < 1e-5 && kept < anew / 10.0, "{kept}, anew {anew}");
    let (_, note) = measure(&quantized(DType::Q5_0), 32);
    assert_eq!(note, "quantized matrices: 21 as in the source, 1 anew from decoded Q5_0");
}

#[test]
fn results_that_leave_half_precision_are_named() {
    let model = Model::of(|graph| {
        let mut weights = random_weights(graph, 3);
        let tensor = weights.tensor("1.down").unwrap();
        let values: Vec<f32> = tensor.to_f32().iter().map(|v| v * 60_000.0).collect();
        let tensor = Tensor::from_f32("1.down", tensor.shape(), &values);
        weights.insert("1.down", Weight::One(tensor));
        weights
    });
    let over = |ranges: Ranges| {
        let lowering = MilLowering { ranges, ..model.lowering(Form::Half) };
        let (_, extremes) = model.measure(&model.package(&lowering));
        extremes.into_iter().find(|extreme| extreme.overflows())
    };
    assert_eq!(over(model.seen.ranges.clone()), None);
    let found = over(Ranges { residual: Some(1.0), ..model.seen.ranges.clone() }).unwrap();
    assert!(found.op.contains("1_down") && found.kind == "conv", "{found:?}");
}
