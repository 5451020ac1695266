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
        let ((packages, hashes), count) = (self.all_packages()?, self.packages.len());
        let named = self.packages.iter().zip(self.paths()).zip(&packages).enumerate();
        let installed = named.map(|(index, ((name, path), package))| {
            let tell =
                &mut |step: Preparing<'_>| tell(Installing { package: name, index, count, step });
            Ok((name.clone(), device.install(&path, package, &hashes, tell)?))
        });
        installed.collect()
    }
}
