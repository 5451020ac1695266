//! Writes packages into a folder, for `tests/coreml/check.py` to look at them.
//!
//! `cargo run --release -p baton-coreml --features testing --example packages -- DIR`

use std::path::Path;

use baton_coreml::PackageWriter;
use baton_coreml::testing::example;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = std::env::args().nth(1).ok_or("usage: packages DIR")?;
    let mut writer = PackageWriter::create(&Path::new(&folder).join("example.mlpackage"))?;
    let model = example(&mut writer.weights)?;
    writer.finish(&model)?;
    Ok(())
}
