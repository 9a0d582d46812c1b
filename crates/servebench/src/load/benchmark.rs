//! A benchmark: what to measure, ready to be run.

use super::measurement::Measurement;
use super::progress::{Observer, Silent};
use super::prompt_stock::PromptSupply;
use super::stop::StopHandle;
use super::validation::{check_config, usage};
use crate::client::KeepAlive;
use crate::error::ServebenchError;
use crate::prompts::{PromptSource, TokenCounter};
use crate::results::{LoadValue, RunConfig, RunResult};
use std::num::NonZeroUsize;
use std::sync::Arc;
use tokio::runtime::Runtime;

/// A benchmark, ready to be run any number of times.
pub struct Benchmark {
    pub(super) config: RunConfig,
    pub(super) label: String,
    pub(super) notes: Option<String>,
    pub(super) api_key: Option<String>,
    pub(super) gpu_index: u32,
    pub(super) keep_alive: KeepAlive,
    pub(super) prompts: Arc<dyn PromptSupply>,
    pub(super) warm_up_prompts: Arc<dyn PromptSupply>,
    pub(super) tokens: Option<Arc<TokenCounter>>,
}

impl Benchmark {
    /// Prepares a benchmark with the prompts that `config` asks for. A `trace_speed` asks for the
    /// arrivals of the trace instead of levels.
    ///
    /// # Errors
    /// When the configuration asks for what cannot be, or a file cannot be read.
    pub fn new(config: RunConfig) -> Result<Self, ServebenchError> {
        check_config(&config)?;
        let tokens = config.tokenizer.as_deref().map(TokenCounter::load).transpose()?;
        let prompts = Arc::new(PromptSource::new(&config, tokens.as_ref())?);
        // The first prompts of a trace would be in the server's cache if they warmed it up.
        let warm_up_prompts = if config.trace.is_some() {
            let synthetic =
                RunConfig { trace: None, trace_speed: None, trace_scale: None, ..config.clone() };
            Arc::new(PromptSource::new(&synthetic, tokens.as_ref())?)
        } else {
            Arc::clone(&prompts)
        };
        Ok(Self { warm_up_prompts, tokens: tokens.map(Arc::new), ..Self::with(config, prompts) })
    }

    /// Prepares a benchmark with the caller's own prompts.
    ///
    /// # Errors
    /// When the configuration asks for what cannot be.
    pub fn with_prompts(
        config: RunConfig,
        prompts: Arc<dyn PromptSupply>,
    ) -> Result<Self, ServebenchError> {
        check_config(&config)?;
        Ok(Self::with(config, prompts))
    }

    fn with(config: RunConfig, prompts: Arc<dyn PromptSupply>) -> Self {
        Self {
            label: config.model.clone(),
            notes: None,
            api_key: None,
            gpu_index: 0,
            keep_alive: KeepAlive::Reuse,
            warm_up_prompts: Arc::clone(&prompts),
            prompts,
            tokens: None,
            config,
        }
    }

    /// Names the run in reports; otherwise it is named after the model.
    #[must_use]
    pub fn label(self, label: impl Into<String>) -> Self {
        Self { label: label.into(), ..self }
    }

    /// Adds the user's own words.
    #[must_use]
    pub fn notes(self, notes: Option<String>) -> Self {
        Self { notes, ..self }
    }

    /// Sets the bearer token. It is not saved.
    #[must_use]
    pub fn api_key(self, api_key: Option<String>) -> Self {
        Self { api_key, ..self }
    }

    /// Says which GPU is watched.
    #[must_use]
    pub fn gpu_index(self, gpu_index: u32) -> Self {
        Self { gpu_index, ..self }
    }

    /// Says whether connections are used again.
    #[must_use]
    pub fn keep_alive(self, keep_alive: KeepAlive) -> Self {
        Self { keep_alive, ..self }
    }

    /// Returns what is asked.
    #[must_use]
    pub fn config(&self) -> &RunConfig {
        &self.config
    }

    /// Measures all levels, or those that a stop leaves time for; then the run says that it was
    /// interrupted.
    ///
    /// # Errors
    /// When a level cannot be, or all warm-up requests fail. Requests that fail are no error; they
    /// are in the run.
    pub async fn run(
        &self,
        observer: &mut dyn Observer,
        stop: &StopHandle,
    ) -> Result<RunResult, ServebenchError> {
        let levels = self.levels()?;
        let mut measurement = self.start(observer, stop).await?;
        for value in levels {
            if stop.is_requested() {
                break;
            }
            measurement.measure(value).await?;
        }
        Ok(measurement.finish().await)
    }

    /// Looks at the server and warms it up, for a caller who chooses the levels one by one.
    ///
    /// # Errors
    /// When all warm-up requests fail.
    pub async fn start<'a>(
        &'a self,
        observer: &'a mut dyn Observer,
        stop: &'a StopHandle,
    ) -> Result<Measurement<'a>, ServebenchError> {
        Measurement::start(self, observer, stop).await
    }

    /// Tells whether arrivals are replayed from a trace.
    pub(super) fn is_replay(&self) -> bool {
        self.config.trace_speed.is_some()
    }

    fn levels(&self) -> Result<Vec<LoadValue>, ServebenchError> {
        if self.is_replay() {
            // One level, whose value is the rate that the arrivals turn out to have.
            return Ok(vec![LoadValue(f64::INFINITY)]);
        }
        if self.config.levels.is_empty() {
            return Err(usage("--concurrency", "give it or --rate, with at least one level"));
        }
        Ok(self.config.levels.clone())
    }
}

/// Returns a runtime for a benchmark, with so many threads for its requests.
///
/// # Errors
/// When the system gives no threads.
pub fn runtime(num_threads: NonZeroUsize) -> Result<Runtime, ServebenchError> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(num_threads.get())
        .thread_name("client")
        .enable_all()
        .build()
        .map_err(|source| ServebenchError::System { action: "start the client's threads", source })
}

/// Runs a benchmark on a thread for its requests, and waits for it. Not to be called from
/// asynchronous code, which has [`Benchmark::run`].
///
/// # Errors
/// When the configuration asks for what cannot be, a file cannot be read, or the server does not
/// answer.
pub fn benchmark(config: RunConfig) -> Result<RunResult, ServebenchError> {
    let benchmark = Benchmark::new(config)?;
    let runtime = runtime(NonZeroUsize::MIN)?;
    runtime.block_on(benchmark.run(&mut Silent, &StopHandle::default()))
}
