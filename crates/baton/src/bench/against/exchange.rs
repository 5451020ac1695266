//! What the requests of one workload to one side took.

use std::time::Duration;

use serde::Serialize;

use super::Answer;
use crate::bench::numbers::Pair;
use crate::bench::stats::Summary;

/// Who answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(into = "String")]
pub enum Side {
    /// This program.
    Baton,
    /// The server at this address.
    Server(String),
}

impl From<Side> for String {
    fn from(side: Side) -> String {
        match side {
            Side::Baton => "baton".into(),
            Side::Server(url) => url,
        }
    }
}

/// The result of one workload on one side.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Exchange {
    /// Who answered.
    pub server: Side,
    /// Its model.
    pub model: String,
    /// The workload, by the tokens wanted.
    pub test: String,
    /// Tokens of the prompt, as the side counts them; null if it does not.
    pub n_prompt: Option<usize>,
    /// Tokens of the answer; fewer than wanted if the model ended it.
    pub n_gen: usize,
    /// Mean time to the first token.
    pub ttft_avg_ns: u64,
    /// Its standard deviation.
    pub ttft_stddev_ns: u64,
    /// Median of it.
    pub ttft_median_ns: u64,
    /// Mean time of each further token.
    pub tpot_avg_ns: u64,
    /// Its standard deviation.
    pub tpot_stddev_ns: u64,
    /// Median of it.
    pub tpot_median_ns: u64,
    /// Mean of prompt tokens per second until the first token; null if they are not counted.
    pub prefill_avg_ts: Option<f64>,
    /// Mean of further tokens per second.
    pub decode_avg_ts: f64,
    /// Mean time of a whole request.
    pub avg_ns: u64,
    /// Its standard deviation.
    pub stddev_ns: u64,
    /// Time to the first token of each request.
    pub ttft_samples_ns: Vec<u64>,
    /// Time of each whole request.
    pub samples_ns: Vec<u64>,
}

impl Exchange {
    /// Of these answers.
    pub fn new(server: Side, model: &str, workload: Pair, answers: &[Answer]) -> Exchange {
        let seconds = |time: Duration| time.as_secs_f64().max(1e-9);
        let of =
            |f: &dyn Fn(&Answer) -> f64| Summary::of(&answers.iter().map(f).collect::<Vec<f64>>());
        let further = |answer: &Answer| (answer.tokens.saturating_sub(1)).max(1) as f64;
        let ttft = of(&|answer| seconds(answer.first) * 1e9);
        let tpot = of(&|answer| seconds(answer.last - answer.first) * 1e9 / further(answer));
        let prefill = of(&|answer| answer.prompt_tokens as f64 / seconds(answer.first));
        let decode = of(&|answer| further(answer) / seconds(answer.last - answer.first));
        let whole = of(&|answer| seconds(answer.last) * 1e9);
        let rounded = |value: f64| value.round() as u64;
        let list = |f: fn(&Answer) -> Duration| -> Vec<u64> {
            answers.iter().map(|answer| f(answer).as_nanos() as u64).collect()
        };
        let last = answers.last().copied().unwrap_or_default();
        let counted = Some(last.prompt_tokens).filter(|&tokens| tokens > 0);
        Exchange {
            server,
            model: model.to_owned(),
            test: format!("pp{}+tg{}", workload.prompt, workload.generated),
            n_prompt: counted,
            n_gen: last.tokens,
            ttft_avg_ns: rounded(ttft.mean),
            ttft_stddev_ns: rounded(ttft.stddev),
            ttft_median_ns: rounded(ttft.median),
            tpot_avg_ns: rounded(tpot.mean),
            tpot_stddev_ns: rounded(tpot.stddev),
            tpot_median_ns: rounded(tpot.median),
            prefill_avg_ts: counted.map(|_| prefill.mean),
            decode_avg_ts: decode.mean,
            avg_ns: rounded(whole.mean),
            stddev_ns: rounded(whole.stddev),
            ttft_samples_ns: list(|answer| answer.first),
            samples_ns: list(|answer| answer.last),
        }
    }
}
