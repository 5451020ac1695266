//! A machine that has Core ML, and how packages get onto it.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{CompiledCache, ComputeUnits, Kept, Overrides, Runtime, policy};
use crate::files::Hashes;
use crate::report::{Placement, Report};
use crate::{Package, Result};

/// What is asked of Core ML itself. All that can be decided without it is decided elsewhere.
pub trait Platform: Send + Sync + fmt::Debug {
    /// The system and its build, on which the form of compiled packages depends.
    fn system(&self) -> String;

    /// Compiles a package, and says in which folder the result lies, which becomes the caller's.
    ///
    /// # Errors
    /// What Core ML says.
    fn compile(&self, package: &Path) -> Result<PathBuf>;

    /// What runs the functions of compiled packages, in the same order.
    ///
    /// # Errors
    /// What Core ML says.
    fn runtime(&self, packages: Vec<Compiled>) -> Result<Box<dyn Runtime>>;

    /// Loads a function of a compiled package and forgets it again. What the system prepares for the units is
    /// then there when the function is loaded from the same place the next time.
    ///
    /// # Errors
    /// What Core ML says.
    fn prepare(&self, compiled: &Path, function: &str, setup: &Setup) -> Result<()>;

    /// Where the operations of a function will run.
    ///
    /// # Errors
    /// What Core ML says.
    fn placement(&self, compiled: &Path, setup: &Setup) -> Result<Vec<Placement>>;
}

/// A compiled package, and how its functions are loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compiled {
    /// The folder.
    pub path: PathBuf,
    /// Its functions by name.
    pub functions: BTreeMap<String, Setup>,
}

/// How a function is loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setup {
    /// What it is called; nothing in packages of one function, which have no names for Core ML.
    pub name: Option<String>,
    /// What it may use.
    pub units: ComputeUnits,
}

/// What is done next to have a package ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Preparing<'a> {
    /// Core ML compiles it, which was not done yet.
    Compiling,
    /// It loads a function.
    Loading(&'a str),
}

/// What a device is to run.
#[derive(Debug)]
pub enum Source {
    /// A package at its path.
    Package(PathBuf, Box<Package>),
    /// What Core ML has made of a package somewhere else.
    Compiled {
        /// The folder.
        path: PathBuf,
        /// Its functions.
        functions: Vec<String>,
        /// What they may use.
        units: ComputeUnits,
    },
}

impl Source {
    /// The package, if it is one.
    pub fn package(&self) -> Option<&Package> {
        match self {
            Source::Package(_, package) => Some(package),
            Source::Compiled { .. } => None,
        }
    }

    /// Where it lies.
    pub fn path(&self) -> &Path {
        match self {
            Source::Package(path, _) | Source::Compiled { path, .. } => path,
        }
    }
}

/// A machine that has Core ML, with the folder for what is compiled.
#[derive(Clone, Debug)]
pub struct Device {
    platform: Arc<dyn Platform>,
    cache: CompiledCache,
    overrides: Overrides,
}

impl Device {
    /// The machine `platform`.
    pub fn new(platform: Arc<dyn Platform>, cache: CompiledCache, overrides: Overrides) -> Device {
        Device { platform, cache, overrides }
    }

    /// Where what is compiled is kept.
    pub fn cache(&self) -> &CompiledCache {
        &self.cache
    }

    /// Compiles packages as far as that is not done yet, and returns what runs them, and what must be kept as
    /// long as that does. Files whose hashes are known are not read for them again.
    ///
    /// # Errors
    /// If one cannot be compiled, kept or loaded.
    pub fn open(
        &self,
        sources: &[Source],
        hashes: &Hashes,
    ) -> Result<(Box<dyn Runtime>, Vec<Kept>)> {
        let mut kept = Vec::new();
        let compiled = |source: &Source| match source {
            Source::Package(path, package) => {
                let lease = self.announced(path, hashes)?;
                let path = lease.path().to_owned();
                kept.push(lease);
                Ok(Compiled { path, functions: setups(package, &self.overrides) })
            }
            Source::Compiled { path, functions, units } => {
                let several = functions.len() > 1;
                let setup = |name: &String| {
                    let units = self.overrides.of(name).unwrap_or(*units);
                    (name.clone(), Setup { name: several.then(|| name.clone()), units })
                };
                let functions = functions.iter().map(setup).collect();
                Ok(Compiled { path: path.clone(), functions })
            }
        };
        let compiled = sources.iter().map(compiled).collect::<Result<_>>()?;
        Ok((self.platform.runtime(compiled)?, kept))
    }

    /// Does beforehand all that takes its time when a package is first used: compiles it as far as that is not
    /// done yet, and has each of its functions loaded once. `tell` hears of each step when it begins. Files whose
    /// hashes are known are not read for them again.
    /// Returns where the compiled form stays.
    ///
    /// # Errors
    /// If it cannot be compiled, kept or loaded.
    pub fn install(
        &self,
        path: &Path,
        package: &Package,
        hashes: &Hashes,
        tell: &mut dyn FnMut(Preparing<'_>),
    ) -> Result<PathBuf> {
        let compiled = self.compiled(path, hashes, || tell(Preparing::Compiling))?;
        for (function, setup) in setups(package, &self.overrides) {
            tell(Preparing::Loading(&function));
            self.platform.prepare(compiled.path(), &function, &setup)?;
        }
        Ok(compiled.path().to_owned())
    }

    /// Where Core ML places the operations of a package, by function.
    ///
    /// # Errors
    /// As [`Device::open`].
    pub fn placements(
        &self,
        path: &Path,
        package: &Package,
    ) -> Result<BTreeMap<String, Vec<Placement>>> {
        let compiled = self.announced(path, &Hashes::new())?;
        let setups = setups(package, &self.overrides).into_iter();
        let placed = setups.map(|(name, setup)| {
            let placement = self.platform.placement(compiled.path(), &setup)?;
            Ok((name, placement))
        });
        placed.collect()
    }

    /// The compiled form of a package whose user does not expect that this may take its time.
    fn announced(&self, package: &Path, hashes: &Hashes) -> Result<Kept> {
        self.compiled(package, hashes, || {
            let shown = package.display();
            tracing::warn!("Core ML compiles {shown} for this machine; this is done once");
        })
    }

    /// The compiled form of a package; `before` is called if it has yet to be made.
    fn compiled(&self, package: &Path, hashes: &Hashes, before: impl FnOnce()) -> Result<Kept> {
        self.cache.compiled(package, &self.platform.system(), hashes, |package| {
            before();
            self.platform.compile(package)
        })
    }
}

/// How the functions of a package are loaded.
fn setups(package: &Package, overrides: &Overrides) -> BTreeMap<String, Setup> {
    let model = &package.model;
    let several = model.default_function.is_some();
    let report = Report::of(package);
    let setup = |report: &crate::report::FunctionReport| {
        let function = &model.program.functions[&report.name];
        let units = policy::units(&report.name, function, report, overrides);
        (report.name.clone(), Setup { name: several.then(|| report.name.clone()), units })
    };
    report.functions.iter().map(setup).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Blobs, in_memory, testing};

    #[test]
    fn functions_of_a_package_with_several_are_loaded_by_name_each_for_its_units() {
        let mut blobs = in_memory();
        let model = testing::example(&mut blobs).unwrap();
        let blobs = Blobs::from_bytes(blobs.finish().unwrap().into_inner()).unwrap();
        let package = Package::new(model, Some(blobs)).unwrap();
        let setups = setups(&package, &"decode=gpu,prefill=all".parse().unwrap());
        let expected = [("decode", ComputeUnits::CpuAndGpu), ("prefill", ComputeUnits::All)];
        for (name, units) in expected {
            assert_eq!(setups[name], Setup { name: Some(name.into()), units });
        }
        let mut program = package.model.program.clone();
        let only = program.functions.remove("prefill").unwrap();
        program.functions = [("main".to_owned(), only)].into();
        let (_, blobs) = package.into_parts();
        let blobs = Arc::into_inner(blobs.unwrap());
        let package = Package::new(crate::Model::new(program, None).unwrap(), blobs).unwrap();
        assert_eq!(super::setups(&package, &Overrides::default())["main"].name, None);
    }
}
