//! The shaders of a whole model, checked for Metal as well: what would be compiled on a Mac is made here,
//! though nothing here can compile it further.

use baton_graph::testing::{Tiny, random_weights};
use baton_graph::{Limits, Unit};
use baton_weights::{DType, Tensor, Weight, Weights};
use naga::back::msl;
use naga::valid::{Capabilities, ValidationFlags, Validator};

use crate::GpuUnit;
use crate::device::lock;
use crate::testing::gpu;

/// The weights of a model with matrices in 4 bits.
fn quantized(graph: &baton_graph::Graph) -> Weights {
    let mut weights = Weights::new();
    for (name, weight) in random_weights(graph, 1).iter() {
        let Weight::One(tensor) = weight else { unreachable!("made by parts") };
        let tensor = match tensor.shape() {
            [_] => tensor.clone(),
            shape => Tensor::quantize(name, DType::Q4_0, shape, &tensor.to_f32()).unwrap(),
        };
        weights.insert(name, Weight::One(tensor));
    }
    weights
}

#[test]
fn every_shader_of_a_model_becomes_metal() {
    for plain in [false, true] {
        let gpu = gpu(plain);
        let graph = Tiny { sinks: true, ..Tiny::default() }.graph().unwrap();
        let limits = Limits { context: 64, kv_tokens: 64, batch_tokens: 32 };
        let unit = GpuUnit::new(gpu.clone());
        let mut executor = unit.compile(&graph, &quantized(&graph), limits).unwrap();
        for tokens in [20, 1] {
            let batch = baton_graph::Batch::one(
                baton_graph::SeqId(0),
                vec![1; tokens],
                baton_graph::Rows::Last,
            );
            executor.forward(&batch).unwrap();
        }
        let kernels = lock(&gpu.kernels);
        assert!(kernels.len() > 8, "the model compiled its kernels");
        for key in kernels.keys() {
            check(&key.text);
        }
    }
}

fn check(text: &str) {
    let module = naga::front::wgsl::parse_str(text)
        .unwrap_or_else(|error| panic!("{}", error.emit_to_string(text)));
    let info = Validator::new(ValidationFlags::all(), Capabilities::all())
        .validate(&module)
        .unwrap_or_else(|error| panic!("{}", error.emit_to_string(text)));
    let options = msl::Options { lang_version: (3, 0), ..msl::Options::default() };
    let (metal, _) = msl::write_string(&module, &info, &options, &msl::PipelineOptions::default())
        .unwrap_or_else(|error| panic!("{error} in {text}"));
    assert!(metal.contains("kernel void"), "{metal}");
}
