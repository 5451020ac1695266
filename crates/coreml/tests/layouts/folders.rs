//! Folders in the layouts of other projects, found and run as models are.

use std::fs;
use std::path::Path;

use baton_coreml::layout::names::anemll::{META, meta as fields};
use baton_coreml::layout::{Anemll, Layout, LlmCli, Task};
use baton_coreml::lower::{Chunks, MilLowering};
use baton_coreml::{
    FOLDER_FILE, FOLDER_FORMAT, FolderUnit, Foreign, PackageWriter, describe_files,
};
use baton_graph::testing::conformance;
use baton_graph::testing::{Tiny, random_tokens, random_weights};
use baton_graph::{Batch, ExecError, Executor, Graph, Limits, Rows, SeqId, Unit, hex, reference};
use baton_models::{BuildOptions, Model, Packaged, PackagedSizes};
use baton_weights::Weights;
use serde_json::json;
use tempfile::TempDir;

use crate::fake::pool;
use crate::{TOLERANCE, checkpoint, prefix};

pub const BATCH: usize = 8;

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    Anemll,
    LlmCli,
}

pub const BOTH: [Kind; 2] = [Kind::Anemll, Kind::LlmCli];

impl Kind {
    /// The layout with room for a context at least.
    pub fn layout(self, context: usize) -> Layout {
        let context = context.next_multiple_of(BATCH).max(2 * BATCH);
        match self {
            Kind::Anemll => Layout::Anemll(Anemll::new(prefix(), context, BATCH, "Qwen3").unwrap()),
            Kind::LlmCli => Layout::LlmCli(LlmCli::new(prefix(), context, BATCH).unwrap()),
        }
    }

    /// A folder of the packages of a graph, as `baton compile` writes it.
    pub fn write(
        self,
        graph: &Graph,
        weights: &Weights,
        context: usize,
        chunks: Chunks,
    ) -> baton_coreml::Result<TempDir> {
        let folder = tempfile::tempdir().unwrap();
        let layout = self.layout(context);
        let lowering = MilLowering { head_piece: 40, ..MilLowering::default() };
        let task = Task { graph, weights, lowering: &lowering };
        let pieces = layout.pieces(task, chunks)?;
        for (at, piece) in pieces.iter().enumerate() {
            let mut writer = PackageWriter::create(&folder.path().join(&piece.file))?;
            let model = layout.lower(task, &pieces, at, &mut writer.weights)?;
            writer.finish(&model)?;
        }
        if let Layout::Anemll(anemll) = &layout {
            let meta = anemll.meta(task, &pieces, "a model", Some("mit"))?;
            fs::write(folder.path().join(META), meta).unwrap();
        }
        let description = json!({
            "format": FOLDER_FORMAT,
            "layout": layout.name(),
            "fingerprint": hex(graph.fingerprint()),
            "context": context,
            "packages": pieces.iter().map(|piece| json!({ "file": piece.file })).collect::<Vec<_>>(),
            "files": describe_files(folder.path())?,
        });
        fs::write(folder.path().join(FOLDER_FILE), description.to_string()).unwrap();
        Ok(folder)
    }
}

/// The unit that compiles a graph into such a folder and runs that.
struct ThroughFolder(Kind, Chunks);

impl Unit for ThroughFolder {
    fn name(&self) -> &'static str {
        "folder"
    }

    fn compile(
        &self,
        graph: &Graph,
        weights: &Weights,
        limits: Limits,
    ) -> Result<Box<dyn Executor>, ExecError> {
        graph.check_limits(&limits)?;
        let folder = self.0.write(graph, weights, limits.context, self.1)?;
        FolderUnit::new(folder.path(), pool()).compile(graph, weights, limits)
    }
}

/// The graph of what a folder holds, without any model.
pub fn own_graph(folder: &Path) -> Graph {
    let foreign = Foreign::find(folder).unwrap().unwrap();
    let sizes = foreign.sizes();
    let [layers, kv_heads, head_dim] = sizes.cache;
    let packaged = Packaged {
        folder: folder.to_owned(),
        name: foreign.name().to_owned(),
        licence: None,
        architecture: foreign.architecture().map(str::to_owned),
        layout: foreign.layout().to_owned(),
        sizes: PackagedSizes {
            vocab: sizes.vocab,
            hidden: sizes.hidden,
            layers,
            kv_heads,
            head_dim,
            context: sizes.context,
        },
        packages: foreign.packages().unwrap(),
        fingerprint: foreign.fingerprint(),
    };
    fs::write(folder.join("tokenizer.json"), "{}").unwrap();
    let model = Model::of_packages(packaged).unwrap();
    model.build(&BuildOptions { context: sizes.context }).unwrap().0
}

pub fn limits(context: usize) -> Limits {
    Limits { context, kv_tokens: 3 * context, batch_tokens: context }
}

/// The last row behind some tokens.
pub fn last(executor: &mut dyn Executor, seq: u32, tokens: &[u32]) -> Vec<f32> {
    let batch = Batch::one(SeqId(seq), tokens.to_vec(), Rows::Last);
    executor.forward(&batch).unwrap().values
}

#[test]
fn models_in_a_folder_agree_with_the_reference_however_their_tokens_come() {
    conformance::models(&ThroughFolder(Kind::Anemll, Chunks::Count(2)), TOLERANCE, TOLERANCE);
    conformance::models(&ThroughFolder(Kind::LlmCli, Chunks::Whole), TOLERANCE, TOLERANCE);
}

#[test]
fn caches_are_shared_cut_and_handed_over_and_failures_change_nothing() {
    let unit = ThroughFolder(Kind::Anemll, Chunks::Whole);
    conformance::caches(&unit, TOLERANCE, TOLERANCE);
    conformance::failures(&unit, TOLERANCE);
    conformance::failures(&ThroughFolder(Kind::LlmCli, Chunks::Count(2)), TOLERANCE);
}

/// Prompts shorter and longer than a batch, two texts in turn, cut, shared, and handed over to the reference.
fn texts(name: &str, kind: Kind, graph: &Graph, weights: &Weights, context: usize) {
    let vocab = graph.vocab();
    let all = [5, 6].map(|seed| random_tokens(context, vocab, seed));
    let expected = [0, 1].map(|i| reference::logits(graph, weights, &all[i]).unwrap());
    let folder = kind.write(graph, weights, context, Chunks::Count(1)).unwrap();
    let unit = FolderUnit::new(folder.path(), pool());
    let mut executor = unit.compile(graph, weights, limits(context)).unwrap();
    let mut held = [0; 2];
    for (i, n) in [(0, 3), (1, 19), (0, 1), (0, 13), (1, 1), (1, 1), (0, 1), (1, 3), (0, 4), (1, 0)]
    {
        let tokens = &all[i][held[i]..held[i] + n];
        held[i] += n;
        if n > 0 {
            let found = last(&mut *executor, i as u32, tokens);
            let what = format!("{name}, {kind:?}: text {i} at {}", held[i]);
            TOLERANCE.check(&what, &found, expected[i].row(held[i] - 1));
        }
    }
    // Back to the border of a window, into one, and to another's beginning.
    for len in [16, 11, 8, 5, 1] {
        executor.truncate(SeqId(1), len).unwrap();
        let found = last(&mut *executor, 1, &all[1][len..20]);
        TOLERANCE.check(&format!("{name}, {kind:?}: cut to {len}"), &found, expected[1].row(19));
        executor.copy(SeqId(1), SeqId(2), len).unwrap();
        let found = last(&mut *executor, 2, &all[1][len..18]);
        TOLERANCE.check(&format!("{name}, {kind:?}: shared {len}"), &found, expected[1].row(17));
    }
    let block = executor.export_kv(SeqId(1), 0..19).unwrap();
    let mut other = reference::Reference.compile(graph, weights, limits(context)).unwrap();
    other.import_kv(SeqId(0), 0, &block).unwrap();
    let found = last(&mut *other, 0, &all[1][19..20]);
    TOLERANCE.check(&format!("{name}, {kind:?}: handed over"), &found, expected[1].row(19));
    // And back, as far as the layout lets it.
    let whole = executor.export_kv(SeqId(1), 0..16).unwrap();
    executor.free(SeqId(2));
    executor.import_kv(SeqId(2), 0, &whole).unwrap();
    let found = last(&mut *executor, 2, &all[1][16..20]);
    TOLERANCE.check(&format!("{name}, {kind:?}: taken over"), &found, expected[1].row(19));
    executor.free(SeqId(2));
    let part = executor.import_kv(SeqId(2), 0, &block);
    match kind {
        Kind::Anemll => part.unwrap(),
        Kind::LlmCli => {
            let error = part.unwrap_err().to_string();
            assert!(error.contains("--decode cpu"), "{error}");
            executor.import_kv(SeqId(2), 0, &whole).unwrap();
            executor.truncate(SeqId(2), 12).unwrap();
            let batch = Batch::one(SeqId(2), vec![1], Rows::Last);
            let error = executor.forward(&batch).unwrap_err().to_string();
            assert!(error.contains("handed over"), "{error}");
            assert_eq!(executor.len(SeqId(2)), 12);
        }
    }
}

#[test]
fn checkpoints_answer_several_texts_in_turn_as_the_reference_does() {
    for name in ["llama", "qwen3", "gemma3"] {
        let (graph, weights, _) = checkpoint(name);
        for kind in BOTH {
            texts(name, kind, &graph, &weights, 40);
        }
    }
}

#[test]
fn a_folder_without_a_description_of_the_model_runs_by_itself_alone() {
    let tiny = Tiny { layers: 3, ..Tiny::default() };
    let graph = tiny.graph().unwrap();
    let weights = random_weights(&graph, 11);
    let tokens = random_tokens(30, tiny.vocab, 5);
    let expected = reference::logits(&graph, &weights, &tokens).unwrap();
    for kind in BOTH {
        let folder = kind.write(&graph, &weights, 40, Chunks::Count(2)).unwrap();
        let described = own_graph(folder.path());
        fs::remove_file(folder.path().join(FOLDER_FILE)).unwrap();
        let own = own_graph(folder.path());
        assert_eq!(own, described);
        assert_eq!((own.vocab(), own.states().len()), (graph.vocab(), 3));
        let unit = FolderUnit::new(folder.path(), pool());
        let mut executor = unit.compile(&own, &Weights::new(), limits(40)).unwrap();
        let found = last(&mut *executor, 0, &tokens);
        TOLERANCE.check(&format!("{kind:?}"), &found, expected.row(29));
        // Whose cache it has, nobody knows.
        let error = unit.compile(&graph, &weights, limits(40)).err().unwrap().to_string();
        assert!(error.contains("by itself"), "{error}");
        let error = unit.compile(&own, &Weights::new(), limits(41)).err().unwrap().to_string();
        assert!(error.contains("room for 40"), "{error}");
        // Other bytes, another fingerprint.
        let weight = "Data/com.apple.CoreML/weights/weight.bin";
        let chunk = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path());
        let chunk = chunk.into_iter().find(|path| path.join(weight).is_file()).unwrap();
        let mut bytes = fs::read(chunk.join(weight)).unwrap();
        let middle = bytes.len() / 16 * 8;
        bytes[middle] ^= 1;
        fs::write(chunk.join(weight), bytes).unwrap();
        assert_ne!(own_graph(folder.path()).fingerprint(), own.fingerprint());
    }
}

#[test]
fn files_that_are_not_those_that_were_compiled_are_found_by_the_description() {
    let graph = Tiny::default().graph().unwrap();
    let weights = random_weights(&graph, 11);
    for kind in BOTH {
        let folder = kind.write(&graph, &weights, 40, Chunks::Whole).unwrap();
        let file = folder.path().join(match kind {
            Kind::Anemll => "model_lm_head.mlpackage/Manifest.json",
            Kind::LlmCli => "model_chunk2.mlpackage/Manifest.json",
        });
        let text = fs::read_to_string(&file).unwrap();
        fs::write(&file, text + " ").unwrap();
        let unit = FolderUnit::new(folder.path(), pool());
        let error = unit.compile(&graph, &weights, limits(40)).err().unwrap().to_string();
        assert!(error.contains("not the file that was compiled"), "{error}");
        // Of another model.
        let other = Tiny { layers: 2, ..Tiny::default() }.graph().unwrap();
        let error = unit.compile(&other, &weights, limits(40)).err().unwrap().to_string();
        assert!(error.contains("other than that of these packages"), "{error}");
    }
}

/// What is found at a folder after a change.
fn error(folder: &Path) -> String {
    match Foreign::find(folder) {
        Err(error) => error.to_string(),
        Ok(found) => panic!("{found:?}"),
    }
}

#[test]
fn packages_that_are_not_what_the_folder_says_are_refused() {
    let graph = Tiny::default().graph().unwrap();
    let weights = random_weights(&graph, 11);
    let folder = Kind::Anemll.write(&graph, &weights, 40, Chunks::Count(2)).unwrap();
    let at = |name: &str| folder.path().join(name);
    let meta = fs::read_to_string(at(META)).unwrap();
    for (field, value, text) in [
        (fields::CONTEXT_LENGTH, "48", "a context of 48, but its packages have 40"),
        (fields::BATCH_SIZE, "4", "batches of 4, but its packages have 8"),
        (fields::SPLIT_LM_HEAD, "4", "pieces of logits of 4"),
        (fields::VOCAB_SIZE, "98", "a vocabulary of 98, but its packages have 97"),
        (fields::NUM_CHUNKS, "3", "says that there are 3 chunks and model_FFN_PF_chunk_01of02 is"),
        (fields::LM_HEAD_CHUNK_SIZES, "[97]", "other sizes"),
        (fields::FILES[0], "model_lm_head.mlmodelc", "input_ids"),
        (fields::FILES[1], "model_embeddings.mlmodelc", "hidden_states"),
        (fields::FILES[2], "model_lm_head.mlmodelc", "model_lm_head_chunk_01of02"),
        (fields::FILES[2], "../model_FFN_PF_chunk_01of02.mlmodelc", "no name in the folder"),
    ] {
        let lines = meta.lines().map(|line| match line.trim().split_once(": ") {
            Some((key, _)) if key == field => format!("    {key}: {value}\n"),
            _ => format!("{line}\n"),
        });
        fs::write(at(META), lines.collect::<String>()).unwrap();
        let found = error(folder.path());
        assert!(found.contains(text), "{field} {value}: {found}");
    }
    fs::write(at(META), &meta).unwrap();
    // The description itself names the folder, too.
    assert_eq!(Foreign::find(&at(META)).unwrap().unwrap().folder(), folder.path());
    let [one, two] = ["model_FFN_PF_chunk_01of02.mlpackage", "model_lm_head.mlpackage"].map(at);
    fs::rename(&one, at("x")).unwrap();
    fs::rename(&two, &one).unwrap();
    fs::rename(at("x"), &two).unwrap();
    assert!(error(folder.path()).contains("has no function \"infer\""));
    fs::remove_dir_all(&one).unwrap();
    assert!(error(folder.path()).contains("is not there"));

    let folder = Kind::LlmCli.write(&graph, &weights, 40, Chunks::Count(1)).unwrap();
    let at = |name: &str| folder.path().join(name);
    for (first, second, text) in [
        ("model_chunk1.mlpackage", "model_chunk2.mlpackage", "input_ids"),
        ("model_chunk2.mlpackage", "model_chunk3.mlpackage", "k_cache_0"),
        ("model_chunk3.mlpackage", "cache-processor.mlpackage", "\"x\""),
        ("logit-processor.mlpackage", "cache-processor.mlpackage", "old_k_cache"),
    ] {
        let swap = || {
            fs::rename(at(first), at("x")).unwrap();
            fs::rename(at(second), at(first)).unwrap();
            fs::rename(at("x"), at(second)).unwrap();
        };
        swap();
        let found = error(folder.path());
        assert!(found.contains(text), "{first} for {second}: {found}");
        swap();
    }
    assert!(Foreign::find(folder.path()).unwrap().is_some());
    // What nobody has laid out so is somebody else's.
    assert!(Foreign::find(tempfile::tempdir().unwrap().path()).unwrap().is_none());
}
