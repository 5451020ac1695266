//! From a path to an engine: files, graph, memory, compute unit, tokenizer.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use baton_coreml::packages_context;
use baton_coreml::runtime::CompiledCache;
use baton_cpu::PackedCache;
use baton_graph::{ExecError, Executor, Graph, KvType, Limits};
use baton_models::{BuildOptions, Model, ModelConfig};
use baton_weights::{Weights, available_memory};

use crate::memory::MemoryPlan;
use crate::model_text::ModelText;
use crate::open::open_model;
use crate::speculation::MOST_GUESSES;
use crate::units::Holding;
use crate::{
    Chosen, Engine, Error, Lanes, ModelTraits, RelayOptions, RemoteUnit, Result, Speculate,
    Timeline, UnitChoice, UnitKind, embedder, units,
};

/// The largest context that is chosen without being asked for.
const DEFAULT_CONTEXT: usize = 8192;
/// No memory is so short that a smaller context is chosen.
const LEAST_CONTEXT: usize = 512;
/// Share of the available memory that a context nobody asked for may take: one part in this.
const CONTEXT_SHARE: u64 = 4;

/// How to load a model.
#[derive(Clone, Debug)]
pub struct LoadOptions {
    /// Where it runs.
    pub unit: UnitKind,
    /// Where prompts are computed, if elsewhere; their cache is then handed over. Models that make
    /// vectors always run on one unit.
    pub prefill: Option<UnitKind>,
    /// Another machine that computes prompts, in the place of `prefill`.
    pub remote: Option<RemoteUnit>,
    /// What is handed over, and how.
    pub relay: RelayOptions,
    /// Decides `unit`, `prefill` and `relay` for each model, in the place of what they say.
    pub choice: Option<UnitChoice>,
    /// The folder of packages that the unit `coreml` runs instead of making some of the model.
    pub packages: Option<PathBuf>,
    /// Takes note of what runs where and when.
    pub timeline: Option<Arc<Timeline>>,
    /// Most tokens of a prompt and its answer together. By default what the model was trained for,
    /// but no more than 8192, nor than a quarter of the available memory can hold.
    pub context: Option<usize>,
    /// Most tokens in the cache over all sequences; at least one context. By default as many
    /// contexts as `conversations`, but no more than a quarter of the available memory can hold.
    pub kv_tokens: Option<usize>,
    /// How many conversations the cache is to have room for.
    pub conversations: usize,
    /// Tokens of a prompt that are evaluated at once; an answer can be cancelled between.
    pub batch_tokens: usize,
    /// What keys and values are kept as.
    pub kv_type: KvType,
    /// A smaller model with the same vocabulary, which guesses what this one writes.
    pub draft: Option<PathBuf>,
    /// Where guesses of the next tokens come from, unless an answer's options say.
    pub speculate: Speculate,
    /// Threads of the CPU; by default one for each physical core.
    pub threads: Option<usize>,
    /// Graph passes not to run, by name; for finding faults.
    pub disabled_passes: Vec<String>,
    /// Where the CPU keeps packed weights of model files for the next load; by default nowhere.
    pub packed: Option<PackedCache>,
    /// Where Core ML keeps what it has compiled. Without it, and where there is no Core ML, the unit
    /// `coreml` interprets its packages.
    pub compiled: Option<CompiledCache>,
}

impl Default for LoadOptions {
    fn default() -> Self {
        LoadOptions {
            unit: UnitKind::default(),
            prefill: None,
            remote: None,
            relay: RelayOptions::default(),
            choice: None,
            packages: None,
            timeline: None,
            context: None,
            kv_tokens: None,
            conversations: 1,
            batch_tokens: 512,
            kv_type: KvType::default(),
            draft: None,
            speculate: Speculate::default(),
            threads: None,
            disabled_passes: Vec::new(),
            packed: None,
            compiled: None,
        }
    }
}

impl LoadOptions {
    /// With the units decided, and the reasons.
    fn decided(&self, model: &Model) -> Result<(LoadOptions, Vec<String>)> {
        let choice = match (&self.choice, model.packages()) {
            (Some(choice), _) => choice.clone(),
            (None, None) => return Ok((self.clone(), Vec::new())),
            // The unit that is meant where none is named cannot run packages.
            (None, Some(_)) => UnitChoice {
                prefill: self.prefill,
                decode: Some(self.unit).filter(|unit| *unit != UnitKind::default()),
                ..UnitChoice::default()
            },
        };
        let Chosen { prefill, decode, relay, why } = choice.choose(model, self)?;
        why.iter().for_each(|line| tracing::debug!("{line}"));
        let (unit, prefill, choice) = (decode, Some(prefill), None);
        let packages = model.packages().map(Path::to_owned).or_else(|| self.packages.clone());
        Ok((LoadOptions { unit, prefill, relay, choice, packages, ..self.clone() }, why))
    }

    /// The unit of this machine for prompts, if it is another than that for answers.
    pub(crate) fn second_unit(&self) -> Option<UnitKind> {
        self.prefill.filter(|&prefill| prefill != self.unit && self.remote.is_none())
    }
}

impl Engine {
    /// Loads a model: a GGUF file, a folder with `config.json`, safetensors and
    /// `tokenizer.json`, or a folder of packages.
    ///
    /// # Errors
    /// If the files are missing, damaged or of an unknown kind, an option makes no sense, or memory
    /// is short.
    pub fn load(path: impl AsRef<Path>, options: &LoadOptions) -> Result<Engine> {
        let started = Instant::now();
        let model = open_model(path)?;
        Self::from_model(&model, options, started)
    }

    /// As [`Engine::load`], for a model whose files are open already. `started` is when loading
    /// began, for the metrics.
    ///
    /// # Errors
    /// As [`Engine::load`].
    pub fn from_model(model: &Model, options: &LoadOptions, started: Instant) -> Result<Engine> {
        if model.is_embedding() {
            return Err(Error::EmbeddingModel { name: model.name().to_owned() });
        }
        options.speculate.check(options.draft.is_some())?;
        let (options, units) = options.decided(model)?;
        let options = &options;
        // First the text: a tokenizer of a large vocabulary takes twice its room while it is made, which is
        // given back before the weights take theirs.
        let text = ModelText::of(model)?;
        baton_weights::give_back_freed();
        let packages_context = packages_room(options)?;
        let Compiled { executor, memory, lanes } = compile_model(model, options)?;
        let traits = ModelTraits {
            name: model.name().to_owned(),
            end_tokens: text.tokenizer.eog().iter().copied().collect(),
            tokenizer: Some(Arc::new(text.tokenizer)),
            templates: text.templates,
            sampling: text.sampling,
            speculate: options.speculate,
            lanes: Some(lanes),
            units,
            packages_context,
            load_time: started.elapsed(),
            memory,
        };
        tracing::debug!(limits = ?executor.limits(), %memory, time = ?traits.load_time, "loaded");
        let Some(draft) = &options.draft else { return Ok(Engine::new(executor, traits)) };
        let draft = open_model(draft)?;
        let options = draft_options(&draft, options, executor.limits().context);
        let draft = Engine::from_model(&draft, &options, Instant::now())?;
        let traits = ModelTraits { load_time: started.elapsed(), ..traits };
        Engine::with_draft(executor, traits, draft)
    }
}

/// A model ready to compute, without anything of its texts.
pub struct Compiled {
    /// The compiled graph.
    pub executor: Box<dyn Executor>,
    /// What it was expected to need of memory.
    pub memory: MemoryPlan,
    /// The units that it runs on.
    pub lanes: Lanes,
}

/// Builds a model's graph and compiles it, after a look at the memory that it will need.
///
/// # Errors
/// As [`Engine::load`].
pub fn compile_model(model: &Model, options: &LoadOptions) -> Result<Compiled> {
    let options = &options.decided(model)?.0;
    let limits = limits(model.config(), options)?;
    let (graph, weights) = model.build(&BuildOptions { context: limits.context })?;
    let memory = with_packages(model, whole_plan(&graph, &weights, &limits, options)?);
    check_memory(&memory)?;
    let one_unit = LoadOptions { prefill: None, remote: None, ..options.clone() };
    let options = if graph.needs_whole_texts() { &one_unit } else { options };
    let (executor, lanes) = units::compile(&graph, &weights, limits, options)?;
    Ok(Compiled { executor, memory, lanes })
}

/// What a model will need of memory, found out without loading it.
///
/// # Errors
/// If its files are damaged, or an option makes no sense.
pub fn plan_memory(model: &Model, options: &LoadOptions) -> Result<MemoryPlan> {
    let options = &options.decided(model)?.0;
    let limits = limits(model.config(), options)?;
    let (graph, weights) = model.build(&BuildOptions { context: limits.context })?;
    Ok(with_packages(model, whole_plan(&graph, &weights, &limits, options)?))
}

/// A plan with the packages that are all that there is of a model, whose graph has none of their weights.
fn with_packages(model: &Model, plan: MemoryPlan) -> MemoryPlan {
    match model.packaged() {
        Some(_) => MemoryPlan { weights: model.stored_bytes(), ..plan },
        None => plan,
    }
}

/// How the draft model of one with this context is loaded. What lies behind the context that it was
/// trained for it does not guess.
fn draft_options(draft: &Model, options: &LoadOptions, context: usize) -> LoadOptions {
    let context = Some(context.min(draft.config().context_length));
    let (kv_tokens, conversations) = (None, 1);
    let (draft, speculate) = (None, Speculate::Off);
    LoadOptions {
        draft,
        speculate,
        context,
        kv_tokens,
        conversations,
        prefill: None,
        remote: None,
        packages: None,
        ..options.clone()
    }
}

/// The memory of a model with that of its draft model.
fn whole_plan(
    graph: &Graph,
    weights: &Weights,
    limits: &Limits,
    options: &LoadOptions,
) -> Result<MemoryPlan> {
    let plan = memory_plan(graph, weights, limits, options)?;
    let Some(draft) = &options.draft else { return Ok(plan) };
    let draft = open_model(draft)?;
    let draft = plan_memory(&draft, &draft_options(&draft, options, limits.context))?;
    let apart = plan.apart.saturating_add(draft.apart);
    Ok(MemoryPlan { draft: draft.total(), apart, ..plan })
}

/// Most tokens that the packages have room for that are to be run.
fn packages_room(options: &LoadOptions) -> Result<Option<usize>> {
    let room = options.packages.as_deref().map(packages_context).transpose();
    Ok(room.map_err(ExecError::from)?)
}

fn limits(config: &ModelConfig, options: &LoadOptions) -> Result<Limits> {
    let room = packages_room(options)?.unwrap_or(usize::MAX);
    let context = match options.context {
        Some(context) if context > room => {
            return Err(ExecError::from(baton_coreml::Error::beyond_packages(context, room)).into());
        }
        Some(context) => context,
        None => default_context(config, options.kv_type, available_memory()).min(room),
    };
    if config.embedding.is_some() {
        return embedder::limits(config, options, context);
    }
    if context < 2 {
        let wanted = "at least 2, for a prompt and an answer";
        return Err(Error::Option { name: "context", value: context.to_string(), wanted });
    }
    if options.batch_tokens == 0 {
        return Err(Error::Option {
            name: "batch_tokens",
            value: "0".into(),
            wanted: "at least 1",
        });
    }
    if context > config.context_length {
        tracing::warn!(
            "a context of {context} exceeds the {} that the model was trained for; its answers may \
             degrade",
            config.context_length
        );
    }
    let wanted = options.kv_tokens.unwrap_or_else(|| {
        let all = context.saturating_mul(options.conversations);
        all.min(affordable_tokens(config, options.kv_type, available_memory()))
    });
    let kv_tokens = wanted.max(context);
    Ok(Limits { context, kv_tokens, batch_tokens: options.batch_tokens.min(context) })
}

/// Tokens whose keys and values the share of memory holds that nobody asked for.
fn affordable_tokens(config: &ModelConfig, kv_type: KvType, available: Option<u64>) -> usize {
    let sizes = [config.layers.len(), config.kv_heads, kv_type.bytes(config.head_dim)];
    let per_token = sizes.iter().fold(2usize, |product, &size| product.saturating_mul(size));
    available.map_or(usize::MAX, |bytes| {
        let tokens = bytes / CONTEXT_SHARE / per_token.max(1) as u64;
        usize::try_from(tokens).unwrap_or(usize::MAX)
    })
}

fn default_context(config: &ModelConfig, kv_type: KvType, available: Option<u64>) -> usize {
    let affordable = affordable_tokens(config, kv_type, available);
    // Down to a round number, so that it is the same on machines that are nearly alike.
    let affordable = affordable.checked_ilog2().map_or(0, |log| 1 << log);
    affordable.clamp(LEAST_CONTEXT, DEFAULT_CONTEXT).min(config.context_length)
}

fn memory_plan(
    graph: &Graph,
    weights: &Weights,
    limits: &Limits,
    options: &LoadOptions,
) -> Result<MemoryPlan> {
    let bytes = |n: usize| u64::try_from(n).unwrap_or(u64::MAX);
    let features = |node: &baton_graph::Node| -> usize {
        let of = |value| graph.ty(value).features();
        node.inputs.iter().map(|&input| of(input)).sum::<usize>() + of(node.output)
    };
    // While a node runs its inputs and its output are alive, and about as much waits for later
    // nodes.
    let inner = graph.nodes().iter().filter(|node| node.output != graph.output());
    let widest = inner.map(features).max().unwrap_or(0);
    let scratch = bytes(2 * 4 * widest).saturating_mul(bytes(limits.batch_tokens));
    // Of logits there is one row for the last token, and one for each guess behind it.
    let logits = bytes(4 * (1 + MOST_GUESSES)).saturating_mul(bytes(graph.vocab()));
    let mut plan = MemoryPlan {
        weights: bytes(weights.stored_bytes()),
        scratch: logits,
        available: available_memory(),
        ..MemoryPlan::default()
    };
    for unit in [Some(options.unit), options.second_unit()].into_iter().flatten() {
        let Holding { copied, kv_per_token, states, apart } =
            unit.holding(graph, weights, limits, options)?;
        let kv = bytes(kv_per_token).saturating_mul(bytes(limits.kv_tokens));
        plan.add(bytes(copied), kv, scratch, apart);
        plan.states = plan.states.saturating_add(states);
    }
    Ok(plan)
}

fn check_memory(plan: &MemoryPlan) -> Result<()> {
    let Some(available) = plan.available else { return Ok(()) };
    if plan.unmapped() > available {
        return Err(Error::Memory { plan: *plan });
    }
    if plan.total() > available {
        tracing::warn!("the model hardly fits into memory and will be slow: {plan}");
    }
    Ok(())
}

#[cfg(test)]
mod tests;
