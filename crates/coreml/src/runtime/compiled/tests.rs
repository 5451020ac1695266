use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;

use super::*;

fn package(at: &Path, content: &str) -> PathBuf {
    let folder = at.join("X.mlpackage");
    fs::create_dir_all(folder.join("Data")).unwrap();
    fs::write(folder.join("Data/model"), content).unwrap();
    folder
}

/// What a compiler makes: a folder somewhere else.
fn compile(room: &Path, package: &Path) -> Result<PathBuf> {
    let made = room.join("made");
    fs::create_dir_all(made.join("inner")).unwrap();
    fs::copy(package.join("Data/model"), made.join("inner/model")).unwrap();
    Ok(made)
}

#[test]
fn a_package_is_compiled_once_for_its_content_and_system() {
    let room = tempfile::tempdir().unwrap();
    let cache = CompiledCache::new(room.path().join("cache"));
    let count = AtomicUsize::new(0);
    let get = |package: &Path, system| {
        let compile = |package: &Path| {
            count.fetch_add(1, Ordering::Relaxed);
            compile(room.path(), package)
        };
        cache.compiled(package, system, &Hashes::new(), compile).unwrap().path().to_owned()
    };
    let one = package(room.path(), "one");
    let place = get(&one, "15.1");
    assert_eq!(fs::read_to_string(place.join("inner/model")).unwrap(), "one");
    assert_eq!(get(&one, "15.1"), place);
    // The same elsewhere is the same.
    let other = package(&room.path().join("elsewhere"), "one");
    assert_eq!(get(&other, "15.1"), place);
    assert_eq!(count.load(Ordering::Relaxed), 1);
    assert_ne!(get(&one, "15.2"), place, "another system");
    let changed = get(&package(room.path(), "two"), "15.1");
    assert_ne!(changed, place);
    assert_eq!(count.load(Ordering::Relaxed), 3);

    let entries = cache.list().unwrap();
    assert_eq!(entries.len(), 3);
    assert!(entries.iter().all(|entry| entry.bytes == 3), "{entries:?}");
    let source = entries.last().unwrap().source.clone();
    assert_eq!(source, Some(one.display().to_string()));
    assert_eq!(cache.clear().unwrap(), Cleared { freed: 9, in_use: 0 });
    let left = fs::read_dir(cache.folder()).unwrap().map(|entry| entry.unwrap().path());
    assert!(
        left.into_iter()
            .all(|path| path.extension().is_some_and(|end| end == LOCK || end == IN_USE))
    );
    assert_eq!(cache.list().unwrap(), []);
}

#[test]
fn a_package_whose_hashes_are_known_is_found_without_being_read() {
    let room = tempfile::tempdir().unwrap();
    let cache = CompiledCache::new(room.path().join("cache"));
    let one = package(room.path(), "one");
    let compile = |package: &Path| compile(room.path(), package);
    let get =
        |hashes: &Hashes| cache.compiled(&one, "15.1", hashes, compile).unwrap().path().to_owned();
    let place = get(&Hashes::new());
    let hashes: Hashes = files::below(&one)
        .unwrap()
        .into_iter()
        .map(|path| {
            let (file, len) = files::open(&path).unwrap();
            let hash = files::hash(&path, file, len).unwrap();
            (path, hash)
        })
        .collect();
    // What lies there now nobody looks at.
    fs::write(one.join("Data/model"), "two").unwrap();
    assert_eq!(get(&hashes), place);
    assert_ne!(get(&Hashes::new()), place);
}

#[test]
fn what_fails_leaves_nothing_and_what_was_left_is_made_anew() {
    let room = tempfile::tempdir().unwrap();
    let cache = CompiledCache::new(room.path().join("cache"));
    let make = |result: Result<()>| {
        let made = cache.package(b"key", "a model", |part| {
            assert!(!part.exists(), "nothing is left of an earlier attempt");
            fs::create_dir(part).unwrap();
            fs::write(part.join("half"), "1234").unwrap();
            result
        });
        made.map(|kept| kept.path().to_owned())
    };
    assert!(make(Err(Error::malformed("no"))).is_err());
    assert_eq!(cache.list().unwrap(), []);
    // A process that was ended while it made one.
    let place = make(Ok(())).unwrap();
    let part = place.with_extension("mlpackage.part");
    fs::rename(&place, &part).unwrap();
    assert_eq!(make(Ok(())).unwrap(), place);
    fs::create_dir(&part).unwrap();
    fs::write(part.join("half"), "1").unwrap();
    assert_eq!(cache.clear().unwrap().freed, 5);
    assert!(!part.exists() && !place.exists());
}

#[test]
fn who_comes_second_waits_for_the_first_and_clearing_leaves_both_alone() {
    let room = tempfile::tempdir().unwrap();
    let cache = CompiledCache::new(room.path().join("cache"));
    let (begun, wait_for_begin) = mpsc::channel();
    let (go_on, wait_to_go_on) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        let cache = &cache;
        let first = scope.spawn(move || {
            cache.package(b"key", "first", |part| {
                fs::create_dir(part).unwrap();
                begun.send(()).unwrap();
                wait_to_go_on.recv().unwrap();
                Ok(())
            })
        });
        wait_for_begin.recv().unwrap();
        assert_eq!(cache.clear().unwrap(), Cleared { freed: 0, in_use: 1 });
        let second =
            scope.spawn(|| cache.package(b"key", "second", |_| panic!("the first one makes it")));
        go_on.send(()).unwrap();
        let (first, second) = (first.join().unwrap(), second.join().unwrap());
        let (first, second) = (first.unwrap(), second.unwrap());
        assert_eq!(first.path(), second.path());
        // What one of them still uses stays.
        drop(first);
        assert_eq!(cache.clear().unwrap(), Cleared { freed: 0, in_use: 1 });
        assert!(second.path().exists());
    });
    assert_eq!(cache.list().unwrap()[0].source.as_deref(), Some("first"));
    assert_eq!(cache.clear().unwrap().in_use, 0);
    assert_eq!(cache.list().unwrap(), []);
}

#[cfg(unix)]
#[test]
fn packages_made_of_links_are_told_apart_by_what_the_links_lead_to() {
    let room = tempfile::tempdir().unwrap();
    let cache = CompiledCache::new(room.path().join("cache"));
    let linked = |name: &str| {
        let content = package(&room.path().join("blobs").join(name), name);
        let folder = room.path().join(name).join("X.mlpackage");
        fs::create_dir_all(folder.join("Data")).unwrap();
        std::os::unix::fs::symlink(content.join("Data/model"), folder.join("Data/model")).unwrap();
        folder
    };
    let places = ["one", "two"].map(|name| {
        let compile = |package: &Path| compile(room.path(), package);
        let place = cache.compiled(&linked(name), "15.1", &Hashes::new(), compile).unwrap();
        let place = place.path().to_owned();
        assert_eq!(fs::read_to_string(place.join("inner/model")).unwrap(), name);
        place
    });
    assert_ne!(places[0], places[1]);
    assert_eq!(cache.list().unwrap().len(), 2);
}

#[test]
fn what_was_compiled_and_cannot_be_kept_is_removed() {
    let room = tempfile::tempdir().unwrap();
    let cache = CompiledCache::new(room.path().join("cache"));
    let in_the_way = |package: &Path| {
        let part = cache.paths(&[UNFINISHED]).unwrap().remove(0);
        fs::write(part.join(MADE), "in the way").unwrap();
        compile(room.path(), package)
    };
    let error = cache
        .compiled(&package(room.path(), "one"), "15.1", &Hashes::new(), in_the_way)
        .unwrap_err();
    assert!(matches!(error, Error::Io { .. }), "{error}");
    assert!(!room.path().join("made").exists());
    assert_eq!(cache.paths(&[COMPILED, UNFINISHED]).unwrap(), Vec::<PathBuf>::new());
}

#[test]
fn a_folder_can_be_moved_to_another_disk() {
    let room = tempfile::tempdir().unwrap();
    let from = package(room.path(), "one");
    let to = room.path().join("to");
    // A folder with something in it is in the way of a rename, as another disk is.
    fs::create_dir(&to).unwrap();
    fs::write(to.join("other"), "").unwrap();
    moved(&from, &to).unwrap();
    assert_eq!(fs::read_to_string(to.join("Data/model")).unwrap(), "one");
    assert!(!from.exists());
}
