//! A record as a table shows it: first the columns of `llama-bench`, in a table below it ours.

use std::io::{self, Write};
use std::time::Duration;

use super::Record;
use crate::bench::output::{Column, Row, header, line};
use crate::format;

/// Columns of the table below.
const MORE: [Column; 7] = [
    ("threads", 7, true),
    ("test", 18, true),
    ("TTFT", 20, true),
    ("TPOT", 20, true),
    ("peak memory", 12, true),
    ("J/token", 8, true),
    ("of roof", 12, true),
];

impl Row for Record {
    const COLUMNS: &'static [Column] = &[
        ("model", 30, false),
        ("size", 10, true),
        ("params", 10, true),
        ("backend", 10, false),
        ("threads", 7, true),
        ("test", 15, true),
        ("t/s", 20, true),
    ];

    fn cells(&self) -> Vec<String> {
        let size = match self.model_size as f64 / f64::from(1 << 20) {
            mib if mib < 1024.0 => format!("{mib:.2} MiB"),
            mib => format!("{:.2} GiB", mib / 1024.0),
        };
        let parameters = match self.model_n_params as f64 / 1e6 {
            millions if millions < 1000.0 => format!("{millions:.2} M"),
            millions => format!("{:.2} B", millions / 1000.0),
        };
        vec![
            self.model_type.clone(),
            size,
            parameters,
            self.backends.clone(),
            self.n_threads.to_string(),
            self.test().to_string(),
            format!("{:.2} ± {:.2}", self.avg_ts, self.stddev_ts),
        ]
    }

    fn below(out: &mut dyn Write, rows: &[Self]) -> io::Result<()> {
        let Some(first) = rows.first() else { return Ok(()) };
        writeln!(out)?;
        header(out, &MORE)?;
        rows.iter().try_for_each(|record| line(out, &MORE, &more(record)))?;
        writeln!(out)?;
        roofs(out, rows)?;
        let time = |ns: u64| format::time(Duration::from_nanos(ns));
        let cold = match (first.load_cold_ns, &first.load_cold_note) {
            (Some(cold), _) => time(cold),
            (None, note) => {
                format!("not known ({})", note.as_deref().unwrap_or("no reason is known"))
            }
        };
        writeln!(out, "load: {} warm, cold {cold}", time(first.load_warm_ns))?;
        if let Some(note) = &first.energy_note {
            writeln!(out, "energy: not known ({note})")?;
        }
        let Record { cpu_info, isa, os, arch, machine_processors, .. } = first;
        let memory = format::memory(first.machine_memory_bytes);
        writeln!(
            out,
            "machine: {cpu_info}, {machine_processors} processors, {isa} kernels, {memory}, {os} ({arch})"
        )?;
        writeln!(out, "build: {} ({})", first.build_commit, first.build_number)
    }
}

fn more(record: &Record) -> [String; 7] {
    let none = || "-".to_owned();
    let times = |mean: Option<u64>, stddev: Option<u64>| match mean.zip(stddev) {
        Some((mean, stddev)) => {
            format!("{:.2} ± {:.2} ms", mean as f64 / 1e6, stddev as f64 / 1e6)
        }
        None => none(),
    };
    [
        record.n_threads.to_string(),
        record.test().to_string(),
        times(record.ttft_avg_ns, record.ttft_stddev_ns),
        times(record.tpot_avg_ns, record.tpot_stddev_ns),
        record.peak_memory_bytes.map_or_else(none, format::memory),
        record.energy_j_per_token.map_or_else(none, |joules| format!("{joules:.3}")),
        match (record.prompt_roof_share, record.gen_roof_share) {
            (None, None) => none(),
            (Some(share), None) | (None, Some(share)) => percent(share),
            (Some(prompt), Some(generated)) => {
                format!("{}, {}", percent(prompt), percent(generated))
            }
        },
    ]
}

fn percent(share: f64) -> String {
    format!("{:.0} %", 100.0 * share)
}

/// The machine's limits, where they were measured, once for each number of threads.
fn roofs(out: &mut dyn Write, rows: &[Record]) -> io::Result<()> {
    let mut seen = Vec::new();
    for record in rows {
        let Some(read) = record.roof_read_bytes_per_s else { continue };
        if seen.contains(&record.n_threads) {
            continue;
        }
        seen.push(record.n_threads);
        let products = match record.roof_ops_per_s {
            Some(ops) => format!("{:.0} GOPS of integer products", ops / 1e9),
            None => "integer products not measured here".to_owned(),
        };
        let (threads, read) = (record.n_threads, read / 1e9);
        let plural = if threads == 1 { "" } else { "s" };
        writeln!(out, "roof: {read:.1} GB/s read, {products}, with {threads} thread{plural}")?;
    }
    Ok(())
}
