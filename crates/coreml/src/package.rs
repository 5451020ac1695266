//! A package: the folder `X.mlpackage` with a manifest, a model file and a weight file.

use std::fs::{self, File};
use std::io::{BufWriter, Read as _};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use baton_graph::hex;
use serde_json::{Value as Json, json};
use sha2::{Digest, Sha256};

use crate::blob::{BlobWriter, Blobs, WEIGHT_FILE};
use crate::mil::{BlobRef, TensorType};
use crate::model::Model;
use crate::{Error, Problem, Result, files};

const MANIFEST: &str = "Manifest.json";
const DATA: &str = "Data";
const AUTHOR: &str = "com.apple.CoreML";
const MODEL: &str = "com.apple.CoreML/model.mlmodel";
const WEIGHTS: &str = "com.apple.CoreML/weights";
const WEIGHT_NAME: &str = "weight.bin";
/// How programs name the folder of the model file.
const MODEL_PATH: &str = "@model_path/";
/// The largest model file that is read: the format itself ends at 2 GiB.
const MAX_MODEL: u64 = 1 << 31;
/// A manifest lists two things.
const MAX_MANIFEST: u64 = 1 << 20;

/// A package that was opened: its model in memory, its weights in their file.
#[derive(Debug)]
pub struct Package {
    /// The model.
    pub model: Model,
    weights: Option<Arc<Blobs>>,
}

impl Package {
    /// Opens a package and checks all of it but the weights' values: see [`Model::verify`]. Every
    /// tensor that the program refers to is there in its type and size.
    ///
    /// # Errors
    /// If a file is missing, damaged or of a later format, or the program breaks a rule.
    pub fn open(folder: &Path) -> Result<Package> {
        let model_path = folder.join(DATA).join(root_model(folder)?);
        let bytes = read(&model_path, MAX_MODEL)?;
        let model = Model::from_bytes(&bytes)?;
        let home = model_path.parent().expect("it lies in the package");
        let file = weight_path(&model, home)?;
        let weights = file.map(|path| Blobs::open(&path)).transpose()?;
        Package::new(model, weights)
    }

    /// A package in memory, checked as [`Package::open`] does.
    ///
    /// # Errors
    /// If the program breaks a rule or a weight is missing.
    pub fn new(model: Model, weights: Option<Blobs>) -> Result<Package> {
        model.verify()?;
        let package = Package { model, weights: weights.map(Arc::new) };
        for (blob, ty) in package.model.program.blobs() {
            let ty = ty.tensor().expect("verified");
            package.blobs(blob)?.check(blob.offset, ty)?;
        }
        Ok(package)
    }

    /// The package with one of the shapes that an input of a function may have, over the same weights: see
    /// [`Model::with_shape`].
    ///
    /// # Errors
    /// If it may not have that shape.
    pub fn with_shape(&self, function: &str, input: &str, shape: &[usize]) -> Result<Package> {
        let model = self.model.with_shape(function, input, shape)?;
        Ok(Package { model, weights: self.weights.clone() })
    }

    /// The model, and its weights if it has any.
    pub(crate) fn into_parts(self) -> (Model, Option<Arc<Blobs>>) {
        (self.model, self.weights)
    }

    /// The data of a weight that the program refers to.
    ///
    /// # Errors
    /// If it is not there.
    pub fn weight(&self, blob: &BlobRef, ty: &TensorType) -> Result<bytes::Bytes> {
        self.blobs(blob)?.read(blob.offset, ty)
    }

    /// Bytes of the weight file.
    pub fn weight_bytes(&self) -> u64 {
        self.weights.as_ref().map_or(0, |blobs| blobs.len())
    }

    /// The weight file that a reference leads to.
    pub(crate) fn blobs(&self, blob: &BlobRef) -> Result<&Arc<Blobs>> {
        self.weights
            .as_ref()
            .ok_or_else(|| Error::malformed(format!("weight file {:?} is missing", blob.file)))
    }
}

/// Where the weight file lies that a model refers to, if it does; `home` is its own folder.
fn weight_path(model: &Model, home: &Path) -> Result<Option<PathBuf>> {
    let mut files: Vec<&str> = model.program.blobs().iter().map(|(b, _)| b.file.as_str()).collect();
    files.sort_unstable();
    files.dedup();
    match files[..] {
        [] => Ok(None),
        [file] => match file.strip_prefix(MODEL_PATH).and_then(inside) {
            Some(path) => Ok(Some(home.join(path))),
            None => Err(Error::malformed(format!("weight file {file:?} lies outside of it"))),
        },
        _ => Err(Error::Unsupported {
            what: format!("a package with {} weight files", files.len()),
            instead: "packages with one are".into(),
        }),
    }
}

/// The path, if it leads nowhere but into the folder that it starts from.
pub(crate) fn inside(path: &str) -> Option<&Path> {
    let path = Path::new(path);
    let plain = path.components().all(|part| matches!(part, Component::Normal(_)));
    (plain && path.components().next().is_some()).then_some(path)
}

/// The path of the model file below `Data`, by the manifest.
fn root_model(folder: &Path) -> Result<PathBuf> {
    let path = folder.join(MANIFEST);
    let bytes = read(&path, MAX_MANIFEST)?;
    let wrong = |problem: &str| Error::malformed(format!("its {MANIFEST} {problem}"));
    let manifest: Json = serde_json::from_slice(&bytes).map_err(|_| wrong("is no JSON"))?;
    if manifest["fileFormatVersion"] != "1.0.0" {
        return Err(wrong("is not of version 1.0.0"));
    }
    let root = manifest["rootModelIdentifier"].as_str().ok_or_else(|| wrong("names no model"))?;
    let entry = &manifest["itemInfoEntries"][root];
    let path = entry["path"].as_str().ok_or_else(|| wrong("lacks the model that it names"))?;
    inside(path).map(Path::to_owned).ok_or_else(|| wrong("names a model outside of it"))
}

pub(crate) fn read(path: &Path, limit: u64) -> Result<Vec<u8>> {
    let (file, len) = files::open(path)?;
    if len > limit {
        return Err(Error::malformed(format!("{} is too long", path.display())));
    }
    let mut bytes = Vec::new();
    file.take(limit).read_to_end(&mut bytes).map_err(Error::io(path))?;
    Ok(bytes)
}

/// Bytes of weights, each counted as in half precision, that a function may have to be placed well by what
/// is reported of the Neural Engine.
pub(crate) const LARGEST: u64 = 950_000_000;

/// Writes a package: first the weights, one by one, then the model that refers to them. What is
/// written lies beside its place until all of it is there.
#[derive(Debug)]
pub struct PackageWriter {
    target: PathBuf,
    partial: PathBuf,
    /// The weight file.
    pub weights: BlobWriter<BufWriter<File>>,
}

impl PackageWriter {
    /// Begins the package `target`, whose parent folder must exist.
    ///
    /// # Errors
    /// If there is something at `target` already, or writing fails.
    pub fn create(target: &Path) -> Result<PackageWriter> {
        let exists = || std::io::Error::from(std::io::ErrorKind::AlreadyExists);
        let Some(name) = target.file_name() else {
            return Err(Error::io(target)(std::io::ErrorKind::InvalidInput.into()));
        };
        if target.exists() {
            return Err(Error::io(target)(exists()));
        }
        let partial = target.with_file_name(format!(".{}.partial", name.to_string_lossy()));
        let weights = begin(&partial).map_err(|error| error.moved(&partial, target))?;
        Ok(PackageWriter { target: target.to_owned(), partial, weights })
    }

    /// An error of writing weights, with the file that they were written to, where it will lie.
    pub fn named(&self, error: Error) -> Error {
        match error {
            Error::Write(source) => Error::Io { path: weight_file(&self.target), source },
            error => error,
        }
    }

    /// Ends the package with the model that uses the weights. The same model and weights give the same
    /// bytes.
    ///
    /// # Errors
    /// If the program breaks a rule or writing fails; nothing is at the package's place then.
    pub fn finish(self, model: &Model) -> Result<()> {
        self.seal()?.finish(model)
    }

    /// Ends the weights, so that what has been written can be tried out before the model is.
    ///
    /// # Errors
    /// If writing fails.
    pub fn seal(self) -> Result<Draft> {
        let PackageWriter { target, partial, weights } = self;
        let has_weights = !weights.is_empty();
        let draft = Draft { target, partial, has_weights };
        let ended = weights.finish().map_err(Error::io(&draft.weight_file()));
        ended.map_err(|error| error.moved(&draft.partial, &draft.target))?;
        Ok(draft)
    }
}

/// A package whose weights are written and whose model is not. It leaves nothing behind if it is not
/// finished.
#[derive(Debug)]
pub struct Draft {
    target: PathBuf,
    partial: PathBuf,
    has_weights: bool,
}

impl Draft {
    fn weight_file(&self) -> PathBuf {
        weight_file(&self.partial)
    }

    /// The package that it becomes with `model`, over the weights where they lie now.
    ///
    /// # Errors
    /// If the program breaks a rule or refers to weights that are not there.
    pub fn package(&self, model: Model) -> Result<Package> {
        let weights = match self.has_weights {
            true => Some(Blobs::open(&self.weight_file())?),
            false => None,
        };
        Package::new(model, weights)
    }

    /// Ends the package: see [`PackageWriter::finish`].
    ///
    /// # Errors
    /// If the program breaks a rule or writing fails; nothing is at the package's place then.
    pub fn finish(self, model: &Model) -> Result<()> {
        write_rest(&self.partial, self.has_weights, model)
            .and_then(|()| fs::rename(&self.partial, &self.target).map_err(Error::io(&self.target)))
            .map_err(|error| error.moved(&self.partial, &self.target))
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        // After it was moved to its place there is nothing to remove; that what is left cannot be
        // removed changes nothing for the caller.
        let _ = fs::remove_dir_all(&self.partial);
    }
}

/// The weight file of the package at a path.
fn weight_file(package: &Path) -> PathBuf {
    package.join(DATA).join(WEIGHTS).join(WEIGHT_NAME)
}

/// The weight file of a package that has nothing else yet.
fn begin(folder: &Path) -> Result<BlobWriter<BufWriter<File>>> {
    if folder.exists() {
        fs::remove_dir_all(folder).map_err(Error::io(folder))?;
    }
    let weights = folder.join(DATA).join(WEIGHTS);
    fs::create_dir_all(&weights).map_err(Error::io(&weights))?;
    let path = weights.join(WEIGHT_NAME);
    let file = File::create(&path).map_err(Error::io(&path))?;
    BlobWriter::new(BufWriter::new(file)).map_err(Error::io(&path))
}

fn write_rest(folder: &Path, has_weights: bool, model: &Model) -> Result<()> {
    model.verify()?;
    if model.program.blobs().iter().any(|(blob, _)| blob.file != WEIGHT_FILE) {
        let text = format!("it refers to other weight files than {WEIGHT_FILE}");
        return Err(Error::Invalid(vec![Problem { place: "program".into(), text }]));
    }
    let bytes = model.to_bytes();
    let path = folder.join(DATA).join(MODEL);
    fs::write(&path, &bytes).map_err(Error::io(&path))?;
    let item = |name: &str, description: &str, path: &str| json!({ "author": AUTHOR, "description": description, "name": name, "path": path });
    let mut items = vec![(
        identifier(MODEL, &bytes),
        item("model.mlmodel", "CoreML Model Specification", MODEL),
    )];
    if has_weights {
        let id = identifier(WEIGHTS, &bytes);
        items.push((id, item("weights", "CoreML Model Weights", WEIGHTS)));
    } else {
        let unused = folder.join(DATA).join(WEIGHTS);
        fs::remove_dir_all(&unused).map_err(Error::io(&unused))?;
    }
    let root = items[0].0.clone();
    let manifest = json!({
        "fileFormatVersion": "1.0.0",
        "itemInfoEntries": Json::Object(items.into_iter().collect()),
        "rootModelIdentifier": root,
    });
    let text = serde_json::to_string_pretty(&manifest).expect("it is plain JSON") + "\n";
    let path = folder.join(MANIFEST);
    fs::write(&path, text).map_err(Error::io(&path))
}

/// A UUID (version 8 of RFC 9562) that follows from a file's name and the model.
fn identifier(name: &str, model: &[u8]) -> String {
    let digest = Sha256::new().chain_update(name).chain_update(model).finalize();
    let mut bytes: [u8; 16] = digest[..16].try_into().expect("16 bytes");
    bytes[6] = bytes[6] & 0x0f | 0x80;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let hex = hex(&bytes).to_uppercase();
    let parts = [0..8, 8..12, 12..16, 16..20, 20..32].map(|range| &hex[range]);
    parts.join("-")
}
