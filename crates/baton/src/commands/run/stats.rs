//! What an answer took: for people after `--verbose`, for programs in `--json`.

use std::time::Duration;

use baton_engine::energy::Rails;
use baton_engine::{FinishReason, Metrics, Phase, Summary};
use serde_json::{Value, json};

use super::Answer;
use crate::failure::eprintln_quietly;
use crate::format;

/// Prints the numbers of an answer to standard error.
pub fn print(summary: &Summary) {
    for line in lines(summary) {
        eprintln_quietly(format_args!("{line}"));
    }
}

fn lines(summary: &Summary) -> Vec<String> {
    let metrics = &summary.metrics;
    let unknown = || "-".to_owned();
    let rate = |rate: Option<f64>| rate.map_or_else(unknown, |rate| format!("{rate:.1} tok/s"));
    let time = |time: Option<Duration>| time.map_or_else(unknown, format::time);
    let prompt = format!(
        "{} tokens: {} prefilled, {} reused",
        metrics.prompt_tokens, metrics.prefilled_tokens, metrics.reused_tokens
    );
    let answer =
        format!("{} tokens, ended by {}", metrics.generated_tokens, ending(&summary.reason));
    let rows = [
        ["load time:", &format::time(metrics.load)],
        ["prompt:", &prompt],
        ["TTFT:", &time(metrics.first_token)],
        [
            "prefill:",
            &(rate(metrics.prefill_rate()) + &phase(&metrics.prefill_phase) + &shares(metrics)),
        ],
        ["answer:", &answer],
        ["decode:", &(rate(metrics.decode_rate()) + &phase(&metrics.decode_phase))],
        ["TPOT:", &time(metrics.time_per_token())],
        ["guesses:", &guesses(metrics)],
        ["peak memory:", &metrics.peak_memory.map_or_else(unknown, format::memory)],
        ["seed:", &summary.seed.to_string()],
    ];
    format::table(&rows.map(|row| row.map(str::to_owned)))
}

/// The unit of a phase, and what is known of its work.
fn phase(phase: &Phase) -> String {
    let unit = phase.unit.map(|unit| format!(" on {unit}"));
    let busy = phase.utilisation.map(|share| format!(", {:.0} % busy", 100.0 * share));
    let energy = phase.joules.map(|joules| format!(", {joules:.1} J"));
    let rails = phase.rails.map(|Rails { cpu, gpu, ane }| {
        format!(" (CPU {cpu:.1}, GPU {gpu:.1}, Neural Engine {ane:.1})")
    });
    [unit, busy, energy, rails].into_iter().flatten().collect()
}

/// Joules of a phase by unit.
fn rails(phase: &Phase) -> Option<Value> {
    let Rails { cpu, gpu, ane } = phase.rails?;
    Some(json!({ "cpu": cpu, "gpu": gpu, "ane": ane }))
}

/// How many tokens each unit evaluated, if there were two.
fn shares(metrics: &Metrics) -> String {
    let Metrics { handed_over_tokens: handed, prefilled_tokens: all, .. } = *metrics;
    match (metrics.prefill_phase.unit, metrics.decode_phase.unit) {
        (Some(prefill), Some(decode)) if handed > 0 => {
            format!(" ({handed} tokens on {prefill}, {} on {decode})", all.saturating_sub(handed))
        }
        _ => String::new(),
    }
}

fn guesses(metrics: &Metrics) -> String {
    let Metrics { guessed_tokens, right_guesses, .. } = metrics;
    match (metrics.acceptance(), metrics.tokens_per_step()) {
        (Some(share), Some(tokens)) => format!(
            "{right_guesses} of {guessed_tokens} tokens right ({:.0} %), {tokens:.2} tokens a step",
            100.0 * share
        ),
        _ => "none".into(),
    }
}

fn ending(reason: &FinishReason) -> String {
    match reason {
        FinishReason::Stop(text) => format!("the stop text {text:?}"),
        FinishReason::Length => "the limit of tokens".into(),
        FinishReason::Cancelled => "Ctrl-C".into(),
        _ => "the model".into(),
    }
}

/// The object that `--json` prints.
pub fn json(model: &str, answer: &Answer) -> Value {
    let Summary { reason, seed, metrics } = &answer.summary;
    let Metrics { prompt_tokens, reused_tokens, prefilled_tokens, generated_tokens, .. } = metrics;
    let handed_over_tokens = metrics.handed_over_tokens;
    let seconds = |time: Option<Duration>| time.map(|time| time.as_secs_f64());
    let stop = match reason {
        FinishReason::Stop(text) => Some(text),
        _ => None,
    };
    json!({
        "model": model,
        "text": answer.text,
        "finish_reason": reason.name(),
        "stop": stop,
        "seed": seed,
        "tokens": {
            "prompt": prompt_tokens,
            "reused": reused_tokens,
            "prefilled": prefilled_tokens,
            "handed_over": handed_over_tokens,
            "generated": generated_tokens,
        },
        "timings": {
            "load_s": metrics.load.as_secs_f64(),
            "ttft_s": seconds(metrics.first_token),
            "prefill_s": metrics.prefill.as_secs_f64(),
            "decode_s": metrics.decode.as_secs_f64(),
            "prefill_tokens_per_s": metrics.prefill_rate(),
            "decode_tokens_per_s": metrics.decode_rate(),
            "tpot_s": seconds(metrics.time_per_token()),
        },
        "phases": {
            "prefill_unit": metrics.prefill_phase.unit,
            "prefill_utilisation": metrics.prefill_phase.utilisation,
            "prefill_joules": metrics.prefill_phase.joules,
            "prefill_rails": rails(&metrics.prefill_phase),
            "decode_unit": metrics.decode_phase.unit,
            "decode_utilisation": metrics.decode_phase.utilisation,
            "decode_joules": metrics.decode_phase.joules,
            "decode_rails": rails(&metrics.decode_phase),
        },
        "guesses": {
            "guessed": metrics.guessed_tokens,
            "right": metrics.right_guesses,
            "acceptance": metrics.acceptance(),
            "tokens_per_step": metrics.tokens_per_step(),
        },
        "peak_memory_bytes": metrics.peak_memory,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guesses_are_counted() {
        assert_eq!(guesses(&Metrics::default()), "none");
        let metrics = Metrics {
            generated_tokens: 31,
            decode_steps: 12,
            guessed_tokens: 24,
            right_guesses: 18,
            ..Metrics::default()
        };
        assert_eq!(guesses(&metrics), "18 of 24 tokens right (75 %), 2.50 tokens a step");
    }

    #[test]
    fn the_units_of_a_prompt_are_told_with_their_tokens() {
        let on = |unit| Phase { unit: Some(unit), ..Phase::default() };
        let both = Metrics {
            prefilled_tokens: 1440,
            handed_over_tokens: 1398,
            prefill_phase: on("remote"),
            decode_phase: on("cpu"),
            ..Metrics::default()
        };
        assert_eq!(shares(&both), " (1398 tokens on remote, 42 on cpu)");
        let alone = Metrics { handed_over_tokens: 0, prefill_phase: on("cpu"), ..both };
        assert_eq!(shares(&alone), "");
    }

    #[test]
    fn the_json_object_is_as_documented() {
        let summary = Summary {
            reason: FinishReason::Stop("\n".into()),
            seed: 7,
            metrics: Metrics::default(),
        };
        let value = json("m", &Answer { text: "t".into(), summary });
        let documented = crate::commands::run::EXAMPLES;
        let check = |object: &Value| {
            for key in object.as_object().unwrap().keys() {
                assert!(documented.contains(&format!("\"{key}\"")), "{key}");
            }
        };
        check(&value);
        check(&value["tokens"]);
        check(&value["timings"]);
        check(&value["phases"]);
        check(&value["guesses"]);
        assert_eq!(value["stop"], "\n");
        assert_eq!(value["finish_reason"], "stop");
    }
}
