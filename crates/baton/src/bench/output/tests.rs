use super::*;
use crate::bench::record::Record;
use crate::bench::record::tests::made_up;

fn printed(format: Format, rows: &[Record]) -> String {
    let mut out = Vec::new();
    let mut printer = Printer::new(format, &mut out);
    rows.iter().for_each(|row| printer.row(row).unwrap());
    assert_eq!(printer.finish().unwrap(), rows);
    String::from_utf8(out).unwrap()
}

#[test]
fn the_table_is_exact() {
    let mut record = made_up();
    (record.build_commit, record.build_number) = ("abc1234".into(), 42);
    (record.roof_read_bytes_per_s, record.roof_ops_per_s) = (Some(2e10), Some(1e11));
    (record.prompt_roof_share, record.gen_roof_share) = (Some(0.5), Some(0.95));
    let mut other = record.clone();
    other.gen_roof_share = None;
    (other.n_gen, other.n_depth) = (0, 0);
    (other.tpot_avg_ns, other.tpot_stddev_ns, other.energy_j_per_token) = (None, None, None);
    let table = "\
| model                          |       size |     params | backend    | threads |            test |                  t/s |
| ------------------------------ | ---------: | ---------: | ---------- | ------: | --------------: | -------------------: |
| Llama 1.2B Q4_K - Medium       | 762.81 MiB |     1.24 B | CPU        |       2 | pp448+tg64 @ d1024 |       114.00 ± 19.80 |
| Llama 1.2B Q4_K - Medium       | 762.81 MiB |     1.24 B | CPU        |       2 |           pp448 |       114.00 ± 19.80 |

| threads |               test |                 TTFT |                 TPOT |  peak memory |  J/token |      of roof |
| ------: | -----------------: | -------------------: | -------------------: | -----------: | -------: | -----------: |
|       2 | pp448+tg64 @ d1024 |  1100.00 ± 141.42 ms |     54.06 ± 10.16 ms |      1.0 GiB |    0.020 |   50 %, 95 % |
|       2 |              pp448 |  1100.00 ± 141.42 ms |                    - |      1.0 GiB |        - |         50 % |

roof: 20.0 GB/s read, 100 GOPS of integer products, with 2 threads
load: 12.0 ms warm, cold 345 ms
machine: Some \"fast\" CPU, 3 GHz, 2 processors, avx2 kernels, 16.0 GiB, Linux (x86_64)
build: abc1234 (42)
";
    assert_eq!(printed(Format::Md, &[record, other]), table);
}

#[test]
fn json_reads_back() {
    let record = made_up();
    let text = printed(Format::Json, &[record.clone(), record.clone()]);
    let list: Vec<Value> = serde_json::from_str(&text).unwrap();
    assert_eq!(list.len(), 2);
    assert_eq!(list[1]["samples_ts"], serde_json::json!([128.0, 100.0]));
    assert_eq!(printed(Format::Json, &[]), "[]\n");
    let lines = printed(Format::Jsonl, &[record.clone(), record]);
    assert_eq!(lines.lines().count(), 2);
    for line in lines.lines() {
        assert_eq!(serde_json::from_str::<Value>(line).unwrap(), list[0]);
    }
}

#[test]
fn csv_has_as_many_values_as_names() {
    let text = printed(Format::Csv, &[made_up()]);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 2);
    assert!(lines[0].starts_with("build_commit,build_number,cpu_info,"), "{text}");
    assert!(
        lines[1].contains(r#","Some ""fast"" CPU, 3 GHz","","CPU","models/tiny.gguf","#),
        "{text}"
    );
    assert!(!lines[0].contains("samples"), "{text}");
    let values = lines[1].split("\",\"").count();
    assert_eq!(values, lines[0].split(',').count(), "{text}");
}
