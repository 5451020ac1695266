//! What a model's work would take if nothing but the machine's limits counted.
//!
//! See [`PassWork`] for what counts as work.

use baton_engine::PassWork;
use baton_graph::Roof;

use super::plan::{Setting, Test};

/// Operations and bytes, and the seconds that they took.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Achieved {
    /// Operations per second.
    pub ops_per_s: f64,
    /// Operations for each byte that is read.
    pub ops_per_byte: f64,
}

/// Measures this machine with some number of threads.
///
/// # Errors
/// If there is no memory to read, or the instruction set asked for is not there.
pub fn measure(threads: usize) -> anyhow::Result<Roof> {
    let isa = baton_cpu::Isa::from_env()?;
    let read = baton_cpu::roof::read_rate(threads)?;
    Ok(Roof { read, ops: baton_cpu::roof::product_rate(isa, threads) })
}

/// What tests of a model achieve.
#[derive(Clone, Debug, Default)]
pub struct Work(pub PassWork);

impl Work {
    /// What the prompt of a test achieved in so many seconds.
    pub fn prompt(&self, test: &Test, setting: &Setting, seconds: f64) -> Achieved {
        let (mut ops, mut bytes) = (0.0, 0.0);
        let mut context = test.depth;
        let mut left = test.prompt;
        while left > 0 {
            let tokens = left.min(setting.ubatch.max(1));
            left -= tokens;
            context += tokens;
            let (more_ops, more_bytes) = self.0.pass(tokens, left == 0, context);
            ops += more_ops;
            bytes += more_bytes;
        }
        Achieved::of(ops, bytes, seconds)
    }

    /// What the tokens after the prompt achieved in so many seconds.
    pub fn generated(&self, test: &Test, seconds: f64) -> Achieved {
        let tokens = test.generated as f64;
        let middle = test.depth + test.prompt + test.generated.div_ceil(2);
        let (ops, bytes) = self.0.pass(1, true, middle);
        Achieved::of(ops * tokens, bytes * tokens, seconds)
    }
}

impl Achieved {
    fn of(ops: f64, bytes: f64, seconds: f64) -> Achieved {
        Achieved { ops_per_s: ops / seconds.max(1e-9), ops_per_byte: ops / bytes.max(1.0) }
    }

    /// The share of what is possible.
    pub fn share(&self, roof: &Roof) -> f64 {
        self.ops_per_s / roof.at(self.ops_per_byte)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use baton_models::shape::Wanted;

    fn work(shape: &str) -> Work {
        let model = shape.parse::<Wanted>().unwrap().make().unwrap();
        Work(PassWork::of(&model).unwrap())
    }

    const SETTING: Setting = Setting { threads: 1, batch: 64, ubatch: 64 };

    #[test]
    fn a_token_meets_every_weight_but_the_embedding() {
        let work = work("tiny:q8_0");
        // Two layers of 256 × (256 + 2 · 128 + 256 + 3 · 512) weights, five vectors of 256.
        let matrices = 2.0 * 256.0 * 2304.0;
        assert_eq!(work.0.dense.0, matrices + 5.0 * 256.0);
        assert_eq!(work.0.head.0, 512.0 * 256.0);
        assert_eq!(work.0.layers, [(512.0, None); 2]);
        let test = Test { prompt: 0, generated: 2, depth: 9 };
        let achieved = work.generated(&test, 2.0);
        let ops = 2.0 * (work.0.dense.0 + work.0.head.0);
        assert_eq!(achieved.ops_per_s, ops);
        let bytes = work.0.dense.1 + work.0.head.1 + 2.0 * 512.0 * 10.0;
        assert!((achieved.ops_per_byte - ops / bytes).abs() < 1e-9);
    }

    #[test]
    fn a_prompt_reads_weights_once_for_each_pass() {
        let work = work("tiny:q8_0");
        let test = |prompt| Test { prompt, generated: 0, depth: 0 };
        let one = work.prompt(&test(64), &SETTING, 1.0);
        let two = work.prompt(&test(128), &SETTING, 1.0);
        assert!(two.ops_per_s > 1.9 * one.ops_per_s && two.ops_per_s < 2.0 * one.ops_per_s);
        assert!(two.ops_per_byte < 1.2 * one.ops_per_byte, "{one:?} {two:?}");
    }

    #[test]
    fn few_tokens_use_few_experts() {
        let work = work("tiny-moe:q4_0");
        assert_eq!(work.0.used, 0.25);
        assert_eq!(work.0.experts.0, 2.0 * 16.0 * 3.0 * 256.0 * 256.0);
        let (_, one) = work.0.pass(1, false, 0);
        let (_, many) = work.0.pass(64, false, 0);
        assert!((one - work.0.dense.1 - work.0.experts.1 / 4.0).abs() < 1.0);
        assert!(many > work.0.dense.1 + 0.99 * work.0.experts.1);
    }

    #[test]
    fn the_roof_is_the_lower_limit() {
        let roof = Roof { read: 10.0, ops: Some(100.0) };
        assert_eq!((roof.at(2.0), roof.at(50.0)), (20.0, 100.0));
        assert_eq!(Achieved { ops_per_s: 5.0, ops_per_byte: 2.0 }.share(&roof), 0.25);
        assert_eq!(Roof { ops: None, ..roof }.at(50.0), 500.0);
    }

    #[test]
    fn a_pass_takes_what_the_roof_allows() {
        let work = work("tiny:q8_0").0;
        let memory = Roof { read: 1e9, ops: Some(1e15) };
        let (_, bytes) = work.pass(1, true, 10);
        assert!((work.seconds(&memory, 1, 10) - bytes / 1e9).abs() < 1e-9);
        let arithmetic = Roof { read: 1e15, ops: Some(1e9) };
        let (ops, _) = work.pass(64, true, 64);
        assert!((work.seconds(&arithmetic, 64, 64) - ops / 1e9).abs() < 1e-6);
    }
}
