//! The engine without a model, over request traces: what a way to manage KV memory is worth.
//!
//! Owns traces (recorded and generated), the executor that costs nothing but simulated time, runs
//! with their accounting, and reports as a table, JSON and SVG. The scheduler and the KV memory are
//! the ones that serve; only the model and the clock are played. So what a run says about memory,
//! concurrency, preemption and the prefix cache is what a server with this much memory would do.
//!
//! A run is a function of its inputs: equal traces and settings give equal bytes. Start with
//! [`Report::new`].
#![forbid(unsafe_code)]

mod allocator;
mod error;
mod executor;
mod figure;
mod generated;
mod latency;
mod memory_use;
mod prefix_bound;
mod report;
mod run;
mod settings;
mod simulated_prompt;

pub use allocator::Allocator;
pub use error::SimulateError;
pub use executor::MachineSpeed;
pub use generated::{GeneratedTrace, LengthShape};
pub use latency::{LatencyLimits, LatencySummary};
pub use memory_use::{MemoryShares, WasteShares};
pub use mini_infer_trace::{Trace, TraceError, TraceRequest};
pub use prefix_bound::hit_rate_bound;
pub use report::{Report, SettingsReport, TraceReport};
pub use run::{AllocatorReport, simulate};
pub use settings::{Load, Settings};
