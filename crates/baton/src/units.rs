//! Where a model runs, and what is told of it.

use std::fs::File;
use std::io::{BufWriter, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use baton_engine::{Key, LoadOptions, Profiles, RemoteUnit, Timeline, UnitChoice, UnitKind};
use baton_hub::Store;

use crate::bench::machine::Machine;
use crate::failure::{hinted, usage};

/// The part of a command line that is about units.
#[derive(Debug, clap::Args)]
pub struct Units {
    /// Unit that reads prompts: cpu, gpu, coreml (on a Mac also called ane), or auto for the best one (see
    /// baton tune); or remote://HOST:PORT for a machine that runs baton prefill-server
    #[arg(long, value_name = "UNIT", default_value = "auto", value_parser = named)]
    prefill: Named,
    /// Unit that writes answers: cpu, gpu, coreml, or auto for the best one
    #[arg(long, value_name = "UNIT", default_value = "auto", value_parser = here)]
    decode: Named,
    /// Run the packages in this folder, which `baton compile` made of the model, on the unit coreml, instead
    /// of making some in memory
    #[arg(long, value_name = "DIR")]
    packages: Option<PathBuf>,
    /// Fewest new tokens of a prompt that one unit reads for the other (default: as many as pay)
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..))]
    crossover: Option<u32>,
    /// File with the key of the prefill server [default: prefill-key in BATON_HOME]
    #[arg(long, value_name = "FILE", env = "BATON_PREFILL_KEY")]
    prefill_key: Option<PathBuf>,
    /// Write what ran where and when to a file: one that chrome://tracing and ui.perfetto.dev show, or
    /// a picture if its name ends in .svg
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
}

/// A unit, or whichever is best.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Named {
    Auto,
    Unit(UnitKind),
    /// Another machine, by its address.
    Remote(String),
}

/// A trace in the making.
pub struct Trace {
    path: PathBuf,
    file: File,
    timeline: Arc<Timeline>,
}

impl Units {
    /// The options of a model that runs on these units, and the trace that was asked for.
    ///
    /// # Errors
    /// If the file for the trace cannot be written, or that of the key not be read.
    pub fn apply(
        &self,
        store: &Store,
        options: LoadOptions,
    ) -> anyhow::Result<(LoadOptions, Option<Trace>)> {
        let (prefill, decode) = (self.prefill.unit(), self.decode.unit());
        if self.packages.is_some() && ![prefill, decode].contains(&Some(UnitKind::CoreMl)) {
            return Err(usage(
                "--packages is for the unit coreml: name it with --prefill or --decode",
            ));
        }
        // Looking at the machine takes time, and with one unit there is nothing to choose.
        let alone = prefill.is_none() && decode.is_none() && UnitKind::available().len() == 1;
        let choice = UnitChoice {
            prefill,
            decode,
            crossover: self.crossover.map(|n| n as usize),
            profiles: (!alone).then(|| profiles(store, &options)),
        };
        let remote = match &self.prefill {
            Named::Remote(address) => {
                let path = self.prefill_key.clone().unwrap_or_else(|| key_path(store));
                let address = address.clone();
                Some(RemoteUnit { address, key: read_key(&path)? })
            }
            _ => None,
        };
        let trace = self.trace.clone().map(Trace::begin).transpose()?;
        let timeline = trace.as_ref().map(|trace| Arc::clone(&trace.timeline));
        let packages = self.packages.clone();
        Ok((LoadOptions { choice: Some(choice), remote, packages, timeline, ..options }, trace))
    }
}

impl Named {
    fn unit(&self) -> Option<UnitKind> {
        match self {
            Named::Unit(unit) => Some(*unit),
            Named::Auto | Named::Remote(_) => None,
        }
    }
}

impl Trace {
    /// A file that cannot be written is said before anything is computed.
    fn begin(path: PathBuf) -> anyhow::Result<Trace> {
        let file = File::create(&path)
            .with_context(|| format!("cannot write the trace to {}", path.display()))?;
        Ok(Trace { path, file, timeline: Timeline::start() })
    }

    /// Writes it.
    ///
    /// # Errors
    /// If that fails.
    pub fn finish(self) -> anyhow::Result<()> {
        let Trace { path, file, timeline } = self;
        let mut file = BufWriter::new(file);
        let written = match path.extension().is_some_and(|end| end == "svg") {
            true => timeline.write_picture(&mut file),
            false => timeline.write_trace(&mut file),
        };
        written.with_context(|| format!("cannot write the trace to {}", path.display()))
    }
}

/// What was measured on this machine, with such threads and such a cache.
pub fn profiles(store: &Store, options: &LoadOptions) -> Profiles {
    let Machine { cpu, processors, isa, arch, .. } = Machine::look();
    let threads = options.threads.map(|n| format!(", {n} threads")).unwrap_or_default();
    let machine = format!("{cpu}, {processors} processors, {isa}, {arch}{threads}");
    Profiles::new(store.settings().home.join("profiles"), machine, options.kv_type)
}

/// Where the key of prefill servers is, unless somebody says otherwise.
pub fn key_path(store: &Store) -> PathBuf {
    store.settings().home.join("prefill-key")
}

/// The key in a file.
///
/// # Errors
/// If there is none.
pub fn read_key(path: &Path) -> anyhow::Result<Key> {
    let shown = path.display();
    let mut text = String::new();
    // Whatever else the file may be.
    File::open(path).and_then(|file| file.take(1000).read_to_string(&mut text)).map_err(
        |error| {
            let hint = "`baton prefill-server` makes a key; copy its file to this machine";
            hinted(format_args!("cannot read the key in {shown}: {error}"), hint)
        },
    )?;
    text.parse().with_context(|| format!("{shown} holds no key"))
}

fn named(text: &str) -> Result<Named, String> {
    if let Some(address) = text.strip_prefix("remote://") {
        let address = address.trim_end_matches('/');
        let port = address.rsplit_once(':').filter(|(host, _)| !host.is_empty());
        return match port.and_then(|(_, port)| port.parse::<u16>().ok()) {
            Some(_) => Ok(Named::Remote(address.to_owned())),
            None => Err("expected remote://HOST:PORT".into()),
        };
    }
    match text {
        "auto" => Ok(Named::Auto),
        name => {
            name.parse().map(Named::Unit).map_err(|error: baton_engine::Error| error.to_string())
        }
    }
}

/// A unit of this machine.
pub fn kind(name: &str) -> Result<UnitKind, String> {
    name.parse().map_err(|error: baton_engine::Error| error.to_string())
}

/// Answers are written on this machine.
fn here(text: &str) -> Result<Named, String> {
    match named(text)? {
        Named::Remote(_) => Err("answers are written on this machine; say cpu or auto".into()),
        other => Ok(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_named_or_chosen() {
        assert_eq!(named("auto"), Ok(Named::Auto));
        assert_eq!(named("cpu"), Ok(Named::Unit(UnitKind::Cpu)));
        assert!(named("ane").unwrap_err().contains("Core ML"));
        assert_eq!(named("remote://far:7070/"), Ok(Named::Remote("far:7070".into())));
        assert_eq!(named("remote://[::1]:7"), Ok(Named::Remote("[::1]:7".into())));
        for bad in ["remote://", "remote://far", "remote://:80", "remote://far:x"] {
            assert!(named(bad).unwrap_err().contains("HOST:PORT"), "{bad}");
        }
        assert!(here("remote://far:7070").is_err());
        assert!(named("quantum").unwrap_err().contains("auto"));
    }
}
