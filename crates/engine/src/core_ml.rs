//! Core ML itself, where the machine has it.

use std::sync::{Arc, OnceLock};

use baton_coreml::runtime::{CompiledCache, Device, Overrides, Platform};

use crate::{Error, Result, UnitKind};

type Found = std::result::Result<Arc<dyn Platform>, &'static str>;

/// Core ML, which is looked for once, or why there is none.
pub(crate) fn platform() -> &'static Found {
    static FOUND: OnceLock<Found> = OnceLock::new();
    FOUND.get_or_init(baton_coreml_runtime::platform)
}

/// Core ML on this machine, with the folder for what it compiles; none if the machine has no Core ML.
///
/// # Errors
/// If the environment says something of its units that makes no sense.
pub fn core_ml(cache: CompiledCache) -> Result<Option<Device>> {
    device(platform(), Some(cache))
}

/// Whether there is Core ML, or why not.
///
/// # Errors
/// The reason.
pub fn has_core_ml() -> std::result::Result<(), &'static str> {
    platform().as_ref().map(drop).map_err(|reason| *reason)
}

/// What the unit `coreml` runs packages by: Core ML if it is there and has a folder to keep what it
/// compiles, else the interpreter.
pub(crate) fn device(platform: &Found, cache: Option<CompiledCache>) -> Result<Option<Device>> {
    let (Ok(platform), Some(cache)) = (platform, cache) else { return Ok(None) };
    let overrides = Overrides::from_env()
        .map_err(|problem| Error::NoUnit { name: UnitKind::CoreMl.to_string(), problem })?;
    Ok(Some(Device::new(Arc::clone(platform), cache, overrides)))
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use baton_coreml::report::Placement;
    use baton_coreml::runtime::{Compiled, Runtime, Setup};

    use super::*;

    #[derive(Debug)]
    struct Fake;

    impl Platform for Fake {
        fn system(&self) -> String {
            "a fake".into()
        }

        fn compile(&self, _: &Path) -> baton_coreml::Result<PathBuf> {
            unreachable!("nothing is compiled")
        }

        fn runtime(&self, _: Vec<Compiled>) -> baton_coreml::Result<Box<dyn Runtime>> {
            unreachable!("nothing is loaded")
        }

        fn prepare(&self, _: &Path, _: &str, _: &Setup) -> baton_coreml::Result<()> {
            unreachable!("nothing is prepared")
        }

        fn placement(&self, _: &Path, _: &Setup) -> baton_coreml::Result<Vec<Placement>> {
            unreachable!("nothing is placed")
        }
    }

    #[test]
    fn core_ml_runs_packages_where_it_is_and_has_a_folder_and_else_the_interpreter() {
        let cache = || Some(CompiledCache::new("folder"));
        let found: Found = Ok(Arc::new(Fake));
        assert_eq!(device(&found, cache()).unwrap().unwrap().cache(), &cache().unwrap());
        assert!(device(&found, None).unwrap().is_none());
        assert!(device(&Err("not here"), cache()).unwrap().is_none());
        if !cfg!(target_os = "macos") {
            assert!(core_ml(cache().unwrap()).unwrap().is_none());
        }
    }
}
