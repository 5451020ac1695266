//! The layout of the project coreml-llm-cli: a window of tokens that moves on, and caches that move with it.

use std::io::{Seek, Write};

use baton_graph::Graph;

use super::names::PACKAGE;
use super::names::llm_cli as names;
use super::{Content, Piece, Prefix, Task, glue, refused, separate_parts};
use crate::blob::BlobWriter;
use crate::host::turns;
use crate::lower::{Anatomy, Cache, Chunks, Emitter, HIDDEN, Part};
use crate::mil::{DataType, Elements, FunctionBuilder, TensorType, Value, Var};
use crate::{Model, Result, memory};

/// The layout that the program coreml-llm-cli reads. With `D` features of the hidden state, `K` key-value heads,
/// `W` features of a head, a window of `S` tokens and caches of `C`:
///
/// | file | inputs | outputs |
/// |---|---|---|
/// | `{prefix}_chunk1` | `input_ids (1,S)`, `full_sequence_length (1)` int32 | `x (1,D,1,S)`, `cos`, `sin (1,1,W,S)`, `mask (1,1,S,C+S)` |
/// | those between, layers | these, `k_cache_0`, `v_cache_0`… `(1,K,W,C)` | `new_x`, `new_k_cache_0`, `new_v_cache_0`… `(1,K,W,S)` |
/// | the last, the head | `x` | `logits (1,S,n)`, or `logits_0`… |
/// | `cache-processor` | `old_k_cache`, `new_k_cache`, `old_v_cache`, `new_v_cache` | `updated_k_cache`, `updated_v_cache` |
/// | `logit-processor` | `logits`, or `logits_0`… | `argmax (1,S)` int32 |
///
/// The window begins at a multiple of `S`. What a full one has made is appended to the caches, which
/// lose as much at their beginning; places in front of the text are hidden by the mask. A second rotation is
/// `cos_1`, `sin_1`, and layers with a window of `w` have a mask `mask_w{w}`.
#[derive(Clone, Debug, PartialEq)]
pub struct LlmCli {
    prefix: Prefix,
    window: usize,
    cache: usize,
}

/// The most places of a window and its cache.
const MOST: usize = 1 << 17;
/// The most numbers of a mask, which has one for each token of the window and each place; the first package
/// has it as a constant.
const MOST_OF_MASK: usize = 1 << 26;

impl LlmCli {
    /// The layout for texts of up to `context` tokens, of which `window` are computed at once; beyond that a
    /// token sees the latest ones.
    ///
    /// # Errors
    /// If the context is not some windows, since at its end it would be shorter by the rest; or if it has more
    /// than 131072 tokens, or its product with the window is above 2^26, the numbers of a mask.
    pub fn new(prefix: Prefix, context: usize, window: usize) -> Result<LlmCli> {
        if context > MOST {
            let what = format!("a context of {context} in this layout");
            return Err(refused(what, &format!("take at most {MOST}")));
        }
        if window == 0 || context <= window || !context.is_multiple_of(window) {
            return Err(refused(
                format!("a context of {context} with a window of {window} in this layout"),
                "take a multiple of the window, two of them at least: it is that of the window and the cache",
            ));
        }
        if context * window > MOST_OF_MASK {
            let what = format!("a mask of {window} tokens by {context} places in this layout");
            let most = MOST_OF_MASK / context;
            return Err(refused(
                what,
                &format!("take a window of at most {most}, or a shorter context"),
            ));
        }
        Ok(LlmCli { prefix, window, cache: context - window })
    }

    /// What the names of its chunks begin with.
    pub fn prefix(&self) -> &Prefix {
        &self.prefix
    }

    fn places(&self) -> usize {
        self.cache + self.window
    }

    /// Elements of the masks.
    pub(super) fn masks(&self, graph: &Graph) -> u64 {
        let windows = Anatomy::of(graph).map_or(0, |anatomy| anatomy.windows.len());
        memory::bytes(1, &[windows, self.window, self.places()])
    }

    pub(super) fn pieces(&self, task: Task<'_>, chunks: Chunks) -> Result<Vec<Piece>> {
        let (layers, head) = separate_parts(task, chunks)?;
        let anatomy = Anatomy::of(task.graph)?;
        glue::embedding(&anatomy)?;
        glue::cache(&anatomy)?;
        let prefix = self.prefix.to_string();
        let parts = layers.into_iter().chain([head]).map(Content::Part);
        let contents = [Content::Embeddings].into_iter().chain(parts);
        let chunks = contents.enumerate().map(|(i, content)| Piece {
            file: format!("{}.{PACKAGE}", names::chunk(&prefix, i + 1)),
            content,
        });
        let processors = [
            (names::CACHE_PROCESSOR, Content::CacheProcessor),
            (names::LOGIT_PROCESSOR, Content::LogitProcessor),
        ];
        let processors =
            processors.map(|(name, content)| Piece { file: format!("{name}.{PACKAGE}"), content });
        Ok(chunks.chain(processors).collect())
    }

    pub(super) fn lower<W: Write + Seek>(
        &self,
        task: Task<'_>,
        pieces: &[Piece],
        at: usize,
        blobs: &mut BlobWriter<W>,
    ) -> Result<Model> {
        match &pieces[at].content {
            Content::Embeddings => self.first(task, blobs),
            Content::Part(part) if part.has_layers() => self.layers(task, part, blobs),
            Content::Part(part) => self.head(task, part, blobs),
            Content::CacheProcessor => self.cache_processor(task),
            Content::LogitProcessor => self.logit_processor(task),
        }
    }

    /// What all layers are given: embeddings, rotations, masks.
    fn first<W: Write + Seek>(&self, task: Task<'_>, blobs: &mut BlobWriter<W>) -> Result<Model> {
        let anatomy = Anatomy::of(task.graph)?;
        let embedding = glue::embedding(&anatomy)?;
        let mut emitter = Emitter::new(task.graph, task.weights, task.lowering, blobs)?;
        let table =
            emitter.table(embedding.table, embedding.scale * task.lowering.residual_factor())?;
        let mut b = FunctionBuilder::new();
        let ints = |shape: &[usize]| TensorType::new(DataType::Int32, shape);
        let ids = b.input(names::INPUT_IDS, ints(&[1, self.window]));
        let length = b.input(names::FULL_SEQUENCE_LENGTH, ints(&[1]));
        let table = b.constant("embedding", table);
        let x = glue::gather(&mut b, "embedded", &table, &ids, 0)?;
        let mut outputs = vec![glue::columns(&mut b, names::X, &x)?];
        self.rotations(&mut b, &anatomy, &length, &mut outputs)?;
        self.add_masks(&mut b, &anatomy, &length, &mut emitter, &mut outputs)?;
        glue::single(b.finish(&outputs))
    }

    /// Tables of the rotations at the positions of a window. They have no end, so that they are computed, in
    /// single precision.
    fn rotations(
        &self,
        b: &mut FunctionBuilder,
        anatomy: &Anatomy,
        length: &Var,
        outputs: &mut Vec<Var>,
    ) -> Result<()> {
        let offsets: Vec<i32> = (0..self.window).map(|i| i as i32 - self.window as i32).collect();
        let positions =
            b.op("add", "positions", &[("x", length.into()), ("y", Value::ints(&offsets).into())])?;
        let positions =
            b.op("cast", "places", &[("x", (&positions).into()), ("dtype", "fp32".into())])?;
        for (i, rope) in anatomy.ropes.iter().enumerate() {
            let dim = rope.head_dim;
            let mut frequencies = vec![0.0; dim];
            let mut factors = [vec![1.0; dim], vec![0.0; dim]];
            for (feature, pair, sign) in turns(rope) {
                frequencies[feature] = rope.inv_freq[pair];
                factors[0][feature] = rope.magnitude;
                factors[1][feature] = sign * rope.magnitude;
            }
            let column = |values: Vec<f32>| {
                Value::tensor(DataType::Float32, &[1, 1, dim, 1], Elements::Floats(values))
            };
            let angles = b.op(
                "mul",
                &format!("angles_{i}"),
                &[("x", (&positions).into()), ("y", column(frequencies).into())],
            )?;
            let [cos, sin] = Anatomy::rotation(i);
            for ((kind, name), factors) in [("cos", cos), ("sin", sin)].into_iter().zip(factors) {
                let turn = b.op(kind, &format!("{name}_turn"), &[("x", (&angles).into())])?;
                let scaled = [("x", (&turn).into()), ("y", column(factors).into())];
                let scaled = b.op("mul", &format!("{name}_scaled"), &scaled)?;
                let half = [("x", (&scaled).into()), ("dtype", "fp16".into())];
                outputs.push(b.op("cast", &name, &half)?);
            }
        }
        Ok(())
    }

    /// The masks: what comes behind a token, and the places of the cache in front of the text.
    fn add_masks<W: Write + Seek>(
        &self,
        b: &mut FunctionBuilder,
        anatomy: &Anatomy,
        length: &Var,
        emitter: &mut Emitter<'_, '_, W>,
        outputs: &mut Vec<Var>,
    ) -> Result<()> {
        // From here on a place has a token of the text: the window ends with its last one.
        let places = self.places();
        let numbers: Vec<usize> = (0..places).collect();
        let ends =
            b.op("add", "ends", &[("x", length.into()), ("y", Value::sizes(&numbers).into())])?;
        let bound = Value::sizes(&[places]);
        let text = b.op("greater_equal", "text", &[("x", (&ends).into()), ("y", bound.into())])?;
        for &window in &anatomy.windows {
            let name = Anatomy::mask(window);
            let mut mask = vec![HIDDEN; self.window * places];
            for (column, row) in mask.chunks_exact_mut(places).enumerate() {
                let own = self.cache + column;
                let first = window.map_or(0, |window| (own + 1).saturating_sub(window));
                row[first..=own].fill(0.0);
            }
            let mask = emitter.numbers(&name, &[1, 1, self.window, places], &mask)?;
            let mask = b.constant(&format!("{name}_full"), mask);
            let values = [(&text).into(), (&mask).into(), Value::f16(HIDDEN).into()];
            outputs.push(glue::select(b, &name, values)?);
        }
        Ok(())
    }

    /// A package of layers.
    fn layers<W: Write + Seek>(
        &self,
        task: Task<'_>,
        part: &Part,
        blobs: &mut BlobWriter<W>,
    ) -> Result<Model> {
        glue::of_part(task, part, blobs, self.window, |f| {
            let [_, heads, width] = glue::cache(f.anatomy)?;
            let x = f.input(names::X, &[1, f.anatomy.hidden, 1, self.window]);
            f.enter(x);
            f.tables(self.places());
            let shape = [1, heads, width, self.cache];
            let layers = 0..part.layers.len();
            let caches = layers.clone().map(|i| names::cache(i).map(|name| f.input(&name, &shape)));
            f.cache = Cache::Columns(caches.collect());
            let hidden = f.layers()?;
            let mut outputs = vec![f.named(names::NEW_X, &hidden)?];
            for i in layers {
                for (which, name) in names::new_cache(i).iter().enumerate() {
                    let new = f.cached[which][&i].clone();
                    outputs.push(f.named(name, &new)?);
                }
            }
            Ok(outputs)
        })
    }

    /// The package of the head, which computes all rows of a window.
    fn head<W: Write + Seek>(
        &self,
        task: Task<'_>,
        part: &Part,
        blobs: &mut BlobWriter<W>,
    ) -> Result<Model> {
        glue::of_part(task, part, blobs, self.window, |f| {
            let x = f.input(names::X, &[1, f.anatomy.hidden, 1, self.window]);
            glue::logits(f, x, names::logits)
        })
    }

    /// What a cache is once a full window is appended to it.
    fn cache_processor(&self, task: Task<'_>) -> Result<Model> {
        let [_, heads, width] = glue::cache(&Anatomy::of(task.graph)?)?;
        let mut b = FunctionBuilder::new();
        let half = |tokens| TensorType::new(DataType::Float16, &[1, heads, width, tokens]);
        let inputs = names::CACHES.map(|[old, new, updated]| {
            ([b.input(old, half(self.cache)), b.input(new, half(self.window))], updated)
        });
        let mut outputs = Vec::new();
        for (old_and_new, name) in inputs {
            let all = b.op(
                "concat",
                &format!("{name}_all"),
                &[
                    ("values", old_and_new[..].into()),
                    ("axis", 3.into()),
                    ("interleave", false.into()),
                ],
            )?;
            let begin = Value::sizes(&[0, 0, 0, self.window]);
            let size = Value::sizes(&[1, heads, width, self.cache]);
            outputs.push(b.op(
                "slice_by_size",
                name,
                &[("x", (&all).into()), ("begin", begin.into()), ("size", size.into())],
            )?);
        }
        glue::single(b.finish(&outputs))
    }

    /// The likeliest token of each row.
    fn logit_processor(&self, task: Task<'_>) -> Result<Model> {
        let sizes = crate::lower::HeadCut::Rows(task.lowering.head_piece).sizes(task.graph.vocab());
        let mut b = FunctionBuilder::new();
        let half = |rows| TensorType::new(DataType::Float16, &[1, self.window, rows]);
        let pieces: Vec<Var> = (0..sizes.len())
            .map(|i| b.input(&names::logits(i, sizes.len()), half(sizes[i])))
            .collect();
        let all = match &pieces[..] {
            [only] => only.clone(),
            _ => b.op(
                "concat",
                "all",
                &[("values", pieces[..].into()), ("axis", 2.into()), ("interleave", false.into())],
            )?,
        };
        let args = [
            ("x", (&all).into()),
            ("axis", 2.into()),
            ("keep_dims", false.into()),
            ("output_dtype", "int32".into()),
        ];
        let argmax = b.op("reduce_argmax", names::ARGMAX, &args)?;
        glue::single(b.finish(&[argmax]))
    }
}
