//! The folder that is written, whole or not at all.

use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::time::{Duration, SystemTime};

use anyhow::Context;

use crate::failure::hinted;
use crate::format;
use crate::interrupt::Unfinished;

/// What folders are called in which something is being made.
const UNFINISHED: &str = ".baton-compile-";
/// A folder without a file that is younger than that may not have its lock yet.
const YOUNG: Duration = Duration::from_secs(60);

/// Writes the folder `output`: all of it lies beside its place until it is whole. What earlier programs have
/// left there that were ended meanwhile is removed.
pub fn whole_folder<T>(
    output: &Path,
    write: impl FnOnce(&Path) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    sweep(parent(output), SystemTime::now());
    let partial = begin(output)?;
    // As long as it is held, nobody else takes the folder for a leftover.
    let _lock = lock(partial.path());
    // Errors name the place that was asked for.
    let made = write(partial.path()).map_err(|error| match error.downcast() {
        Ok(error) => baton_coreml::Error::moved(error, partial.path(), output).into(),
        Err(error) => error,
    })?;
    partial.finish(output).with_context(|| format!("cannot write {}", output.display()))?;
    Ok(made)
}

/// That a folder can be made there, before anything is computed for it.
pub fn can_be_written(output: &Path) -> anyhow::Result<()> {
    begin(output).map(drop)
}

/// That so many bytes are free where the folder will lie, if the system tells.
pub fn has_room(output: &Path, needed: u64) -> anyhow::Result<()> {
    match fs4::available_space(parent(output)) {
        Ok(free) => enough(output, needed, free),
        Err(_) => Ok(()),
    }
}

fn enough(output: &Path, needed: u64, free: u64) -> anyhow::Result<()> {
    if needed <= free {
        return Ok(());
    }
    let (needed, free) = (format::bytes(needed), format::bytes(free));
    let shown = output.display();
    let problem =
        format!("{shown} does not fit on its disk: it needs {needed} at least, {free} are free");
    Err(hinted(problem, "free some, name a folder on another disk, or ask for fewer --bits"))
}

fn parent(output: &Path) -> &Path {
    let parent = output.parent().filter(|path| !path.as_os_str().is_empty());
    parent.unwrap_or(Path::new("."))
}

fn begin(output: &Path) -> anyhow::Result<Unfinished> {
    let (parent, shown) = (parent(output), output.display());
    if !parent.is_dir() {
        let what = if parent.exists() { "is no folder" } else { "is not there" };
        return Err(hinted(
            format!("{shown} cannot be made: {} {what}", parent.display()),
            "make the folder first, or name another one with --output",
        ));
    }
    // Its own text would name the folder that this one is made as.
    let plain = |error: io::Error| io::Error::from(error.kind());
    Unfinished::make(|| partial_folder(parent))
        .map_err(plain)
        .with_context(|| format!("cannot write in {}, for {shown}", parent.display()))
}

/// A folder that becomes the output, with the permissions that a folder made at once would have.
fn partial_folder(parent: &Path) -> io::Result<tempfile::TempDir> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(UNFINISHED);
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        // What the umask leaves of them; otherwise they would be those of something private.
        builder.permissions(fs::Permissions::from_mode(0o777));
    }
    builder.tempdir_in(parent)
}

/// Holds a folder, where the system locks folders; none if somebody else holds it.
fn lock(folder: &Path) -> Option<File> {
    let file = File::open(folder).ok()?;
    file.try_lock().is_ok().then_some(file)
}

/// Removes what programs have left that were ended while they made a folder. What cannot be removed, or is
/// still worked on, stays.
fn sweep(parent: &Path, now: SystemTime) {
    let entries = fs::read_dir(parent).into_iter().flatten().flatten();
    for entry in entries.filter(|e| e.file_name().to_string_lossy().starts_with(UNFINISHED)) {
        let path = entry.path();
        // Not what a link leads to.
        let Ok(info) = path.symlink_metadata() else { continue };
        let age = info.modified().ok().and_then(|changed| now.duration_since(changed).ok());
        // Whoever writes into it has locked it before.
        let is_begun = fs::read_dir(&path).is_ok_and(|mut entries| entries.next().is_some());
        if !info.is_dir() || !is_begun && age.is_none_or(|age| age < YOUNG) {
            continue;
        }
        if let Some(_lock) = lock(&path) {
            tracing::info!(
                "{} was left by a program that was ended; it is removed",
                path.display()
            );
            let _ = fs::remove_dir_all(&path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(unix)]
    #[test]
    fn the_folder_has_the_permissions_of_one_made_at_once() {
        use std::os::unix::fs::PermissionsExt;
        let parent = tempfile::tempdir().unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode();
        let plain = parent.path().join("plain");
        fs::create_dir(&plain).unwrap();
        let folder = partial_folder(parent.path()).unwrap();
        assert_eq!(mode(folder.path()), mode(&plain));
    }

    #[cfg(unix)]
    #[test]
    fn what_ended_programs_have_left_is_removed_and_what_others_work_on_stays() {
        let begun = SystemTime::now();
        let parent = tempfile::tempdir().unwrap();
        let at = |name: &str| parent.path().join(name);
        for name in [".baton-compile-left", ".baton-compile-held", "other"] {
            fs::create_dir(at(name)).unwrap();
            fs::write(at(name).join("x"), "y").unwrap();
        }
        fs::create_dir(at(".baton-compile-new")).unwrap();
        std::os::unix::fs::symlink(at("other"), at(".baton-compile-link")).unwrap();
        let held = lock(&at(".baton-compile-held")).unwrap();
        sweep(parent.path(), begun);
        assert!(!at(".baton-compile-left").exists());
        assert!(at(".baton-compile-new").exists(), "it may have just begun");
        sweep(parent.path(), SystemTime::now() + 2 * YOUNG);
        assert!(!at(".baton-compile-new").exists());
        assert!(at(".baton-compile-held/x").exists() && at("other/x").exists());
        drop(held);
        sweep(parent.path(), SystemTime::now());
        assert!(!at(".baton-compile-held").exists());
    }

    #[test]
    fn an_error_names_the_folder_that_was_asked_for() {
        let parent = tempfile::tempdir().unwrap();
        let error = can_be_written(&parent.path().join("a/b/c")).unwrap_err();
        let text = format!("{error:#}");
        assert!(text.contains("a/b is not there") && !text.contains(UNFINISHED), "{text}");
        fs::write(parent.path().join("file"), "").unwrap();
        let error = can_be_written(&parent.path().join("file/c")).unwrap_err();
        let text = format!("{error:#}");
        assert!(text.contains("file is no folder") && !text.contains(UNFINISHED), "{text}");
        can_be_written(&parent.path().join("c")).unwrap();
        assert_eq!(fs::read_dir(parent.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_disk_that_is_too_small_is_said_with_both_numbers() {
        let error = enough(Path::new("out"), 2_000_000_000, 5_000_000).unwrap_err().to_string();
        assert!(
            error.contains("out") && error.contains("2.0 GB") && error.contains("5.0 MB"),
            "{error}"
        );
        enough(Path::new("out"), 7, 7).unwrap();
        has_room(&tempfile::tempdir().unwrap().path().join("x"), 1).unwrap();
        assert!(has_room(&tempfile::tempdir().unwrap().path().join("x"), u64::MAX).is_err());
    }
}
