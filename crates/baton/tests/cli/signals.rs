//! Ctrl-C in the middle of one answer.

use std::io::Read;
use std::process::{Child, Command, Stdio};

use crate::program::Home;

fn interrupt(child: &Child) {
    let pid = child.id().to_string();
    assert!(Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
}

#[test]
fn ctrl_c_while_a_package_is_written_leaves_nothing_behind() {
    let home = Home::new();
    let out = home.path("packages");
    std::fs::create_dir(&out).unwrap();
    let target = out.join("x");
    // Many functions, which take a while to write and to check.
    let tokens: Vec<String> = (1..120).map(|n| n.to_string()).collect();
    let args = ["compile", &home.model(), "-o", target.to_str().unwrap(), "--tokens"];
    let mut command = home.command(&[&args[..], &[&tokens.join(",")]].concat());
    let mut child = command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let is_written = || {
        let made = std::fs::read_dir(&out).unwrap().next().and_then(Result::ok);
        let inside = made.and_then(|made| std::fs::read_dir(made.path()).ok());
        inside.is_some_and(|mut inside| inside.next().is_some())
    };
    while !is_written() && child.try_wait().unwrap().is_none() {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    interrupt(&child);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{output:?}");
    assert_eq!(std::fs::read_dir(&out).unwrap().count(), 0, "{output:?}");
}

#[test]
fn ctrl_c_ends_an_answer_with_what_there_is_and_status_130() {
    let home = Home::new();
    let mut command = home.command(&["run", &home.endless_model(), "Hi", "--ctx", "200000", "-v"]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let mut some = [0; 4];
    stdout.read_exact(&mut some).unwrap();
    // From the shell, as the standard library sends no signals.
    interrupt(&child);
    let mut answer = some.to_vec();
    stdout.read_to_end(&mut answer).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130));
    assert!(answer.ends_with(b"\n"));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.contains("Ctrl-C") && stderr.contains("decode:"), "{stderr}");
}
