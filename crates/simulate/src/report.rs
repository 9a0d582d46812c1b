//! The runs of several allocators over one trace, as a table and as JSON.
//!
//! Both say with what settings the runs were made, so that they can be repeated.

use crate::SimulateError;
use crate::allocator::Allocator;
use crate::latency::LatencySummary;
use crate::prefix_bound::hit_rate_bound;
use crate::run::{AllocatorReport, simulate};
use crate::settings::{Load, Settings};
use mini_infer_trace::{Trace, TraceRequest};
use serde::Serialize;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// The runs of several allocators over one trace.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// What was simulated.
    pub trace: TraceReport,
    /// With what.
    pub settings: SettingsReport,
    /// What came of it, in the order asked for.
    pub allocators: Vec<AllocatorReport>,
}

/// A trace in numbers.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TraceReport {
    /// What it is called.
    pub name: String,
    /// Where it comes from.
    pub description: String,
    /// Requests that were simulated.
    pub num_requests: usize,
    /// Requests left out because they are longer than the model's limit.
    pub num_left_out: usize,
    /// Prompt tokens in the mean.
    pub mean_prompt_tokens: f64,
    /// Output tokens in the mean.
    pub mean_output_tokens: f64,
}

/// The settings in plain units.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SettingsReport {
    /// When requests came, in words.
    pub load: String,
    /// Size of the KV memory in tokens.
    pub kv_tokens: u64,
    /// Most tokens of a sequence.
    pub max_model_len: u32,
    /// Most sequences at once.
    pub max_num_seqs: u32,
    /// Most tokens in a step.
    pub max_num_batched_tokens: u32,
    /// Prompt tokens per second; none for as many as a step holds.
    pub prefill_rate: Option<f64>,
    /// Output tokens per second; none for as many as a step holds.
    pub decode_rate: Option<f64>,
    /// The shortest step.
    pub step_floor_ms: f64,
    /// Limit of the time to the first token.
    pub ttft_limit_s: f64,
    /// Limit of the time for each later token.
    pub tpot_limit_s: f64,
}

impl Report {
    /// Runs `allocators` over the requests of `trace` that are no longer than the settings allow,
    /// on up to `num_threads` threads.
    ///
    /// # Errors
    /// When a number is out of range, no request is short enough, or the memory cannot hold the
    /// longest sequence.
    pub fn new(
        trace: Trace,
        settings: &Settings,
        allocators: &[Allocator],
        num_threads: usize,
    ) -> Result<Self, SimulateError> {
        settings.validate()?;
        for &allocator in allocators {
            settings.engine_config(allocator)?.validate().map_err(SimulateError::Engine)?;
        }
        let max_model_len = settings.max_model_len;
        let shortest = trace.requests.iter().map(TraceRequest::num_tokens).min();
        let Trace { name, description, mut requests } = trace;
        let num_all = requests.len();
        requests.retain(|request| request.num_tokens() <= max_model_len);
        if requests.is_empty() {
            let num_tokens_of_shortest = shortest.unwrap_or(0);
            return Err(SimulateError::NothingFits { max_model_len, num_tokens_of_shortest });
        }
        let mean = |length: fn(&TraceRequest) -> u32| {
            let sum: u64 = requests.iter().map(|request| u64::from(length(request))).sum();
            sum as f64 / requests.len() as f64
        };
        let trace = TraceReport {
            name,
            description,
            num_requests: requests.len(),
            num_left_out: num_all - requests.len(),
            mean_prompt_tokens: mean(|request| request.num_prompt_tokens),
            mean_output_tokens: mean(|request| request.num_output_tokens),
        };
        let allocators = run_all(&requests, settings, allocators, num_threads)?;
        Ok(Self { trace, settings: SettingsReport::new(settings), allocators })
    }

    /// Returns the report as JSON, a line break at its end.
    ///
    /// # Panics
    /// Never: all of it can be written as JSON.
    #[must_use]
    pub fn to_json(&self) -> String {
        let json = serde_json::to_string_pretty(self);
        json.expect("numbers, texts and lists can be written as JSON") + "\n"
    }

    /// Returns the report as lines of text.
    #[must_use]
    pub fn to_lines(&self) -> Vec<String> {
        let mut lines = self.heading();
        lines.push(String::new());
        lines.push(format!(
            "{:<18} {:>6} {:>9} {:>9} {:>9} {:>6}  {:>9} {:>5}  {:>8}  {:>6} {:>6}  {:>17}  {:>8}",
            "allocator",
            "live",
            "reserved",
            "internal",
            "external",
            "idle",
            "running",
            "peak",
            "preempt.",
            "hits",
            "bound",
            "queueing mean/p99",
            "goodput"
        ));
        lines.extend(self.allocators.iter().map(row));
        lines
    }

    /// Returns what the table is about.
    fn heading(&self) -> Vec<String> {
        let Self { trace, settings, .. } = self;
        let rate = |rate: Option<f64>, of: &str| {
            rate.map_or(format!("{of} tokens at any rate"), |rate| format!("{rate} {of} tokens/s"))
        };
        let left_out = match trace.num_left_out {
            0 => String::new(),
            longer => format!("; {longer} longer than {} left out", settings.max_model_len),
        };
        vec![
            format!("trace     {}", trace.description),
            format!(
                "requests  {}, in the mean {:.1} prompt and {:.1} output tokens{left_out}",
                trace.num_requests, trace.mean_prompt_tokens, trace.mean_output_tokens
            ),
            format!("load      {}", settings.load),
            format!(
                "memory    {} tokens; at most {} a request, {} requests at once, {} tokens a step",
                settings.kv_tokens,
                settings.max_model_len,
                settings.max_num_seqs,
                settings.max_num_batched_tokens
            ),
            format!(
                "speed     {}, {}, steps of at least {} ms",
                rate(settings.prefill_rate, "prompt"),
                rate(settings.decode_rate, "output"),
                settings.step_floor_ms
            ),
            format!(
                "goodput   requests/s with the first token within {} s and later ones within {} s \
                 each in the mean",
                settings.ttft_limit_s, settings.tpot_limit_s
            ),
            "shares    of the memory in use or asked for by a waiting request, over time until the \
             queue drains; idle: of all memory"
                .to_owned(),
        ]
    }
}

/// Returns the line of one allocator.
fn row(report: &AllocatorReport) -> String {
    let percent = |share: f64| format!("{:.1} %", share * 100.0);
    let waste = report.memory.waste;
    let delay = report.queueing_delay_s.map_or("-".to_owned(), |delay: LatencySummary| {
        format!("{:.2} / {:.2} s", delay.mean, delay.p99)
    });
    format!(
        "{:<18} {:>6} {:>9} {:>9} {:>9} {:>6}  {:>9.1} {:>5}  {:>8}  {:>6} {:>6}  {:>17}  {:>6.2}/s",
        report.name,
        percent(report.memory.live_share),
        percent(waste.reserved),
        percent(waste.internal),
        percent(waste.external),
        percent(report.memory.idle_share),
        report.mean_running,
        report.peak_running,
        report.preemptions,
        percent(report.hit_rate),
        percent(report.hit_rate_bound),
        delay,
        report.goodput
    )
}

impl SettingsReport {
    fn new(settings: &Settings) -> Self {
        let load = match settings.load {
            Load::Backlog => {
                "a saturated queue: all requests are there from the start; times count \
                              from admission"
                    .to_owned()
            }
            Load::Arrivals { rate_scale: 1.0 } => "arrivals at the times of the trace".to_owned(),
            Load::Arrivals { rate_scale } => {
                format!("arrivals of the trace, {rate_scale} times as fast")
            }
            Load::Concurrent { num_requests } => format!("{num_requests} requests at all times"),
        };
        Self {
            load,
            kv_tokens: settings.kv_tokens,
            max_model_len: settings.max_model_len,
            max_num_seqs: settings.max_num_seqs,
            max_num_batched_tokens: settings.max_batched_tokens,
            prefill_rate: settings.speed.prefill_rate,
            decode_rate: settings.speed.decode_rate,
            step_floor_ms: settings.speed.step_floor.as_secs_f64() * 1e3,
            ttft_limit_s: settings.limits.ttft.as_secs_f64(),
            tpot_limit_s: settings.limits.tpot.as_secs_f64(),
        }
    }
}

/// Runs the allocators, each on one thread; the threads take them in order.
fn run_all(
    requests: &[TraceRequest],
    settings: &Settings,
    allocators: &[Allocator],
    num_threads: usize,
) -> Result<Vec<AllocatorReport>, SimulateError> {
    let bound = hit_rate_bound(requests);
    let next = AtomicUsize::new(0);
    let work = || {
        let mut done = Vec::new();
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(&allocator) = allocators.get(index) else { return done };
            done.push((index, simulate(requests, bound, settings, allocator)));
        }
    };
    let mut done = thread::scope(|scope| {
        let others: Vec<_> = (1..num_threads).map(|_| scope.spawn(work)).collect();
        let mut done = work();
        for other in others {
            done.extend(other.join().expect("a simulation ends or the process does"));
        }
        done
    });
    done.sort_by_key(|(index, _)| *index);
    done.into_iter().map(|(_, report)| report).collect()
}
