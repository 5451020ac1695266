//! `baton run` with a prompt.

use std::io::Read;
use std::process::Stdio;

use serde_json::Value;

use crate::program::{Home, finish};
use crate::server::serve;
use crate::tiny::ANSWER;

#[test]
fn the_answer_is_all_that_standard_output_gets() {
    let home = Home::new();
    let output = home.run(&["run", &home.model(), "Why is the sky blue?"]);
    assert_eq!(output.stderr, "");
    assert_eq!(output.ok(), format!("{ANSWER}\n"));
}

#[test]
fn every_spelling_of_the_flags_works() {
    let home = Home::new();
    let model = home.model();
    for args in [
        &["run", "--repo-id", &model, "--prompt", "Hi", "--max-new-tokens", "3"][..],
        &["run", "-m", &model, "-p", "Hi", "-n", "3"],
        &["run", "--model", &model, "Hi", "--max-tokens", "3", "--temperature", "0", "-c", "64"],
        &["run", &model, "-p", "Hi", "--num-predict", "3", "--ctx-size", "64", "-t", "1"],
        &["run", &model, "Hi", "there", "-n3", "--temp", "0.5", "--top-k", "5", "--top-p", "0.9"],
        &["run", &model, "Hi", "-n", "3", "--min-p", "0.1", "--seed", "1", "--repeat-penalty", "1"],
        &[
            "chat",
            &model,
            "Hi",
            "-n",
            "3",
            "--presence-penalty",
            "-0.5",
            "--frequency-penalty",
            "0.5",
        ],
    ] {
        assert_eq!(home.run(args).ok(), "Sky\n", "{args:?}");
    }
}

#[test]
fn numbers_below_zero_are_values_not_flags() {
    let home = Home::new();
    let model = home.model();
    for args in [&["--seed", "-1"][..], &["--top-k", "-1"], &["-s-1", "--top-k=-40", "-n", "-1"]] {
        let args = [&["run", &model, "Hi"][..], args].concat();
        assert_eq!(home.run(&args).ok(), format!("{ANSWER}\n"), "{args:?}");
    }
    for (flag, value, wanted) in [
        ("--temp", "-1", "from 0 to 100"),
        ("--seed", "-2", "-1 for another"),
        ("--top-p", "-1", "from 0 to 1"),
        ("--ctx", "-1", "not in"),
        ("--ctx", "1", "not in"),
        ("--threads", "-1", "not in"),
        ("-n", "-2", "-1 for no limit"),
    ] {
        let output = home.run(&["run", &model, "Hi", flag, value]).failed(2, wanted);
        assert!(!output.stderr.contains("tip:"), "{output:?}");
    }
}

#[test]
fn of_a_flag_given_twice_the_last_counts() {
    let home = Home::new();
    let model = home.model();
    let args = [
        "run",
        "-m",
        "nothing",
        "-m",
        &model,
        "Hi",
        "-n",
        "9",
        "-n",
        "3",
        "--verbose",
        "--verbose",
    ];
    assert_eq!(home.run(&args).ok(), "Sky\n");
    let stops = ["run", &model, "Hi", "--stop", "blue", "--stop", "zzz"];
    assert_eq!(home.run(&stops).ok(), "Sky \n");
}

#[test]
fn a_stop_text_ends_the_answer_and_is_not_in_it() {
    let home = Home::new();
    let answer = home.run(&["run", &home.model(), "Hi", "--stop", "zzz", "--stop", "blue"]).ok();
    assert_eq!(answer, "Sky \n");
}

#[test]
fn no_tokens_are_no_output() {
    let home = Home::new();
    assert_eq!(home.run(&["run", &home.model(), "Hi", "-n", "0"]).ok(), "");
}

#[test]
fn standard_input_is_the_prompt_or_the_rest_of_it() {
    let home = Home::new();
    let model = home.model();
    assert_eq!(home.run_with_stdin(&["run", &model], b"Hi\n").ok(), format!("{ANSWER}\n"));
    // --json tells how many tokens the prompt had: here one for each byte, and the template's.
    let tokens = |args: &[&str], input: &[u8]| {
        let json = home.run_with_stdin(args, input).ok();
        let json: Value = serde_json::from_str(&json).unwrap();
        json["tokens"]["prompt"].as_u64().unwrap()
    };
    let alone = tokens(&["run", &model, "--json", "Hi"], b"");
    assert_eq!(tokens(&["run", &model, "--json"], b"Hi\n"), alone);
    assert_eq!(tokens(&["run", &model, "--json", "Hi"], b"more"), alone + "\n\nmore".len() as u64);
    home.run_with_stdin(&["run", &model], b" \n ").failed(2, "no prompt");
    home.run_with_stdin(&["run", &model], b"\xff\xfe").failed(1, "UTF-8");
}

#[test]
fn a_prompt_far_too_long_is_refused_with_both_numbers() {
    let home = Home::new();
    let long = "x".repeat(30_000_000);
    for args in [&["run"][..], &["run", "--raw"]] {
        let model = home.model();
        let args = [args, &["--model", &model, "--ctx", "128"][..]].concat();
        let output = home.run_with_stdin(&args, long.as_bytes()).failed(1, "at least");
        assert!(output.stderr.contains("the context of 128"), "{output:?}");
    }
}

#[test]
fn raw_continues_the_text_without_template() {
    let home = Home::new();
    assert_eq!(
        home.run(&["run", &home.model(), "--raw", "The S"]).ok(),
        format!("{}\n", &ANSWER[1..])
    );
}

#[test]
fn a_system_prompt_is_part_of_the_prompt() {
    let home = Home::new();
    let prompt = |args: &[&str]| {
        let model = home.model();
        let all = [&["run", model.as_str(), "--json", "Hi"], args].concat();
        let json: Value = serde_json::from_str(&home.run(&all).ok()).unwrap();
        json["tokens"]["prompt"].as_u64().unwrap()
    };
    // Two control tokens, `system`, two line breaks, and the text.
    assert_eq!(prompt(&["--system", "Be brief."]), prompt(&[]) + 2 + 6 + 2 + 9);
}

#[test]
fn json_is_one_object_with_text_tokens_and_timings() {
    let home = Home::new();
    let output = home.run(&["run", &home.model(), "Hi", "--json", "--seed", "7"]).ok();
    let json: Value = serde_json::from_str(&output).unwrap();
    assert_eq!(json["text"], ANSWER);
    assert_eq!(json["finish_reason"], "stop");
    assert_eq!(json["seed"], 7);
    assert_eq!(json["tokens"]["generated"], ANSWER.len());
    assert_eq!(json["tokens"]["reused"], 0);
    assert_eq!(json["tokens"]["prompt"], json["tokens"]["prefilled"]);
    for key in ["load_s", "ttft_s", "prefill_s", "decode_s", "decode_tokens_per_s", "tpot_s"] {
        assert!(json["timings"][key].as_f64().is_some_and(|value| value > 0.0), "{key}: {json}");
    }
    assert!(json["peak_memory_bytes"].as_u64().is_some_and(|bytes| bytes > 1 << 20));
    let output = home.run(&["run", &home.endless_model(), "Hi", "--json", "-n", "5"]).ok();
    let json: Value = serde_json::from_str(&output).unwrap();
    assert_eq!((&json["finish_reason"], &json["text"]), (&"length".into(), &"a\na\na".into()));
}

#[test]
fn verbose_prints_numbers_to_standard_error() {
    let home = Home::new();
    let output = home.run(&["run", &home.model(), "Hi", "--verbose"]);
    for part in ["load time:", "TTFT:", "prefill:", "decode:", "TPOT:", "peak memory:", "reused"] {
        assert!(output.stderr.contains(part), "{part}: {output:?}");
    }
    assert_eq!(output.ok(), format!("{ANSWER}\n"));
}

#[test]
fn guesses_change_no_answer_and_are_counted() {
    let home = Home::new();
    let model = home.endless_model();
    let run = |more: &[&str]| {
        let args = [&["run", &model, "Hi", "--json", "-n", "300"], more].concat();
        serde_json::from_str::<Value>(&home.run(&args).ok()).unwrap()
    };
    let off = run(&["--speculate", "off"]);
    assert_eq!(
        (&off["guesses"]["guessed"], &off["guesses"]["acceptance"]),
        (&0.into(), &Value::Null)
    );
    assert_eq!(off["guesses"]["tokens_per_step"], 1.0);
    let ways: [&[&str]; 4] = [
        &[],
        &["--speculate", "lookup"],
        &["--draft", &model],
        &["--draft-model", &model, "--speculate", "draft"],
    ];
    for more in ways {
        let json = run(more);
        assert_eq!(json["text"], off["text"], "{more:?}");
        assert!(json["guesses"]["right"].as_u64() <= json["guesses"]["guessed"].as_u64());
    }
    let output = home.run(&["run", &model, "Hi", "-n", "9", "-v", "--speculate", "off"]);
    assert!(output.stderr.contains("guesses:"), "{output:?}");
}

#[test]
fn guesses_without_a_source_are_refused() {
    let home = Home::new();
    let model = home.model();
    home.run(&["run", &model, "Hi", "--speculate", "draft"]).failed(2, "--draft MODEL");
    home.run(&["run", &model, "Hi", "--speculate", "much"]).failed(2, "lookup");
    let contrary = ["run", &model, "Hi", "--draft", &model, "--speculate", "off"];
    home.run(&contrary).failed(2, "of no use");
    home.run(&["run", &model, "Hi", "--draft", "./no-such.gguf"]).failed(1, "no-such.gguf");
    home.run(&["serve", "--draft", &model]).failed(2, "--draft needs --model");
}

#[test]
fn a_full_context_ends_the_answer_and_is_said() {
    let home = Home::new();
    let output = home.run(&["run", &home.endless_model(), "Hi", "--ctx", "40"]);
    assert!(output.stderr.contains("context of 40"), "{output:?}");
    assert!(output.ok().len() < 80);
    let long = "x".repeat(100);
    let args = ["run", &home.model(), &long, "--ctx", "40"];
    home.run(&args).failed(1, "context of 40");
}

#[test]
fn the_first_use_of_the_default_model_fetches_it() {
    let home = Home::new();
    home.catalog("tiny", &serve(home.model().into()));
    let first = home.run(&["run", "Why is the sky blue?"]);
    assert!(first.stderr.contains("fetching tiny.gguf"), "{first:?}");
    assert_eq!(first.ok(), format!("{ANSWER}\n"));
    let second = home.run(&["run", "Why is the sky blue?"]);
    assert_eq!(second.stderr, "");
    assert_eq!(second.ok(), format!("{ANSWER}\n"));
}

#[test]
fn what_names_no_model_is_a_prompt_only_when_alone() {
    let home = Home::new();
    home.catalog("tiny", &serve(home.model().into()));
    home.run(&["pull", "tiny"]).ok();
    assert_eq!(home.run(&["run", "hello"]).ok(), format!("{ANSWER}\n"));
    let near = home.run(&["run", "tinyy"]);
    assert!(near.stderr.contains("did you mean tiny"), "{near:?}");
    let failed = home.run(&["run", "why", "is", "the", "sky", "blue"]).failed(1, "\"why\"");
    assert!(failed.stderr.contains("hint:") && failed.stderr.contains("quotes"), "{failed:?}");
}

#[test]
fn damaged_and_missing_models_are_errors_of_one_line() {
    let home = Home::new();
    home.run(&["run", "./missing.gguf", "Hi"]).failed(1, "missing.gguf");
    std::fs::write(home.path("junk.gguf"), "GGUF junk").unwrap();
    home.run(&["run", "./junk.gguf", "Hi"]).failed(1, "junk.gguf");
    std::fs::write(home.path("page.gguf"), "<html>").unwrap();
    home.run(&["run", "./page.gguf", "Hi"]).failed(1, "page.gguf");
    std::fs::create_dir(home.path("empty")).unwrap();
    home.run(&["run", "./empty", "Hi"]).failed(1, "no model");
    let bytes = std::fs::read(home.model()).unwrap();
    std::fs::write(home.path("cut.gguf"), &bytes[..bytes.len() / 2]).unwrap();
    home.run(&["run", "./cut.gguf", "Hi"]).failed(1, "cut.gguf");
}

#[test]
fn a_reader_that_goes_away_ends_the_program_quietly() {
    let home = Home::new();
    let mut command = home.command(&["run", &home.endless_model(), "Hi", "--ctx", "200000"]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut some = [0; 4];
    let mut stdout = child.stdout.take().unwrap();
    stdout.read_exact(&mut some).unwrap();
    drop(stdout);
    let output = child.wait_with_output().unwrap();
    assert_eq!(&some, b"a\na\n");
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
}

#[test]
fn kernels_that_the_machine_lacks_are_an_error() {
    let home = Home::new();
    let mut command = home.command(&["run", &home.model(), "Hi"]);
    finish(command.env("BATON_CPU", "sse9").stdin(Stdio::null()), b"").failed(1, "sse9");
    let mut command = home.command(&["run", &home.model(), "Hi"]);
    let output = finish(command.env("BATON_CPU", "portable").stdin(Stdio::null()), b"");
    assert_eq!(output.ok(), format!("{ANSWER}\n"));
}
