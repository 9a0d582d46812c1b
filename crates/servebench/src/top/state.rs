//! What the screen shows: the last figures, and how they came to be.
//!
//! Rates are differences of counters between the last two looks. Means of latencies and the hit
//! rate are over the last [`WINDOW_S`] seconds, since a single look may see no request end.

use super::collector::{Answers, Observation};
use super::kv_blocks::KvBlocks;
use crate::detect::Server;
use crate::gpu_sampler::DeviceReading;
use crate::server_metrics::{Scrape, standard_metrics};
use std::collections::VecDeque;

/// Seconds over which latencies and hits are averaged.
pub(super) const WINDOW_S: f64 = 30.0;
/// Looks that the history keeps: more than any terminal has columns.
const HISTORY: usize = 600;
/// Histograms of the time to the first token.
const TTFT: [&str; 3] = [
    "mini_infer_time_to_first_token_seconds",
    "vllm:time_to_first_token_seconds",
    "sglang:time_to_first_token_seconds",
];
/// Histograms of the gaps between tokens.
const ITL: [&str; 4] = [
    "mini_infer_inter_token_latency_seconds",
    "vllm:inter_token_latency_seconds",
    "vllm:time_per_output_token_seconds",
    "sglang:inter_token_latency_seconds",
];

/// The figures of one look; what the server does not tell is `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Figures {
    pub(super) running: Option<f64>,
    pub(super) waiting: Option<f64>,
    /// Output tokens per second.
    pub(super) output_rate: Option<f64>,
    /// Prompt tokens per second.
    pub(super) prompt_rate: Option<f64>,
    /// Part of the KV memory in use, `0..=1`.
    pub(super) kv_use: Option<f64>,
    /// Part of the prompt tokens found in the prefix cache, `0..=1`.
    pub(super) hit_rate: Option<f64>,
    /// Preemptions since the screen was started.
    pub(super) preemptions: Option<f64>,
    /// Mean time to the first token, in milliseconds.
    pub(super) ttft_ms: Option<f64>,
    /// Mean gap between tokens, in milliseconds.
    pub(super) itl_ms: Option<f64>,
}

/// A figure that can be drawn over time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Series {
    Output,
    Prompt,
    Running,
    Waiting,
    KvUse,
}

impl Series {
    const ALL: [Self; 5] = [Self::Output, Self::Prompt, Self::Running, Self::Waiting, Self::KvUse];

    /// Returns what it is called, with its unit.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Output => "output tokens/s",
            Self::Prompt => "prompt tokens/s",
            Self::Running => "running",
            Self::Waiting => "waiting",
            Self::KvUse => "KV use in %",
        }
    }

    /// Returns its value.
    pub(super) fn of(self, figures: &Figures) -> Option<f64> {
        match self {
            Self::Output => figures.output_rate,
            Self::Prompt => figures.prompt_rate,
            Self::Running => figures.running,
            Self::Waiting => figures.waiting,
            Self::KvUse => figures.kv_use.map(|share| share * 100.0),
        }
    }
}

/// Whether there is something to show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Status {
    /// The first look is not back yet.
    Connecting,
    /// Figures come.
    Live,
    /// The server answers but tells no metrics; why.
    NoMetrics(String),
    /// The server does not answer; why.
    Down(String),
}

/// What the screen shows.
#[derive(Clone, Debug)]
pub(super) struct TopState {
    pub(super) url: String,
    pub(super) status: Status,
    pub(super) server: Option<Server>,
    pub(super) figures: Figures,
    pub(super) history: VecDeque<Figures>,
    pub(super) kv: Option<KvBlocks>,
    pub(super) device: Option<DeviceReading>,
    pub(super) series: Series,
    pub(super) is_paused: bool,
    /// Seconds since the start, at the last look.
    pub(super) at: f64,
    /// Scrapes of the window with their times, oldest first.
    scrapes: VecDeque<(f64, Scrape)>,
    first: Option<Scrape>,
}

impl TopState {
    pub(super) fn new(url: &str) -> Self {
        Self {
            url: url.to_owned(),
            status: Status::Connecting,
            server: None,
            figures: Figures::default(),
            history: VecDeque::new(),
            kv: None,
            device: None,
            series: Series::Output,
            is_paused: false,
            at: 0.0,
            scrapes: VecDeque::new(),
            first: None,
        }
    }

    /// Takes in a look at the server, `at` seconds after the start. Nothing changes while paused.
    pub(super) fn update(&mut self, observation: Observation, at: f64) {
        if self.is_paused {
            return;
        }
        self.at = at;
        match observation {
            Observation::Down(reason) => {
                self.forget();
                self.status = Status::Down(reason);
            }
            Observation::Up(answers) => self.take(*answers, at),
        }
        self.history.push_back(self.figures);
        if self.history.len() > HISTORY {
            self.history.pop_front();
        }
    }

    /// Draws the next series, or the one before.
    pub(super) fn turn_series(&mut self, by: isize) {
        let all = Series::ALL;
        let place = all.iter().position(|series| *series == self.series).unwrap_or_default();
        let place = place.checked_add_signed(by).unwrap_or(all.len() - 1);
        self.series = all[place % all.len()];
    }

    fn take(&mut self, answers: Answers, at: f64) {
        let Answers { server, metrics, kv, device } = answers;
        self.server = Some(server);
        match metrics {
            Ok(scrape) => {
                self.add(scrape, at);
                self.status = Status::Live;
            }
            Err(reason) => {
                self.forget();
                self.status = Status::NoMetrics(reason);
            }
        }
        self.kv = kv;
        self.device = device;
    }

    /// Drops what is no longer true, so that counters of another process are not subtracted.
    fn forget(&mut self) {
        self.scrapes.clear();
        self.first = None;
        self.figures = Figures::default();
        self.kv = None;
        self.device = None;
    }

    fn add(&mut self, scrape: Scrape, at: f64) {
        let first = self.first.get_or_insert_with(|| scrape.clone());
        let since_first = standard_metrics(Some(first), &scrape);
        let last = self.scrapes.back();
        let since_last = standard_metrics(last.map(|(_, scrape)| scrape), &scrape);
        let seconds = last.map(|(then, _)| at - then).filter(|seconds| *seconds > 0.0);
        let rate = |name: &str| Some(since_last.get(name)? / seconds?);
        let now = |name: &str| since_last.get(name).copied();
        let oldest = self.scrapes.front().map(|(_, scrape)| scrape);
        let since_oldest = standard_metrics(oldest, &scrape);
        let queried = since_oldest.get("prefix_cache_queried_tokens").filter(|sum| **sum > 0.0);
        let hits = since_oldest.get("prefix_cache_hit_tokens").zip(queried);
        self.figures = Figures {
            running: now("num_requests_running"),
            waiting: now("num_requests_waiting"),
            output_rate: rate("generation_tokens_total"),
            prompt_rate: rate("prompt_tokens_total"),
            kv_use: now("gpu_cache_usage"),
            hit_rate: hits.map(|(hits, queried)| hits / queried),
            preemptions: since_first.get("preemptions").copied(),
            ttft_ms: oldest.and_then(|oldest| mean_ms(&TTFT, oldest, &scrape)),
            itl_ms: oldest.and_then(|oldest| mean_ms(&ITL, oldest, &scrape)),
        };
        self.scrapes.push_back((at, scrape));
        // The second scrape may be older than the window only if it is the last.
        while self.scrapes.len() > 2 && self.scrapes[0].0 < at - WINDOW_S {
            self.scrapes.pop_front();
        }
    }
}

/// Returns the mean of what a histogram saw between two scrapes, in milliseconds.
fn mean_ms(names: &[&str], start: &Scrape, end: &Scrape) -> Option<f64> {
    let difference = |name: &str, part: &str| {
        let name = format!("{name}_{part}");
        Some(end.get(&name)? - start.get(&name).copied().unwrap_or(0.0))
    };
    let name = names.iter().find(|name| end.contains_key(&format!("{name}_count")))?;
    let count = difference(name, "count").filter(|count| *count > 0.0)?;
    difference(name, "sum").filter(|sum| *sum >= 0.0).map(|sum| sum / count * 1000.0)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::server_metrics::parse;
    use serde_json::Map;

    /// Returns what a server of an engine told.
    pub(in crate::top) fn up(engine: &str, metrics: Result<&str, &str>) -> Answers {
        Answers {
            server: Server {
                url: "http://127.0.0.1:8000/v1".to_owned(),
                engine: engine.to_owned(),
                version: Some("0.1.0".to_owned()),
                models: vec!["SmolLM2-135M".to_owned()],
                details: Map::new(),
            },
            metrics: metrics.map(parse).map_err(str::to_owned),
            kv: None,
            device: None,
        }
    }

    fn live(metrics: &str) -> Observation {
        Observation::Up(Box::new(up("mini-infer", Ok(metrics))))
    }

    /// Returns metrics of mini-infer with these output tokens, and as many hundredths of seconds
    /// of TTFT over as many requests.
    pub(in crate::top) fn metrics(output: u32, ttft_sum: f64, ttft_count: u32) -> String {
        format!(
            "mini_infer_running_sequences 2\nmini_infer_waiting_sequences 1\n\
             mini_infer_kv_pool_blocks 100\nmini_infer_kv_blocks{{state=\"active\"}} 25\n\
             mini_infer_tokens_total{{kind=\"output\"}} {output}\n\
             mini_infer_tokens_total{{kind=\"prompt\"}} {}\n\
             mini_infer_prefix_cache_queried_tokens_total {output}\n\
             mini_infer_prefix_cache_hit_tokens_total {}\nmini_infer_preemptions_total 3\n\
             mini_infer_time_to_first_token_seconds_sum {ttft_sum}\n\
             mini_infer_time_to_first_token_seconds_count {ttft_count}\n",
            output * 2,
            output / 4,
        )
    }

    #[test]
    fn rates_are_differences_and_there_are_none_at_first() {
        let mut state = TopState::new("u");
        state.update(live(&metrics(100, 1.0, 10)), 10.0);
        assert_eq!(state.figures.running, Some(2.0));
        assert_eq!((state.figures.output_rate, state.figures.ttft_ms), (None, None));
        assert_eq!((state.figures.hit_rate, state.figures.preemptions), (None, Some(0.0)));
        state.update(live(&metrics(200, 1.5, 12)), 12.0);
        let figures = state.figures;
        assert_eq!((figures.output_rate, figures.prompt_rate), (Some(50.0), Some(100.0)));
        assert_eq!((figures.ttft_ms, figures.hit_rate), (Some(250.0), Some(0.25)));
        assert_eq!((figures.kv_use, figures.itl_ms), (Some(0.25), None));
        // No request ended since, yet the window still knows two.
        state.update(live(&metrics(200, 1.5, 12)), 13.0);
        assert_eq!((state.figures.output_rate, state.figures.ttft_ms), (Some(0.0), Some(250.0)));
        // Long after, it knows none.
        state.update(live(&metrics(200, 1.5, 12)), 80.0);
        state.update(live(&metrics(200, 1.5, 12)), 81.0);
        assert_eq!((state.figures.output_rate, state.figures.ttft_ms), (Some(0.0), None));
    }

    #[test]
    fn a_server_that_went_away_leaves_nothing_that_looks_measured() {
        let mut state = TopState::new("u");
        state.update(live(&metrics(1000, 1.0, 10)), 1.0);
        state.update(Observation::Down("refused".to_owned()), 2.0);
        assert_eq!(
            (state.figures, &state.status),
            (Figures::default(), &Status::Down("refused".to_owned()))
        );
        // It is back with counters that started again.
        state.update(live(&metrics(10, 1.0, 1)), 3.0);
        assert_eq!((state.figures.output_rate, &state.status), (None, &Status::Live));
        state.update(live(&metrics(30, 1.0, 1)), 4.0);
        assert_eq!(state.figures.output_rate, Some(20.0));
        assert_eq!(state.history.len(), 4);
    }

    #[test]
    fn a_server_without_metrics_has_no_figures() {
        let mut state = TopState::new("u");
        state.update(Observation::Up(Box::new(up("Ollama", Err("no metrics here")))), 1.0);
        assert_eq!(state.figures, Figures::default());
        assert_eq!(state.status, Status::NoMetrics("no metrics here".to_owned()));
    }

    #[test]
    fn pausing_keeps_what_is_shown() {
        let mut state = TopState::new("u");
        state.update(live(&metrics(100, 1.0, 10)), 1.0);
        state.is_paused = true;
        state.update(Observation::Down("refused".to_owned()), 2.0);
        assert_eq!((&state.status, state.figures.running), (&Status::Live, Some(2.0)));
    }

    #[test]
    fn series_turn_in_both_directions() {
        let mut state = TopState::new("u");
        state.turn_series(-1);
        assert_eq!(state.series, Series::KvUse);
        state.turn_series(1);
        state.turn_series(1);
        assert_eq!(state.series, Series::Prompt);
    }
}
