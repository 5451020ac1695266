//! The layout of the project Anemll: embeddings, chunks of layers with one cache in a state, and the head.

mod meta;

use std::io::{Seek, Write};

use baton_graph::{Graph, Rope};

use super::names::PACKAGE;
use super::names::anemll::{self as names, metadata};
use super::{Content, Piece, Prefix, Task, glue, refused, separate_parts};
use crate::blob::BlobWriter;
use crate::host::rotation_tables;
use crate::lower::{
    Anatomy, Cache, Chunks, Emitter, Form, FunctionLowering, HIDDEN, HeadCut, Held, MilLowering,
    Part, PartLowering,
};
use crate::mil::{DataType, Function, FunctionBuilder, Program, TensorType, Value, Var};
use crate::{Model, Result, memory};

/// The layout that the programs of the project Anemll read. With `D` features of the hidden state, `L` layers,
/// `K` key-value heads, `W` features of a head and `C` places of the cache:
///
/// | file | function | inputs | outputs |
/// |---|---|---|---|
/// | `{prefix}_embeddings` | | `input_ids (1,S)` int32, `S` 1 or the batch | `hidden_states (1,S,D)` |
/// | `{prefix}_FFN_PF[_lut6]_chunk_01of02` | `infer` (`S` 1), `prefill` (`S` the batch) | `hidden_states (1,S,D)`, `position_ids (S)`, `current_pos (1)` int32, `causal_mask (1,1,S,C)`; state `model_model_kv_cache_0 (2L,K,C,W)` | `output_hidden_states (1,S,D)`, one row by the last chunk's prefill |
/// | `{prefix}_lm_head[_lut6]` | | `hidden_states (1,1,D)` | `logits1`… `(1,1,n)` |
///
/// The cache is one for all chunks; the keys of layer `i` are at `i`, its values at `L + i`. Its heads and places are
/// padded to powers of two, and the features of a head to a multiple of 32, if
/// [`MilLowering::pad_states`](crate::lower::MilLowering) says so. Layers with a window shorter than the
/// context share the cache, and find their mask by themselves.
#[derive(Clone, Debug, PartialEq)]
pub struct Anemll {
    prefix: Prefix,
    context: usize,
    batch: usize,
    architecture: String,
}

/// The most places of a cache.
const MOST: usize = 1 << 20;

impl Anemll {
    /// The layout for a context and a batch of tokens. `architecture` is what the model is, such as `Qwen3`.
    ///
    /// # Errors
    /// If the context is no multiple of the batch, which would write over its end, or has more than 1048576 tokens.
    pub fn new(prefix: Prefix, context: usize, batch: usize, architecture: &str) -> Result<Anemll> {
        if batch < 2 {
            return Err(refused(format!("a batch of {batch} in this layout"), "take 2 or more"));
        }
        if context > MOST {
            let what = format!("a context of {context} in this layout");
            return Err(refused(what, &format!("take at most {MOST}")));
        }
        if context == 0 || !context.is_multiple_of(batch) {
            return Err(refused(
                format!("a context of {context} with batches of {batch} in this layout"),
                "take a multiple of the batch",
            ));
        }
        let architecture = architecture.to_ascii_lowercase().replace([' ', '-'], "");
        Ok(Anemll { prefix, context, batch, architecture })
    }

    /// How many pieces the logits of so many rows are in. They are of one length where that can be, since the
    /// programs find a token by the number of its piece and its place in it.
    fn logit_pieces(&self, vocab: usize) -> usize {
        let many = ["qwen", "gemma"].iter().any(|kind| self.architecture.starts_with(kind));
        let usual = if many { 16 } else { 8 };
        (usual..=4 * usual).find(|&n| vocab.is_multiple_of(n)).unwrap_or(usual)
    }

    /// The end of the names of files whose matrices are indices into tables.
    fn lut(lowering: &MilLowering) -> Option<u8> {
        match (lowering.forms.each, lowering.forms.by_name.is_empty()) {
            (Form::Palette(palette), true) => Some(palette.bits),
            _ => None,
        }
    }

    /// Elements of the tables of rotations, if the layers are in one package.
    pub(super) fn tables(&self, graph: &Graph) -> u64 {
        let ropes = Anatomy::of(graph).map(|anatomy| anatomy.ropes).unwrap_or_default();
        let table = |rope: &Rope| memory::bytes(2, &[rope.head_dim, self.context]);
        ropes.iter().map(table).fold(0, u64::saturating_add)
    }

    pub(super) fn pieces(&self, task: Task<'_>, chunks: Chunks) -> Result<Vec<Piece>> {
        let (layers, head) = separate_parts(task, chunks)?;
        let anatomy = Anatomy::of(task.graph)?;
        glue::embedding(&anatomy)?;
        glue::cache(&anatomy)?;
        let vocab = task.graph.vocab();
        if vocab < self.logit_pieces(vocab) {
            let what = format!("a vocabulary of {vocab} tokens in this layout");
            return Err(refused(what, glue::OWN_LAYOUT));
        }
        let lut = Anemll::lut(task.lowering).map_or(String::new(), |bits| format!("_lut{bits}"));
        let file = |rest: String| format!("{}_{rest}.{PACKAGE}", self.prefix);
        let n = layers.len();
        let embeddings =
            Piece { file: file(names::EMBEDDINGS.into()), content: Content::Embeddings };
        let chunks = layers.into_iter().enumerate().map(|(i, part)| Piece {
            file: file(format!("{}{lut}{}", names::LAYERS, names::chunk(i + 1, n))),
            content: Content::Part(part),
        });
        let head =
            Piece { file: file(format!("{}{lut}", names::HEAD)), content: Content::Part(head) };
        Ok([embeddings].into_iter().chain(chunks).chain([head]).collect())
    }

    pub(super) fn lower<W: Write + Seek>(
        &self,
        task: Task<'_>,
        pieces: &[Piece],
        at: usize,
        blobs: &mut BlobWriter<W>,
    ) -> Result<Model> {
        let chunks = pieces.iter().filter(|piece| is_layers(piece)).count();
        let mut model = match &pieces[at].content {
            Content::Embeddings => self.embeddings(task, blobs)?,
            Content::Part(part) if part.has_layers() => {
                let is_last = pieces.get(at + 1).is_none_or(|next| !is_layers(next));
                let mut model = self.layers(task, part, is_last, blobs)?;
                let user = &mut model.metadata.user;
                user.insert(metadata::CHUNK_NO.into(), at.to_string());
                let functions = [names::INFER, names::PREFILL].join(",");
                user.insert(metadata::FUNCTIONS.into(), functions);
                model
            }
            Content::Part(part) => self.head(task, part, blobs)?,
            _ => unreachable!("it has no such pieces"),
        };
        let user = &mut model.metadata.user;
        let version = concat!("Converted with Baton v", env!("CARGO_PKG_VERSION"));
        user.insert(metadata::INFO.into(), version.into());
        for (key, number) in [
            (metadata::CONTEXT_LENGTH, self.context),
            (metadata::BATCH_SIZE, self.batch),
            (metadata::NUM_CHUNKS, chunks),
        ] {
            user.insert(key.into(), number.to_string());
        }
        let lut = Anemll::lut(task.lowering).filter(|_| pieces[at].content != Content::Embeddings);
        if let Some(bits) = lut {
            user.insert(metadata::LUT_BITS.into(), bits.to_string());
        }
        Ok(model)
    }

    /// The package of the embeddings, which takes a token or a batch.
    fn embeddings<W: Write + Seek>(
        &self,
        task: Task<'_>,
        blobs: &mut BlobWriter<W>,
    ) -> Result<Model> {
        let anatomy = Anatomy::of(task.graph)?;
        let embedding = glue::embedding(&anatomy)?;
        let mut emitter = Emitter::new(task.graph, task.weights, task.lowering, blobs)?;
        let table =
            emitter.table(embedding.table, embedding.scale * task.lowering.residual_factor())?;
        let mut b = FunctionBuilder::new();
        let ids = b.input(names::INPUT_IDS, TensorType::new(DataType::Int32, &[1, 1]));
        let table = b.constant("embedding", table);
        let x = glue::gather(&mut b, names::HIDDEN_STATES, &table, &ids, 0)?;
        let mut model = glue::single(b.finish(&[x]))?;
        let shapes = [vec![1, 1], vec![1, self.batch]];
        model.let_vary(glue::SINGLE, names::INPUT_IDS, &shapes)?;
        Ok(model)
    }

    /// A package of layers.
    fn layers<W: Write + Seek>(
        &self,
        task: Task<'_>,
        part: &Part,
        is_last: bool,
        blobs: &mut BlobWriter<W>,
    ) -> Result<Model> {
        let Task { graph, weights, lowering } = task;
        let mut lowering = PartLowering::new(lowering, graph, weights, part, blobs)?;
        let mut program = Program::default();
        for (name, tokens) in [(names::INFER, 1), (names::PREFILL, self.batch)] {
            let function = self.function(lowering.function(tokens), is_last)?;
            program.functions.insert(name.into(), function);
        }
        let model = Model::new(program, Some(names::INFER))?;
        Ok(glue::noted(model, &lowering.emitter))
    }

    /// The function of some layers for so many tokens as it has columns.
    fn function<W: Write + Seek>(
        &self,
        mut f: FunctionLowering<'_, '_, '_, W>,
        is_last: bool,
    ) -> Result<Function> {
        let [layers, heads, width] = glue::cache(f.anatomy)?;
        let (tokens, context) = (f.columns, self.context);
        let hidden = f.input(names::HIDDEN_STATES, &[1, tokens, f.anatomy.hidden]);
        let positions = f.ints(names::POSITION_IDS, &[tokens]);
        let mask = f.input(names::CAUSAL_MASK, &[1, 1, tokens, context]);
        let position = f.ints(names::CURRENT_POS, &[1]);
        let shape = [2 * layers, heads, context, width];
        let shape = f.options.padded_state(shape, [false, true, true]);
        let state = f.b.state(names::KV_CACHE, TensorType::new(DataType::Float16, &shape));
        let first = f.part.layers.start;
        f.cache = Cache::Held(Held {
            states: [state.clone(), state],
            first: [first, layers + first],
            position,
            places: context,
        });
        let hidden = glue::columns(&mut f.b, "incoming", &hidden)?;
        f.enter(hidden);
        self.rotate(&mut f, &positions)?;
        self.mask(&mut f, &mask, &positions)?;
        let mut hidden = f.layers()?;
        // Only the cache is wanted of a prompt, until its last token is asked about once more.
        if is_last && tokens > 1 {
            let end = [1, f.anatomy.hidden, 1, tokens];
            hidden = f.slice("last", &hidden, &[0, 0, 0, tokens - 1], &end)?;
        }
        let output = glue::rows(&mut f.b, names::OUTPUT_HIDDEN_STATES, &hidden)?;
        Ok(f.b.finish(&[output]))
    }

    /// The tables of rotations at some positions, of those of the whole context.
    fn rotate<W: Write + Seek>(
        &self,
        f: &mut FunctionLowering<'_, '_, '_, W>,
        positions: &Var,
    ) -> Result<()> {
        for i in f.ropes() {
            let rope = &f.anatomy.ropes[i];
            let shape = [1, 1, rope.head_dim, self.context];
            let mut found = Vec::new();
            for (table, name) in
                rotation_tables(rope, 0, self.context).iter().zip(Anatomy::rotation(i))
            {
                let table = f.emitter.numbers(&name, &shape, table)?;
                let table = f.b.constant(&format!("{name}_table"), table);
                found.push(glue::gather(&mut f.b, &name, &table, positions, 3)?);
            }
            f.rotations.insert(i, <[Var; 2]>::try_from(found).expect("a pair of tables"));
        }
        Ok(())
    }

    /// The masks of all windows by the one that is given.
    fn mask<W: Write + Seek>(
        &self,
        f: &mut FunctionLowering<'_, '_, '_, W>,
        mask: &Var,
        positions: &Var,
    ) -> Result<()> {
        // Minus infinity in all of a row would make it no number at all.
        let hidden = Value::f16(HIDDEN);
        let mask = f.unary("maximum", "finite_mask", mask, &[("y", hidden.clone().into())])?;
        for window in f.windows() {
            let own = match window {
                Some(window) if window < self.context => {
                    let name = Anatomy::mask(Some(window));
                    let before = Value::sizes(&[window]);
                    let last = f.unary(
                        "sub",
                        &format!("{name}_last"),
                        positions,
                        &[("y", before.into())],
                    )?;
                    let last = f.reshape(&format!("{name}_column"), &last, &[f.columns, 1])?;
                    let places: Vec<usize> = (0..self.context).collect();
                    let places = f.b.constant("places", Value::sizes(&places));
                    let gone = f.binary("less_equal", &format!("{name}_gone"), &places, &last)?;
                    let values = [(&gone).into(), hidden.clone().into(), (&mask).into()];
                    glue::select(&mut f.b, &name, values)?
                }
                _ => mask.clone(),
            };
            f.masks.insert(window, own);
        }
        Ok(())
    }

    /// The package of the head.
    fn head<W: Write + Seek>(
        &self,
        task: Task<'_>,
        part: &Part,
        blobs: &mut BlobWriter<W>,
    ) -> Result<Model> {
        glue::of_part(task, part, blobs, 1, |f| {
            f.head_cut = HeadCut::Pieces(self.logit_pieces(f.graph.vocab()));
            let hidden = f.input(names::HIDDEN_STATES, &[1, 1, f.anatomy.hidden]);
            let hidden = glue::columns(&mut f.b, "incoming", &hidden)?;
            glue::logits(f, hidden, |i, _| names::logits(i + 1))
        })
    }
}

fn is_layers(piece: &Piece) -> bool {
    matches!(&piece.content, Content::Part(part) if part.has_layers())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logits_are_in_as_many_pieces_of_one_length_as_programs_expect() {
        let of = |architecture: &str, vocab| {
            let prefix = Prefix::new("a").unwrap();
            Anemll::new(prefix, 64, 64, architecture).unwrap().logit_pieces(vocab)
        };
        assert_eq!(of("Llama", 128_256), 8);
        assert_eq!((of("Qwen2", 151_936), of("Qwen3", 151_936)), (16, 16));
        assert_eq!(of("Gemma 3", 262_144), 16);
        // Nine divide it, eight do not; nothing does.
        assert_eq!((of("Llama", 9 * 101), of("Llama", 97)), (9, 8));
    }
}
