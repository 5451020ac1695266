//! Two units for one answer, and what is measured of them.

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStderr, Stdio};

use serde_json::Value;

use crate::program::Home;
use crate::tiny::ANSWER;

const PROMPT: &str = "Why is the sky blue? And why is it red in the evening?";
const TWO: [&str; 6] = ["--prefill", "reference", "--decode", "cpu", "--crossover", "4"];

fn run(home: &Home, args: &[&str]) -> crate::program::Output {
    home.run(&[&["run", &home.model(), PROMPT], args].concat())
}

#[test]
fn units_that_are_not_there_are_refused_with_a_way_out() {
    let home = Home::new();
    for (args, part) in [
        (["--prefill", "ane"], "Core ML"),
        (["--decode", "tpu"], "say cpu"),
        (["--crossover", "0"], "not in 1.."),
    ] {
        run(&home, &args).failed(2, part);
        home.run(&[&["serve"], &args[..]].concat()).failed(2, part);
    }
    run(&home, &["--trace", "no/such/folder/t.json"]).failed(1, "cannot write the trace");
}

#[test]
fn a_gpu_that_is_not_there_is_an_error_that_names_what_there_is() {
    let home = Home::new();
    let args = ["run", &home.model(), PROMPT, "--decode", "gpu"];
    let mut command = home.command(&args);
    command.env(NO_GPU.0, NO_GPU.1).stdin(Stdio::null());
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{said}");
    assert!(said.contains("no GPU") && said.contains(NO_GPU.1), "{said}");
}

#[test]
fn an_answer_across_two_units_is_the_same_and_its_trace_shows_both() {
    let home = Home::new();
    let args = [&TWO[..], &["--trace", "t.json", "--verbose"]].concat();
    let output = run(&home, &args);
    assert!(output.stderr.contains("on reference"), "{output:?}");
    assert!(output.stderr.contains("from 4 new tokens on"), "{output:?}");
    assert_eq!(output.ok(), format!("{ANSWER}\n"));
    let trace: Value =
        serde_json::from_slice(&std::fs::read(home.path("t.json")).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let lane = |name: &str| {
        let named = |event: &&Value| event["args"]["name"] == name;
        events.iter().find(named).unwrap_or_else(|| panic!("{name}: {trace}"))["tid"].clone()
    };
    let (reads, writes) = (lane("reference: prefill"), lane("cpu: decode"));
    let of = |lane: &Value, what: &str| {
        let found = events.iter().filter(|event| event["tid"] == *lane && event["name"] == what);
        found.map(|event| event["args"]["tokens"].as_u64().unwrap()).collect::<Vec<_>>()
    };
    let read: u64 = of(&reads, "prefill").iter().sum();
    assert!(read > PROMPT.len() as u64 / 2, "{trace}");
    assert_eq!(of(&reads, "hand-off out").iter().sum::<u64>(), read);
    assert_eq!(of(&writes, "hand-off in").iter().sum::<u64>(), read);
    assert_eq!(of(&writes, "prefill"), [0u64; 0]);
    // With guesses.
    assert!(of(&writes, "decode").iter().sum::<u64>() >= ANSWER.len() as u64, "{trace}");
}

#[test]
fn one_unit_can_be_traced_too() {
    let home = Home::new();
    run(&home, &["--trace", "t.json", "--json"]).ok();
    let trace: Value =
        serde_json::from_slice(&std::fs::read(home.path("t.json")).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    assert_eq!(events[0]["args"]["name"], "cpu: prefill and decode");
    assert!(events.iter().any(|event| event["name"] == "prefill"));
    assert!(events.iter().any(|event| event["name"] == "decode"));
    run(&home, &["--trace", "t.svg"]).ok();
    let picture = std::fs::read_to_string(home.path("t.svg")).unwrap();
    assert!(picture.starts_with("<svg") && picture.contains("cpu: prefill and decode"));
}

#[test]
fn json_names_the_units_of_both_phases() {
    let home = Home::new();
    let object: Value =
        serde_json::from_str(&run(&home, &[&TWO[..], &["--json"]].concat()).ok()).unwrap();
    let phases = &object["phases"];
    assert_eq!(
        (&phases["prefill_unit"], &phases["decode_unit"]),
        (&"reference".into(), &"cpu".into())
    );
    let busy = phases["prefill_utilisation"].as_f64().unwrap();
    assert!(busy > 0.0 && busy <= 1.0, "{object}");
}

#[test]
fn a_hand_off_can_be_verified() {
    let home = Home::new();
    let text = run(&home, &[&TWO[..], &["--verify-handoff"]].concat()).ok();
    assert!(text.contains("reference to cpu: ") && text.contains("64 of 64 (100.0 %)"), "{text}");
    assert!(text.contains("KL divergence"), "{text}");
    assert!(text.contains("closest choice: token "), "{text}");
    run(&home, &["--verify-handoff"]).failed(2, "name two units");
}

#[test]
fn what_was_measured_is_kept_and_used() {
    let home = Home::new();
    let model = home.model();
    let tune = home.run(&["tune", &model, "--seconds", "2", "--units", "cpu,reference"]);
    assert!(tune.stderr.contains("tokens/s of answers"), "{tune:?}");
    assert!(tune.stderr.contains("kept in"), "{tune:?}");
    tune.ok();
    let files: Vec<_> = std::fs::read_dir(home.path("store/profiles")).unwrap().collect();
    assert_eq!(files.len(), 1);
    let path = files[0].as_ref().unwrap().path();
    let profile: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    assert_eq!(profile["units"][1]["unit"], "reference");
    assert!(profile["units"][0]["prefill"].as_array().unwrap().len() >= 2, "{profile}");
    let named = ["--prefill", "reference", "--decode", "cpu", "--verbose"];
    let output = run(&home, &named);
    assert!(output.stderr.contains("measured"), "{output:?}");
    // A damaged profile is as good as none.
    std::fs::write(&path, "{").unwrap();
    let output = run(&home, &named);
    assert!(output.stderr.contains("is not used"), "{output:?}");
    assert_eq!(output.ok(), format!("{ANSWER}\n"));
    home.run(&["tune", &model, "--units", "quantum"]).failed(2, "no such unit");
}

/// A GPU that is not there, whatever the machine has.
const NO_GPU: (&str, &str) = ("BATON_GPU", "a card that nobody has");

#[test]
fn a_unit_that_cannot_be_measured_leaves_the_others_and_what_is_known() {
    let home = Home::new();
    let model = home.model();
    let tune = |units: &str| {
        let args = ["tune", &model, "--seconds", "2", "--units", units];
        let mut command = home.command(&args);
        command.env(NO_GPU.0, NO_GPU.1).stdin(Stdio::null());
        let output = command.output().unwrap();
        (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (ended_well, said) = tune("gpu,reference");
    assert!(ended_well && said.contains("gpu cannot be measured"), "{said}");
    let (ended_well, said) = tune("cpu");
    assert!(ended_well, "{said}");
    let files = std::fs::read_dir(home.path("store/profiles")).unwrap();
    let profile = std::fs::read(files.last().unwrap().unwrap().path()).unwrap();
    let profile: Value = serde_json::from_slice(&profile).unwrap();
    let units: Vec<_> = profile["units"].as_array().unwrap().iter().map(|u| &u["unit"]).collect();
    assert_eq!(units, ["reference", "cpu"]);
    let (ended_well, said) = tune("gpu");
    assert!(!ended_well && said.contains("no GPU"), "{said}");
    // With another type of cache nothing is known.
    let named = ["--prefill", "reference", "--decode", "cpu", "--verbose"];
    assert!(run(&home, &named).stderr.contains("measured"));
    let other = run(&home, &[&named[..], &["--kv-type", "q8_0"]].concat());
    assert!(!other.stderr.contains("of answers, measured"), "{other:?}");
}

/// A prefill server that ends with the test.
struct Server {
    child: Child,
    stderr: BufReader<ChildStderr>,
}

impl Server {
    /// Starts it; gives its address, and what it said before.
    fn start(home: &Home) -> (Server, String, String) {
        let args = ["prefill-server", &home.model(), "--listen", "127.0.0.1:0", "-t", "1"];
        let mut command = home.command(&args);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let mut server = Server { child, stderr };
        let mut said = String::new();
        loop {
            let start = said.len();
            assert_ne!(server.stderr.read_line(&mut said).unwrap(), 0, "it ended: {said}");
            if let Some((_, address)) = said[start..].trim().split_once("reads prompts at ") {
                let address = address.to_owned();
                return (server, address, said);
            }
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn another_machine_reads_prompts() {
    let home = Home::new();
    let (server, address, said) = Server::start(&home);
    assert!(said.contains("made a key"), "{said}");
    let remote = format!("remote://{address}");
    let args = ["--prefill", &remote, "--crossover", "4", "--verbose", "--trace", "t.json"];
    let output = run(&home, &args);
    assert!(output.stderr.contains(&format!("prompts on {address}")), "{output:?}");
    assert!(output.stderr.contains("on remote"), "{output:?}");
    // All tokens but the last came from there, and so it is told.
    let object: Value = serde_json::from_str(
        &run(&home, &["--prefill", &remote, "--crossover", "4", "--json"]).ok(),
    )
    .unwrap();
    let tokens = |of: &str| object["tokens"][of].as_u64().unwrap();
    assert_eq!(tokens("handed_over"), tokens("prefilled") - 1, "{object}");
    let told = format!("({} tokens on remote, 1 on cpu)", tokens("handed_over"));
    assert!(output.stderr.contains(&told), "{output:?}");
    // What is too short to be sent there was read here.
    let short = run(&home, &["--prefill", &remote, "--crossover", "5000", "--verbose"]);
    assert!(!short.stderr.contains("on remote,") && short.stderr.contains("on cpu"), "{short:?}");
    assert_eq!(output.ok(), format!("{ANSWER}\n"));
    let trace = std::fs::read_to_string(home.path("t.json")).unwrap();
    assert!(trace.contains("remote: prefill") && trace.contains("hand-off in"), "{trace}");
    let verified = run(&home, &["--prefill", &remote, "--verify-handoff"]).ok();
    assert!(verified.contains("64 of 64 (100.0 %)"), "{verified}");
    // The key opens it, and no other one does.
    std::fs::write(home.path("other"), "0".repeat(64)).unwrap();
    run(&home, &["--prefill", &remote, "--prefill-key", "other"]).failed(1, "same key");
    run(&home, &["--prefill", &remote, "--prefill-key", "none"]).failed(1, "cannot read the key");
    std::fs::write(home.path("other"), "key").unwrap();
    run(&home, &["--prefill", &remote, "--prefill-key", "other"]).failed(1, "holds no key");
    run(&home, &["--decode", &remote]).failed(2, "on this machine");
    run(&home, &["--prefill", "remote://x"]).failed(2, "remote://HOST:PORT");
    drop(server);
    run(&home, &["--prefill", &remote]).failed(1, "prefill-server");
}

#[cfg(unix)]
#[test]
fn the_key_is_the_owners_alone() {
    use std::os::unix::fs::PermissionsExt;
    let home = Home::new();
    let (_server, ..) = Server::start(&home);
    let mode = std::fs::metadata(home.path("store/prefill-key")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}
