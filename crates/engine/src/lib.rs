//! Sessions over an executor: from a prompt to a stream of text.
//!
//! An [`Engine`] is a loaded model with its cache. A [`Session`] is a run of tokens over it; what a
//! new prompt has in common with the cache is not evaluated again. A [`Generation`] is one answer,
//! an iterator of [`Event`]s; a [`Chat`] is a conversation of them. [`Sampling`] says how tokens are
//! chosen: by the user, the model and Baton, in that order. Nothing is ever cut or shifted silently:
//! a prompt that does not fit is an error, and a full context ends an answer with
//! [`FinishReason::Length`]. An [`Embedder`] is a loaded model that makes vectors of texts instead.
#![forbid(unsafe_code)]

mod answer;
mod cancel;
mod chat;
mod choice;
mod core_ml;
mod embedder;
pub mod energy;
mod engine;
mod error;
mod evaluate;
mod event;
mod generation;
mod grammar;
mod lanes;
mod load;
mod memory;
mod metrics;
mod model_text;
mod open;
mod phases;
mod profile;
mod relay;
mod remote;
mod sampler;
mod sampling;
mod scheduler;
mod sequences;
mod session;
mod speculation;
mod text_stream;
mod timeline;
mod transcript;
mod tune;
mod units;
mod work;

pub use baton_coreml::Folder;
pub use baton_coreml::runtime::{Cleared, CompiledCache, CompiledEntry};
pub use baton_cpu::{PackedCache, PackedFile};
pub use baton_graph::{KvType, hex};
pub use baton_text::{ChatTemplate, Message, RenderOptions};
pub use baton_weights::{available_memory, peak_memory, process_memory};
pub use cancel::CancelToken;
pub use chat::{Chat, ChatAnswer};
pub use choice::{Chosen, UnitChoice};
pub use core_ml::{core_ml, has_core_ml};
pub use embedder::{EmbedOptions, Embedder, EmbedderTraits, Embedding};
pub use engine::{Engine, ModelTraits};
pub use error::{Error, Result};
pub use evaluate::{Choice, Comparison, Evaluation, Windows, compare, compare_handoff, evaluate};
pub use event::{Event, FinishReason, Summary};
pub use generation::Generation;
pub use grammar::{Constraint, Grammar, GrammarCompiler, Reasoning, TokenMask};
pub use lanes::{Lane, Lanes};
pub use load::{Compiled, LoadOptions, compile_model, plan_memory};
pub use memory::MemoryPlan;
pub use metrics::Metrics;
pub use model_text::{ModelText, template_source};
pub use open::open_model;
pub use phases::Phase;
pub use profile::{Profile, Profiles, Speeds};
pub use relay::{Relay, RelayOptions, RelayUnit};
pub use remote::{BadKey, Key, PrefillServer, RemoteUnit};
pub use sampler::{Sampler, Token, TokenLogprob};
pub use sampling::{SamplerConfig, Sampling};
pub use scheduler::{Load, Scheduler, SchedulerOptions, Slot, Totals};
pub use sequences::SavedCache;
pub use session::{GenerateOptions, Prompt, Session};
pub use speculation::Speculate;
pub use timeline::{Slice, Timeline, Work};
pub use tune::{TuneOptions, tune};
pub use units::{UnitKind, gpus, quiet_drivers};
pub use work::PassWork;
