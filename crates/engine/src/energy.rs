//! What a computation takes of energy, where the machine tells: the RAPL counters of Linux, or the program
//! `macmon` on a Mac.
//!
//! They count whole packages, so other work on the machine is in them.

mod macmon;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use self::macmon::Macmon;
pub use self::macmon::Rails;

/// Where Linux shows them.
const POWERCAP: &str = "/sys/class/powercap";

/// The counters of all packages, or why there are none.
#[derive(Clone, Debug)]
pub struct Meter {
    source: Result<Source, String>,
}

#[derive(Clone, Debug)]
enum Source {
    Counters(Vec<Counter>),
    Macmon(Arc<Macmon>),
}

/// The energy counter of one package, in microjoules.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Counter {
    file: PathBuf,
    /// After this value it starts anew.
    range: u64,
}

/// What had been taken at some moment.
#[derive(Clone, Debug, PartialEq)]
pub struct Reading(Read);

#[derive(Clone, Debug, PartialEq)]
enum Read {
    /// What the counters of all packages showed.
    Counters(Vec<u64>),
    /// Joules since the meter was found.
    Rails(Rails),
}

/// Energy in the making.
#[derive(Debug)]
pub struct Tally<'a> {
    meter: &'a Meter,
    joules: f64,
    failed: Option<String>,
}

impl Meter {
    /// The machine's meter.
    pub fn find() -> Meter {
        let source = match std::env::consts::OS {
            "linux" => packages(Path::new(POWERCAP)).map(Source::Counters),
            "macos" => Macmon::start().map(|macmon| Source::Macmon(Arc::new(macmon))),
            _ => Err("the energy counters of this system are not read yet".into()),
        };
        Meter { source }
    }

    /// Starts to count.
    pub fn start(&self) -> Tally<'_> {
        Tally { meter: self, joules: 0.0, failed: None }
    }

    /// Reads the counters.
    ///
    /// # Errors
    /// The reason why the machine does not tell.
    pub fn read(&self) -> Result<Reading, String> {
        Ok(Reading(match self.source.as_ref().map_err(Clone::clone)? {
            Source::Counters(counters) => {
                let values = counters.iter().map(Counter::read);
                Read::Counters(values.collect::<Result<_, _>>()?)
            }
            Source::Macmon(macmon) => Read::Rails(macmon.read()?),
        }))
    }

    /// Joules between two readings.
    pub fn joules(&self, before: &Reading, after: &Reading) -> f64 {
        match (&self.source, &before.0, &after.0) {
            (Ok(Source::Counters(counters)), Read::Counters(before), Read::Counters(after)) => {
                let each = counters.iter().zip(before.iter().zip(after));
                let spent = each.map(|(counter, (&before, &after))| counter.spent(before, after));
                spent.fold(0, u64::saturating_add) as f64 / 1e6
            }
            _ => self.rails(before, after).map_or(0.0, |rails| rails.total()),
        }
    }

    /// Joules between two readings by unit, if the machine tells them apart.
    pub fn rails(&self, before: &Reading, after: &Reading) -> Option<Rails> {
        match (&before.0, &after.0) {
            (Read::Rails(before), Read::Rails(after)) => Some(after.since(before)),
            _ => None,
        }
    }
}

impl Tally<'_> {
    /// Counts what `work` takes.
    pub fn during<T>(&mut self, work: impl FnOnce() -> T) -> T {
        let before = self.meter.read();
        let result = work();
        let spent = before.and_then(|before| Ok(self.meter.joules(&before, &self.meter.read()?)));
        match spent {
            Ok(spent) => self.joules += spent,
            Err(reason) => self.failed = Some(reason),
        }
        result
    }

    /// Joules of all that was counted.
    ///
    /// # Errors
    /// The reason why the machine does not tell.
    pub fn total(&self) -> Result<f64, String> {
        match &self.failed {
            Some(reason) => Err(reason.clone()),
            None => Ok(self.joules),
        }
    }
}

impl Counter {
    fn read(&self) -> Result<u64, String> {
        read_number(&self.file)
    }

    fn spent(&self, before: u64, after: u64) -> u64 {
        match after.checked_sub(before) {
            Some(spent) => spent,
            None => self.range.saturating_sub(before).saturating_add(after),
        }
    }
}

/// Counters of packages, `intel-rapl:N`; their parts, `intel-rapl:N:M`, are in them already.
fn packages(folder: &Path) -> Result<Vec<Counter>, String> {
    let none = || format!("{} has no counters of processor packages", folder.display());
    let entries = std::fs::read_dir(folder).map_err(|_| none())?;
    let mut counters = Vec::new();
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let is_package = name
            .strip_prefix("intel-rapl:")
            .is_some_and(|number| number.chars().all(|c| c.is_ascii_digit()));
        // `psys`, where it exists, counts the packages a second time.
        let kind = std::fs::read_to_string(entry.path().join("name")).unwrap_or_default();
        if is_package && kind.starts_with("package") {
            let file = entry.path().join("energy_uj");
            read_number(&file)?;
            let range = read_number(&entry.path().join("max_energy_range_uj"))?;
            counters.push(Counter { file, range });
        }
    }
    if counters.is_empty() { Err(none()) } else { Ok(counters) }
}

fn read_number(file: &Path) -> Result<u64, String> {
    let text = std::fs::read_to_string(file)
        .map_err(|error| format!("{} cannot be read: {error}", file.display()))?;
    text.trim().parse().map_err(|_| format!("{} holds no number", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn zone(folder: &Path, name: &str, kind: &str, energy: &str) {
        let zone = folder.join(name);
        std::fs::create_dir(&zone).unwrap();
        std::fs::write(zone.join("name"), kind).unwrap();
        std::fs::write(zone.join("energy_uj"), energy).unwrap();
        std::fs::write(zone.join("max_energy_range_uj"), "1000000\n").unwrap();
    }

    #[test]
    fn packages_are_added_and_counters_wrap() {
        let folder = tempfile::tempdir().unwrap();
        zone(folder.path(), "intel-rapl:0", "package-0\n", "999990\n");
        zone(folder.path(), "intel-rapl:1", "package-1\n", "5\n");
        zone(folder.path(), "intel-rapl:0:0", "core\n", "77\n");
        zone(folder.path(), "intel-rapl:2", "psys\n", "88\n");
        let meter = Meter { source: packages(folder.path()).map(Source::Counters) };
        let mut tally = meter.start();
        let result = tally.during(|| {
            std::fs::write(folder.path().join("intel-rapl:0/energy_uj"), "499990\n").unwrap();
            std::fs::write(folder.path().join("intel-rapl:1/energy_uj"), "15\n").unwrap();
            "done"
        });
        assert_eq!(result, "done");
        assert_eq!(tally.total(), Ok(0.50001));
    }

    #[test]
    fn a_machine_that_does_not_tell_gives_the_reason() {
        let folder = tempfile::tempdir().unwrap();
        let reason = packages(folder.path()).unwrap_err();
        assert!(reason.contains("no counters"), "{reason}");
        let meter = Meter { source: Err(reason.clone()) };
        let mut tally = meter.start();
        assert_eq!(tally.during(|| 7), 7);
        assert_eq!(tally.total(), Err(reason));
        zone(folder.path(), "intel-rapl:0", "package-0\n", "nonsense");
        assert!(packages(folder.path()).unwrap_err().contains("no number"));
    }
}
