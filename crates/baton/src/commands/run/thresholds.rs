//! What an answer should not fall below or exceed.

use baton_engine::{Metrics, Phase};

use crate::failure::note;
use crate::format;

/// Limits that are watched; nothing happens if they are passed but a word about it.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
pub struct Thresholds {
    /// Warn if the unit of a phase computed for less than so many percent of the phase
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u8).range(1..=100))]
    least_busy: Option<u8>,
    /// Warn if the program used more memory, such as 8GiB
    #[arg(long, value_name = "SIZE", value_parser = format::parse_memory)]
    most_memory: Option<u64>,
}

impl Thresholds {
    /// Says what an answer passed.
    pub fn warn(&self, metrics: &Metrics) {
        self.passed(metrics).iter().for_each(note);
    }

    fn passed(&self, metrics: &Metrics) -> Vec<String> {
        let phases = [("prompt", &metrics.prefill_phase), ("answer", &metrics.decode_phase)];
        let mut passed: Vec<String> =
            phases.iter().filter_map(|(what, phase)| self.idle(what, phase)).collect();
        if let (Some(most), Some(peak)) = (self.most_memory, metrics.peak_memory)
            && peak > most
        {
            passed.push(format!(
                "{} of memory were used, more than {}; a smaller --ctx or --kv-type q8_0 needs less",
                format::memory(peak),
                format::memory(most)
            ));
        }
        passed
    }

    fn idle(&self, what: &str, phase: &Phase) -> Option<String> {
        let (least, unit, busy) = (self.least_busy?, phase.unit?, 100.0 * phase.utilisation?);
        let why = match what {
            "prompt" => "it waited for its turn, for the hand-off, or for what comes after it",
            _ => "tokens were chosen, text was made and others were served meanwhile",
        };
        (busy < f64::from(least)).then(|| {
            format!("{unit} computed for {busy:.0} % of the {what}, less than {least} %: {why}")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_passed_is_named_with_a_reason() {
        let phase =
            |share| Phase { unit: Some("cpu"), utilisation: Some(share), ..Phase::default() };
        let metrics = Metrics {
            prefill_phase: phase(0.6),
            decode_phase: phase(0.9),
            peak_memory: Some(3 << 30),
            ..Metrics::default()
        };
        let told = |least_busy, most_memory| {
            Thresholds { least_busy, most_memory }.passed(&metrics).join("\n")
        };
        assert_eq!(told(None, None), "");
        assert_eq!(told(Some(60), Some(3 << 30)), "");
        assert!(
            told(Some(80), None).contains("cpu computed for 60 % of the prompt, less than 80 %")
        );
        assert_eq!(told(Some(95), None).lines().count(), 2);
        assert!(told(None, Some(2 << 30)).contains("more than 2.0 GiB"));
        let unknown = Thresholds { least_busy: Some(100), most_memory: Some(1) };
        assert!(unknown.passed(&Metrics::default()).is_empty());
    }
}
