//! The program `macmon`, which tells of a Mac what CPU, GPU and Neural Engine take: `macmon pipe` prints a
//! line of JSON for each interval, with the mean power in it.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::Deserialize;

/// Time between two lines.
const INTERVAL: Duration = Duration::from_millis(200);
/// A longer line is none of its.
const LONGEST: u64 = 1 << 20;
/// If no line has come for so long, none will.
const PATIENCE: Duration = Duration::from_secs(5);

/// Joules by unit.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rails {
    /// The processor's cores.
    pub cpu: f64,
    /// The GPU.
    pub gpu: f64,
    /// The Neural Engine.
    pub ane: f64,
}

/// `macmon` as it runs. It ends with its reader.
#[derive(Debug)]
pub(super) struct Macmon {
    child: Mutex<Child>,
    sum: Arc<Mutex<Sum>>,
}

/// What all lines so far come to.
#[derive(Debug)]
struct Sum {
    joules: Rails,
    /// The power of the last line, and when that came.
    watts: Option<Rails>,
    at: Instant,
    /// Why there will be no more lines.
    ended: Option<String>,
}

/// A line.
#[derive(Debug, Deserialize)]
struct Line {
    cpu_power: f64,
    gpu_power: f64,
    ane_power: f64,
}

impl Rails {
    /// All of it.
    pub fn total(&self) -> f64 {
        self.cpu + self.gpu + self.ane
    }

    /// What has been added since an earlier sum: nothing less than none, though a sum that a line corrects
    /// may be below the one that was guessed before it came.
    pub(super) fn since(&self, earlier: &Rails) -> Rails {
        let added = self.and(earlier, -1.0);
        Rails { cpu: added.cpu.max(0.0), gpu: added.gpu.max(0.0), ane: added.ane.max(0.0) }
    }

    fn and(&self, other: &Rails, times: f64) -> Rails {
        Rails {
            cpu: self.cpu + times * other.cpu,
            gpu: self.gpu + times * other.gpu,
            ane: self.ane + times * other.ane,
        }
    }
}

impl Sum {
    fn new(now: Instant) -> Sum {
        Sum { joules: Rails::default(), watts: None, at: now, ended: None }
    }

    /// Adds a line that has come `now`: its power is the mean of the time since the one before.
    fn add(&mut self, line: &str, now: Instant) -> Result<(), String> {
        let line: Line = serde_json::from_str(line)
            .map_err(|error| format!("macmon printed something unexpected: {error}"))?;
        let watts = [line.cpu_power, line.gpu_power, line.ane_power];
        if watts.iter().any(|watts| !(0.0..1e4).contains(watts)) {
            return Err(format!("macmon says that units take {watts:?} W"));
        }
        let watts = Rails { cpu: watts[0], gpu: watts[1], ane: watts[2] };
        let seconds = (now - self.at).as_secs_f64();
        self.joules = self.joules.and(&watts, seconds);
        (self.watts, self.at) = (Some(watts), now);
        Ok(())
    }

    /// All until `now`; since the last line, units are taken to go on as they did.
    fn until(&self, now: Instant) -> Result<Rails, String> {
        if let Some(reason) = &self.ended {
            return Err(reason.clone());
        }
        let watts = self.watts.ok_or("macmon has not told anything yet")?;
        let passed = now.saturating_duration_since(self.at);
        if passed > PATIENCE {
            return Err("macmon tells nothing any more".into());
        }
        Ok(self.joules.and(&watts, passed.as_secs_f64()))
    }
}

impl Macmon {
    /// Starts it.
    ///
    /// # Errors
    /// If it is not there.
    pub(super) fn start() -> Result<Macmon, String> {
        let interval = INTERVAL.as_millis().to_string();
        let child = Command::new("macmon")
            .args(["pipe", "--samples", "0", "--interval", &interval])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn();
        Macmon::of(child.map_err(|error| {
            format!("the program macmon, which tells it, cannot be run ({error}); install it")
        })?)
    }

    fn of(mut child: Child) -> Result<Macmon, String> {
        let lines = child.stdout.take().ok_or("the output of macmon cannot be read")?;
        let sum = Arc::new(Mutex::new(Sum::new(Instant::now())));
        let told = Arc::clone(&sum);
        let reader = move || {
            let ended = follow(BufReader::new(lines), &told);
            told.lock().unwrap_or_else(PoisonError::into_inner).ended = Some(ended);
        };
        std::thread::Builder::new()
            .name("baton-macmon".into())
            .spawn(reader)
            .map_err(|error| format!("the output of macmon cannot be read: {error}"))?;
        Ok(Macmon { child: Mutex::new(child), sum })
    }

    /// Joules since it was started.
    ///
    /// # Errors
    /// If it tells nothing.
    pub(super) fn read(&self) -> Result<Rails, String> {
        self.sum.lock().unwrap_or_else(PoisonError::into_inner).until(Instant::now())
    }
}

impl Drop for Macmon {
    fn drop(&mut self) {
        let child = self.child.get_mut().unwrap_or_else(PoisonError::into_inner);
        // It may have ended already.
        let _ = child.kill();
        let _ = child.wait();
    }
}

/// Adds all lines, and says why they have ended.
fn follow(mut lines: impl BufRead, sum: &Mutex<Sum>) -> String {
    loop {
        let mut line = String::new();
        match lines.by_ref().take(LONGEST).read_line(&mut line) {
            Ok(0) => return "macmon has ended".into(),
            Ok(_) => {
                let mut sum = sum.lock().unwrap_or_else(PoisonError::into_inner);
                if let Err(problem) = sum.add(&line, Instant::now()) {
                    return problem;
                }
            }
            Err(error) => return format!("the output of macmon cannot be read: {error}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A line as it prints them, with all that it tells.
    const LINE: &str = include_str!("macmon.json");

    fn with_power(cpu: f64, gpu: f64, ane: f64) -> String {
        format!(r#"{{"cpu_power":{cpu},"gpu_power":{gpu},"ane_power":{ane}}}"#)
    }

    #[test]
    fn power_over_time_is_energy_of_each_unit() {
        let start = Instant::now();
        let at = |milliseconds| start + Duration::from_millis(milliseconds);
        let mut sum = Sum::new(start);
        assert!(sum.until(start).unwrap_err().contains("not told"));
        sum.add(LINE, at(1000)).unwrap();
        let first = sum.until(at(1000)).unwrap();
        assert_eq!(first, Rails { cpu: 4.25, gpu: 0.5, ane: 1.75 });
        sum.add(&with_power(2.0, 8.0, 0.0), at(1500)).unwrap();
        let second = sum.until(at(1750)).unwrap();
        assert_eq!(second.since(&first), Rails { cpu: 1.5, gpu: 6.0, ane: 0.0 });
        assert_eq!(second.since(&first).total(), 7.5);
        assert!(sum.until(at(60_000)).unwrap_err().contains("nothing any more"));
    }

    #[test]
    fn a_line_that_tells_of_less_than_was_guessed_gives_no_negative_energy() {
        let start = Instant::now();
        let at = |milliseconds| start + Duration::from_millis(milliseconds);
        let mut sum = Sum::new(start);
        sum.add(&with_power(8.0, 0.5, 4.0), at(1000)).unwrap();
        let guessed = sum.until(at(1500)).unwrap();
        sum.add(&with_power(1.0, 2.0, 0.0), at(1500)).unwrap();
        let since = sum.until(at(1500)).unwrap().since(&guessed);
        assert_eq!(since, Rails { cpu: 0.0, gpu: 0.75, ane: 0.0 });
    }

    #[test]
    fn what_is_no_line_of_macmons_ends_it_with_a_reason() {
        for line in
            ["", "{}", "macmon 1.0", &with_power(-1.0, 0.0, 0.0), &with_power(1e300, 0.0, 0.0)]
        {
            let mut sum = Sum::new(Instant::now());
            assert!(sum.add(line, Instant::now()).unwrap_err().contains("macmon"), "{line:?}");
        }
        let sum = Mutex::new(Sum::new(Instant::now()));
        assert_eq!(follow(LINE.as_bytes(), &sum), "macmon has ended");
        assert!(sum.lock().unwrap().watts.is_some());
        let long = vec![b'x'; 2 * LONGEST as usize];
        assert!(follow(&long[..], &sum).contains("unexpected"));
    }

    #[cfg(unix)]
    #[test]
    fn a_program_is_followed_until_it_ends() {
        let script = format!("echo '{}'", with_power(1.0, 2.0, 3.0));
        let child = Command::new("sh").args(["-c", &script]).stdout(Stdio::piped()).spawn();
        let macmon = Macmon::of(child.unwrap()).unwrap();
        // It ends at once; whoever reads it then hears of that.
        let deadline = Instant::now() + Duration::from_secs(60);
        while macmon.read() != Err("macmon has ended".into()) {
            assert!(Instant::now() < deadline, "{:?}", macmon.read());
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(macmon.sum.lock().unwrap().joules.ane > 0.0);
    }
}
