//! When requests are sent: closed loops, open loops, traces, conversations, level after level.
//!
//! A [`Benchmark`] warms the server up, then measures each level of load. A closed loop keeps a
//! number of requests in flight. An open loop has requests due at moments that no answer can move;
//! every latency counts from the moment that a request was *due*, so neither a server that stalls
//! nor a client that falls behind can hide a wait. Prompts and moments are made before a level
//! starts.
//!
//! The requests of a level run on the runtime in which it is started; one thread is enough for tens
//! of thousands of tokens a second, and leaves the other processors to a server on the same
//! machine. [`benchmark`] brings its own:
//!
//! ```no_run
//! use servebench::results::{LoadValue, RunConfig};
//!
//! # fn main() -> Result<(), servebench::ServebenchError> {
//! let run = servebench::benchmark(RunConfig {
//!     url: "http://127.0.0.1:8000/v1".to_owned(),
//!     model: "smollm2-135m".to_owned(),
//!     levels: vec![LoadValue(1.0), LoadValue(8.0)],
//!     ..RunConfig::default()
//! })?;
//! for level in &run.levels {
//!     println!("{}: {:.1} tokens/s", level.label(), level.summary.output_throughput);
//! }
//! # Ok(())
//! # }
//! ```

mod alarm;
mod arrivals;
mod benchmark;
mod closed_loop;
mod conversation;
mod environment;
mod lag;
mod level;
mod measurement;
mod open_loop;
mod progress;
mod prompt_stock;
mod stop;
mod token_counts;
mod validation;
mod warm_up;

pub use arrivals::{ArrivalProcess, mean_rate, recorded_arrivals};
pub use benchmark::{Benchmark, benchmark, runtime};
pub use measurement::Measurement;
pub use progress::{LevelPlan, Observer, Progress, Silent};
pub use prompt_stock::PromptSupply;
pub use stop::StopHandle;
