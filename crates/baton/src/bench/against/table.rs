//! Exchanges as a table, and below it how many times as fast we are.

use std::io::{self, Write};

use super::{Exchange, Side};
use crate::bench::output::{Column, Row};

impl Row for Exchange {
    const COLUMNS: &'static [Column] = &[
        ("test", 12, true),
        ("server", 24, false),
        ("in", 5, true),
        ("out", 5, true),
        ("TTFT", 20, true),
        ("prefill t/s", 11, true),
        ("TPOT", 18, true),
        ("decode t/s", 10, true),
    ];

    fn cells(&self) -> Vec<String> {
        let times = |mean: u64, stddev: u64| {
            format!("{:.2} ± {:.2} ms", mean as f64 / 1e6, stddev as f64 / 1e6)
        };
        vec![
            self.test.clone(),
            self.server.clone().into(),
            self.n_prompt.map_or_else(|| "?".into(), |tokens| tokens.to_string()),
            self.n_gen.to_string(),
            times(self.ttft_avg_ns, self.ttft_stddev_ns),
            self.prefill_avg_ts.map_or_else(|| "?".into(), |rate| format!("{rate:.2}")),
            times(self.tpot_avg_ns, self.tpot_stddev_ns),
            format!("{:.2}", self.decode_avg_ts),
        ]
    }

    fn below(out: &mut dyn Write, rows: &[Self]) -> io::Result<()> {
        if rows.is_empty() {
            return Ok(());
        }
        writeln!(out)?;
        for pair in rows.chunks_exact(2) {
            let (ours, theirs) = (&pair[0], &pair[1]);
            if ours.server != Side::Baton {
                continue;
            }
            let ratio = |ours: u64, theirs: u64| theirs as f64 / ours.max(1) as f64;
            writeln!(
                out,
                "{}: Baton's first token comes {:.2} times as fast, the others {:.2} times (medians)",
                ours.test,
                ratio(ours.ttft_median_ns, theirs.ttft_median_ns),
                ratio(ours.tpot_median_ns, theirs.tpot_median_ns),
            )?;
            if theirs.n_gen < ours.n_gen {
                writeln!(
                    out,
                    "  the server ended its answer early, after {} tokens",
                    theirs.n_gen
                )?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::Answer;
    use super::*;
    use crate::bench::numbers::Pair;
    use crate::bench::output::{Format, Printer};

    #[test]
    fn the_table_is_exact() {
        let workload = Pair { prompt: 448, generated: 64 };
        let answer = |prompt_tokens, tokens, first, last| Answer {
            prompt_tokens,
            tokens,
            first: Duration::from_millis(first),
            last: Duration::from_millis(last),
        };
        let ours = Exchange::new(
            Side::Baton,
            "m.gguf",
            workload,
            &[answer(448, 64, 1000, 1630), answer(448, 64, 1000, 1630)],
        );
        let server = Side::Server("http://localhost:8080".into());
        let theirs = Exchange::new(server, "m", workload, &[answer(0, 22, 2500, 2920)]);
        let mut out = Vec::new();
        let mut printer = Printer::new(Format::Md, &mut out);
        printer.row(&ours).unwrap();
        printer.row(&theirs).unwrap();
        printer.finish().unwrap();
        let expected = "\
|         test | server                   |    in |   out |                 TTFT | prefill t/s |               TPOT | decode t/s |
| -----------: | ------------------------ | ----: | ----: | -------------------: | ----------: | -----------------: | ---------: |
|   pp448+tg64 | baton                    |   448 |    64 |    1000.00 ± 0.00 ms |      448.00 |    10.00 ± 0.00 ms |     100.00 |
|   pp448+tg64 | http://localhost:8080    |     ? |    22 |    2500.00 ± 0.00 ms |           ? |    20.00 ± 0.00 ms |      50.00 |

pp448+tg64: Baton's first token comes 2.50 times as fast, the others 2.00 times (medians)
  the server ended its answer early, after 22 tokens
";
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }
}
