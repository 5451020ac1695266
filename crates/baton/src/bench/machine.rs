//! What a model is measured on.

use serde::Serialize;
use sysinfo::{CpuRefreshKind, RefreshKind};

/// A machine's identity, as far as speed depends on it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Machine {
    /// The processor's name.
    pub cpu: String,
    /// Processors that the system may run us on.
    pub processors: usize,
    /// The instruction set of the kernels.
    pub isa: String,
    /// The operating system.
    pub os: String,
    /// The architecture that this program was compiled for.
    pub arch: &'static str,
    /// Bytes of memory.
    pub memory: u64,
}

impl Machine {
    /// Looks at this machine.
    pub fn look() -> Machine {
        let kind = RefreshKind::nothing().with_cpu(CpuRefreshKind::nothing());
        let mut system = sysinfo::System::new_with_specifics(kind);
        system.refresh_memory();
        let name = system.cpus().first().map(|cpu| cpu.brand().trim().to_owned());
        let isa = baton_cpu::Isa::from_env();
        Machine {
            cpu: name.filter(|name| !name.is_empty()).unwrap_or_else(|| "unknown".into()),
            processors: std::thread::available_parallelism().map_or(1, |n| n.get()),
            // One that is not there fails when the model is loaded, with a better message.
            isa: isa.map_or_else(|_| "unknown".into(), |isa| isa.to_string()),
            os: sysinfo::System::long_os_version().unwrap_or_else(|| std::env::consts::OS.into()),
            arch: std::env::consts::ARCH,
            memory: system.total_memory(),
        }
    }
}

/// Forgets the most memory that this process ever used, where the system can; otherwise later peaks
/// include earlier ones.
pub fn reset_peak_memory() {
    #[cfg(target_os = "linux")]
    if let Err(error) = std::fs::write("/proc/self/clear_refs", "5") {
        tracing::debug!("peak memory counts from the start of the program: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_has_a_processor_and_memory() {
        let machine = Machine::look();
        assert!(!machine.cpu.is_empty() && machine.processors > 0, "{machine:?}");
        assert!(machine.memory > 1 << 28, "{machine:?}");
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn the_peak_can_be_forgotten() {
        let block = vec![1u8; 256 << 20];
        assert_eq!(std::hint::black_box(&block).len(), 256 << 20);
        let before = baton_engine::peak_memory().unwrap();
        drop(block);
        reset_peak_memory();
        let after = baton_engine::peak_memory().unwrap();
        assert!(after + (128 << 20) < before, "{before} {after}");
    }
}
