//! What a model's work would take if nothing but the machine's limits counted.
//!
//! Work is products with weights, two operations for each, and bytes of weights and cache that must
//! be read. Attention's own products are left out: they are few, and no integers. Weights count as
//! many bytes as in the file.

use baton_models::{Model, ModelConfig};

use super::plan::{Setting, Test};

/// The limits of the machine with some number of threads.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Roof {
    /// Bytes per second that memory is read with.
    pub read: f64,
    /// Integer operations per second; none where that is not measured.
    pub ops: Option<f64>,
}

/// What passes of a model consist of.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Work {
    /// Weights that every token meets, and their bytes.
    dense: (f64, f64),
    /// Weights of the output matrix, which only tokens with logits meet.
    head: (f64, f64),
    /// Weights of experts, all of them.
    experts: (f64, f64),
    /// Share of the experts that one token uses.
    used: f64,
    /// Bytes of cache for each token, and how many tokens of it are seen, layer by layer.
    layers: Vec<(f64, Option<usize>)>,
}

/// Operations and bytes, and the seconds that they took.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Achieved {
    /// Operations per second.
    pub ops_per_s: f64,
    /// Operations for each byte that is read.
    pub ops_per_byte: f64,
}

impl Roof {
    /// Measures this machine.
    ///
    /// # Errors
    /// If there is no memory to read, or the instruction set asked for is not there.
    pub fn measure(threads: usize) -> anyhow::Result<Roof> {
        let isa = baton_cpu::Isa::from_env()?;
        let read = baton_cpu::roof::read_rate(threads)?;
        Ok(Roof { read, ops: baton_cpu::roof::product_rate(isa, threads) })
    }

    /// The operations per second that are possible with so many for each byte.
    pub fn at(&self, ops_per_byte: f64) -> f64 {
        let by_memory = self.read * ops_per_byte;
        self.ops.map_or(by_memory, |ops| ops.min(by_memory))
    }
}

impl Work {
    /// That of a model.
    ///
    /// # Errors
    /// If its tensors cannot be listed.
    pub fn of(model: &Model) -> anyhow::Result<Work> {
        let config = model.config();
        let mut work = Work { used: 1.0, ..Work::default() };
        if let Some(experts) = &config.experts {
            work.used = experts.used as f64 / experts.count as f64;
        }
        for tensor in model.source().tensors()? {
            let (elements, bytes) = (tensor.elements() as f64, tensor.bytes as f64);
            let is_embedding = tensor.name.contains("embd") || tensor.name.contains("embed_tokens");
            let is_head = match config.tied {
                true => is_embedding,
                false => tensor.name == "output.weight" || tensor.name.contains("lm_head"),
            };
            let is_expert = tensor.name.contains("_exps") || tensor.name.contains(".experts.");
            let part = match (is_head, is_expert) {
                (true, _) => &mut work.head,
                (_, true) => &mut work.experts,
                // Of an embedding single rows are read.
                _ if is_embedding => continue,
                _ => &mut work.dense,
            };
            *part = (part.0 + elements, part.1 + bytes);
        }
        work.layers = cache_layers(config);
        Ok(work)
    }

    /// What the prompt of a test achieved in so many seconds.
    pub fn prompt(&self, test: &Test, setting: &Setting, seconds: f64) -> Achieved {
        let (mut ops, mut bytes) = (0.0, 0.0);
        let mut context = test.depth;
        let mut left = test.prompt;
        while left > 0 {
            let tokens = left.min(setting.ubatch.max(1));
            left -= tokens;
            context += tokens;
            let (more_ops, more_bytes) = self.pass(tokens, left == 0, context);
            ops += more_ops;
            bytes += more_bytes;
        }
        Achieved::of(ops, bytes, seconds)
    }

    /// What the tokens after the prompt achieved in so many seconds.
    pub fn generated(&self, test: &Test, seconds: f64) -> Achieved {
        let tokens = test.generated as f64;
        let middle = test.depth + test.prompt + test.generated.div_ceil(2);
        let (ops, bytes) = self.pass(1, true, middle);
        Achieved::of(ops * tokens, bytes * tokens, seconds)
    }

    /// Operations and bytes of one pass of `tokens` tokens, after which the cache holds `context`.
    fn pass(&self, tokens: usize, wants_logits: bool, context: usize) -> (f64, f64) {
        let n = tokens as f64;
        let (head_ops, head_bytes) = if wants_logits { self.head } else { (0.0, 0.0) };
        // As if each token chose its experts by lot.
        let touched = 1.0 - (1.0 - self.used).powf(n);
        let cache: f64 = self
            .layers
            .iter()
            .map(|(bytes, window)| bytes * window.map_or(context, |w| w.min(context)) as f64)
            .sum();
        let ops = 2.0 * ((self.dense.0 + self.experts.0 * self.used) * n + head_ops);
        (ops, self.dense.1 + self.experts.1 * touched + head_bytes + cache)
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

fn cache_layers(config: &ModelConfig) -> Vec<(f64, Option<usize>)> {
    // Keys and values in f16.
    let bytes = (4 * config.kv_heads * config.head_dim) as f64;
    config.layers.iter().map(|layer| (bytes, layer.window)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use baton_models::shape::Wanted;

    fn work(shape: &str) -> Work {
        Work::of(&shape.parse::<Wanted>().unwrap().make().unwrap()).unwrap()
    }

    const SETTING: Setting = Setting { threads: 1, batch: 64, ubatch: 64 };

    #[test]
    fn a_token_meets_every_weight_but_the_embedding() {
        let work = work("tiny:q8_0");
        // Two layers of 256 × (256 + 2 · 128 + 256 + 3 · 512) weights, five vectors of 256.
        let matrices = 2.0 * 256.0 * 2304.0;
        assert_eq!(work.dense.0, matrices + 5.0 * 256.0);
        assert_eq!(work.head.0, 512.0 * 256.0);
        assert_eq!(work.layers, [(512.0, None); 2]);
        let test = Test { prompt: 0, generated: 2, depth: 9 };
        let achieved = work.generated(&test, 2.0);
        let ops = 2.0 * (work.dense.0 + work.head.0);
        assert_eq!(achieved.ops_per_s, ops);
        let bytes = work.dense.1 + work.head.1 + 2.0 * 512.0 * 10.0;
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
        assert_eq!(work.used, 0.25);
        assert_eq!(work.experts.0, 2.0 * 16.0 * 3.0 * 256.0 * 256.0);
        let (_, one) = work.pass(1, false, 0);
        let (_, many) = work.pass(64, false, 0);
        assert!((one - work.dense.1 - work.experts.1 / 4.0).abs() < 1.0);
        assert!(many > work.dense.1 + 0.99 * work.experts.1);
    }

    #[test]
    fn the_roof_is_the_lower_limit() {
        let roof = Roof { read: 10.0, ops: Some(100.0) };
        assert_eq!((roof.at(2.0), roof.at(50.0)), (20.0, 100.0));
        assert_eq!(Achieved { ops_per_s: 5.0, ops_per_byte: 2.0 }.share(&roof), 0.25);
        assert_eq!(Roof { ops: None, ..roof }.at(50.0), 500.0);
    }
}
