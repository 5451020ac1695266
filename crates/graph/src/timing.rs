//! Where the time of a unit's forward passes goes, printed at the end if the environment asks for it.

use std::time::Duration;

/// The environment variable that asks for the table.
const ENV: &str = "BATON_TIMING";

#[derive(Clone, Copy, Debug, Default)]
struct Phase {
    passes: usize,
    tokens: usize,
}

/// Times of each kind of step, apart for prefill and decode.
#[derive(Debug)]
pub struct Timing {
    on: bool,
    phases: [Phase; 2],
    /// Per label: calls and time, prefill and decode.
    times: Vec<[(usize, Duration); 2]>,
}

impl Timing {
    /// Times these labels if `BATON_TIMING` is set in the environment and not `0`.
    pub fn from_env(labels: &[String]) -> Self {
        let on = std::env::var_os(ENV).is_some_and(|value| !value.is_empty() && value != "0");
        Timing { on, phases: Default::default(), times: vec![Default::default(); labels.len()] }
    }

    /// Whether anything is timed.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.on
    }

    /// Counts one step.
    pub fn add(&mut self, label: usize, decode: bool, time: Duration) {
        let (calls, sum) = &mut self.times[label][usize::from(decode)];
        *calls += 1;
        *sum += time;
    }

    /// Counts a pass.
    pub fn pass(&mut self, decode: bool, tokens: usize) {
        let phase = &mut self.phases[usize::from(decode)];
        phase.passes += 1;
        phase.tokens += tokens;
    }

    /// The table, the most expensive steps first; empty if nothing was timed.
    pub fn table(&self, labels: &[String]) -> String {
        use std::fmt::Write;
        let mut out = String::new();
        for (phase, name) in ["prefill", "decode"].into_iter().enumerate() {
            let mut rows: Vec<_> =
                self.times.iter().map(|times| times[phase]).zip(labels).collect();
            rows.retain(|((calls, _), _)| *calls > 0);
            rows.sort_by_key(|((_, time), _)| std::cmp::Reverse(*time));
            let total: Duration = rows.iter().map(|((_, time), _)| *time).sum();
            let Phase { passes, tokens } = self.phases[phase];
            if !self.on || rows.is_empty() {
                continue;
            }
            let _ = writeln!(out, "{name}: {passes} passes, {tokens} tokens, {total:.2?}");
            for ((calls, time), label) in rows {
                let share = 100.0 * time.as_secs_f64() / total.as_secs_f64().max(1e-9);
                let each = time / calls as u32;
                let _ = writeln!(out, "  {share:5.1} %  {calls:7} x {each:>10.1?}  {label}");
            }
        }
        out
    }

    /// Writes the table to standard error.
    pub fn print(&self, labels: &[String]) {
        if self.on {
            eprint!("{}", self.table(labels));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_lists_what_was_timed_by_cost() {
        let labels = ["linear head", "add x", "never"].map(String::from);
        let mut timing = Timing { on: true, ..Timing::from_env(&labels) };
        timing.add(1, true, Duration::from_micros(10));
        timing.add(0, true, Duration::from_micros(30));
        timing.pass(true, 1);
        let table = timing.table(&labels);
        assert!(table.starts_with("decode: 1 passes, 1 tokens"), "{table}");
        let (head, add) = (table.find("75.0 %").unwrap(), table.find("25.0 %").unwrap());
        assert!(head < add && !table.contains("never") && !table.contains("prefill"), "{table}");
    }
}
