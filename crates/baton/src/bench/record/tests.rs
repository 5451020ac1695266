use serde_json::{Map, Value};

use super::*;

fn fields(record: &Record) -> Map<String, Value> {
    serde_json::to_value(record).unwrap().as_object().unwrap().clone()
}

/// A record with made-up results.
pub fn made_up() -> Record {
    let ms = Duration::from_millis;
    let machine = Machine {
        cpu: "Some \"fast\" CPU, 3 GHz".into(),
        processors: 2,
        isa: "avx2".into(),
        os: "Linux".into(),
        arch: "x86_64",
        memory: 16 << 30,
    };
    let subject = subject::Facts {
        filename: "models/tiny.gguf".into(),
        kind: "Llama 1.2B Q4_K - Medium".into(),
        bytes: 799_862_912,
        parameters: 1_235_814_432,
    };
    Record::new(Facts {
        machine: &machine,
        unit: "cpu",
        subject: &subject,
        setting: &Setting { threads: 2, batch: 2048, ubatch: 512 },
        test: &Test { prompt: 448, generated: 64, depth: 1024 },
        load: &LoadTimes { warm: ms(12), cold: Ok(ms(345)) },
        began: SystemTime::UNIX_EPOCH + Duration::from_secs(1_767_225_600),
        samples: &[
            Sample { prompt: ms(1000), generated: ms(3000) },
            Sample { prompt: ms(1200), generated: ms(3920) },
        ],
        energy: Ok(20.48),
        peak_memory: Some(1 << 30),
        work: &Work::default(),
        roof: None,
    })
}

#[test]
fn numbers_are_what_they_say() {
    let record = made_up();
    assert_eq!(record.samples_ns, [4_000_000_000, 5_120_000_000]);
    assert_eq!(record.samples_ts, [128.0, 100.0]);
    assert_eq!((record.avg_ts, record.median_ts), (114.0, 114.0));
    assert!((record.stddev_ts - 392f64.sqrt()).abs() < 1e-9);
    assert_eq!((record.avg_ns, record.stddev_ns), (4_560_000_000, 791_959_595));
    assert_eq!(
        (record.ttft_avg_ns, record.ttft_stddev_ns),
        (Some(1_100_000_000), Some(141_421_356))
    );
    assert_eq!(record.tpot_avg_ns, Some(54_062_500));
    // 20.48 J for two times 512 tokens.
    assert_eq!(record.energy_j_per_token, Some(0.02));
    assert_eq!(record.test_time, "2026-01-01T00:00:00Z");
    assert_eq!(record.test().to_string(), "pp448+tg64 @ d1024");
}

#[test]
fn fields_have_the_known_names_in_the_known_order() {
    let fields = fields(&made_up());
    let names: Vec<&str> = fields.keys().map(String::as_str).collect();
    let known = [
        "build_commit",
        "build_number",
        "cpu_info",
        "gpu_info",
        "backends",
        "model_filename",
        "model_type",
        "model_size",
        "model_n_params",
        "n_batch",
        "n_ubatch",
        "n_threads",
        "type_k",
        "type_v",
        "n_prompt",
        "n_gen",
        "n_depth",
        "test_time",
        "avg_ns",
        "stddev_ns",
        "avg_ts",
        "stddev_ts",
        "samples_ns",
        "samples_ts",
    ];
    assert_eq!(names[..known.len()], known);
    let own = [
        "median_ts",
        "ttft_avg_ns",
        "ttft_stddev_ns",
        "tpot_avg_ns",
        "tpot_stddev_ns",
        "load_warm_ns",
        "load_cold_ns",
        "load_cold_note",
        "peak_memory_bytes",
        "energy_j_per_token",
        "energy_note",
        "roof_read_bytes_per_s",
        "roof_ops_per_s",
        "prompt_ops_per_byte",
        "prompt_ops_per_s",
        "prompt_roof_share",
        "gen_ops_per_byte",
        "gen_ops_per_s",
        "gen_roof_share",
        "baton_version",
        "isa",
        "os",
        "arch",
        "machine_processors",
        "machine_memory_bytes",
    ];
    assert_eq!(names[known.len()..], own);
    assert_eq!(fields["avg_ts"], 114.0);
    assert_eq!(fields["energy_note"], Value::Null);
}

#[test]
fn what_is_not_known_is_null_with_a_reason() {
    let load = LoadTimes { warm: Duration::from_millis(1), cold: Err("no".into()) };
    let machine = Machine::look();
    let record = Record::new(Facts {
        machine: &machine,
        unit: "cpu",
        subject: &subject::Facts::default(),
        setting: &Setting { threads: 1, batch: 1, ubatch: 1 },
        test: &Test { prompt: 0, generated: 1, depth: 0 },
        load: &load,
        began: SystemTime::now(),
        samples: &[Sample::default()],
        energy: Err("no counter".into()),
        peak_memory: None,
        work: &Work::default(),
        roof: None,
    });
    let fields = fields(&record);
    for name in ["ttft_avg_ns", "load_cold_ns", "energy_j_per_token", "peak_memory_bytes"] {
        assert_eq!(fields[name], Value::Null, "{name}");
    }
    assert_eq!(
        (&fields["load_cold_note"], &fields["energy_note"]),
        (&"no".into(), &"no counter".into())
    );
    // A clock that stood still gives no infinite speed.
    assert!(record.avg_ts.is_finite());
}
