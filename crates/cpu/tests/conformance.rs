//! The CPU unit against the reference interpreter.

use baton_cpu::{Cpu, CpuOptions, Isa};
use baton_graph::testing::{Tiny, max_difference, random_tokens, random_weights};
use baton_graph::{Batch, Limits, Rows, SeqId, Unit, reference};

#[test]
fn tiny_models_agree() {
    for isa in Isa::available() {
        for threads in [1, 2] {
            for fuse in [true, false] {
                let options = CpuOptions {
                    threads: Some(threads),
                    isa: Some(isa),
                    fuse: Some(fuse),
                    ..CpuOptions::default()
                };
                let cpu = Cpu::new(options).unwrap();
                for softcap in [None, Some(2.0)] {
                    let tiny = Tiny { softcap, sinks: softcap.is_some(), ..Tiny::default() };
                    let graph = tiny.graph().unwrap();
                    let weights = random_weights(&graph, 9);
                    let tokens = random_tokens(200, tiny.vocab, 5);
                    let expected = reference::logits(&graph, &weights, &tokens).unwrap();
                    let limits = Limits { context: 256, kv_tokens: 512, batch_tokens: 200 };
                    let mut executor = cpu.compile(&graph, &weights, limits).unwrap();
                    for chunk in [1, 7, 64, 200] {
                        executor.free(SeqId(1));
                        let mut got = Vec::new();
                        for part in tokens.chunks(chunk) {
                            let batch = Batch::one(SeqId(1), part.to_vec(), Rows::All);
                            got.extend(executor.forward(&batch).unwrap().values);
                        }
                        let difference = max_difference(&got, &expected.values);
                        assert!(difference < 5e-3, "{isa}, chunks of {chunk}: {difference}");
                    }
                }
            }
        }
    }
}
