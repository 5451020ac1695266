//! Disks that are too small, or become full in the middle.

use std::path::Path;
use std::process::Command;

use baton_hub::Error;

use crate::processes::child_command;
use crate::server::{Reply, Server};
use crate::{Room, fails, gguf, holds, read};

const LEN: usize = 3 << 20;

/// A small file system in memory; `None`, said aloud, where this process may not mount one.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    fn mount() -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let mount = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=1m", "tmpfs"])
            .arg(dir.path())
            .output();
        match mount {
            Ok(output) if output.status.success() => Some(Self(dir)),
            other => {
                println!("skipped: cannot mount a small file system: {other:?}");
                None
            }
        }
    }

    fn grow(&self) {
        let mut mount = Command::new("mount");
        let status = mount.args(["-o", "remount,size=16m"]).arg(self.path()).status().unwrap();
        assert!(status.success());
    }

    fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0.path()).status();
    }
}

#[test]
fn too_small_a_disk_shows_before_the_download() {
    let Some(disk) = SmallDisk::mount() else { return };
    let server = Server::start(|request, _| Reply::file(request, &gguf(LEN, 1), "\"v1\""));
    let mut room = Room::new();
    room.settings.home = disk.path().join("home");
    room.catalog(&gguf(LEN, 1), &[server.url("/m.gguf"), server.url("/other.gguf")]);
    let error = fails(room.get("m").0);
    assert!(
        matches!(error, Error::DiskFull { needed, available, .. }
        if needed == Some(LEN as u64) && available <= 1 << 20),
        "{error}"
    );
    assert!(server.asked("/other.gguf").is_empty(), "another source would not help");
    assert!(room.parts().iter().all(|(_, len)| *len == 0));
}

#[test]
fn a_disk_that_fills_up_keeps_the_part_for_later() {
    let Some(disk) = SmallDisk::mount() else { return };
    // Without a length nobody can tell beforehand.
    let server = Server::start(|request, before| {
        let mut reply = Reply::file(request, &gguf(LEN, 1), "\"v1\"");
        reply.chunked = before == 0;
        reply
    });
    let mut room = Room::new();
    room.settings.home = disk.path().join("home");
    let url = server.url("/m.gguf");
    let error = fails(room.get(&url).0);
    assert!(matches!(error, Error::DiskFull { .. }), "{error}");
    assert!(error.to_string().contains("BATON_HOME"), "{error}");
    let kept = room.parts()[0].1;
    assert!(kept > 500_000, "{kept} bytes kept");
    disk.grow();
    let (model, told) = room.get(&url);
    holds(&model, &gguf(LEN, 1));
    assert_eq!(told[0], format!("from {kept}"));
}

/// The same by a limit on file sizes, which needs no rights.
#[test]
fn a_write_that_fails_midway_keeps_the_part() {
    let server = Server::start(|request, _| Reply::file(request, &gguf(LEN, 1), "\"v1\""));
    let room = Room::new();
    room.catalog(&gguf(LEN, 1), &[server.url("/m.gguf")]);
    let (child, output) = child_command(&room, "limited");
    let mut limited = Command::new("sh");
    // The signal that comes with the error would end the process.
    limited.args(["-c", "trap '' XFSZ; ulimit -f 1024; exec \"$0\" \"$@\""]);
    limited.arg(child.get_program()).args(child.get_args());
    for (name, value) in child.get_envs() {
        match value {
            Some(value) => limited.env(name, value),
            None => limited.env_remove(name),
        };
    }
    limited.stdout(std::process::Stdio::null());
    assert!(limited.status().unwrap().success());
    let said = read(&output);
    assert!(said.contains("error not enough disk space"), "{said}");
    let kept = room.parts()[0].1;
    assert!(kept > 0 && kept <= 1024 * 1024, "{kept} bytes kept");
    let (model, told) = room.get("m");
    holds(&model, &gguf(LEN, 1));
    assert_eq!(told[0], format!("from {kept}"));
}
