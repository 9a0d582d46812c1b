//! The flags of all commands that send requests, and the run that they ask for.
//!
//! Every value is optional here, so that a file of flags can tell what was not given; defaults come
//! last. The file's keys are the names of the fields.

use crate::client::KeepAlive;
use crate::error::ServebenchError;
use crate::load::Benchmark;
use crate::results::{ArrivalDist, Endpoint, LengthDist, LoadValue, Mode, RunConfig};
use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::num::NonZeroUsize;
use std::path::PathBuf;

/// Lengths of a well-known kind of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Preset {
    /// 128 tokens in, 256 out: an assistant that talks
    Chat,
    /// 2048 tokens in, 128 out: questions about documents
    Rag,
    /// 512 tokens in, 512 out: writing code
    Code,
    /// 1024 tokens in, 384 out: an agent with tools
    Agent,
}

impl Preset {
    /// Returns the tokens of prompt and output.
    fn lengths(self) -> (u32, u32) {
        match self {
            Self::Chat => (128, 256),
            Self::Rag => (2048, 128),
            Self::Code => (512, 512),
            Self::Agent => (1024, 384),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Chat => "chat",
            Self::Rag => "rag",
            Self::Code => "code",
            Self::Agent => "agent",
        }
    }
}

/// Flags of all commands that send requests.
#[derive(Clone, Debug, Default, Args, Serialize, Deserialize)]
#[command(allow_negative_numbers = true)]
#[serde(default)]
pub(crate) struct WorkloadArgs {
    /// Base URL of the API, such as http://127.0.0.1:8000/v1
    #[arg(long)]
    pub(crate) url: Option<String>,
    /// Name of the model, as the server knows it
    #[arg(long)]
    pub(crate) model: Option<String>,
    /// Most requests in flight in an open loop; waiting for it counts into every latency
    #[arg(long, value_name = "N")]
    max_concurrency: Option<usize>,
    /// Requests (or conversations) of a level [default: 4 for each user and at least 16; 64 in an
    /// open loop; with --duration as many as it takes]
    #[arg(long, value_name = "N")]
    num_requests: Option<usize>,
    /// Send requests for so many seconds; those in flight then end
    #[arg(long, value_name = "SECONDS")]
    duration: Option<f64>,
    /// Tokens of a prompt; for dolly, most words [default: 256]
    #[arg(long, value_name = "TOKENS")]
    input_len: Option<u32>,
    /// Tokens of an output [default: 128]
    #[arg(long, value_name = "TOKENS")]
    output_len: Option<u32>,
    /// "synthetic", "dolly", or a file: JSONL with "prompt", or one prompt a line [default:
    /// synthetic]
    #[arg(long)]
    prompts: Option<String>,
    /// Route of the API [default: chat]
    #[arg(long)]
    endpoint: Option<Endpoint>,
    /// Ask the server for outputs of full length; the default
    #[arg(long, num_args = 0, default_missing_value = "true", overrides_with = "no_ignore_eos")]
    ignore_eos: Option<bool>,
    /// Let outputs end where the model ends them
    #[arg(long, overrides_with = "ignore_eos")]
    #[serde(skip)]
    no_ignore_eos: bool,
    /// Sampling temperature [default: 0]
    #[arg(long)]
    temperature: Option<f64>,
    /// Requests before the first level that are not measured [default: 2]
    #[arg(long, value_name = "N")]
    warmup: Option<usize>,
    /// Seed of prompts and arrivals [default: a new one for each run, which is printed and saved,
    /// so that no run finds the prompts of another in the server's cache]
    #[arg(long)]
    seed: Option<u64>,
    /// Longest wait for the next bytes of a request [default: 300]
    #[arg(long, value_name = "SECONDS")]
    timeout: Option<f64>,
    /// Longest time to the first token of a good request [default: 500]
    #[arg(long, value_name = "MS")]
    slo_ttft_ms: Option<f64>,
    /// Longest time per further token of a good request [default: 50]
    #[arg(long, value_name = "MS")]
    slo_tpot_ms: Option<f64>,
    /// Tokenizer, for prompts of exact length and for servers that tell no numbers of tokens: a
    /// tokenizer.json, a folder with one, or a GGUF file
    #[arg(long, value_name = "PATH")]
    tokenizer: Option<String>,
    /// Bearer token
    #[arg(long, env = "OPENAI_API_KEY", hide_env_values = true, value_name = "KEY")]
    api_key: Option<String>,
    /// Name of the run in reports [default: the name of --out, or the model]
    #[arg(long)]
    label: Option<String>,
    /// Words to keep with the run, such as the flags of the server
    #[arg(long)]
    notes: Option<String>,
    /// Write the run to this file, after each level
    #[arg(long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
    /// Lengths of a well-known kind of work, for those that are not given
    #[arg(long)]
    preset: Option<Preset>,
    /// How lengths of prompts spread
    #[arg(long, value_name = "DIST")]
    input_dist: Option<LengthDist>,
    /// How lengths of outputs spread
    #[arg(long, value_name = "DIST")]
    output_dist: Option<LengthDist>,
    /// How arrivals of an open loop spread [default: poisson, or gamma with --burstiness]
    #[arg(long, value_name = "DIST")]
    arrival_dist: Option<ArrivalDist>,
    /// Shape of gamma arrivals: below 1 in bursts, above 1 more even than Poisson's [default: 1]
    #[arg(long, value_name = "SHAPE")]
    burstiness: Option<f64>,
    /// Tokens that all prompts begin with, to measure a prefix cache
    #[arg(long, value_name = "TOKENS")]
    shared_prefix_tokens: Option<u32>,
    /// Send the requests of a trace: Azure's CSV, Mooncake's JSONL, or JSONL with prompts
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Multiply the lengths in the trace by this
    #[arg(long, value_name = "FACTOR")]
    trace_scale: Option<f64>,
    /// Turns of a conversation, each with the server's own answers before it; a load then counts
    /// conversations
    #[arg(long, value_name = "N")]
    turns: Option<u32>,
    /// Pause before each turn after the first [default: 0]
    #[arg(long, value_name = "SECONDS")]
    think_time: Option<f64>,
    /// Watch an NVIDIA GPU of this machine; the default
    #[arg(long, num_args = 0, default_missing_value = "true", overrides_with = "no_gpu")]
    gpu: Option<bool>,
    /// Watch no GPU
    #[arg(long, overrides_with = "gpu")]
    #[serde(skip)]
    no_gpu: bool,
    /// Number of the GPU to watch [default: 0]
    #[arg(long, value_name = "N")]
    gpu_index: Option<u32>,
    /// Read the server's own metrics before and after each level: their URL, or "auto"
    #[arg(long, value_name = "URL")]
    scrape_metrics: Option<String>,
    /// Open a new connection for each request, for servers that break on used ones
    #[arg(long)]
    #[serde(skip)]
    no_keep_alive: bool,
    #[arg(skip)]
    keep_alive: Option<bool>,
    /// Threads that send and receive. More than one only where one is too slow, which the run
    /// says: on the server's own machine they take its processors [default: 1]
    #[arg(long, value_name = "N")]
    client_threads: Option<NonZeroUsize>,
}

/// What a command adds to the shared flags.
#[derive(Clone, Debug)]
pub(crate) struct Levels {
    /// What they count.
    pub(crate) mode: Mode,
    /// The levels; none where they are to be found.
    pub(crate) values: Vec<LoadValue>,
}

impl WorkloadArgs {
    /// Turns the negative flags into what they mean.
    pub(crate) fn resolve_switches(&mut self) {
        for (is_given, switch) in [
            (self.no_ignore_eos, &mut self.ignore_eos),
            (self.no_gpu, &mut self.gpu),
            (self.no_keep_alive, &mut self.keep_alive),
        ] {
            if is_given {
                *switch = Some(false);
            }
        }
    }

    /// Returns the number of threads for the requests.
    pub(crate) fn client_threads(&self) -> NonZeroUsize {
        self.client_threads.unwrap_or(NonZeroUsize::MIN)
    }

    /// Tells whether a trace is to be sent.
    pub(crate) fn has_trace(&self) -> bool {
        self.trace.is_some()
    }

    /// Returns the seed that was given.
    pub(crate) fn seed(&self) -> Option<u64> {
        self.seed
    }

    /// Returns what is asked.
    pub(crate) fn config(&self, levels: Levels) -> RunConfig {
        let default = RunConfig::default();
        let (preset_input, preset_output) =
            self.preset.map_or((default.input_len, default.output_len), Preset::lengths);
        let burstiness = self.burstiness.unwrap_or(default.burstiness);
        let arrival_dist = self.arrival_dist.unwrap_or(match self.burstiness {
            Some(_) => ArrivalDist::Gamma,
            None => ArrivalDist::Poisson,
        });
        RunConfig {
            url: self.url.clone().unwrap_or_default(),
            model: self.model.clone().unwrap_or_default(),
            endpoint: self.endpoint.unwrap_or_default(),
            prompts: self.prompts.clone().unwrap_or(default.prompts),
            input_len: self.input_len.unwrap_or(preset_input),
            output_len: self.output_len.unwrap_or(preset_output),
            mode: levels.mode,
            levels: levels.values,
            max_concurrency: self.max_concurrency,
            num_requests: self.num_requests,
            duration: self.duration,
            warmup: self.warmup.unwrap_or(default.warmup),
            seed: self.seed.unwrap_or_else(random_seed),
            ignore_eos: self.ignore_eos.unwrap_or(default.ignore_eos),
            temperature: self.temperature.unwrap_or(default.temperature),
            timeout: self.timeout.unwrap_or(default.timeout),
            slo_ttft_ms: self.slo_ttft_ms.or(default.slo_ttft_ms),
            slo_tpot_ms: self.slo_tpot_ms.or(default.slo_tpot_ms),
            tokenizer: self.tokenizer.clone(),
            preset: self.preset.map(|preset| preset.name().to_owned()),
            input_dist: self.input_dist,
            output_dist: self.output_dist,
            arrival_dist,
            burstiness,
            shared_prefix_tokens: self.shared_prefix_tokens,
            trace: self.trace.as_ref().map(|path| path.display().to_string()),
            trace_scale: self.trace_scale,
            turns: self.turns,
            think_time: self.think_time,
            gpu_telemetry: self.gpu.unwrap_or(default.gpu_telemetry),
            scrape_metrics: self.scrape_metrics.clone(),
            min_duration: None,
            repeat: 1,
            trace_speed: None,
        }
    }

    /// Returns the benchmark of a run.
    ///
    /// # Errors
    /// When the run cannot be.
    pub(crate) fn benchmark(&self, config: RunConfig) -> Result<Benchmark, ServebenchError> {
        let file_name = self.out.as_deref().and_then(|out| out.file_stem());
        let label = match (&self.label, file_name) {
            (Some(label), _) => label.clone(),
            (None, Some(name)) => name.to_string_lossy().into_owned(),
            (None, None) => config.model.clone(),
        };
        let keep_alive = match self.keep_alive {
            Some(false) => KeepAlive::ClosePerRequest,
            Some(true) | None => KeepAlive::Reuse,
        };
        Ok(Benchmark::new(config)?
            .label(label)
            .notes(self.notes.clone())
            .api_key(self.api_key.clone())
            .gpu_index(self.gpu_index.unwrap_or_default())
            .keep_alive(keep_alive))
    }
}

/// Returns a seed that no other run has, small enough to be typed.
pub(crate) fn random_seed() -> u64 {
    // The standard library keys its hashers from the system's random numbers.
    1 + RandomState::new().build_hasher().finish() % ((1 << 31) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Program {
        #[command(flatten)]
        workload: WorkloadArgs,
    }

    fn config(flags: &str) -> RunConfig {
        let words = std::iter::once("program").chain(flags.split_whitespace());
        let mut args = Program::try_parse_from(words).unwrap().workload;
        args.resolve_switches();
        args.config(Levels { mode: Mode::Rate, values: vec![LoadValue(1.0)] })
    }

    #[test]
    fn what_is_not_given_has_the_default() {
        let config = config("--url u --model m --seed 3");
        let expected = RunConfig {
            url: "u".to_owned(),
            model: "m".to_owned(),
            seed: 3,
            mode: Mode::Rate,
            ..RunConfig::default()
        };
        assert_eq!(config, expected);
    }

    #[test]
    fn a_preset_gives_only_the_lengths_that_are_not_given() {
        let preset = config("--preset rag");
        assert_eq!((preset.input_len, preset.output_len), (2048, 128));
        // The default length, when asked for, is a length that is given.
        let given = config("--preset rag --input-len 256");
        assert_eq!((given.input_len, given.output_len), (256, 128));
        assert_eq!(given.preset.as_deref(), Some("rag"));
    }

    #[test]
    fn the_last_of_two_opposite_switches_wins() {
        assert!(config("").ignore_eos && config("").gpu_telemetry);
        assert!(!config("--ignore-eos --no-ignore-eos").ignore_eos);
        assert!(config("--no-ignore-eos --ignore-eos").ignore_eos);
        assert!(!config("--no-gpu").gpu_telemetry);
    }

    #[test]
    fn burstiness_alone_means_gamma() {
        assert_eq!(config("--burstiness 0.5").arrival_dist, ArrivalDist::Gamma);
        assert_eq!(config("").arrival_dist, ArrivalDist::Poisson);
    }

    #[test]
    fn each_run_has_another_seed() {
        assert_ne!(config("").seed, config("").seed);
    }
}
