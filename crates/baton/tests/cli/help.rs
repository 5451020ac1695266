//! Help, version, completions, and wrong command lines.

use crate::program::Home;

const COMMANDS: [&str; 15] = [
    "run",
    "serve",
    "embed",
    "pull",
    "list",
    "show",
    "rm",
    "tokenize",
    "bench",
    "tune",
    "prefill-server",
    "compile",
    "report",
    "doctor",
    "completions",
];

#[test]
fn help_lists_every_command_and_teaches_by_example() {
    let home = Home::new();
    let short = home.run(&["-h"]).ok();
    let long = home.run(&["--help"]).ok();
    for command in COMMANDS {
        assert!(short.contains(command), "{command}");
        let help = home.run(&["help", command]).ok();
        assert!(help.contains("Usage: baton ") && help.contains("baton "), "{help}");
        assert!(home.run(&[command, "--help"]).ok().contains("Examples:"), "{command}");
    }
    assert!(long.contains("baton run \"Why is the sky blue?\""));
    assert!(long.contains("Exit codes:") && long.contains("BATON_HOME"));
}

#[test]
fn the_flags_people_know_are_there() {
    let help = Home::new().run(&["run", "--help"]).ok();
    for flag in [
        "--system",
        "-n",
        "--max-tokens",
        "--max-new-tokens",
        "--temp",
        "--temperature",
        "--top-k",
        "--top-p",
        "--min-p",
        "--repeat-penalty",
        "--presence-penalty",
        "--frequency-penalty",
        "--seed",
        "--stop",
        "--ctx",
        "--ctx-size",
        "-c",
        "--threads",
        "-t",
        "--raw",
        "--verbose",
        "--json",
        "--repo-id",
        "--interactive",
        "--prompt",
        "-p",
        "--model",
        "-m",
    ] {
        assert!(help.contains(flag), "{flag}");
    }
}

#[test]
fn version_names_the_program() {
    let version = Home::new().run(&["--version"]).ok();
    assert_eq!(version, format!("baton {}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn completions_exist_for_every_shell() {
    let home = Home::new();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = home.run(&["completions", shell]).ok();
        assert!(COMMANDS.iter().all(|command| script.contains(command)), "{shell}");
    }
    home.run(&["completions", "dos"]).failed(2, "dos");
}

#[test]
fn wrong_command_lines_exit_with_2() {
    let home = Home::new();
    for (args, part) in [
        (&["fly"][..], "fly"),
        (&["run", "--temp", "hot", "Hi"], "--temp"),
        (&["run", "--temp=-1", "Hi"], "0 to 100"),
        (&["run", "--top-p", "1.5", "Hi"], "0 to 1"),
        (&["run", "-n", "-2", "Hi"], "-1"),
        (&["run", "--stop", "", "Hi"], "stop"),
        (&["run", "--threads", "0", "Hi"], "--threads"),
        (&["run", "--raw", "--system", "x", "Hi"], "--raw"),
        (&["run", "--json", "--interactive", "Hi"], "--json"),
        (&["run", "Hi", "-p", "Hi again", "-m", "smollm2"], "twice"),
        (&["run"], "no prompt"),
        (&["run", "--raw"], "--raw"),
        (&["rm"], "MODEL"),
        (&["embed"], "embedding model"),
        (&["embed", "smollm2"], "no text"),
        (&["embed", "smollm2", "--dimensions", "0", "Hi"], "--dimensions"),
        (&["tokenize", "smollm2"], "TEXT"),
        (&["compile", "smollm2"], "--output"),
        (&["compile", "smollm2", "-o", "out", "--tokens", "0"], "--tokens"),
    ] {
        home.run(args).failed(2, part);
    }
    let mut command = home.command(&["list"]);
    crate::program::finish(command.env("BATON_LOG", "a=b=c"), b"").failed(2, "BATON_LOG");
}
