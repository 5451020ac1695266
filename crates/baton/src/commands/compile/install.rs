//! Packages compiled by this Mac's Core ML beforehand, so that they load at once when they are used.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::Context;
use baton_coreml::runtime::{Device, Hashes, Preparing};
use baton_coreml::{FOLDER_FILE, Folder, Foreign, Installing, Package, check_described};
use baton_engine::{core_ml, has_core_ml};
use baton_hub::Store;

use super::rewrite::is_package;
use crate::failure::{eprintln_quietly, hinted, note};
use crate::progress::Spinner;
use crate::{format, models, packing};

/// Arguments about what is done with packages that are there.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// On a Mac: have Core ML compile the packages for this machine, those just written or those of the
    /// folder MODEL
    #[arg(long, conflicts_with = "no_install")]
    install: bool,
    /// On a Mac: leave it to the first use to have the packages compiled for this machine
    #[arg(long)]
    no_install: bool,
}

impl Args {
    /// Whether it was asked for.
    pub fn asked(&self) -> bool {
        self.install
    }

    /// The machine to install on, if packages that were written are to be: those of a model are unless it was
    /// declined, others if it was asked for.
    ///
    /// # Errors
    /// If it was asked for and there is no Core ML.
    pub fn device(&self, of_model: bool) -> anyhow::Result<Option<Device>> {
        match (self.install, self.no_install) {
            (true, _) => device(&models::store()?).map(Some),
            (_, true) => Ok(None),
            _ if of_model => Ok(core_ml(packing::compiled(&models::store()?))?),
            _ => Ok(None),
        }
    }

    /// Installs the folder that was just written. That this failed is an error only if it was asked for:
    /// the packages are whole.
    ///
    /// # Errors
    /// If it was asked for and fails.
    pub fn written(&self, device: &Device, output: &Path) -> anyhow::Result<()> {
        let done = folder(device, output);
        if self.install {
            return done;
        }
        or_note(done);
        Ok(())
    }
}

/// Tells, where nobody asked for it, that packages which are whole could not be installed.
pub fn or_note(installed: anyhow::Result<()>) {
    if let Err(error) = installed {
        note(format_args!("the packages are whole, but are not installed on this Mac: {error:#}"));
    }
}

/// Core ML on this machine.
///
/// # Errors
/// If there is none.
pub fn device(store: &Store) -> anyhow::Result<Device> {
    has_core_ml().map_err(|reason| {
        let hint = "copy the folder to a Mac and run this there; here its packages are interpreted, \
                    which needs no preparation";
        hinted(format_args!("nothing can be installed: {reason}"), hint)
    })?;
    core_ml(packing::compiled(store))?.context("Core ML has gone")
}

/// Whether there is a folder of packages at a path, whoever they are laid out for.
///
/// # Errors
/// If there is one that is not whole.
pub fn is_folder(path: &Path) -> anyhow::Result<bool> {
    if path.join(FOLDER_FILE).is_file() || Foreign::find(path)?.is_some() {
        return Ok(true);
    }
    check_described(path)?;
    Ok(false)
}

/// Installs the packages of a folder that a model was compiled into, or a single package.
///
/// # Errors
/// If there are none, or they cannot be installed.
pub fn there(name: &str) -> anyhow::Result<()> {
    let store = models::store()?;
    if is_package(name) {
        let path = Path::new(name);
        let package = Package::open(path)?;
        return packages(&device(&store)?, &[(path.to_owned(), package)]);
    }
    let path = models::get(&store, &models::resolve(&store, name)?)?.path;
    if !is_folder(&path)? {
        return Err(hinted(
            format_args!("{name} holds no packages, so that there is nothing to install"),
            "baton compile MODEL -o DIR writes a folder of packages",
        ));
    }
    folder(&device(&store)?, &path)
}

/// Installs a folder's packages, shows how that goes, and prints where each stays.
///
/// # Errors
/// If the folder is not what was written, or Core ML refuses a package.
pub fn folder(device: &Device, path: &Path) -> anyhow::Result<()> {
    let mut shown = Shown::default();
    let tell = &mut |step: Installing<'_>| shown.step(step);
    let places = match Foreign::find(path)? {
        Some(foreign) => foreign.install(device, tell)?,
        None => Folder::open(path)?.install(device, tell)?,
    };
    shown.done(&places)
}

/// The same with packages that lie anywhere.
///
/// # Errors
/// If Core ML refuses one.
pub fn packages(device: &Device, packages: &[(PathBuf, Package)]) -> anyhow::Result<()> {
    let mut shown = Shown::default();
    let mut places = Vec::new();
    let count = packages.len();
    for (index, (path, package)) in packages.iter().enumerate() {
        let name = path.display().to_string();
        let tell = &mut |step: Preparing<'_>| {
            shown.step(Installing { package: &name, index, count, step })
        };
        places.push((name.clone(), device.install(path, package, &Hashes::new(), tell)?));
    }
    shown.done(&places)
}

/// What is being done, on standard error: a line for each package, and a sign of life for each step of it.
#[derive(Default)]
struct Shown {
    current: Option<(usize, Instant)>,
    spinner: Option<Spinner>,
}

impl Shown {
    fn step(&mut self, step: Installing<'_>) {
        self.spinner = None;
        if self.current.is_none_or(|(index, _)| index != step.index) {
            self.finish();
            let (package, number) = (format::in_line(step.package), step.index + 1);
            eprintln_quietly(format_args!("installing {package} ({number} of {})", step.count));
            self.current = Some((step.index, Instant::now()));
        }
        self.spinner = Some(Spinner::start(&said(step.step)));
    }

    /// Tells how long the last package took.
    fn finish(&mut self) {
        self.spinner = None;
        if let Some((_, start)) = self.current.take() {
            eprintln_quietly(format_args!("  ready in {}", format::time(start.elapsed())));
        }
    }

    fn done(mut self, places: &[(String, PathBuf)]) -> anyhow::Result<()> {
        self.finish();
        let mut out = format::stdout();
        for (package, place) in places {
            writeln!(out, "{}: {}", format::in_line(package), place.display())?;
        }
        out.flush()?;
        Ok(())
    }
}

/// A step as a user reads it.
fn said(step: Preparing<'_>) -> String {
    match step {
        Preparing::Compiling => "Core ML compiles it".to_owned(),
        Preparing::Loading(function) => {
            format!("Core ML loads {}", format::in_line(function))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_said_in_words() {
        assert_eq!(said(Preparing::Compiling), "Core ML compiles it");
        assert_eq!(said(Preparing::Loading("head\u{1b}[2J")).find('\u{1b}'), None);
    }
}
