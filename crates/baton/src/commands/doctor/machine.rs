//! Looking at processor, system and units.

use std::process::Command;

use baton_cpu::{Isa, isa};
use baton_engine::{gpus, has_core_ml};
use sysinfo::{CpuRefreshKind, RefreshKind};

use super::report::{Cpu, Memory, Problem, System, Unit};

/// The operating system.
pub fn system() -> System {
    let os = sysinfo::System::long_os_version().unwrap_or_else(|| std::env::consts::OS.into());
    System { os, arch: std::env::consts::ARCH, translated: is_translated() }
}

/// True if macOS translates us from Intel code.
fn is_translated() -> bool {
    cfg!(target_os = "macos")
        && Command::new("/usr/sbin/sysctl")
            .args(["-n", "sysctl.proc_translated"])
            .output()
            .is_ok_and(|output| output.stdout.trim_ascii() == b"1")
}

/// The processor, and the kernels that fit it.
pub fn cpu(problems: &mut Vec<Problem>) -> Cpu {
    let kind = RefreshKind::nothing().with_cpu(CpuRefreshKind::nothing());
    let system = sysinfo::System::new_with_specifics(kind);
    let name = system.cpus().first().map(|cpu| cpu.brand().trim().to_owned());
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
    let kernels = match Isa::from_env() {
        Ok(isa) => Some(isa),
        Err(error) => {
            let advice = format!("unset {}, or set it to one that this machine has", isa::ENV);
            problems.push(Problem::error(format!("{}: {error}", isa::ENV), advice));
            None
        }
    };
    if kernels == Some(Isa::Portable) && Isa::detect() == Isa::Portable {
        problems.push(Problem::warning(
            "this processor has none of the vector instructions that fast kernels need",
            "answers will be slow; a machine with AVX2, or any Arm of the last years, is better",
        ));
    }
    Cpu {
        name: name.filter(|name| !name.is_empty()).unwrap_or_else(|| "unknown".into()),
        cores,
        features: features(),
        kernels: kernels.map(|isa| isa.to_string()),
        other_kernels: Isa::available()
            .into_iter()
            .filter(|&isa| Some(isa) != kernels)
            .map(|isa| isa.to_string())
            .collect(),
        threads: baton_cpu::Cpu::new(baton_cpu::CpuOptions::default())
            .map_or(cores, |cpu| cpu.threads()),
    }
}

/// Memory of the whole machine, and what is free of it.
pub fn memory() -> Memory {
    let mut system = sysinfo::System::new();
    system.refresh_memory();
    let total_bytes = match system.cgroup_limits() {
        Some(limits) => system.total_memory().min(limits.total_memory),
        None => system.total_memory(),
    };
    let available_bytes = baton_engine::available_memory().unwrap_or(system.available_memory());
    Memory { total_bytes, available_bytes }
}

/// Vector extensions that kernels could use.
fn features() -> Vec<&'static str> {
    macro_rules! detected {
        ($detect:ident: $($name:tt),*) => {
            [$(($name, std::arch::$detect!($name))),*]
                .into_iter().filter_map(|(name, there)| there.then_some(name)).collect()
        };
    }
    #[cfg(target_arch = "x86_64")]
    return detected!(is_x86_feature_detected:
        "sse4.2", "avx", "f16c", "fma", "avx2", "avxvnni", "avx512f", "avx512bw", "avx512vl",
        "avx512vnni", "avx512bf16");
    #[cfg(target_arch = "aarch64")]
    return detected!(is_aarch64_feature_detected: "neon", "fp16", "dotprod", "i8mm", "bf16", "sve");
    #[allow(unreachable_code)]
    Vec::new()
}

/// Compute units, and whether this version can use them.
pub fn units(cpu: &Cpu) -> Vec<Unit> {
    let gpu = match &gpus()[..] {
        [] => Unit { name: "gpu", available: false, note: "no adapter for Vulkan or Metal".into() },
        found => Unit { name: "gpu", available: true, note: found.join("; ") },
    };
    let note = match &cpu.kernels {
        Some(kernels) => format!("{kernels} kernels on {} threads", cpu.threads),
        None => "the kernels asked for are not there".into(),
    };
    let engine = has_core_ml().map(|()| "through Core ML, which decides what runs there");
    let packages = match engine {
        Ok(_) => "Core ML packages, run by Core ML",
        Err(_) => "Core ML packages, run on the CPU",
    };
    vec![
        Unit { name: "cpu", available: cpu.kernels.is_some(), note },
        gpu,
        Unit { name: "coreml", available: true, note: packages.into() },
        Unit { name: "ane", available: engine.is_ok(), note: engine.unwrap_or_else(|e| e).into() },
    ]
}
