//! Packages of others made ready for a machine, before anybody wants to run them.

use std::path::PathBuf;

use super::Foreign;
use crate::Result;
use crate::files::Hashes;
use crate::folder::Installing;
use crate::runtime::{Device, Preparing, Source};

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
        let count = self.sources.len();
        let installed = self.sources.iter().enumerate().map(|(index, source)| {
            let name = source.path().file_name().unwrap_or_default().to_string_lossy().into_owned();
            let place = match source {
                Source::Package(path, package) => {
                    let tell = &mut |step: Preparing<'_>| {
                        tell(Installing { package: &name, index, count, step });
                    };
                    device.install(path, package, &hashes, tell)?
                }
                Source::Compiled { path, .. } => path.clone(),
            };
            Ok((name, place))
        });
        installed.collect()
    }
}
