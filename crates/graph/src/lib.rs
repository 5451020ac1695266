//! What a model computes, and what a compute unit must offer to run it.
//!
//! An architecture is written once, as a function that builds a [`Graph`] with [`GraphBuilder`]:
//! some twenty high-level operations ([`Op`]) over values of shape `(tokens, features)`, with the
//! KV cache as typed state. [`passes`] rewrite it, [`mod@reference`] runs it plainly in f32, and every
//! compute unit compiles it ([`Unit`]) to an [`Executor`]. The crate knows neither file formats nor
//! units.
#![forbid(unsafe_code)]

mod builder;
mod dump;
mod error;
mod exec;
mod graph;
mod hex;
mod infer;
mod kv_block;
mod kv_type;
mod logits;
mod op;
mod pager;
pub mod passes;
pub mod reference;
mod slots;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod timing;
mod types;

pub use builder::GraphBuilder;
pub use error::{ExecError, GraphError};
pub use exec::{Batch, Executor, Limits, Readiness, Roof, Rows, SeqId, Span, Unit, Usage, Waker};
pub use graph::{Graph, Node, StateSpec, Value, WeightSpec};
pub use hex::{from_hex, hex};
pub use kv_block::KvBlock;
pub use kv_type::{KvType, UnknownKvType};
pub use logits::{Best, LogitRow, Logits};
pub use op::{
    Activation, Attention, Gate, Linear, LinearPart, Lookup, Moe, MoeBiases, Op, Pooling, RmsNorm,
    Rope, RopeLayout, Routing, Scope,
};
pub use pager::{PageCopy, PageId, Pager};
pub use slots::{Height, Life, View, share_slots};
pub use timing::Timing;
pub use types::{Dim, Elem, StateId, Type, ValueId, WeightId};
