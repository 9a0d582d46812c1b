//! Levels measured one after another, and the run that they make.

use super::arrivals::{ArrivalProcess, mean_rate, recorded_arrivals};
use super::benchmark::Benchmark;
use super::conversation::{PromptText, Turns};
use super::level::{self, LevelOutcome, LevelSetup, Load};
use super::open_loop::Arrival;
use super::progress::{LevelPlan, Observer};
use super::prompt_stock::PromptStock;
use super::stop::StopHandle;
use super::token_counts::results_with_tokens;
use super::validation::{check_level, usage};
use super::{environment, warm_up};
use crate::client::{Connections, RequestSpec};
use crate::detect::{self, Server};
use crate::diagnosis::diagnose;
use crate::error::ServebenchError;
use crate::gpu_sampler::GpuSampler;
use crate::prompts::Prompt;
use crate::results::{CapacityResult, LevelResult, LoadValue, Mode, RunResult};
use crate::server_metrics::{self, Scrape};
use crate::statistics::{goodput_at, merge_repeats, summarize};
use std::sync::Arc;
use std::time::Duration;

/// Distance between the seeds of two levels, so that no prompt is sent twice.
const LEVEL_SEED_STEP: u64 = 1000;
/// Requests of a level of an open loop, where nothing says how many.
const DEFAULT_RATE_REQUESTS: usize = 64;

/// A server that is warm, and what was measured of it so far.
pub struct Measurement<'a> {
    benchmark: &'a Benchmark,
    observer: &'a mut dyn Observer,
    stop: &'a StopHandle,
    spec: RequestSpec,
    server: Option<Server>,
    metrics_url: Option<String>,
    /// Levels measured so far, those that a stop left empty included.
    num_measured: u64,
    run: RunResult,
}

/// One level, about to be run once.
struct PlannedLoad {
    load: Load,
    value: LoadValue,
    num_requests: Option<usize>,
}

impl<'a> Measurement<'a> {
    pub(super) async fn start(
        benchmark: &'a Benchmark,
        observer: &'a mut dyn Observer,
        stop: &'a StopHandle,
    ) -> Result<Self, ServebenchError> {
        let mut config = benchmark.config.clone();
        let server = detect::identify(&config.url, benchmark.api_key.as_deref()).await;
        if let Some(server) = &server {
            // The same address, or the part of it under which the API is.
            config.url.clone_from(&server.url);
        }
        let spec = RequestSpec::new(&config, benchmark.api_key.clone());
        let connections = connections(benchmark, &spec)?;
        let environment = environment::describe(&config, server.as_ref(), benchmark.notes.clone());
        for warning in environment::warnings(&config, &environment) {
            observer.warning(&warning);
        }
        observer.warming_up(&environment, config.warmup);
        let prompts = benchmark.warm_up_prompts.as_ref();
        warm_up::run(&spec, &connections, prompts, config.warmup, config.seed, stop).await?;
        let metrics_url =
            server_metrics::metrics_url(&config.url, config.scrape_metrics.as_deref());
        let mut measurement = Self {
            benchmark,
            observer,
            stop,
            spec,
            server,
            metrics_url,
            num_measured: 0,
            run: RunResult::new(benchmark.label.clone(), config, environment, Vec::new()),
        };
        measurement.check_metrics().await;
        Ok(measurement)
    }

    /// Says so when metrics are asked for that the server does not tell.
    async fn check_metrics(&mut self) {
        let Some(url) = self.metrics_url.clone() else { return };
        if self.scrape().await.is_none() {
            self.observer.warning(&format!(
                "no metrics can be read at {url}, so the run will have none; some servers need a \
                 flag for them, such as --metrics"
            ));
        }
    }

    async fn scrape(&self) -> Option<Scrape> {
        let key = self.benchmark.api_key.as_deref();
        server_metrics::scrape_with_key(self.metrics_url.as_deref()?, key).await
    }

    /// Measures one level, as often as the run asks for. Returns `None` when a stop left nothing of
    /// it.
    ///
    /// # Errors
    /// When the level cannot be.
    pub async fn measure(
        &mut self,
        value: LoadValue,
    ) -> Result<Option<&LevelResult>, ServebenchError> {
        let config = &self.benchmark.config;
        if !self.benchmark.is_replay() {
            check_level(config, value)?;
        }
        let seed = config.seed.wrapping_add(self.num_measured.wrapping_mul(LEVEL_SEED_STEP));
        self.num_measured += 1;
        let mut repeats = Vec::with_capacity(config.repeat);
        for repeat in 0..config.repeat {
            if self.stop.is_requested() {
                break;
            }
            let result = self.measure_once(value, repeat, seed.wrapping_add(repeat as u64)).await?;
            // Of a repeat that was stopped before its first answer there is nothing to keep.
            if !(result.num_interrupted.is_some() && result.requests.is_empty()) {
                repeats.push(result);
            }
        }
        let Some(level) = merge_repeats(repeats, config.slo()) else { return Ok(None) };
        self.run.levels.push(level);
        self.run.interrupted = self.stop.is_requested();
        self.observer.level_ended(&self.run);
        Ok(self.run.levels.last())
    }

    /// Returns the run so far.
    #[must_use]
    pub fn run(&self) -> &RunResult {
        &self.run
    }

    /// Adds the result of a search for capacity.
    pub fn set_capacity(&mut self, capacity: CapacityResult) {
        self.run.capacity = Some(capacity);
    }

    /// Returns the run, with levels in order of load and what they mean together.
    pub async fn finish(self) -> RunResult {
        let Self { benchmark, server, stop, mut run, .. } = self;
        run.levels.sort_by(|a, b| a.value.0.total_cmp(&b.value.0));
        if benchmark.is_replay() || run.config.levels.is_empty() {
            run.config.levels = run.levels.iter().map(|level| level.value).collect();
        }
        run.interrupted = stop.is_requested();
        run.gpu_telemetry = run.levels.iter().rev().find_map(|level| level.gpu_telemetry.clone());
        if let Some(server) = &server {
            // Asked after the run, when the model is loaded for certain.
            run.environment.model_info = {
                let key = benchmark.api_key.as_deref();
                detect::model_info_with_key(server, &run.config.model, key).await
            };
        }
        if !run.levels.is_empty() {
            run.goodput_at = Some(goodput_at(&run.levels, run.config.slo()));
            run.bottleneck_diagnosis = Some(diagnose(&run));
        }
        run
    }

    async fn measure_once(
        &mut self,
        value: LoadValue,
        repeat: usize,
        seed: u64,
    ) -> Result<LevelResult, ServebenchError> {
        let benchmark = self.benchmark;
        let config = &benchmark.config;
        let PlannedLoad { load, value, num_requests } = plan(benchmark, value, seed)?;
        let duration = level_duration(benchmark);
        let setup = LevelSetup {
            spec: self.spec.clone(),
            connections: connections(benchmark, &self.spec)?,
            duration,
            max_in_flight: config.max_concurrency,
            turns: turns(benchmark),
            prompt_text: match benchmark.tokens {
                Some(_) => PromptText::Kept,
                None => PromptText::Dropped,
            },
        };
        let metrics_before = self.scrape().await;
        self.observer.level_started(&LevelPlan {
            label: label(config.mode, value),
            repeat: repeat + 1,
            num_repeats: config.repeat,
            num_requests,
            duration,
        });
        let gpu = config.gpu_telemetry.then(|| GpuSampler::start(benchmark.gpu_index)).flatten();
        let outcome = level::run(load, setup, self.observer, self.stop)
            .await
            .map_err(|source| ServebenchError::System { action: "start a thread", source })?;
        let metrics_after = self.scrape().await;
        let metrics = metrics_after
            .map(|end| server_metrics::standard_metrics(metrics_before.as_ref(), &end));
        let level =
            LevelResult { prometheus_metrics: metrics, ..level_of(outcome, benchmark, value) };
        Ok(with_gpu(level, gpu))
    }
}

/// Returns what a level is called before it is measured.
fn label(mode: Mode, value: LoadValue) -> String {
    match mode {
        Mode::Concurrency => format!("c={value}"),
        Mode::Rate => format!("rate={value}"),
    }
}

fn connections(benchmark: &Benchmark, spec: &RequestSpec) -> Result<Connections, ServebenchError> {
    let timeout = seconds(benchmark.config.timeout);
    Connections::new(spec, timeout, benchmark.keep_alive)
}

/// Returns seconds that were checked before as a duration.
fn seconds(seconds: f64) -> Duration {
    // Centuries are as good as for ever.
    Duration::try_from_secs_f64(seconds).unwrap_or(Duration::from_secs(1 << 33))
}

fn level_duration(benchmark: &Benchmark) -> Option<Duration> {
    let config = &benchmark.config;
    [config.duration, config.min_duration].into_iter().flatten().map(seconds).max()
}

fn turns(benchmark: &Benchmark) -> Turns {
    match benchmark.config.turns {
        Some(_) => {
            Turns::Many { think_time: seconds(benchmark.config.think_time.unwrap_or_default()) }
        }
        None => Turns::Single,
    }
}

/// Makes what a level sends.
fn plan(
    benchmark: &Benchmark,
    value: LoadValue,
    seed: u64,
) -> Result<PlannedLoad, ServebenchError> {
    let planned = match benchmark.config.mode {
        Mode::Concurrency => plan_closed(benchmark, value, seed)?,
        Mode::Rate if benchmark.is_replay() => plan_replay(benchmark, seed)?,
        Mode::Rate => plan_open(benchmark, value, seed),
    };
    if planned.num_requests == Some(0) {
        return Err(usage(
            "--prompts",
            "no request fits into the level; give more prompts, a higher rate or more time",
        ));
    }
    Ok(planned)
}

fn plan_closed(
    benchmark: &Benchmark,
    value: LoadValue,
    seed: u64,
) -> Result<PlannedLoad, ServebenchError> {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "levels of a closed loop are checked to be small whole numbers"
    )]
    let num_users = value.0 as usize;
    let supply = &benchmark.prompts;
    let limit = benchmark.config.num_requests;
    if level_duration(benchmark).is_some() && supply.num_recorded().is_none() {
        let num_prompts = limit.unwrap_or(usize::MAX);
        let stock = PromptStock::refilled(Arc::clone(supply), seed, num_users, num_prompts)
            .map_err(|source| ServebenchError::System { action: "start a thread", source })?;
        let load = Load::Closed { stock, num_users };
        return Ok(PlannedLoad { load, value, num_requests: None });
    }
    let default = (4 * num_users).max(16);
    let prompts = some_prompts(benchmark, limit.unwrap_or(default), seed);
    let num_requests = Some(num_turns(&prompts));
    let load = Load::Closed { stock: PromptStock::of(prompts), num_users };
    Ok(PlannedLoad { load, value, num_requests })
}

fn plan_open(benchmark: &Benchmark, value: LoadValue, seed: u64) -> PlannedLoad {
    let config = &benchmark.config;
    let process = ArrivalProcess {
        rate: value,
        distribution: config.arrival_dist,
        burstiness: config.burstiness,
    };
    let end = level_duration(benchmark);
    let default = if end.is_some() { usize::MAX } else { DEFAULT_RATE_REQUESTS };
    let due: Vec<Duration> = process
        .arrivals(seed)
        .take_while(|due| end.is_none_or(|end| *due < end))
        .take(config.num_requests.unwrap_or(default))
        .collect();
    let prompts = some_prompts(benchmark, due.len(), seed);
    open(due.into_iter().zip(prompts).collect(), value)
}

fn plan_replay(benchmark: &Benchmark, seed: u64) -> Result<PlannedLoad, ServebenchError> {
    let config = &benchmark.config;
    let limit = config.num_requests.unwrap_or(usize::MAX);
    let prompts = some_prompts(benchmark, limit, seed);
    let due = recorded_arrivals(&prompts, config.trace_speed.unwrap_or(1.0)).ok_or_else(|| {
        usage(
            "--trace",
            "says no arrival times, so there is nothing to replay; give --rate or \
               --concurrency with it",
        )
    })?;
    let end = level_duration(benchmark);
    let mut arrivals: Vec<Arrival> =
        due.into_iter().zip(prompts).filter(|(due, _)| end.is_none_or(|end| *due < end)).collect();
    arrivals.sort_by_key(|(due, _)| *due);
    let due: Vec<Duration> = arrivals.iter().map(|(due, _)| *due).collect();
    Ok(open(arrivals, mean_rate(&due)))
}

fn open(arrivals: Vec<Arrival>, value: LoadValue) -> PlannedLoad {
    let num_requests = arrivals.iter().map(|(_, prompt)| prompt.turns.len()).sum();
    PlannedLoad { load: Load::Open(arrivals), value, num_requests: Some(num_requests) }
}

/// Returns prompts, at most as many as there are.
fn some_prompts(benchmark: &Benchmark, limit: usize, seed: u64) -> Vec<Prompt> {
    let supply = &benchmark.prompts;
    let num_prompts = supply.num_recorded().map_or(limit, |recorded| recorded.min(limit));
    supply.prompts(num_prompts, seed)
}

fn num_turns(prompts: &[Prompt]) -> usize {
    prompts.iter().map(|prompt| prompt.turns.len()).sum()
}

/// Returns the result of a level that was run once.
fn level_of(outcome: LevelOutcome, benchmark: &Benchmark, value: LoadValue) -> LevelResult {
    let LevelOutcome { finished, duration, client, num_interrupted } = outcome;
    let requests = results_with_tokens(finished, benchmark.tokens.as_deref());
    let summary = summarize(&requests, duration, benchmark.config.slo());
    LevelResult {
        client_lag_p99_ms: client.lag_p99_ms,
        client_cpu_share: client.cpu_share,
        num_interrupted,
        ..LevelResult::new(benchmark.config.mode, value, duration, requests, summary)
    }
}

fn with_gpu(mut level: LevelResult, gpu: Option<GpuSampler>) -> LevelResult {
    let summary = gpu.and_then(|gpu| gpu.stop(level.summary.output_throughput));
    level.summary.gpu_telemetry.clone_from(&summary);
    level.gpu_telemetry = summary;
    level
}
