//! Ctrl-C in the middle of one answer.

use std::io::Read;
use std::process::{Command, Stdio};

use crate::program::Home;

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
    let pid = child.id().to_string();
    assert!(Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
    let mut answer = some.to_vec();
    stdout.read_to_end(&mut answer).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130));
    assert!(answer.ends_with(b"\n"));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.contains("Ctrl-C") && stderr.contains("decode:"), "{stderr}");
}
