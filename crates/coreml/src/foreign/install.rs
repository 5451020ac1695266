//! Packages of others made ready for a machine, before anybody wants to run them.

use std::path::PathBuf;

use super::Foreign;
use crate::Result;
use crate::files::Hashes;
use crate::folder::{Installing, in_turn};
use crate::runtime::{Device, Source};

impl Foreign {
    /// [Installs](Device::install) all packages. Returns the name of each, and where its compiled form stays, which is
    /// where it lies if Core ML has compiled it already.
    ///
    /// # Errors
    /// If a file is not the one that was written, or a package cannot be compiled, kept or loaded.
    pub fn install(
        &self,
        device: &Device,
        tell: &mut dyn FnMut(Installing<'_>),
    ) -> Result<Vec<(String, PathBuf)>> {
        let hashes = match &self.described {
            Some(described) => described.check_files()?,
            None => Hashes::new(),
        };
        let name = |source: &Source| {
            source.path().file_name().unwrap_or_default().to_string_lossy().into_owned()
        };
        let names = self.sources.iter().map(name).collect();
        in_turn(names, tell, |at, tell| match &self.sources[at] {
            Source::Package(path, package) => device.install(path, package, &hashes, tell),
            Source::Compiled { path, .. } => Ok(path.clone()),
        })
    }
}
