//! What a run is and what it found: everything in `run.json`.
//!
//! The fields that servebench 1.1.3 also writes have its names, units and meanings, so either
//! program reads the other's files; what only this one knows is optional. Seconds unless a name
//! ends in `_ms`. JSON has no infinity: the load "all at once" is the string `"Infinity"`.
//!
//! Written whole or not at all, by renaming; read from any writer up to [`SCHEMA_VERSION`].

mod environment;
mod level;
mod load_value;
mod request;
mod run;
mod run_config;
mod summary;

pub use environment::Environment;
pub use level::{LevelResult, Mode};
pub use load_value::LoadValue;
pub use request::{RequestResult, TokenSource};
pub use run::{
    CapacityReason, CapacityResult, Diagnosis, Finding, RunFileError, RunResult, SCHEMA_VERSION,
    Severity,
};
pub use run_config::{ArrivalDist, Endpoint, LengthDist, RunConfig};
pub use summary::{GoodputAt, GpuSummary, RepeatMetric, Slo, Stats, Summary};
