//! The packages of a folder made ready for a machine, before anybody wants to run them.

use std::path::PathBuf;

use super::Folder;
use crate::Result;
use crate::runtime::{Device, Preparing};

/// A step on the way to a folder that is ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Installing<'a> {
    /// The package, by its path in the folder.
    pub package: &'a str,
    /// Its number among the packages, from 0.
    pub index: usize,
    /// How many there are.
    pub count: usize,
    /// What is done with it.
    pub step: Preparing<'a>,
}

impl Folder {
    /// [Installs](Device::install) all packages, after a look at every file of the folder. Returns the path of
    /// each in the folder, and where its compiled form stays.
    ///
    /// # Errors
    /// If a file is not the one that was written, or a package cannot be compiled, kept or loaded.
    pub fn install(
        &self,
        device: &Device,
        tell: &mut dyn FnMut(Installing<'_>),
    ) -> Result<Vec<(String, PathBuf)>> {
        let (packages, hashes) = self.all_packages()?;
        let paths: Vec<PathBuf> = self.paths().collect();
        in_turn(self.packages.clone(), tell, |at, tell| {
            device.install(&paths[at], &packages[at], &hashes, tell)
        })
    }
}

/// Installs packages of these names one after the other, each by its number, and tells of which of them a step
/// is. Returns the name of each, and where its compiled form stays.
///
/// # Errors
/// Those of installing one.
pub(crate) fn in_turn(
    names: Vec<String>,
    tell: &mut dyn FnMut(Installing<'_>),
    mut install: impl FnMut(usize, &mut dyn FnMut(Preparing<'_>)) -> Result<PathBuf>,
) -> Result<Vec<(String, PathBuf)>> {
    let count = names.len();
    let installed = names.into_iter().enumerate().map(|(index, name)| {
        let tell =
            &mut |step: Preparing<'_>| tell(Installing { package: &name, index, count, step });
        let place = install(index, tell)?;
        Ok((name, place))
    });
    installed.collect()
}
