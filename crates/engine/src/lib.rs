//! The serving brain: sequences, scheduler, step loop and sampler.
//!
//! Owns what happens to a request between its tokens and its events. Pure and synchronous: the
//! model is an [`Executor`](mini_infer_core::Executor), time is a [`Clock`](mini_infer_core::Clock)
//! and memory is the ids of `mini_infer_kv`. So the same engine runs on a real model and, with
//! [`FakeExecutor`], in a deterministic simulation.
//!
//! Start with [`Engine`]; it names no tensor, text, HTTP or thread.
#![forbid(unsafe_code)]

mod allowed_row;
mod beam_search;
mod chunk_limit;
mod config;
mod constrained_output;
mod dry;
mod engine;
mod error;
mod fake_executor;
mod logits_processor;
mod prefill_pace;
mod prompt_rows;
mod prompt_scorer;
mod random;
mod row_cut;
mod sampler;
mod sampler_pool;
mod scheduler;
mod sequence;
mod snapshot;
mod softmax;
mod stats;
mod step_plan;
mod step_sampler;
mod step_times;
mod suspended_chunk;

pub use chunk_limit::TargetItl;
pub use config::{ConfigError, EngineConfig, KvAllocator};
pub use engine::Engine;
pub use error::SubmitError;
pub use fake_executor::{FakeExecutor, FakeTier, Fault};
pub use mini_infer_kv::{BlockHashing, KvStats, KvWaste, Reservation, WindowConfig};
pub use snapshot::{KvSnapshot, SequenceSnapshot, SequenceState, SharedBlock};
pub use stats::{AdmissionStatus, EngineCounters, EngineStats, FinishCounters, StepReport};
pub use step_times::StepTimes;
