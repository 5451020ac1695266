//! Several processes on one store: waiting for each other, and one that is killed.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use baton_hub::Store;

use crate::server::{Reply, Server};
use crate::{Room, Told, gguf, holds, read};

const LEN: usize = 400_000;

/// Not a test of its own: what a child process of the other tests runs.
#[test]
fn child() {
    let Ok(model) = std::env::var("CHILD_GETS") else { return };
    let store = Store::open_default().unwrap();
    let mut told = Told::default();
    let result = store.get(&store.resolve(&model).unwrap(), &mut told);
    let mut lines = told.lines;
    lines.push(match result {
        Ok(model) => format!("ok {}", model.path.display()),
        Err(error) => format!("error {error}"),
    });
    std::fs::write(std::env::var("CHILD_WRITES").unwrap(), lines.join("\n")).unwrap();
}

/// The command that gets `m` in a process of its own, and the file to which it writes what was said.
pub fn child_command(room: &Room, name: &str) -> (Command, PathBuf) {
    let output = room.dir.path().join(name);
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "processes::child", "--nocapture"])
        .env("CHILD_GETS", "m")
        .env("CHILD_WRITES", &output)
        .env("BATON_HOME", &room.settings.home)
        .env("BATON_CONFIG", room.dir.path())
        .env("HF_HUB_CACHE", room.dir.path().join("hf"))
        .env("HF_ENDPOINT", "http://127.0.0.1:1")
        .env_remove("HF_HUB_OFFLINE")
        .stdout(Stdio::null());
    (command, output)
}

fn spawn(room: &Room, name: &str) -> (Child, PathBuf) {
    let (mut command, output) = child_command(room, name);
    (command.spawn().unwrap(), output)
}

fn slow_server() -> Server {
    Server::start(|request, before| {
        let reply = Reply::file(request, &gguf(LEN, 1), "\"v1\"");
        if before == 0 { reply.drip(Duration::from_millis(20)) } else { reply }
    })
}

/// Waits until the download has begun.
fn wait_for_part(room: &Room) -> u64 {
    let begun = Instant::now();
    loop {
        match room.parts().first() {
            Some((_, len)) if *len >= 20_000 => return *len,
            _ => assert!(begun.elapsed() < Duration::from_secs(60), "nothing is downloaded"),
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn of_two_processes_one_downloads_and_the_other_waits() {
    let server = slow_server();
    let room = Room::new();
    room.catalog(&gguf(LEN, 1), &[server.url("/m.gguf")]);
    let (mut first, first_output) = spawn(&room, "first");
    wait_for_part(&room);
    room.store().discard_unfinished().unwrap();
    let (mut second, second_output) = spawn(&room, "second");
    assert!(first.wait().unwrap().success() && second.wait().unwrap().success());
    let (first, second) = (read(&first_output), read(&second_output));
    assert!(first.starts_with("from 0\n") && first.contains("\nok "), "{first}");
    assert!(second.starts_with("waiting\nok "), "{second}");
    assert_eq!(server.log().len(), 1, "one download for both");
    holds(&room.get("m").0, &gguf(LEN, 1));
}

#[test]
fn a_killed_download_is_resumed() {
    let server = slow_server();
    let room = Room::new();
    room.catalog(&gguf(LEN, 1), &[server.url("/m.gguf")]);
    let (mut first, output) = spawn(&room, "first");
    wait_for_part(&room);
    first.kill().unwrap();
    first.wait().unwrap();
    assert!(!output.exists(), "it was killed in the middle");
    let kept = room.parts()[0].1;
    assert!(room.store().list().unwrap().is_empty());

    let (model, told) = room.get("m");
    holds(&model, &gguf(LEN, 1));
    assert_eq!(told[0], format!("from {kept}"));
    assert_eq!(server.log()[1].range(), Some(kept as usize));
}
