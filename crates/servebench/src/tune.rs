//! Settings of a server, derived from what a run measured.
//!
//! Among the levels at which enough requests meet the targets, the knee is the lowest load whose
//! throughput is within a twentieth of the best: beyond it, more load buys hardly anything. Settings
//! follow from two figures only: the sequences in flight at the knee, and the longest prompt and
//! output that were seen. Nothing is recommended that no figure led to, and nothing at all when even
//! the lowest level misses the targets.

use crate::results::{LevelResult, Mode, RunResult, Slo};
use crate::statistics::{as_f64, meets_slo};
use clap::ValueEnum;

/// Share of the best throughput with which a lower load is content.
const GOOD_ENOUGH: f64 = 0.95;
/// Contexts are rounded up to a multiple of this, so that a slightly longer prompt fits.
const CONTEXT_STEP: u64 = 256;
/// Tokens of a KV block of mini-infer, by default.
const BLOCK_SIZE: u64 = 16;

/// Engines whose settings are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Engine {
    /// Ollama: variables of its environment.
    Ollama,
    /// vLLM.
    Vllm,
    /// llama.cpp's server.
    #[value(name = "llamacpp", alias = "llama.cpp", alias = "llama-cpp")]
    LlamaCpp,
    /// The server of this repository.
    MiniInfer,
}

impl Engine {
    /// Returns the engine of this name, as a server tells it; `None` for others.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        let name = name.to_lowercase();
        let known = [
            ("mini-infer", Self::MiniInfer),
            // Before llama.cpp, whose name it contains.
            ("ollama", Self::Ollama),
            ("vllm", Self::Vllm),
            ("llama.cpp", Self::LlamaCpp),
            ("llamacpp", Self::LlamaCpp),
            ("llama-server", Self::LlamaCpp),
        ];
        known.into_iter().find(|(part, _)| name.contains(part)).map(|(_, engine)| engine)
    }
}

/// What requests are to meet.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Targets {
    /// Longest TTFT and longest time per token.
    pub slo: Slo,
    /// Share of all requests that must meet both.
    pub share: f64,
}

/// One level as a step towards the knee.
#[derive(Clone, Debug, PartialEq)]
pub struct TuningLevel {
    /// What it is called.
    pub label: String,
    /// Sequences that were in flight at most.
    pub num_in_flight: usize,
    /// Output tokens per second.
    pub output_tokens_per_s: f64,
    /// How much more that is than at the level before, as a share of it.
    pub gain: Option<f64>,
    /// Median TTFT, in seconds.
    pub ttft_p50: Option<f64>,
    /// Median TPOT, in seconds.
    pub tpot_p50: Option<f64>,
    /// Share of all requests that met the targets.
    pub attainment: f64,
}

/// What a run says about settings.
#[derive(Clone, Debug, PartialEq)]
pub struct Tuning {
    /// The levels, by load.
    pub levels: Vec<TuningLevel>,
    /// Which of them is the knee; `None` when none meets the targets.
    pub knee: Option<usize>,
    /// Longest prompt and output together that were seen, in tokens, rounded up.
    pub context_tokens: u64,
}

/// Reads a run; `None` when it has no requests.
#[must_use]
pub fn tune(run: &RunResult, targets: Targets) -> Option<Tuning> {
    let mut measured: Vec<&LevelResult> =
        run.levels.iter().filter(|level| !level.requests.is_empty()).collect();
    measured.sort_by(|a, b| a.value.0.total_cmp(&b.value.0));
    let mut levels: Vec<TuningLevel> = Vec::new();
    for level in measured {
        let output_tokens_per_s = level.summary.output_throughput;
        let before = levels.last().map(|level| level.output_tokens_per_s);
        let good = level.requests.iter().filter(|request| meets_slo(request, targets.slo));
        levels.push(TuningLevel {
            label: level.label(),
            num_in_flight: num_in_flight(level),
            output_tokens_per_s,
            gain: before.filter(|before| *before > 0.0).map(|b| output_tokens_per_s / b - 1.0),
            ttft_p50: level.summary.ttft.p50,
            tpot_p50: level.summary.tpot.p50,
            attainment: as_f64(good.count()) / as_f64(level.requests.len()),
        });
    }
    let holds = |level: &TuningLevel| level.attainment >= targets.share;
    let best = levels.iter().filter(|level| holds(level)).map(|level| level.output_tokens_per_s);
    let best = best.fold(0.0, f64::max);
    let knee = levels
        .iter()
        .position(|level| holds(level) && level.output_tokens_per_s >= GOOD_ENOUGH * best);
    (!levels.is_empty()).then(|| Tuning { knee, context_tokens: context_tokens(run), levels })
}

/// Returns how many requests were in flight at once, at most.
fn num_in_flight(level: &LevelResult) -> usize {
    let ended = level.requests.iter().filter_map(|request| Some((request.start, request.e2e?)));
    let mut events: Vec<(f64, isize)> =
        ended.flat_map(|(start, e2e)| [(start, 1), (start + e2e, -1)]).collect();
    // At one moment, ends come before starts: a closed loop replaces a request that has ended.
    events.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    let mut current = 0_isize;
    let mut most = 0;
    for (_, change) in events {
        current += change;
        most = most.max(current);
    }
    match level.mode {
        // The load says it; a loop with fewer requests than streams never reaches it.
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a whole number"
        )]
        Mode::Concurrency => (level.value.0 as usize).min(level.requests.len()),
        Mode::Rate => most.unsigned_abs().max(1),
    }
}

/// Returns the longest prompt and output together, rounded up; from what was asked for where the
/// server does not tell.
fn context_tokens(run: &RunResult) -> u64 {
    let requests = run.levels.iter().flat_map(|level| &level.requests);
    let seen = requests
        .filter_map(|request| Some(request.prompt_tokens? + request.output_tokens))
        .max()
        .unwrap_or_else(|| u64::from(run.config.input_len) + u64::from(run.config.output_len));
    seen.next_multiple_of(CONTEXT_STEP)
}

/// How to start a server, and which figure each setting comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    /// The command.
    pub command: String,
    /// Each setting with its reason.
    pub settings: Vec<(String, String)>,
}

/// Returns how to start an engine for a model at the knee; `None` without a knee.
#[must_use]
pub fn launch(tuning: &Tuning, engine: Engine, model: &str) -> Option<Launch> {
    let knee = &tuning.levels[tuning.knee?];
    let (count, context) = (knee.num_in_flight, tuning.context_tokens);
    let in_flight = format!("{count} sequences in flight at the knee, {}", knee.label);
    let longest = format!("the longest prompt and output seen, rounded up to {context} tokens");
    let model = shell_word(model);
    let (command, settings) = match engine {
        Engine::Ollama => (
            format!("OLLAMA_NUM_PARALLEL={count} OLLAMA_CONTEXT_LENGTH={context} ollama serve"),
            vec![
                (format!("OLLAMA_NUM_PARALLEL={count}"), in_flight),
                (format!("OLLAMA_CONTEXT_LENGTH={context}"), longest),
            ],
        ),
        Engine::Vllm => (
            format!("vllm serve {model} --max-num-seqs {count} --max-model-len {context}"),
            vec![
                (format!("--max-num-seqs {count}"), in_flight),
                (format!("--max-model-len {context}"), longest),
            ],
        ),
        Engine::LlamaCpp => {
            // llama-server divides its context by its slots.
            let total = context * count as u64;
            (
                format!("llama-server -m {model} -np {count} -c {total}"),
                vec![
                    (format!("-np {count}"), in_flight),
                    (format!("-c {total}"), format!("{count} times {context} tokens: {longest}")),
                ],
            )
        }
        Engine::MiniInfer => {
            let num_blocks = context.div_ceil(BLOCK_SIZE) * count as u64;
            (
                format!(
                    "mini-infer serve --model {model} --max-num-seqs {count} --max-model-len {context}"
                ),
                vec![
                    (format!("--max-num-seqs {count}"), in_flight),
                    (
                        format!("--max-model-len {context}"),
                        format!(
                            "{longest}; all of them need {num_blocks} KV blocks of {BLOCK_SIZE}, \
                             see --kv-cache-memory"
                        ),
                    ),
                ],
            )
        }
    };
    Some(Launch { command, settings })
}

/// Returns a text as one word of a shell.
fn shell_word(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:@+=,".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::RequestResult;
    use crate::statistics::sample_requests::{even_request, failed_request, level_of, run_of};

    const TARGETS: Targets =
        Targets { slo: Slo { ttft_ms: Some(150.0), tpot_ms: Some(40.0) }, share: 0.9 };

    /// A level of forty requests that take `ttft`, and so long that throughput is as given.
    fn level(load: f64, output_tokens_per_s: f64, ttft: f64) -> LevelResult {
        let requests: Vec<RequestResult> =
            (0..40).map(|i| even_request(i, as_f64(i), ttft, 0.01, 20)).collect();
        level_of(Mode::Concurrency, load, requests, 800.0 / output_tokens_per_s, TARGETS.slo)
    }

    fn knee(levels: Vec<LevelResult>) -> Option<String> {
        let tuning = tune(&run_of("a", levels), TARGETS).unwrap();
        tuning.knee.map(|knee| tuning.levels[knee].label.clone())
    }

    #[test]
    fn the_knee_is_the_lowest_load_near_the_best_throughput_that_meets_the_targets() {
        let grows = |ttft_at_8| {
            vec![
                level(1.0, 100.0, 0.05),
                level(2.0, 190.0, 0.05),
                level(4.0, 300.0, 0.06),
                level(8.0, 310.0, ttft_at_8),
                level(16.0, 900.0, 2.0),
            ]
        };
        assert_eq!(knee(grows(0.07)).unwrap(), "c=4", "8 brings 3 % more, 16 misses the targets");
        let jumps = vec![level(1.0, 100.0, 0.05), level(2.0, 110.0, 0.05)];
        assert_eq!(knee(jumps).unwrap(), "c=2");
        assert_eq!(knee(vec![level(4.0, 300.0, 0.1), level(1.0, 299.0, 0.1)]).unwrap(), "c=1");
    }

    #[test]
    fn nothing_is_recommended_when_the_lowest_level_misses_the_targets() {
        let run = run_of("a", vec![level(1.0, 100.0, 0.2), level(2.0, 150.0, 0.3)]);
        let tuning = tune(&run, TARGETS).unwrap();
        assert_eq!(tuning.knee, None);
        assert_eq!(launch(&tuning, Engine::Vllm, "m"), None);
        assert_eq!(tune(&run_of("a", Vec::new()), TARGETS), None);
    }

    #[test]
    fn failed_requests_miss_the_targets() {
        let mut broken = level(1.0, 100.0, 0.05);
        broken.requests.extend((40..46).map(|i| failed_request(i, 0.0, "HTTP 500")));
        assert_eq!(knee(vec![broken]), None);
    }

    #[test]
    fn in_an_open_loop_the_requests_at_once_are_counted() {
        let mut open = level(8.0, 100.0, 0.05);
        open.mode = Mode::Rate;
        // 0.24 s each, one a second, except two that overlap with one other.
        open.requests[1].start = 0.1;
        open.requests[2].start = 0.2;
        assert_eq!(num_in_flight(&open), 3);
        assert_eq!(num_in_flight(&level(8.0, 100.0, 0.05)), 8);
    }

    #[test]
    fn settings_are_those_of_the_knee() {
        let run = run_of("a", vec![level(1.0, 100.0, 0.05), level(4.0, 300.0, 0.05)]);
        let tuning = tune(&run, TARGETS).unwrap();
        assert_eq!(tuning.context_tokens, 256, "100 and 20 tokens, rounded up");
        let command = |engine| launch(&tuning, engine, "my model").unwrap().command;
        for (engine, expected) in [
            (Engine::Ollama, "OLLAMA_NUM_PARALLEL=4 OLLAMA_CONTEXT_LENGTH=256 ollama serve"),
            (Engine::Vllm, "vllm serve 'my model' --max-num-seqs 4 --max-model-len 256"),
            (Engine::LlamaCpp, "llama-server -m 'my model' -np 4 -c 1024"),
            (
                Engine::MiniInfer,
                "mini-infer serve --model 'my model' --max-num-seqs 4 --max-model-len 256",
            ),
        ] {
            assert_eq!(command(engine), expected);
        }
    }

    #[test]
    fn engines_are_known_by_the_names_that_servers_tell() {
        for (name, expected) in [
            ("Ollama", Some(Engine::Ollama)),
            ("vLLM", Some(Engine::Vllm)),
            ("llama.cpp", Some(Engine::LlamaCpp)),
            ("mini-infer", Some(Engine::MiniInfer)),
            ("OpenAI-compatible", None),
        ] {
            assert_eq!(Engine::from_name(name), expected, "{name}");
        }
    }

    #[test]
    fn models_are_one_word_of_the_shell() {
        assert_eq!(shell_word("org/model-1.5:q4"), "org/model-1.5:q4");
        assert_eq!(shell_word("it's; rm -rf"), "'it'\\''s; rm -rf'");
        assert_eq!(shell_word(""), "''");
    }
}
