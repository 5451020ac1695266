//! What a model needs of the machine's memory, and what there is.

use std::fmt;

/// The terms of a model's memory, in bytes. Made before anything is allocated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryPlan {
    /// Weights, as stored. What is not copied is mapped from files: the system can drop and read
    /// it again, at the price of speed.
    pub weights: u64,
    /// The part of the weights that the unit copies, in an order of its own.
    pub copied: u64,
    /// Keys and values of all tokens that the cache can hold.
    pub kv: u64,
    /// Intermediate values of one batch.
    pub scratch: u64,
    /// All of the draft model, if there is one.
    pub draft: u64,
    /// Memory that the system can give, if it tells.
    pub available: Option<u64>,
}

impl MemoryPlan {
    /// All that is needed.
    pub fn total(&self) -> u64 {
        self.weights.saturating_add(self.kv).saturating_add(self.scratch).saturating_add(self.draft)
    }

    /// What must be allocated, mapped weights left out.
    pub fn unmapped(&self) -> u64 {
        self.copied.saturating_add(self.kv).saturating_add(self.scratch).saturating_add(self.draft)
    }
}

impl fmt::Display for MemoryPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = |bytes: u64| bytes.div_ceil(1 << 20);
        let (weights, kv, scratch) = (mib(self.weights), mib(self.kv), mib(self.scratch));
        write!(f, "weights {weights} MiB + KV cache {kv} MiB + scratch {scratch} MiB")?;
        if self.draft > 0 {
            write!(f, " + draft model {} MiB", mib(self.draft))?;
        }
        match self.available {
            Some(available) => write!(f, ", {} MiB are available", mib(available)),
            None => Ok(()),
        }
    }
}

/// Bytes that can be allocated without swapping, if the system tells.
#[cfg(target_os = "linux")]
pub fn available_memory() -> Option<u64> {
    let meminfo = std::fs::read_to_string("/proc/meminfo").ok()?;
    let machine = kib_field(&meminfo, "MemAvailable:")?;
    Some(control_group_room().map_or(machine, |room| room.min(machine)))
}

/// What a container's limit leaves; cached files do not count, they go when room is short.
#[cfg(target_os = "linux")]
fn control_group_room() -> Option<u64> {
    let read = |name: &str| std::fs::read_to_string(format!("/sys/fs/cgroup/{name}")).ok();
    let number = |name: &str| read(name)?.trim().parse::<u64>().ok();
    let (limit, used) = (number("memory.max")?, number("memory.current")?);
    let stat = read("memory.stat")?;
    let cached = stat.lines().find_map(|line| line.strip_prefix("inactive_file ")?.parse().ok());
    Some(limit.saturating_sub(used.saturating_sub(cached.unwrap_or(0))))
}

/// Memory that this process has in use, mapped files included, in bytes, if the system tells.
#[cfg(target_os = "linux")]
pub fn process_memory() -> Option<u64> {
    kib_field(&std::fs::read_to_string("/proc/self/status").ok()?, "VmRSS:")
}

/// Most memory that this process ever had in use, in bytes, if the system tells.
#[cfg(target_os = "linux")]
pub fn peak_memory() -> Option<u64> {
    kib_field(&std::fs::read_to_string("/proc/self/status").ok()?, "VmHWM:")
}

#[cfg(target_os = "linux")]
fn kib_field(text: &str, name: &str) -> Option<u64> {
    let value = text.lines().find_map(|line| line.strip_prefix(name))?;
    value.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// Bytes that can be allocated without swapping, if the system tells.
#[cfg(not(target_os = "linux"))]
pub fn available_memory() -> Option<u64> {
    let mut system = sysinfo::System::new();
    system.refresh_memory();
    Some(system.available_memory()).filter(|&bytes| bytes > 0)
}

/// Memory that this process has in use, mapped files included, in bytes, if the system tells.
#[cfg(not(target_os = "linux"))]
pub fn process_memory() -> Option<u64> {
    use sysinfo::{ProcessesToUpdate, System};
    let id = sysinfo::get_current_pid().ok()?;
    let mut system = System::new();
    system.refresh_processes(ProcessesToUpdate::Some(&[id]), false);
    system.process(id).map(sysinfo::Process::memory).filter(|&bytes| bytes > 0)
}

/// Most memory that this process ever had in use, in bytes, if the system tells.
#[cfg(all(unix, not(target_os = "linux")))]
pub fn peak_memory() -> Option<u64> {
    use nix::sys::resource::{UsageWho, getrusage};
    let peak = u64::try_from(getrusage(UsageWho::RUSAGE_SELF).ok()?.max_rss()).ok()?;
    // macOS counts bytes, the BSDs kibibytes.
    peak.checked_mul(if cfg!(target_vendor = "apple") { 1 } else { 1024 })
}

/// Most memory that this process ever had in use, in bytes, if the system tells.
#[cfg(not(unix))]
pub fn peak_memory() -> Option<u64> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_term_is_shown() {
        let plan = MemoryPlan {
            weights: 5 << 20,
            copied: 1 << 20,
            kv: 3 << 20,
            scratch: 1,
            draft: 0,
            available: Some(7 << 20),
        };
        let text = "weights 5 MiB + KV cache 3 MiB + scratch 1 MiB, 7 MiB are available";
        assert_eq!(plan.to_string(), text);
        assert_eq!((plan.total(), plan.unmapped()), ((8 << 20) + 1, (4 << 20) + 1));
        let plan = MemoryPlan { draft: 2 << 20, available: None, ..plan };
        let text = "weights 5 MiB + KV cache 3 MiB + scratch 1 MiB + draft model 2 MiB";
        assert_eq!(plan.to_string(), text);
        assert_eq!((plan.total(), plan.unmapped()), ((10 << 20) + 1, (6 << 20) + 1));
    }

    #[test]
    #[cfg(unix)]
    fn the_system_tells() {
        let peak = peak_memory().unwrap();
        // Between a mebibyte and a tebibyte: the unit is right.
        assert!((1 << 20..1 << 40).contains(&peak), "{peak}");
        assert!(process_memory().is_some_and(|now| (1 << 20..1 << 40).contains(&now)));
        assert!(available_memory().is_some_and(|bytes| bytes > 1 << 20));
    }
}
