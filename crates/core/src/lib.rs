//! The shared words of mini-infer as types.
//!
//! Owns the vocabulary that crates meet in: ids, requests and their sampling parameters, the flat
//! [`Batch`] of one step, the [`Executor`] that runs it, the [`Clock`] and the events a request
//! produces. The engine owns KV bookkeeping and the model owns KV bytes; `Batch` and [`KvTransfer`]
//! are the only places where they meet.
//!
//! Deliberately absent: any tensor, text, JSON, thread or real clock, and any dependency outside
//! the standard library.
#![forbid(unsafe_code)]

mod adapter;
mod batch;
mod block_size;
mod block_tier;
mod clock;
mod dry;
mod event;
mod executor;
mod hash;
mod ids;
mod penalties;
mod prompt_report;
mod request;
mod sampling_params;
mod token_constraint;
mod token_mask;
mod transfer;
mod xtc;

pub use adapter::Adapter;
pub use batch::{Batch, SequenceSpan};
pub use block_size::{BlockSize, BlockSizeError};
pub use block_tier::BlockTier;
pub use clock::{Clock, ManualClock};
pub use dry::{DryBreakers, DryParams};
pub use event::{EngineEvent, FinishReason, RankedLogprobs, SequenceUsage, TokenLogprobs};
pub use executor::{Executor, ExecutorError};
pub use hash::{FixedHashMap, FixedHashSet, FixedState, mix64};
pub use ids::{BlockId, ClientId, RequestId, SequenceId, SlotId, TokenId};
pub use penalties::Penalties;
pub use prompt_report::{Pooling, PromptReport, RowForm};
pub use request::{PrefixCaching, Request};
pub use sampling_params::{BeamParams, ParamError, SamplingParams};
pub use token_constraint::{
    ConstraintError, OutputConstraint, OutputMatcher, OutputStatus, TokenConstraint,
};
pub use token_mask::TokenMask;
pub use transfer::{BlockKey, ContentHash, KvPart, KvTransfer, Namespace};
pub use xtc::XtcParams;
