//! The chat, on a terminal that the test plays.

use rexpect::session::{PtySession, spawn_command};

use crate::program::Home;
use crate::tiny::ANSWER;

/// Time in which anything must appear, in milliseconds: the machine may be busy.
const PATIENCE: u64 = 60_000;

fn chat(home: &Home, args: &[&str]) -> PtySession {
    let mut command = home.command(args);
    command.env("TERM", "xterm").env("NO_COLOR", "1");
    let mut session = spawn_command(command, Some(PATIENCE)).unwrap();
    session.exp_string(">>> ").unwrap();
    session
}

/// Types keys; without the flush they would wait for a line break.
fn keys(session: &mut PtySession, keys: &str) {
    session.send(keys).unwrap();
    session.flush().unwrap();
}

fn say(session: &mut PtySession, line: &str, expected: &str) {
    keys(session, &format!("{line}\r"));
    session.exp_string(expected).unwrap_or_else(|error| panic!("{line}: {error}"));
    session.exp_string(">>> ").unwrap();
}

fn leave(mut session: PtySession) {
    session.send_line("/bye").unwrap();
    session.exp_eof().unwrap();
    let status = session.process().wait().unwrap();
    assert!(
        format!("{status:?}").contains("Exited(") && format!("{status:?}").contains(", 0)"),
        "{status:?}"
    );
}

#[test]
fn questions_commands_and_saved_chats() {
    let home = Home::new();
    let mut session = chat(&home, &["run", &home.model(), "--verbose"]);
    say(&mut session, "Why?", ANSWER);
    // The second turn evaluates only what is new.
    keys(&mut session, "And now?\r");
    session.exp_string(ANSWER).unwrap();
    session.exp_regex("[1-9][0-9]* reused").unwrap();
    session.exp_string(">>> ").unwrap();
    say(&mut session, "/set quiet", "");
    say(&mut session, "/help", "/save NAME");
    say(&mut session, "/system Be brief.", "from now on");
    say(&mut session, "/system", "Be brief.");
    say(&mut session, "/set parameter temperature 0.5", "temperature 0.5");
    say(&mut session, "/set top_k 7", "top_k 7");
    say(&mut session, "/set parameter temperature hot", "error:");
    say(&mut session, "/dance", "no command is called /dance");
    say(&mut session, "/show info", "Tiny");
    say(&mut session, "/show template", "im_start");
    say(&mut session, "/save first", "saved to");
    say(&mut session, "/clear", "forgotten");
    say(&mut session, "/load nowhere", "error:");
    say(&mut session, "/load first", "4 messages");
    say(&mut session, "/show history", "And now?");
    leave(session);
    let saved = std::fs::read_to_string(home.path("store/chats/first.json")).unwrap();
    let saved: serde_json::Value = serde_json::from_str(&saved).unwrap();
    assert_eq!(saved["system"], "Be brief.");
    assert_eq!(saved["parameters"]["temperature"], 0.5);
    let said: Vec<_> =
        saved["messages"].as_array().unwrap().iter().map(|m| &m["content"]).collect();
    assert_eq!(said, ["Why?", ANSWER, "And now?", ANSWER]);
}

#[test]
fn texts_of_several_lines_and_history() {
    let home = Home::new();
    let mut session = chat(&home, &["run", &home.model()]);
    keys(&mut session, "\"\"\"first\r");
    keys(&mut session, "second\r");
    say(&mut session, "third\"\"\"", ANSWER);
    say(&mut session, "/save lines", "saved to");
    leave(session);
    let saved = std::fs::read_to_string(home.path("store/chats/lines.json")).unwrap();
    let saved: serde_json::Value = serde_json::from_str(&saved).unwrap();
    assert_eq!(saved["messages"][0]["content"], "first\nsecond\nthird");

    // A new chat remembers what was typed: up, up, up is the question above /save and /bye.
    let mut session = chat(&home, &["run", &home.model()]);
    keys(&mut session, "\x1b[A\x1b[A\x1b[A");
    session.exp_string("third").unwrap();
    say(&mut session, "", ANSWER);
    leave(session);
}

#[test]
fn ctrl_c_stops_an_answer_and_twice_at_the_prompt_leaves() {
    let home = Home::new();
    let mut session = chat(&home, &["run", &home.endless_model(), "--ctx", "200000"]);
    keys(&mut session, "Go\r");
    session.exp_string("a\r\na\r\n").unwrap();
    session.send_control('c').unwrap();
    session.exp_string("stopped").unwrap();
    session.exp_string(">>> ").unwrap();
    say(&mut session, "/show history", "Go");
    session.send_control('c').unwrap();
    session.exp_string("again to leave").unwrap();
    session.exp_string(">>> ").unwrap();
    // A line in between takes the first press back.
    say(&mut session, "/show system", "no system prompt");
    session.send_control('c').unwrap();
    session.exp_string("again to leave").unwrap();
    session.exp_string(">>> ").unwrap();
    session.send_control('c').unwrap();
    session.exp_eof().unwrap();
}

#[test]
fn ctrl_d_leaves_and_a_prompt_may_come_first() {
    let home = Home::new();
    let mut command = home.command(&["run", &home.model(), "--interactive", "Hi"]);
    command.env("TERM", "xterm");
    let mut session = spawn_command(command, Some(PATIENCE)).unwrap();
    session.exp_string(ANSWER).unwrap();
    session.exp_string(">>> ").unwrap();
    session.send_control('d').unwrap();
    session.exp_eof().unwrap();
}
