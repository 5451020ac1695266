//! How fast a model runs on the units of a machine, and the files that keep it.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::{Error, Result};

/// Changes with the meaning of the fields; files of another version are not used.
const VERSION: u32 = 1;
/// No profile is larger.
const MOST_BYTES: u64 = 64 << 10;
/// Most lengths of a profile.
const MOST_POINTS: usize = 64;

/// What was measured of one model on one machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    version: u32,
    /// The model's fingerprint in hexadecimal digits.
    model: String,
    /// The machine, with everything that speed depends on.
    machine: String,
    /// Each unit.
    pub units: Vec<Speeds>,
}

/// How fast one unit is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Speeds {
    /// Its name.
    pub unit: String,
    /// Tokens of a prompt, at least 2 and rising, and the seconds that it takes at once.
    pub prefill: Vec<(usize, f64)>,
    /// Seconds for one token of an answer.
    pub decode: f64,
    /// Seconds to hand over the cache of one token: out of this unit, and into it.
    pub handoff: (f64, f64),
}

impl Speeds {
    /// The seconds of a prompt of `tokens` tokens: between the lengths that were measured on a
    /// straight line, beyond the longest at its rate.
    pub fn prefill(&self, tokens: usize) -> f64 {
        let mut before = (1, self.decode);
        for &(n, seconds) in &self.prefill {
            if tokens <= n {
                let part = (tokens.max(before.0) - before.0) as f64 / (n - before.0) as f64;
                return before.1 + part * (seconds - before.1);
            }
            before = (n, seconds);
        }
        before.1 * tokens as f64 / before.0 as f64
    }

    fn is_sound(&self) -> bool {
        let number = |x: f64| x.is_finite() && (0.0..1e6).contains(&x);
        let rising = self.prefill.windows(2).all(|pair| pair[0].0 < pair[1].0);
        let lengths =
            self.prefill.iter().all(|&(n, time)| (2..1 << 30).contains(&n) && number(time));
        let singles = [self.decode, self.handoff.0, self.handoff.1];
        self.prefill.len() <= MOST_POINTS && rising && lengths && singles.into_iter().all(number)
    }
}

impl Profile {
    /// Of the model with this fingerprint.
    pub fn new(fingerprint: &[u8; 32], machine: &str, units: Vec<Speeds>) -> Self {
        Profile { version: VERSION, model: hex(fingerprint), machine: machine.to_owned(), units }
    }
}

/// Where profiles are kept: a folder with a file for each machine and model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profiles {
    folder: PathBuf,
    machine: String,
}

impl Profiles {
    /// Those in `folder` of the machine that is called so: by a text that differs wherever speeds do.
    pub fn new(folder: impl Into<PathBuf>, machine: impl Into<String>) -> Self {
        Profiles { folder: folder.into(), machine: machine.into() }
    }

    /// The machine.
    pub fn machine(&self) -> &str {
        &self.machine
    }

    /// The file of the model with this fingerprint.
    pub fn path(&self, fingerprint: &[u8; 32]) -> PathBuf {
        let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
        let machine: String = self.machine.chars().take(80).map(plain).collect();
        self.folder.join(format!("{}-{machine}.json", &hex(fingerprint)[..16]))
    }

    /// The profile of a model, if there is one that can be used; a damaged one is as good as none, and
    /// the log says so.
    pub fn find(&self, fingerprint: &[u8; 32]) -> Option<Profile> {
        let path = self.path(fingerprint);
        match self.read(&path, fingerprint) {
            Ok(profile) => profile,
            Err(problem) => {
                tracing::warn!(
                    "{} is not used: {problem}; `baton tune` makes a new one",
                    path.display()
                );
                None
            }
        }
    }

    fn read(
        &self,
        path: &Path,
        fingerprint: &[u8; 32],
    ) -> std::result::Result<Option<Profile>, String> {
        // What is no file might never end, or never begin.
        let opened = path.metadata().and_then(|found| match found.is_file() {
            true => File::open(path),
            false => Err(io::Error::other("it is no file")),
        });
        let file = match opened {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error.to_string()),
        };
        let mut text = Vec::new();
        file.take(MOST_BYTES + 1).read_to_end(&mut text).map_err(|error| error.to_string())?;
        if text.len() as u64 > MOST_BYTES {
            return Err("it is too large".into());
        }
        let version: Version = serde_json::from_slice(&text).map_err(|error| error.to_string())?;
        if version.version != VERSION {
            return Err(format!("it is of version {}", version.version));
        }
        let profile: Profile = serde_json::from_slice(&text).map_err(|error| error.to_string())?;
        if profile.model != hex(fingerprint) || profile.machine != self.machine {
            return Err("it is of another model or machine".into());
        }
        match profile.units.iter().all(Speeds::is_sound) {
            true => Ok(Some(profile)),
            false => Err("its numbers make no sense".into()),
        }
    }

    /// Keeps a profile, in the place of an older one. The file is complete or not there at all.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn store(&self, fingerprint: &[u8; 32], profile: &Profile) -> Result<PathBuf> {
        let path = self.path(fingerprint);
        let write = || -> io::Result<()> {
            std::fs::create_dir_all(&self.folder)?;
            let mut file = tempfile::NamedTempFile::new_in(&self.folder)?;
            serde_json::to_writer_pretty(&mut file, profile)?;
            file.write_all(b"\n")?;
            file.persist(&path)?;
            Ok(())
        };
        match write() {
            Ok(()) => Ok(path),
            Err(source) => Err(Error::Profile { path, source }),
        }
    }
}

/// What a file of any version has.
#[derive(Deserialize)]
struct Version {
    version: u32,
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn speeds() -> Speeds {
        let prefill = vec![(16, 0.1), (116, 0.3)];
        Speeds { unit: "cpu".into(), prefill, decode: 0.04, handoff: (1e-5, 2e-5) }
    }

    #[test]
    fn times_between_lengths_lie_between_theirs() {
        let speeds = speeds();
        assert_eq!((speeds.prefill(1), speeds.prefill(16), speeds.prefill(116)), (0.04, 0.1, 0.3));
        assert!((speeds.prefill(66) - 0.2).abs() < 1e-12);
        assert!((speeds.prefill(1160) - 3.0).abs() < 1e-12);
        assert!((0.04..0.1).contains(&speeds.prefill(7)));
        let unmeasured = Speeds { prefill: vec![], ..speeds };
        assert_eq!(unmeasured.prefill(10), 0.4);
    }

    #[test]
    fn what_was_stored_is_found_on_this_machine_for_this_model_only() {
        let folder = tempfile::tempdir().unwrap();
        let profiles = Profiles::new(folder.path().join("profiles"), "A machine/2");
        let profile = Profile::new(&[7; 32], profiles.machine(), vec![speeds()]);
        assert_eq!(profiles.find(&[7; 32]), None);
        let path = profiles.store(&[7; 32], &profile).unwrap();
        assert_eq!(profiles.find(&[7; 32]), Some(profile.clone()));
        assert_eq!(profiles.find(&[8; 32]), None);
        // Another machine whose name gives the same file.
        let other = Profiles::new(folder.path().join("profiles"), "A machine-2");
        assert_eq!((other.path(&[7; 32]), other.find(&[7; 32])), (path, None));
        assert_eq!(std::fs::read_dir(folder.path().join("profiles")).unwrap().count(), 1);
    }

    #[test]
    fn damaged_profiles_are_as_good_as_none() {
        let folder = tempfile::tempdir().unwrap();
        let profiles = Profiles::new(folder.path(), "m");
        let profile = Profile::new(&[7; 32], "m", vec![speeds()]);
        let path = profiles.store(&[7; 32], &profile).unwrap();
        let good = std::fs::read_to_string(&path).unwrap();
        let bad = [
            good.replace("\"version\": 1", "\"version\": 2"),
            good.replace("0.04", "-1.0"),
            good.replace("0.04", "1e999"),
            good.replace("116", "3"),
            good.replace("16,", "0,"),
            good.replace("\"unit\"", "\"unti\""),
            good[..good.len() / 2].to_owned(),
            String::new(),
            " ".repeat(70_000),
        ];
        for text in bad {
            assert_ne!(text, good);
            std::fs::write(&path, &text).unwrap();
            assert_eq!(profiles.find(&[7; 32]), None, "{text}");
        }
        let unwritable = Profiles::new(path, "m");
        let error = unwritable.store(&[7; 32], &profile).unwrap_err();
        assert!(matches!(error, Error::Profile { .. }), "{error}");
    }
}
