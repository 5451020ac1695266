//! A machine in the place of one with Core ML, which interprets what it has compiled.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use baton_coreml::interpret::{Interpreter, Precision};
use baton_coreml::report::{MeasuredUnit, Placement};
use baton_coreml::runtime::{
    Compiled, CompiledCache, ComputeUnits, Device, Interpreted, Overrides, Platform, Runtime, Setup,
};
use baton_coreml::{Package, Result};
use baton_cpu::{Isa, Pool};

/// "Compiles" a package by copying it, and remembers what it was asked for.
#[derive(Debug)]
pub struct Fake {
    room: PathBuf,
    /// How many packages it has "compiled".
    pub compiled: AtomicUsize,
    /// What it has loaded last.
    pub loaded: Mutex<Vec<Compiled>>,
    /// The functions that it has prepared, with the packages that they are of.
    pub prepared: Mutex<Vec<(PathBuf, String, Setup)>>,
}

/// Threads for its interpreters.
pub fn pool() -> Arc<Pool> {
    Arc::new(Pool::new(2, Isa::detect()).unwrap())
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let place = to.join(entry.file_name());
        match entry.file_type().unwrap().is_dir() {
            true => copy(&entry.path(), &place),
            false => drop(std::fs::copy(entry.path(), place).unwrap()),
        }
    }
}

impl Platform for Fake {
    fn system(&self) -> String {
        "a fake".into()
    }

    fn compile(&self, package: &Path) -> Result<PathBuf> {
        let made = self.room.join(format!("{}", self.compiled.fetch_add(1, Ordering::Relaxed)));
        copy(package, &made);
        Ok(made)
    }

    fn runtime(&self, packages: Vec<Compiled>) -> Result<Box<dyn Runtime>> {
        let interpreter = |compiled: &Compiled| {
            let package = Package::open(&compiled.path)?;
            Interpreter::new(&package, Precision::F32, pool())
        };
        let interpreters = packages.iter().map(interpreter).collect::<Result<_>>()?;
        *self.loaded.lock().unwrap() = packages;
        Ok(Box::new(Interpreted::new(interpreters)))
    }

    fn prepare(&self, compiled: &Path, function: &str, setup: &Setup) -> Result<()> {
        let package = Package::open(compiled)?;
        assert!(package.model.program.functions.contains_key(function));
        let prepared = (compiled.to_owned(), function.to_owned(), setup.clone());
        self.prepared.lock().unwrap().push(prepared);
        Ok(())
    }

    fn placement(&self, compiled: &Path, setup: &Setup) -> Result<Vec<Placement>> {
        let package = Package::open(compiled)?;
        let function = &package.model.program.functions[setup.name.as_deref().unwrap()];
        let ops = function.body.ops.iter().filter(|op| !op.is_constant());
        let placement = |op: &baton_coreml::mil::Op| Placement {
            kind: format!("ios18.{}", op.kind),
            results: op.outputs.iter().map(|result| result.name.clone()).collect(),
            unit: Some(match setup.units {
                ComputeUnits::CpuAndNeuralEngine => MeasuredUnit::NeuralEngine,
                _ => MeasuredUnit::Gpu,
            }),
            cost: Some(1.0),
        };
        Ok(ops.map(placement).collect())
    }
}

/// Such a machine, with its folder for what is compiled in `room`.
pub fn fake(room: &Path) -> (Arc<Fake>, Device) {
    let room = room.to_owned();
    let cache = CompiledCache::new(room.join("cache"));
    let fake = Arc::new(Fake {
        room,
        compiled: AtomicUsize::new(0),
        loaded: Mutex::default(),
        prepared: Mutex::default(),
    });
    (Arc::clone(&fake), Device::new(fake, cache, Overrides::default()))
}
