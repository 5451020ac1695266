//! The decode function, which keeps its cache in states, against the reference.

use std::sync::Arc;

use baton_coreml::interpret::{Interpreter, Precision, Tensor};
use baton_coreml::lower::{DECODE, HEAD, HIDDEN, Lowering, MilLowering};
use baton_coreml::{Blobs, Package, in_memory};
use baton_cpu::{Isa, Pool};
use baton_graph::reference;
use baton_graph::testing::conformance::Tolerance;
use baton_graph::testing::{Tiny, random_tokens, random_weights};

/// As long as the windows' mask makes a difference, and no power of two.
const CONTEXT: usize = 24;

#[test]
fn tokens_one_by_one_through_the_states_give_what_the_reference_does() {
    for pad_states in [false, true] {
        let tiny = Tiny::default();
        let graph = tiny.graph().unwrap();
        let weights = random_weights(&graph, 5);
        let lowering = MilLowering {
            prefill: vec![(8, 0)],
            decode: Some(CONTEXT),
            pad_states,
            head_piece: 40,
            ..MilLowering::default()
        };
        let mut blobs = in_memory();
        let model = lowering.lower(&graph, &weights, &mut blobs).unwrap();
        let decode = &model.program.functions[DECODE];
        let shapes: Vec<_> = decode.states().map(|(_, ty)| ty.shape.clone()).collect();
        let shape = if pad_states { vec![4, 2, 32, 32] } else { vec![3, 2, CONTEXT, 16] };
        assert_eq!(shapes, [shape.clone(), shape.clone()]);
        let blobs = Blobs::from_bytes(blobs.finish().unwrap().into_inner()).unwrap();
        let package = Package::new(model, Some(blobs)).unwrap();
        let pool = Arc::new(Pool::new(1, Isa::detect()).unwrap());
        let interpreter = Interpreter::new(&package, Precision::F32, pool).unwrap();
        let mut states = interpreter.states(DECODE).unwrap();
        let tokens = random_tokens(CONTEXT, tiny.vocab, 6);
        let table = weights.tensor("embed").unwrap();
        let mut found = Vec::new();
        for (position, &token) in tokens.iter().enumerate() {
            let mut row = vec![0.0; tiny.hidden];
            table.dequantize_row(token as usize, &mut row);
            let half = tiny.head_dim / 2;
            let angle = |i: usize| {
                position as f32 * 100f32.powf(-2.0 * (i % half) as f32 / tiny.head_dim as f32)
            };
            let cos = (0..tiny.head_dim).map(|i| angle(i).cos()).collect();
            let sign = |i: usize| if i < half { -1.0 } else { 1.0 };
            let sin = (0..tiny.head_dim).map(|i| sign(i) * angle(i).sin()).collect();
            let mask = |window: usize| {
                let seen = |at: usize| at <= position && position - at < window;
                let values = (0..shape[2]).map(|at| if seen(at) { 0.0 } else { HIDDEN });
                Tensor::floats(&[1, 1, 1, shape[2]], values.collect())
            };
            let inputs = [
                ("embedded", Tensor::floats(&[1, tiny.hidden, 1, 1], row)),
                ("cos", Tensor::floats(&[1, 1, tiny.head_dim, 1], cos)),
                ("sin", Tensor::floats(&[1, 1, tiny.head_dim, 1], sin)),
                ("mask", mask(usize::MAX)),
                ("mask_w7", mask(7)),
                ("position", Tensor::ints(&[1], vec![position as i32])),
            ];
            let hidden = interpreter.run(DECODE, &inputs, &mut states).unwrap();
            let head = [("hidden", hidden["hidden"].clone())];
            let logits = interpreter.run(HEAD, &head, &mut Default::default()).unwrap();
            assert_eq!(logits.len(), 3, "97 rows in pieces of 40");
            let pieces = logits.values().flat_map(|piece| piece.as_floats().unwrap());
            found.extend(pieces.copied());
        }
        let expected = reference::logits(&graph, &weights, &tokens).unwrap();
        let tolerance = Tolerance { nmse: 1e-5, worst: 1e-2 };
        tolerance.check(&format!("padded {pad_states}"), &found, &expected.values);
    }
}
