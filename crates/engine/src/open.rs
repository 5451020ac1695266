//! From a path to a model whose files are open, whatever project has laid them out.

use std::path::Path;

use baton_coreml::{Foreign, check_described};
use baton_graph::ExecError;
use baton_models::{Model, Packaged, PackagedSizes};

use crate::Result;

/// Opens a model: as [`Model::open`], or a folder of packages in the layout of another project.
///
/// # Errors
/// As [`Model::open`], and if a package is missing, damaged, or not what its folder says, or if a folder of packages
/// has lost what says how they are called.
pub fn open_model(path: impl AsRef<Path>) -> Result<Model> {
    let path = path.as_ref();
    match Foreign::find(path).map_err(ExecError::from)? {
        Some(foreign) => Ok(Model::of_packages(packaged(&foreign)?)?),
        None => {
            check_described(path).map_err(ExecError::from)?;
            Ok(Model::open(path)?)
        }
    }
}

/// What a folder says of its model.
fn packaged(foreign: &Foreign) -> Result<Packaged> {
    let sizes = foreign.sizes();
    let [layers, kv_heads, head_dim] = sizes.cache;
    let text = |text: Option<&str>| text.map(str::to_owned);
    Ok(Packaged {
        folder: foreign.folder().to_owned(),
        name: foreign.name().to_owned(),
        licence: text(foreign.licence()),
        architecture: text(foreign.architecture()),
        layout: foreign.layout().to_owned(),
        sizes: PackagedSizes {
            vocab: sizes.vocab,
            hidden: sizes.hidden,
            layers,
            kv_heads,
            head_dim,
            context: sizes.context,
        },
        packages: foreign.packages().map_err(ExecError::from)?,
        fingerprint: foreign.fingerprint(),
    })
}
