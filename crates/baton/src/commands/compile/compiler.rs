//! A model that is being compiled: what is written of it, and how it is measured.

use std::path::Path;
use std::sync::Arc;

use baton_coreml::layout::names::anemll::META;
use baton_coreml::layout::{Content, Layout, Piece, Task};
use baton_coreml::lower::{Chunks, MilLowering};
use baton_coreml::{Draft, FOLDER_FORMAT, Package, PackageWriter, measure};
use baton_cpu::{Isa, Pool, physical_cores};
use baton_engine::ModelText;
use baton_graph::{Graph, Logits, hex};
use baton_hub::Sha256;
use baton_models::{BuildOptions, Model};
use baton_weights::Weights;
use serde_json::{Value, json};

use super::manifest::{self, Measured};
use super::{Args, text};
use crate::failure::usage;
use crate::progress::Spinner;

/// Tokens of the text by which the model is calibrated, and those behind them on which it is measured.
const SAMPLE: usize = 128;

/// A package whose weights are written.
pub struct Written {
    piece: Piece,
    draft: Draft,
    package: Package,
}

impl Written {
    /// Writes the rest of it.
    pub fn finish(self) -> anyhow::Result<(String, Package)> {
        self.draft.finish(&self.package.model)?;
        Ok((self.piece.file, self.package))
    }
}

/// A model that is being compiled.
pub struct Compiler<'a> {
    model: &'a Model,
    context: usize,
    layout: Layout,
    chunks: Chunks,
    pub graph: Graph,
    pub weights: Weights,
    /// The text to calibrate and measure on.
    pub tokens: Vec<u32>,
    /// The tokens that weights are chosen by. The package is measured on the others.
    pub seen: usize,
    pool: Arc<Pool>,
}

impl<'a> Compiler<'a> {
    pub fn new(
        model: &'a Model,
        context: usize,
        layout: Layout,
        args: &Args,
    ) -> anyhow::Result<Compiler<'a>> {
        let threads = args.threads.number().unwrap_or_else(physical_cores);
        let pool = Arc::new(Pool::new(threads, Isa::from_env()?)?);
        let (graph, weights) = model.build(&BuildOptions { context })?;
        let text = text::text(args.text.as_deref())?;
        let mut tokens = ModelText::of(model)?.tokenizer.encode(&text, true)?;
        tokens.truncate((2 * SAMPLE).min(context));
        if tokens.is_empty() {
            return Err(usage("the text to calibrate on is empty"));
        }
        let seen = SAMPLE.min(tokens.len() / 2);
        let chunks = match (args.chunk_bytes(), args.chunks) {
            (Some(size), _) => Chunks::Bytes(size),
            (None, Some(n)) => Chunks::Count(n),
            (None, None) => Chunks::Whole,
        };
        Ok(Compiler { model, context, layout, chunks, graph, weights, tokens, seen, pool })
    }

    /// The functions of Baton's own layout.
    pub fn lowering(&self, args: &Args) -> MilLowering {
        let mut columns: Vec<usize> =
            args.tokens.iter().map(|&n| usize::from(n).min(self.context)).collect();
        columns.sort_unstable();
        columns.dedup();
        let decode = (!args.no_decode).then_some(self.context);
        MilLowering { decode, ..MilLowering::for_context(self.context, &columns) }
    }

    /// Bytes that the folder takes at least, with so many bits for each weight of products.
    pub fn least_bytes(&self, bits: f32, embeddings: bool) -> anyhow::Result<u64> {
        let packages = self.layout.least_bytes(&self.graph, bits);
        // Packages of other layouts have their own.
        if !embeddings || !self.can_measure() {
            return Ok(packages);
        }
        let names = self.model.looked_up()?;
        let tensors = self.model.tensors().iter().filter(|tensor| names.contains(&tensor.name));
        Ok(tensors.map(|tensor| tensor.bytes as u64).fold(packages, u64::saturating_add))
    }

    fn task<'b>(&'b self, lowering: &'b MilLowering) -> Task<'b> {
        Task { graph: &self.graph, weights: &self.weights, lowering }
    }

    /// Writes the weights of every package into a folder.
    pub fn write(&self, folder: &Path, lowering: &MilLowering) -> anyhow::Result<Vec<Written>> {
        let task = self.task(lowering);
        let pieces = self.layout.pieces(task, self.chunks)?;
        let mut written = Vec::new();
        for (at, piece) in pieces.iter().enumerate() {
            let _spinner = Spinner::start(&format!("writing {}", piece.file));
            let mut writer = PackageWriter::create(&folder.join(&piece.file))?;
            let program = self.layout.lower(task, &pieces, at, &mut writer.weights);
            let mut program = program.map_err(|error| writer.named(error))?;
            program.metadata.description = self.model.name().to_owned();
            program.metadata.version = concat!("baton ", env!("CARGO_PKG_VERSION")).into();
            program.metadata.licence = self.model.licence().unwrap_or_default().to_owned();
            let draft = writer.seal()?;
            let package = draft.package(program)?;
            written.push(Written { piece: piece.clone(), draft, package });
        }
        Ok(written)
    }

    /// What other programs must know of the packages: the name of a file and its text.
    pub fn note(
        &self,
        lowering: &MilLowering,
        written: &[Written],
    ) -> anyhow::Result<Option<(&'static str, String)>> {
        let Layout::Anemll(anemll) = &self.layout else { return Ok(None) };
        let pieces: Vec<Piece> = written.iter().map(|written| written.piece.clone()).collect();
        let (name, licence) = (self.model.name(), self.model.licence());
        Ok(Some((META, anemll.meta(self.task(lowering), &pieces, name, licence)?)))
    }

    /// Whether the packages can be run here.
    pub fn can_measure(&self) -> bool {
        self.layout == Layout::Baton
    }

    /// Runs the packages with every intermediate result in half precision, and takes note in them of how
    /// far they are from the model in single.
    pub fn measure(&self, written: &mut [Written], expected: &Logits) -> anyhow::Result<Measured> {
        let _spinner = Spinner::start("comparing with the model");
        let packages: Vec<&Package> = written.iter().map(|written| &written.package).collect();
        let (graph, weights, tokens) = (&self.graph, &self.weights, &self.tokens);
        let (quality, extremes) =
            measure(graph, weights, &packages, tokens, self.seen, expected, &self.pool)?;
        let ids: Vec<u8> = tokens.iter().flat_map(|id| id.to_le_bytes()).collect();
        let measured = Measured { quality, extremes, text: Sha256::of(&ids).to_string() };
        let note = measured.to_json().to_string();
        for written in written {
            let user = &mut written.package.model.metadata.user;
            user.insert(manifest::QUALITY.into(), note.clone());
        }
        Ok(measured)
    }

    /// What a program that uses the packages must know.
    pub fn manifest(
        &self,
        lowering: &MilLowering,
        packages: &[Written],
        measured: Option<&Measured>,
    ) -> Value {
        let forms = &lowering.forms;
        let weights = match forms.by_name.is_empty() {
            true => forms.each.to_string(),
            false => "mixed".to_owned(),
        };
        let by_name = forms.by_name.iter();
        let by_name = by_name.map(|(name, form)| (name.clone(), form.to_string().into()));
        let package = |w: &Written| {
            let part = match &w.piece.content {
                Content::Part(part) => Some(part),
                _ => None,
            };
            manifest::package(&w.piece.file, part, &w.package.model, w.package.weight_bytes())
        };
        json!({
            "format": FOLDER_FORMAT,
            "layout": self.layout.name(),
            "model": self.model.name(),
            "architecture": self.model.architecture(),
            "fingerprint": hex(self.graph.fingerprint()),
            "context": self.context,
            "weights": weights,
            "forms": by_name.collect::<serde_json::Map<_, _>>(),
            "weight_bytes": packages.iter().map(|w| w.package.weight_bytes()).sum::<u64>(),
            "packages": packages.iter().map(package).collect::<Vec<_>>(),
            "metadata": packages.first().map(|w| &w.package.model.metadata.user),
            "quality": measured.map(Measured::to_json),
        })
    }
}
