//! How many threads to use: one for each core that this process may run on.

use std::collections::HashSet;
use std::thread::available_parallelism;

/// Physical cores available to the process, with affinity and container quota respected.
pub fn physical_cores() -> usize {
    // Counts logical processors, as affinity and quota limit them.
    let allowed = available_parallelism().map_or(1, |n| n.get());
    siblings().map_or(allowed, |cores| cores.clamp(1, allowed))
}

/// Cores that have an allowed processor, where the system says which processors share one.
fn siblings() -> Option<usize> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    let core = |cpu: usize| {
        let folder = format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
        std::fs::read_to_string(folder).ok()
    };
    let cores: Option<HashSet<String>> = parse_list(list.trim())?.into_iter().map(core).collect();
    cores.map(|cores| cores.len())
}

/// Numbers of a list such as `0-3,8`.
fn parse_list(list: &str) -> Option<Vec<usize>> {
    let mut numbers = Vec::new();
    for part in list.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        if last > 1 << 16 {
            return None;
        }
        numbers.extend(first..=last);
    }
    Some(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_processors() {
        assert_eq!(parse_list("0-3,8"), Some(vec![0, 1, 2, 3, 8]));
        assert_eq!(parse_list("5"), Some(vec![5]));
        assert_eq!(parse_list("0-99999999999"), None);
        assert_eq!(parse_list("x"), None);
    }

    #[test]
    fn there_is_a_core_and_no_more_than_processors() {
        let cores = physical_cores();
        assert!(cores >= 1 && cores <= available_parallelism().unwrap().get());
    }
}
