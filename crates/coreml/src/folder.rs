//! The folder that a model was compiled into: its packages, and what lies beside them.
//!
//! `baton.json` lists all other files with their lengths and hashes, so that a file that was damaged, or taken from
//! another folder, is found before anything is computed with it. What is not listed must not be read: it may
//! lie there if nothing would.

mod install;
mod read;

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use baton_cpu::Pool;
use baton_graph::{ExecError, Executor, Graph, Limits, Op, Unit, hex};
use baton_weights::Weights;
use rayon::prelude::*;
use serde_json::{Map, Value, json};

use crate::executor::PackageExecutor;
use crate::files::{self, Hashes};
use crate::foreign::{Foreign, REMEDY, check_described};
use crate::interpret::{Interpreter, Precision};
use crate::package::{Package, inside};
use crate::runtime::{Device, Source};
use crate::unit::NAME;
use crate::{Error, Result};

pub use self::install::Installing;
pub(crate) use self::install::in_turn;

/// The file that describes a folder.
pub const FOLDER_FILE: &str = "baton.json";
/// What it calls the form of the folder. Earlier ones lack the list of files.
pub const FOLDER_FORMAT: u64 = 3;

/// The layout that is meant where none is named.
const LAYOUT: &str = "baton";

/// A description is some hundred bytes for each matrix, feature and file: less than 200 KiB for models of a
/// hundred layers in ten packages.
const MAX_DESCRIPTION: u64 = 4 << 20;
/// Functions whose names are kept.
const MOST_FUNCTIONS: usize = 1024;
/// Packages of the head at most. No head is so many times larger than a layer, and chunks have the size of one
/// at least.
const MOST_HEADS: usize = 128;

/// A folder of packages whose description was read.
#[derive(Clone, Debug)]
pub struct Folder {
    path: PathBuf,
    layout: String,
    fingerprint: String,
    context: usize,
    weights: Option<String>,
    weight_bytes: Option<u64>,
    functions: Vec<String>,
    packages: Vec<String>,
    /// Length and hash of each file, by its path in the folder.
    files: BTreeMap<PathBuf, (u64, String)>,
}

impl Folder {
    /// Reads the description of the folder at `path`.
    ///
    /// # Errors
    /// If it is missing, malformed or of another version.
    pub fn open(path: &Path) -> Result<Folder> {
        let file = path.join(FOLDER_FILE);
        let problem = |problem: String| Error::Folder { path: file.clone(), problem };
        if !file.exists() {
            check_described(path)?;
            let text = "is not there; `baton compile` writes such a folder";
            return Err(problem(text.to_owned()));
        }
        let (opened, len) = files::open(&file)?;
        if len > MAX_DESCRIPTION {
            return Err(problem(format!("has more than {MAX_DESCRIPTION} bytes; {REMEDY}")));
        }
        let mut bytes = Vec::new();
        opened.take(len).read_to_end(&mut bytes).map_err(Error::io(&file))?;
        let value: Value =
            serde_json::from_slice(&bytes).map_err(|e| problem(format!("{e}; {REMEDY}")))?;
        Folder::parse(path, &value).map_err(|text| problem(format!("{text}; {REMEDY}")))
    }

    fn parse(path: &Path, value: &Value) -> std::result::Result<Folder, String> {
        match value["format"].as_u64() {
            Some(FOLDER_FORMAT) => {}
            Some(older) if older < FOLDER_FORMAT => {
                return Err("was written by an older version".to_owned());
            }
            _ => return Err("is of no format that is known".to_owned()),
        }
        let context = value["context"].as_u64().and_then(|n| usize::try_from(n).ok());
        let (mut packages, mut seen) = (Vec::new(), BTreeSet::new());
        let mut functions: Vec<String> = Vec::new();
        for entry in value["packages"].as_array().ok_or("lists no packages")? {
            let file = entry["file"].as_str().ok_or("has a package without a file")?;
            let name = inside(file);
            let name =
                name.ok_or_else(|| format!("package {file:?} lies outside of the folder"))?;
            if !seen.insert(name) {
                return Err(format!("lists package {file:?} twice"));
            }
            packages.push(file.to_owned());
            let named = entry["functions"].as_array().into_iter().flatten();
            for name in named.filter_map(|function| function["name"].as_str()) {
                if !functions.iter().any(|known| known == name) && functions.len() < MOST_FUNCTIONS
                {
                    functions.push(name.to_owned());
                }
            }
        }
        let mut files = BTreeMap::new();
        for (name, entry) in value["files"].as_object().ok_or("lists no files")? {
            let name =
                inside(name).ok_or_else(|| format!("{name:?} lies outside of the folder"))?;
            let entry = entry["bytes"].as_u64().zip(entry["sha256"].as_str());
            let (bytes, hash) =
                entry.ok_or_else(|| format!("{} has no length or no hash", name.display()))?;
            files.insert(name.to_owned(), (bytes, hash.to_owned()));
        }
        Ok(Folder {
            path: path.to_owned(),
            layout: value["layout"].as_str().unwrap_or(LAYOUT).to_owned(),
            fingerprint: value["fingerprint"].as_str().ok_or("has no fingerprint")?.to_owned(),
            context: context.filter(|&n| n > 0).ok_or("has no context")?,
            weights: value["weights"].as_str().map(str::to_owned),
            weight_bytes: value["weight_bytes"].as_u64(),
            functions,
            packages,
            files,
        })
    }

    /// The layout that it says its packages have.
    pub fn layout(&self) -> &str {
        &self.layout
    }

    /// Most tokens of a sequence that its packages were compiled for.
    pub fn context(&self) -> usize {
        self.context
    }

    /// The form of its matrices, such as `fp16` or `lut6-g16`, if its description says that.
    pub fn weights(&self) -> Option<&str> {
        self.weights.as_deref()
    }

    /// Bytes of all weights, as its description says.
    pub fn weight_bytes(&self) -> Option<u64> {
        self.weight_bytes
    }

    /// The names of the functions that its packages have, each once, as its description says.
    pub fn functions(&self) -> &[String] {
        &self.functions
    }

    /// How many packages there are.
    pub fn len(&self) -> usize {
        self.packages.len()
    }

    /// Whether there is no package.
    pub fn is_empty(&self) -> bool {
        self.packages.is_empty()
    }

    /// Where the packages are, in their order.
    fn paths(&self) -> impl Iterator<Item = PathBuf> {
        self.packages.iter().map(|name| self.path.join(name))
    }

    /// Opens the packages, in their order, after a look at every file of the folder.
    ///
    /// # Errors
    /// If a file is missing, damaged, or not the one that was written, or one that is read is not listed; or if
    /// the packages are laid out for others.
    pub fn packages(&self) -> Result<Vec<Package>> {
        self.own_packages().map(|(packages, _)| packages)
    }

    /// As [`Folder::packages`], with the hashes of all files.
    fn own_packages(&self) -> Result<(Vec<Package>, Hashes)> {
        if self.layout != LAYOUT {
            let problem = format!(
                "says that its packages are laid out for {}, but what such folders are known by is not there; get \
                 the whole folder, or compile the model again",
                self.layout
            );
            return Err(Error::Folder { path: self.path.join(FOLDER_FILE), problem });
        }
        self.all_packages()
    }

    /// The packages, in whatever layout, with the hashes of all files.
    fn all_packages(&self) -> Result<(Vec<Package>, Hashes)> {
        let hashes = self.check_files()?;
        let packages = self.paths().map(|path| Package::open(&path)).collect::<Result<_>>()?;
        Ok((packages, hashes))
    }

    /// Looks at every file of the folder, and returns the hash of each.
    ///
    /// # Errors
    /// As [`Folder::packages`].
    pub(crate) fn check_files(&self) -> Result<Hashes> {
        self.check_listed()?;
        let other = |path: &Path| Error::Folder {
            path: path.to_owned(),
            problem: format!(
                "is not the file that was compiled: its length or its hash is another; {REMEDY}"
            ),
        };
        // Lengths are compared first: no file is read that is longer than it should be.
        let opened = self.files.iter().map(|(name, (bytes, hash))| {
            let path = self.path.join(name);
            let opened = match path.symlink_metadata() {
                Ok(_) => files::open(&path)?,
                Err(_) => {
                    return Err(Error::Folder { path, problem: format!("is missing; {REMEDY}") });
                }
            };
            match opened.1 == *bytes {
                true => Ok((path, *bytes, hash)),
                false => Err(other(&path)),
            }
        });
        let opened = opened.collect::<Result<Vec<_>>>()?;
        let hashes = opened.into_par_iter().map(|(path, bytes, hash)| {
            match files::hash(&path, files::open(&path)?.0, bytes)? == *hash {
                true => Ok((path, hash.clone())),
                false => Err(other(&path)),
            }
        });
        hashes.collect()
    }

    /// That every file that is read is listed.
    fn check_listed(&self) -> Result<()> {
        for name in &self.packages {
            if !self.files.keys().any(|file| file.starts_with(name)) {
                let problem = format!("none of its files is listed in {FOLDER_FILE}; {REMEDY}");
                return Err(Error::Folder { path: self.path.join(name), problem });
            }
        }
        for path in read::files(&self.path, self.paths())? {
            if !path.strip_prefix(&self.path).is_ok_and(|name| self.files.contains_key(name)) {
                let problem = format!(
                    "is not listed in {FOLDER_FILE}, so it is none of what was compiled; remove it, or \
                     compile the model again"
                );
                return Err(Error::Folder { path, problem });
            }
        }
        Ok(())
    }

    /// That its packages were made of a graph.
    pub(crate) fn check(&self, graph: &Graph, limits: &Limits) -> Result<()> {
        let layers =
            graph.nodes().iter().filter(|node| matches!(node.op, Op::Attention(_))).count();
        if self.packages.len() > layers.max(1) + MOST_HEADS {
            let n = self.packages.len();
            let problem = format!("lists {n} packages for a model of {layers} layers; {REMEDY}");
            return Err(Error::Folder { path: self.path.join(FOLDER_FILE), problem });
        }
        if hex(graph.fingerprint()) == self.fingerprint {
            return Ok(());
        }
        let mut problem = "holds packages of another model".to_owned();
        if limits.context != self.context {
            // The fingerprint of a model whose rotation depends on the context does, too.
            problem += &format!(", or of this one for a context of {} tokens alone", self.context);
        }
        problem +=
            "; name the folder that this model was compiled into, or compile the model again";
        Err(Error::Folder { path: self.path.clone(), problem })
    }
}

/// What a description says of all files that are in a folder: lengths and hashes.
///
/// # Errors
/// If a file cannot be read.
pub fn describe_files(folder: &Path) -> Result<Value> {
    let described = files::below(folder)?.into_par_iter().map(|path| {
        let (file, bytes) = files::open(&path)?;
        let hash = files::hash(&path, file, bytes)?;
        let name = path.strip_prefix(folder).expect("it was found there");
        let name: Vec<_> = name.iter().map(|part| part.to_string_lossy()).collect();
        Ok((name.join("/"), json!({ "bytes": bytes, "sha256": hash })))
    });
    let described = described.collect::<Result<Vec<_>>>()?;
    Ok(Value::Object(described.into_iter().collect::<Map<_, _>>()))
}

/// The unit that runs the packages of a folder instead of making some.
#[derive(Clone, Debug)]
pub struct FolderUnit {
    folder: PathBuf,
    pool: Arc<Pool>,
    device: Option<Device>,
}

impl FolderUnit {
    /// The unit for the folder at a path, with the CPU's threads that it computes with.
    pub fn new(folder: impl Into<PathBuf>, pool: Arc<Pool>) -> FolderUnit {
        FolderUnit { folder: folder.into(), pool, device: None }
    }

    /// Runs the packages by Core ML on a machine that has it, instead of the interpreter.
    pub fn on(self, device: Device) -> FolderUnit {
        FolderUnit { device: Some(device), ..self }
    }
}

impl Unit for FolderUnit {
    fn name(&self) -> &'static str {
        NAME
    }

    fn compile(
        &self,
        graph: &Graph,
        weights: &Weights,
        limits: Limits,
    ) -> std::result::Result<Box<dyn Executor>, ExecError> {
        graph.check_limits(&limits)?;
        if let Some(foreign) = Foreign::find(&self.folder)? {
            return Ok(Box::new(foreign.executor(
                graph,
                limits,
                &self.pool,
                self.device.as_ref(),
            )?));
        }
        let folder = Folder::open(&self.folder)?;
        folder.check(graph, &limits)?;
        let (packages, hashes) = folder.own_packages()?;
        if let Some(device) = &self.device {
            let sources = folder.paths().zip(packages);
            let packages: Vec<_> =
                sources.map(|(path, p)| Source::Package(path, Box::new(p))).collect();
            let executor = PackageExecutor::on(device, graph, weights, &packages, &hashes, limits)?;
            return Ok(Box::new(executor));
        }
        let interpreted = packages.iter().map(|package| {
            Ok((package, Interpreter::new(package, Precision::F32, self.pool.clone())?))
        });
        let interpreted = interpreted.collect::<Result<Vec<_>>>()?;
        Ok(Box::new(PackageExecutor::new(graph, weights, interpreted, limits)?))
    }
}
