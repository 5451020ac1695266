//! What is to be measured: settings of the engine, and the tests that each of them runs.

use std::fmt;
use std::time::Duration;

use super::numbers::Pair;

/// The two workloads that a request is judged by: a long question with a short answer, and a short
/// one with a long answer.
pub const WORKLOADS: [Pair; 2] =
    [Pair { prompt: 448, generated: 64 }, Pair { prompt: 64, generated: 448 }];

/// Everything that is to be measured of one model.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// The settings, one after the other.
    pub settings: Vec<Setting>,
    /// The tests of each setting, in order.
    pub tests: Vec<Test>,
    /// How often each test is repeated; at least once.
    pub repetitions: usize,
    /// Whether a test runs once before it is measured.
    pub warmup: bool,
    /// Rest before each measurement.
    pub delay: Duration,
    /// Whether to load once from files that the system holds no copy of.
    pub cold_load: bool,
    /// Whether the machine's limits are measured too.
    pub roofline: bool,
}

/// How the engine runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setting {
    /// Threads.
    pub threads: usize,
    /// Tokens that a caller hands over at once.
    pub batch: usize,
    /// Tokens of one pass.
    pub ubatch: usize,
}

/// Tokens behind each other: `depth` that are there already, then `prompt` at once, then
/// `generated` one by one. The clock runs for the last two.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Test {
    /// Tokens evaluated at once.
    pub prompt: usize,
    /// Tokens evaluated one by one.
    pub generated: usize,
    /// Tokens in the cache before.
    pub depth: usize,
}

/// The lists that flags stand for.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Lists {
    /// Prompts to measure alone.
    pub prompts: Vec<usize>,
    /// Answers to measure alone.
    pub generated: Vec<usize>,
    /// Prompts with answers.
    pub pairs: Vec<Pair>,
    /// Tokens in the cache before.
    pub depths: Vec<usize>,
}

impl Lists {
    /// The tests: at each depth first prompts, then answers, then both together. Tests of no token
    /// are left out, so that `-p 0` and `-n 0` switch theirs off.
    pub fn tests(&self) -> Vec<Test> {
        let mut tests = Vec::new();
        for &depth in &self.depths {
            let prompts = self.prompts.iter().map(|&prompt| (prompt, 0));
            let generated = self.generated.iter().map(|&generated| (0, generated));
            let pairs = self.pairs.iter().map(|pair| (pair.prompt, pair.generated));
            let all = prompts.chain(generated).chain(pairs);
            tests.extend(all.map(|(prompt, generated)| Test { prompt, generated, depth }));
        }
        tests.retain(|test| test.tokens() > 0);
        tests
    }
}

/// Every combination of the engine's settings, the first list changing slowest.
pub fn settings(batches: &[usize], ubatches: &[usize], threads: &[usize]) -> Vec<Setting> {
    let mut settings = Vec::new();
    for &batch in batches {
        for &ubatch in ubatches {
            for &threads in threads {
                settings.push(Setting { threads, batch, ubatch: ubatch.min(batch) });
            }
        }
    }
    settings
}

impl Plan {
    /// The longest sequence of all tests.
    pub fn context(&self) -> usize {
        self.tests.iter().map(|test| test.depth + test.tokens()).max().unwrap_or(0)
    }
}

impl Test {
    /// Tokens that are measured.
    pub fn tokens(&self) -> usize {
        self.prompt + self.generated
    }
}

impl fmt::Display for Test {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.prompt, self.generated) {
            (prompt, 0) => write!(f, "pp{prompt}")?,
            (0, generated) => write!(f, "tg{generated}")?,
            (prompt, generated) => write!(f, "pp{prompt}+tg{generated}")?,
        }
        if self.depth > 0 {
            write!(f, " @ d{}", self.depth)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_come_in_the_known_order_under_the_known_names() {
        let lists = Lists {
            prompts: vec![512, 0],
            generated: vec![0, 128],
            pairs: WORKLOADS.to_vec(),
            depths: vec![0, 1024],
        };
        let names: Vec<String> = lists.tests().iter().map(Test::to_string).collect();
        assert_eq!(
            names,
            [
                "pp512",
                "tg128",
                "pp448+tg64",
                "pp64+tg448",
                "pp512 @ d1024",
                "tg128 @ d1024",
                "pp448+tg64 @ d1024",
                "pp64+tg448 @ d1024"
            ]
        );
    }

    #[test]
    fn settings_are_all_combinations() {
        let settings = settings(&[2048, 64], &[512], &[1, 2]);
        let triples: Vec<_> = settings.iter().map(|s| (s.batch, s.ubatch, s.threads)).collect();
        assert_eq!(triples, [(2048, 512, 1), (2048, 512, 2), (64, 64, 1), (64, 64, 2)]);
    }

    #[test]
    fn the_context_holds_the_longest_test() {
        let tests = vec![
            Test { prompt: 512, generated: 0, depth: 0 },
            Test { prompt: 0, generated: 8, depth: 1024 },
        ];
        let plan = Plan {
            settings: Vec::new(),
            tests,
            repetitions: 1,
            warmup: true,
            delay: Duration::ZERO,
            cold_load: false,
            roofline: false,
        };
        assert_eq!(plan.context(), 1032);
    }
}
