//! How much memory the machine has for this process, and how much that has.

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
    #[cfg(unix)]
    fn the_system_tells() {
        let peak = peak_memory().unwrap();
        // Between a mebibyte and a tebibyte: the unit is right.
        assert!((1 << 20..1 << 40).contains(&peak), "{peak}");
        assert!(process_memory().is_some_and(|now| (1 << 20..1 << 40).contains(&now)));
        assert!(available_memory().is_some_and(|bytes| bytes > 1 << 20));
    }
}
