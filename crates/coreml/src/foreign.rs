//! Folders laid out for the programs of other projects, found and run here as those programs run them.
//!
//! ```text
//! yaml       the part of YAML that descriptions are written in
//! meta       `meta.yaml`, what Anemll's programs are told of a folder
//! names      which files a folder's packages are
//! signature  functions and their tensors, of packages and of what Core ML has compiled
//! origin     what a package tells of its place among others
//! lost       folders that have lost what they are known by
//! order      whether chunks are all there, in their order, and of one model
//! install    packages made ready for a machine
//! anemll     packages of Anemll's layout as a program
//! llm_cli    packages of coreml-llm-cli's layout as a program
//! ```
//!
//! What a description says is checked against the packages before anything is computed. The names of files,
//! functions and features are those of [`layout::names`](crate::layout::names).

mod anemll;
mod install;
mod llm_cli;
mod lost;
mod meta;
mod names;
mod order;
mod origin;
mod signature;
mod yaml;

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use baton_cpu::Pool;
use baton_graph::{Graph, Limits, StateSpec};
use sha2::{Digest, Sha256};

pub use self::lost::check_described;
use self::names::Found;
use self::order::Order;
pub(crate) use self::order::REMEDY;
use self::signature::Signature;
use crate::executor::{PackageExecutor, Program};
use crate::files::Hashes;
use crate::folder::{FOLDER_FILE, Folder};
use crate::interpret::{Interpreter, Precision};
use crate::package::Package;
use crate::runtime::{Device, Interpreted, Runtime, Source};
use crate::{Error, Result, files, memory};

/// Most elements of a tensor that a caller of packages makes: 2^30, as many as the cache of a model of 8
/// billion parameters has for 8192 tokens.
const MOST_ELEMENTS: usize = 1 << 30;
/// Most features, heads, places and layers.
const MOST: usize = 1 << 20;
/// Most tokens of a vocabulary.
const MOST_TOKENS: usize = 1 << 26;
/// Bytes of a file that its fingerprint looks at, at as many places.
const SAMPLES: u64 = 16;
const SAMPLE: usize = 256;

/// A folder that the programs of another project run.
#[derive(Debug)]
pub struct Foreign {
    folder: PathBuf,
    name: String,
    licence: Option<String>,
    architecture: Option<String>,
    sources: Vec<Source>,
    plan: Plan,
    /// What `baton.json` says, if it is there.
    described: Option<Folder>,
    fingerprint: [u8; 32],
}

/// The sizes of a model that its packages show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Features of the hidden state.
    pub hidden: usize,
    /// Tokens that have logits.
    pub vocab: usize,
    /// Most tokens of a sequence.
    pub context: usize,
    /// Layers, heads and features of a head of the cache; heads and features may be more than the model has, to
    /// be round numbers.
    pub cache: [usize; 3],
}

/// How packages are called.
#[derive(Clone, Debug)]
enum Plan {
    Anemll(anemll::Plan),
    LlmCli(llm_cli::Plan),
}

impl Foreign {
    /// The folder at `path`, or that of the `meta.yaml` at `path`; none if it is laid out otherwise. All of its
    /// packages are opened and checked.
    ///
    /// # Errors
    /// If a package is missing, damaged, or not what its name and the description of the folder say.
    pub fn find(path: &Path) -> Result<Option<Foreign>> {
        let Some((folder, found)) = names::find(path)? else { return Ok(None) };
        // Something else in its place is an error, not as if it were missing.
        let described = match folder.join(FOLDER_FILE).symlink_metadata() {
            Ok(_) => Some(Folder::open(&folder)?),
            Err(_) => None,
        };
        let mut sources = Vec::new();
        let mut signatures = Vec::new();
        for stem in found.stems() {
            let (source, signature) = signature::open(&folder, stem)?;
            sources.push(source);
            signatures.push(signature);
        }
        let own_name = || {
            let whole = folder.canonicalize().unwrap_or_else(|_| folder.clone());
            whole.file_name().unwrap_or_default().to_string_lossy().into_owned()
        };
        let (plan, name, licence, architecture) = match found {
            Found::Anemll(meta, _) => {
                let plan = anemll::Plan::of(&folder, &meta, &signatures)?;
                anemll::fix(&plan, &mut sources)?;
                let (chunks, layers) = (1..signatures.len() - 1, plan.sizes().cache[0]);
                let (folder, packages) = (&*folder, &*signatures);
                Order { folder, packages, chunks, layers, each: None }.check()?;
                let name = meta.name.unwrap_or_else(own_name);
                (Plan::Anemll(plan), name, meta.licence, meta.architecture)
            }
            Found::LlmCli(prefix, _) => {
                let plan = llm_cli::Plan::of(&signatures)?;
                let (chunks, layers) = (1..signatures.len() - 2, plan.sizes().cache[0]);
                let (folder, packages) = (&*folder, &*signatures);
                let each = Some(plan.layers_of_chunks());
                Order { folder, packages, chunks, layers, each }.check()?;
                (Plan::LlmCli(plan), prefix, None, None)
            }
        };
        let fingerprint = fingerprint(&sources)?;
        Ok(Some(Foreign {
            folder,
            name,
            licence,
            architecture,
            sources,
            plan,
            described,
            fingerprint,
        }))
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// What its description or its files call the model.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The licence, if it is stated.
    pub fn licence(&self) -> Option<&str> {
        self.licence.as_deref()
    }

    /// The architecture as the description has it.
    pub fn architecture(&self) -> Option<&str> {
        self.architecture.as_deref()
    }

    /// The layout, as `baton compile --layout` calls it.
    pub fn layout(&self) -> &'static str {
        match self.plan {
            Plan::Anemll(_) => "anemll",
            Plan::LlmCli(_) => "coreml-llm-cli",
        }
    }

    /// The sizes of the model.
    pub fn sizes(&self) -> Sizes {
        match &self.plan {
            Plan::Anemll(plan) => plan.sizes(),
            Plan::LlmCli(plan) => plan.sizes(),
        }
    }

    /// Each package with the bytes of its files.
    ///
    /// # Errors
    /// If they cannot be looked at.
    pub fn packages(&self) -> Result<Vec<(String, u64)>> {
        let sized = |source: &Source| {
            let name = source.path().file_name().unwrap_or_default().to_string_lossy();
            Ok((name.into_owned(), bytes(source.path())?))
        };
        self.sources.iter().map(sized).collect()
    }

    /// Bytes of what the packages keep and are given of the cache of each sequence, beside the cache itself, and of the
    /// other arrays that they are called with: in half precision on a `device`, in single in the interpreter.
    pub(crate) fn held_bytes(&self, limits: &Limits, device: bool) -> u64 {
        let (sequences, each) = (memory::sequences(limits), memory::each(device));
        match &self.plan {
            Plan::Anemll(plan) => plan.held_bytes(sequences, each),
            Plan::LlmCli(plan) => plan.held_bytes(sequences, each),
        }
    }

    /// Identifies the packages: a hash of their files' names and lengths, and of some of their bytes.
    pub fn fingerprint(&self) -> [u8; 32] {
        self.fingerprint
    }

    /// The executor of its packages. The graph is either one that has its fingerprint and its sizes, or that of
    /// the model that `baton.json` says they were made of.
    ///
    /// # Errors
    /// If a file is not the one that was written, the graph or the limits do not fit the packages, or they cannot
    /// be run on this machine.
    pub(crate) fn executor(
        &self,
        graph: &Graph,
        limits: Limits,
        pool: &Arc<Pool>,
        device: Option<&Device>,
    ) -> Result<PackageExecutor> {
        self.check_graph(graph, &limits)?;
        let (name, needed) = (self.folder.display(), self.held_bytes(&limits, device.is_some()));
        memory::check(format_args!("the cache of {name}"), needed, memory::available())?;
        let hashes = match &self.described {
            Some(described) => described.check_files()?,
            None => Hashes::new(),
        };
        let (runtime, kept): (Box<dyn Runtime>, _) = match device {
            Some(device) => device.open(&self.sources, &hashes)?,
            None => (Box::new(Interpreted::new(self.interpreters(pool)?)), Vec::new()),
        };
        let cache = cache(graph).ok_or_else(other_model)?;
        let bytes = self.packages()?.into_iter().map(|(_, bytes)| bytes as usize);
        let weight_bytes = bytes.fold(0, usize::saturating_add);
        let program: Box<dyn Program> = match &self.plan {
            Plan::Anemll(plan) => {
                Box::new(anemll::Layers::new(plan, runtime, cache, &limits, weight_bytes))
            }
            Plan::LlmCli(plan) => {
                Box::new(llm_cli::Windows::new(plan, runtime, cache, &limits, weight_bytes))
            }
        };
        Ok(PackageExecutor::of(graph, limits, program).keeping(kept))
    }

    fn interpreters(&self, pool: &Arc<Pool>) -> Result<Vec<Interpreter>> {
        let interpreter = |source: &Source| match source {
            Source::Package(_, package) => {
                Interpreter::new(package, Precision::F32, Arc::clone(pool))
            }
            Source::Compiled { path, .. } => Err(Error::Unsupported {
                what: format!("{}, which was compiled by Core ML,", path.display()),
                instead: format!(
                    "only a Mac runs such folders; put the {}.mlpackage that it was made of beside it",
                    path.file_stem().unwrap_or_default().display()
                ),
            }),
        };
        self.sources.iter().map(interpreter).collect()
    }

    fn check_graph(&self, graph: &Graph, limits: &Limits) -> Result<()> {
        let problem = |problem: String| Error::Folder { path: self.folder.clone(), problem };
        if *graph.fingerprint() != self.fingerprint {
            let Some(described) = &self.described else {
                let text = format!(
                    "has no {FOLDER_FILE}, so that nobody knows of which model its packages were made; run the \
                     folder by itself, or compile the model again"
                );
                return Err(problem(text));
            };
            described.check(graph, limits)?;
        }
        let sizes = self.sizes();
        if limits.context > sizes.context {
            return Err(Error::beyond_packages(limits.context, sizes.context));
        }
        let fits = |[layers, heads, width]: [usize; 3]| {
            layers == sizes.cache[0] && heads <= sizes.cache[1] && width <= sizes.cache[2]
        };
        match graph.vocab() == sizes.vocab && cache(graph).is_some_and(fits) {
            true => Ok(()),
            false => Err(other_model()),
        }
    }
}

/// Most tokens of a sequence that the packages of a folder have room for, whoever they are laid out for.
///
/// # Errors
/// As [`Foreign::find`] and [`Folder::open`].
pub fn packages_context(folder: &Path) -> Result<usize> {
    match Foreign::find(folder)? {
        Some(foreign) => Ok(foreign.sizes().context),
        None => Ok(Folder::open(folder)?.context()),
    }
}

fn other_model() -> Error {
    let what = "a model other than that of these packages".to_owned();
    Error::Unsupported {
        what,
        instead: "run the folder by itself, or compile this model".to_owned(),
    }
}

/// Layers, heads and features of the cache of a graph, if all its layers have the same.
fn cache(graph: &Graph) -> Option<[usize; 3]> {
    let states = graph.states();
    let of = |state: &StateSpec| match *state {
        StateSpec::Kv { kv_heads, head_dim, .. } => Some([states.len(), kv_heads, head_dim]),
        _ => None,
    };
    let first = of(states.first()?)?;
    states.iter().all(|state| of(state) == Some(first)).then_some(first)
}

/// That a number of a package is from 1 to a bound.
fn bounded(what: &str, number: usize, most: usize) -> Result<usize> {
    match (1..=most).contains(&number) {
        true => Ok(number),
        false => Err(Error::malformed(format!("{what} of {number}, not of 1 to {most}"))),
    }
}

/// That a tensor is no larger than any that is made.
fn bounded_tensor(what: &str, shape: &[usize]) -> Result<()> {
    let elements = shape.iter().try_fold(1usize, |n, &dim| n.checked_mul(dim));
    match elements.is_some_and(|n| n <= MOST_ELEMENTS) {
        true => Ok(()),
        false => {
            Err(Error::malformed(format!("{what} has a shape of {shape:?}, which is too large")))
        }
    }
}

/// Bytes of all files of a package.
fn bytes(package: &Path) -> Result<u64> {
    let length = |path: PathBuf| Ok(path.metadata().map_err(Error::io(&path))?.len());
    files::below(package)?.into_iter().map(length).sum()
}

fn fingerprint(sources: &[Source]) -> Result<[u8; 32]> {
    let mut hash = Sha256::new();
    for package in sources.iter().map(Source::path) {
        hash.update(package.file_name().unwrap_or_default().as_encoded_bytes());
        for path in files::below(package)? {
            let name = path.strip_prefix(package).unwrap_or(&path);
            let mut file = File::open(&path).map_err(Error::io(&path))?;
            let length = file.metadata().map_err(Error::io(&path))?.len();
            hash.update(format!("\n{} {length}\n", name.display()));
            for at in (0..SAMPLES).map(|i| length / SAMPLES * i) {
                let mut bytes = Vec::new();
                file.seek(SeekFrom::Start(at))
                    .and_then(|_| (&mut file).take(SAMPLE as u64).read_to_end(&mut bytes))
                    .map_err(Error::io(&path))?;
                hash.update(&bytes);
            }
        }
    }
    Ok(hash.finalize().into())
}

/// The one function of a package, with its name.
fn only<'a>(signature: &'a Signature, what: &str) -> Result<(&'a str, &'a signature::Features)> {
    match signature.functions.iter().collect::<Vec<_>>()[..] {
        [(name, features)] => Ok((name, features)),
        _ => Err(signature.wrong(format!("has not one function, as {what} does"))),
    }
}

/// The package among `sources` at a place, to be replaced.
fn package_mut(sources: &mut [Source], at: usize) -> Option<&mut Package> {
    match sources.get_mut(at)? {
        Source::Package(_, package) => Some(package),
        Source::Compiled { .. } => None,
    }
}
