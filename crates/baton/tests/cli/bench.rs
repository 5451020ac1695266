//! `baton bench` on models of a few kilobytes.

use std::io::Write;
use std::net::TcpStream;

use serde_json::{Value, json};

use crate::http::{self, Request};
use crate::program::Home;

#[test]
fn a_model_is_measured_in_every_way() {
    let home = Home::new();
    let model = home.model();
    let args = [
        "bench", "-m", &model, "-p", "16-32*2", "-n", "4", "-pg", "8,2", "-d", "0,16", "-t", "1",
        "-r", "2", "-ub", "8", "-o", "json",
    ];
    let rows: Vec<Value> = serde_json::from_str(&home.run(&args).ok()).unwrap();
    let tests: Vec<[u64; 3]> = rows
        .iter()
        .map(|row| ["n_prompt", "n_gen", "n_depth"].map(|name| row[name].as_u64().unwrap()))
        .collect();
    assert_eq!(
        tests,
        [
            [16, 0, 0],
            [32, 0, 0],
            [0, 4, 0],
            [8, 2, 0],
            [16, 0, 16],
            [32, 0, 16],
            [0, 4, 16],
            [8, 2, 16]
        ]
    );
    for row in &rows {
        assert_eq!(row["samples_ns"].as_array().unwrap().len(), 2);
        let mean = row["avg_ts"].as_f64().unwrap();
        assert!(mean > 0.0 && mean.is_finite());
        assert_eq!(row["n_threads"], 1);
        assert_eq!((&row["n_batch"], &row["n_ubatch"]), (&json!(2048), &json!(8)));
        assert!(row["load_warm_ns"].as_u64().unwrap() > 0);
        assert_eq!(row["ttft_avg_ns"].is_null(), row["n_prompt"] == 0);
        assert_eq!(row["tpot_avg_ns"].is_null(), row["n_gen"] == 0);
        assert_ne!(row["load_cold_ns"].is_null(), row["load_cold_note"].is_null());
        assert_ne!(row["energy_j_per_token"].is_null(), row["energy_note"].is_null());
        assert_eq!(row["model_n_params"].as_u64(), rows[0]["model_n_params"].as_u64());
    }
}

#[test]
fn the_table_has_a_row_for_each_test() {
    let home = Home::new();
    let model = home.model();
    let table = home
        .run(&["bench", &model, "-p", "8", "-n", "2", "-r", "1", "--workloads", "-t", "1,2"])
        .ok();
    for test in ["pp8", "tg2", "pp448+tg64", "pp64+tg448"] {
        // Two numbers of threads, in two tables.
        let cells = table.lines().filter(|line| line.contains(&format!(" {test} |"))).count();
        assert_eq!(cells, 4, "{test}\n{table}");
    }
    assert!(table.contains("load: ") && table.contains("machine: "), "{table}");
}

#[test]
fn shapes_need_no_file() {
    let home = Home::new();
    let image = home.path("roof.svg");
    let lines = home
        .run(&[
            "bench",
            "--shape",
            "tiny:q4_k_m",
            "--shape",
            "tiny-moe:q8_0",
            "-p",
            "16",
            "-n",
            "2",
            "-r",
            "1",
            "-t",
            "1",
            "-o",
            "jsonl",
            "--plot",
            image.to_str().unwrap(),
        ])
        .ok();
    let rows: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(rows.len(), 4);
    assert_eq!(rows[0]["model_filename"], "shape tiny:q4_k_m");
    assert_eq!(rows[0]["model_type"], "Llama 1.4M Q4_K - Medium");
    assert!(rows[0]["roof_read_bytes_per_s"].as_f64().unwrap() > 0.0);
    let image = std::fs::read_to_string(image).unwrap();
    assert_eq!(image.matches("<circle").count(), 4, "{image}");
    home.run(&["bench", "--shape", "no-such"]).failed(2, "llama-3.1-8b");
}

#[test]
fn nonsense_is_refused() {
    let home = Home::new();
    let model = home.model();
    home.run(&["bench", &model, "-p", "0", "-n", "0"]).failed(2, "nothing to measure");
    home.run(&["bench", &model, "-p", "9-1"]).failed(2, "ends before");
    home.run(&["bench", &model, "-t", "0"]).failed(2, "threads 0");
    home.run(&["bench", &model, "-r", "0"]).failed(2, "repetitions");
    home.run(&["bench", "./missing.gguf"]).failed(1, "missing.gguf");
}

/// A server that answers each request with as many words as it asks for, `lives` times.
fn server(lives: usize) -> String {
    let mut answered = 0;
    http::serve(move |request, stream| answer(request, stream, &mut answered, lives))
}

fn answer(
    request: &Request,
    stream: &mut TcpStream,
    answered: &mut usize,
    lives: usize,
) -> std::io::Result<()> {
    write!(stream, "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")?;
    if request.line.starts_with("GET /v1/models ") {
        return write!(stream, "{}", json!({"data": [{"id": "words"}]}));
    }
    let body: Value = serde_json::from_slice(&request.body).unwrap();
    let wanted = body["max_tokens"].as_u64().unwrap();
    for _ in 0..wanted {
        let event = json!({"choices": [{"text": " word"}]});
        write!(stream, "data: {event}\n\n")?;
    }
    *answered += 1;
    if *answered > lives {
        return Ok(());
    }
    let words = body["prompt"].as_str().unwrap().split(' ').count();
    let usage = json!({"prompt_tokens": words + 3, "completion_tokens": wanted});
    write!(stream, "data: {}\n\ndata: [DONE]\n\n", json!({"choices": [], "usage": usage}))
}

#[test]
fn another_server_is_measured_in_turn() {
    let home = Home::new();
    let model = home.model();
    let url = server(usize::MAX);
    let args =
        ["bench", &model, "--against", &url, "--pg", "16,4", "-r", "3", "-t", "1", "-o", "json"];
    let rows: Vec<Value> = serde_json::from_str(&home.run(&args).ok()).unwrap();
    assert_eq!(rows.len(), 2);
    assert_eq!((&rows[0]["server"], &rows[1]["server"]), (&json!("baton"), &json!(url)));
    for row in &rows {
        assert_eq!((&row["n_prompt"], &row["n_gen"]), (&json!(16), &json!(4)), "{row}");
        assert_eq!(row["samples_ns"].as_array().unwrap().len(), 3);
    }
}

#[test]
fn a_server_that_dies_ends_it_with_a_word() {
    let home = Home::new();
    let model = home.model();
    let url = server(4);
    let output = home.run(&["bench", &model, "--against", &url, "--pg", "16,4", "-t", "1"]);
    assert_eq!(output.code, Some(1), "{output:?}");
    assert!(output.stderr.contains("broke off after 4 tokens"), "{output:?}");
}
