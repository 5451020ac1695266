//! How fast a model runs on the units of a machine, and the files that keep it.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use baton_graph::{KvType, hex};
use serde::{Deserialize, Serialize};

use crate::{Error, Result};

/// Changes with the meaning of the fields; files of another version are not used.
const VERSION: u32 = 2;
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
    /// What the cache is kept as.
    kv_type: String,
    /// Each unit.
    pub units: Vec<Speeds>,
}

/// How fast one unit is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Speeds {
    /// Its name.
    pub unit: String,
    /// The device with its driver, if the machine may have several or others.
    pub device: String,
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

/// Where profiles are kept: a folder with a file for each machine, type of cache and model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profiles {
    folder: PathBuf,
    machine: String,
    kv_type: KvType,
}

impl Profiles {
    /// Those in `folder` of the machine that is called so, by a text that differs wherever speeds do,
    /// with a cache of this type.
    pub fn new(folder: impl Into<PathBuf>, machine: impl Into<String>, kv_type: KvType) -> Self {
        Profiles { folder: folder.into(), machine: machine.into(), kv_type }
    }

    /// The file of the model with this fingerprint.
    pub fn path(&self, fingerprint: &[u8; 32]) -> PathBuf {
        let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
        let machine: String = self.machine.chars().take(80).map(plain).collect();
        self.folder.join(format!("{}-{}-{machine}.json", &hex(fingerprint)[..16], self.kv_type))
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
            tracing::debug!("{} is of version {}", path.display(), version.version);
            return Ok(None);
        }
        let profile: Profile = serde_json::from_slice(&text).map_err(|error| error.to_string())?;
        let own = self.profile(fingerprint, Vec::new());
        if (Profile { units: Vec::new(), ..profile.clone() }) != own {
            return Err("it is of another model or machine".into());
        }
        match profile.units.iter().all(Speeds::is_sound) {
            true => Ok(Some(profile)),
            false => Err("its numbers make no sense".into()),
        }
    }

    fn profile(&self, fingerprint: &[u8; 32], units: Vec<Speeds>) -> Profile {
        let (model, machine, kv_type) =
            (hex(fingerprint), self.machine.clone(), self.kv_type.to_string());
        Profile { version: VERSION, model, machine, kv_type, units }
    }

    /// Keeps what was measured of some units, beside what is known of others. The file is complete or
    /// as it was.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn keep(&self, fingerprint: &[u8; 32], measured: Vec<Speeds>) -> Result<PathBuf> {
        let mut units = self.find(fingerprint).map_or_else(Vec::new, |profile| profile.units);
        units.retain(|old| measured.iter().all(|new| new.unit != old.unit));
        units.extend(measured);
        let profile = self.profile(fingerprint, units);
        let path = self.path(fingerprint);
        let write = || -> io::Result<()> {
            std::fs::create_dir_all(&self.folder)?;
            let mut file = tempfile::NamedTempFile::new_in(&self.folder)?;
            serde_json::to_writer_pretty(&mut file, &profile)?;
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

#[cfg(test)]
mod tests {
    use super::*;

    fn speeds() -> Speeds {
        let prefill = vec![(16, 0.1), (116, 0.3)];
        let (unit, device) = ("cpu".into(), String::new());
        Speeds { unit, device, prefill, decode: 0.04, handoff: (1e-5, 2e-5) }
    }

    fn profiles(folder: impl Into<PathBuf>, machine: &str) -> Profiles {
        Profiles::new(folder, machine, KvType::F16)
    }

    fn units(profiles: &Profiles, seed: u8) -> Option<Vec<Speeds>> {
        profiles.find(&[seed; 32]).map(|profile| profile.units)
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
        let place = folder.path().join("profiles");
        let own = profiles(&place, "A machine/2");
        assert_eq!(own.find(&[7; 32]), None);
        let path = own.keep(&[7; 32], vec![speeds()]).unwrap();
        assert_eq!(units(&own, 7), Some(vec![speeds()]));
        assert_eq!(own.find(&[8; 32]), None);
        // Another machine whose name gives the same file.
        let other = profiles(&place, "A machine-2");
        assert_eq!((other.path(&[7; 32]), other.find(&[7; 32])), (path, None));
        assert_eq!(Profiles::new(&place, "A machine/2", KvType::Q8_0).find(&[7; 32]), None);
        assert_eq!(std::fs::read_dir(place).unwrap().count(), 1);
    }

    #[test]
    fn what_is_measured_of_one_unit_leaves_the_others_as_they_were() {
        let folder = tempfile::tempdir().unwrap();
        let own = profiles(folder.path(), "m");
        let gpu = Speeds { unit: "gpu".into(), device: "a card".into(), ..speeds() };
        own.keep(&[7; 32], vec![speeds(), gpu.clone()]).unwrap();
        let faster = Speeds { decode: 0.02, ..speeds() };
        own.keep(&[7; 32], vec![faster.clone()]).unwrap();
        assert_eq!(units(&own, 7), Some(vec![gpu, faster]));
    }

    #[test]
    fn damaged_profiles_are_as_good_as_none() {
        let folder = tempfile::tempdir().unwrap();
        let profiles = self::profiles(folder.path(), "m");
        let path = profiles.keep(&[7; 32], vec![speeds()]).unwrap();
        let good = std::fs::read_to_string(&path).unwrap();
        let bad = [
            good.replace("\"version\": 2", "\"version\": 1"),
            good.replace("f16", "q8_0"),
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
        // And what is measured then takes their place.
        profiles.keep(&[7; 32], vec![speeds()]).unwrap();
        assert_eq!(units(&profiles, 7), Some(vec![speeds()]));
        let unwritable = self::profiles(path, "m");
        let error = unwritable.keep(&[7; 32], vec![speeds()]).unwrap_err();
        assert!(matches!(error, Error::Profile { .. }), "{error}");
    }
}
