//! The command line: flags in the field's terms, as data.
//!
//! Parsing checks single values only; what must fit together is checked in `config`.

use crate::adapters::NamedAdapter;
use crate::byte_size::ByteSize;
use crate::cli_simulate::SimulateArgs;
use crate::output_format::ParserChoice;
use crate::target_itl::TargetItlMs;
use crate::time_span::TimeSpan;
use clap::{Args, Parser, Subcommand, ValueEnum};
use mini_infer_core::Pooling;
use mini_infer_hub::DEFAULT_ALIAS;
use mini_infer_kernels::{KvDtype, QuantizedType};
use mini_infer_server::CorsOrigin;
use mini_infer_text::{ReasoningFormat, ToolFormat};
use std::path::PathBuf;

/// Serves language models from one native binary and a paged KV cache.
#[derive(Debug, Parser)]
#[command(name = "mini-infer", version, about, arg_required_else_help = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Serve a model over OpenAI's HTTP API, fetching it first if needed
    Serve(Box<ServeArgs>),
    /// Fetch a model into the cache
    Pull(PullArgs),
    /// Print this machine and the memory plan of a model
    Info(InfoArgs),
    /// Compare ways to manage KV memory over a workload, without a model
    Simulate(SimulateArgs),
}

/// Flags of `serve`.
#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) adapters: AdapterArgs,
    #[command(flatten)]
    pub(crate) engine: EngineArgs,
    #[command(flatten)]
    pub(crate) kv: KvArgs,
    #[command(flatten)]
    pub(crate) tier: TierArgs,
    #[command(flatten)]
    pub(crate) http: HttpArgs,
}

/// Which model.
#[derive(Debug, Args)]
#[command(next_help_heading = "Model")]
pub(crate) struct ModelArgs {
    /// Alias (smollm2-135m, gemma3-270m), Hub name (organisation/name), GGUF file or folder
    #[arg(long, value_name = "MODEL", env = "MINI_INFER_MODEL", default_value = DEFAULT_ALIAS)]
    pub(crate) model: String,
    #[command(flatten)]
    pub(crate) loading: LoadingArgs,
    /// Name that clients ask for, instead of MODEL; may be repeated
    #[arg(long, value_name = "NAME")]
    pub(crate) served_model_name: Vec<String>,
    /// File with a Jinja chat template, instead of the checkpoint's own
    #[arg(long, value_name = "FILE")]
    pub(crate) chat_template: Option<PathBuf>,
    /// How the model writes tool calls: auto (as its chat template shows), none, gemma, hermes,
    /// json, llama3_json, mistral, pythonic or qwen3_coder
    #[arg(long, value_name = "NAME", default_value = "auto")]
    pub(crate) tool_call_parser: ParserChoice<ToolFormat>,
    /// How the model marks reasoning: auto (as its chat template shows), none, deepseek_r1, mistral
    /// or qwen3
    #[arg(long, value_name = "NAME", default_value = "auto")]
    pub(crate) reasoning_parser: ParserChoice<ReasoningFormat>,
    /// How embeddings are made of the states of a text's tokens; `auto` is what the checkpoint says,
    /// else `mean`
    #[arg(long, value_name = "POOLING", value_enum, default_value_t = PoolingArg::Auto)]
    pub(crate) pooling: PoolingArg,
}

/// Which adapters of it.
#[derive(Debug, Args)]
#[command(next_help_heading = "Adapters")]
pub(crate) struct AdapterArgs {
    /// LoRA adapter in PEFT's format that clients ask for as model NAME; may be repeated
    #[arg(long, value_name = "NAME=FOLDER")]
    pub(crate) lora: Vec<NamedAdapter>,
    /// Folder with adapters that clients may load and unload over HTTP [default: they may not]
    #[arg(long, value_name = "DIR")]
    pub(crate) lora_dir: Option<PathBuf>,
}

/// How weights are loaded.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct LoadingArgs {
    /// Quantise matrices of floats while they are loaded: less memory and more speed, for some
    /// accuracy
    #[arg(long, value_name = "TYPE", value_enum)]
    pub(crate) quantize: Option<QuantizeArg>,
}

/// Flags that bound the engine.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Engine")]
pub(crate) struct EngineArgs {
    /// Longest prompt and output together [default: the model's context, if the KV pool holds it]
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(2..))]
    pub(crate) max_model_len: Option<u32>,
    /// Most sequences that run at once; more wait
    #[arg(long, value_name = "SEQS", default_value_t = 64,
        value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_num_seqs: u32,
    /// Most tokens that one step computes; long prompts are computed in chunks of this
    #[arg(long, value_name = "TOKENS", default_value_t = 512,
        value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_num_batched_tokens: u32,
    /// Longest time between two tokens of a stream that prompts may cause, in milliseconds; `auto`
    /// is 2.25 times what the streams take alone, more while prompts outnumber them, `off` no limit
    #[arg(long, value_name = "MS", default_value = "auto")]
    pub(crate) target_itl_ms: TargetItlMs,
    /// Most requests that wait; more are refused with 429
    #[arg(long, value_name = "REQUESTS", default_value_t = 512,
        value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_queue_len: u32,
    /// Threads that compute [default: physical cores]
    #[arg(long, value_name = "THREADS", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) threads: Option<u16>,
}

/// Flags that shape the KV pool.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "KV memory")]
pub(crate) struct KvArgs {
    /// Tokens per KV block: 8, 16, 32 or 64
    #[arg(long, value_name = "TOKENS", default_value_t = 16)]
    pub(crate) block_size: u32,
    /// Blocks in the KV pool [default: from --kv-cache-memory]
    #[arg(long, value_name = "BLOCKS", conflicts_with = "kv_cache_memory",
        value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) num_blocks: Option<u32>,
    /// Most memory for the KV pool, such as 2GiB [default: from the free memory]
    #[arg(long, value_name = "SIZE")]
    pub(crate) kv_cache_memory: Option<ByteSize>,
    /// How keys and values are stored
    #[arg(long, value_name = "DTYPE", value_enum, default_value_t = KvDtypeArg::F16)]
    pub(crate) kv_cache_dtype: KvDtypeArg,
    /// Do not keep the KV of earlier requests for prompts that begin alike
    #[arg(long)]
    pub(crate) no_prefix_caching: bool,
    /// How sequences get their KV memory; anything but `paged` is for comparison
    #[arg(long, value_name = "ALLOCATOR", value_enum, default_value_t = KvAllocatorArg::Paged)]
    pub(crate) kv_allocator: KvAllocatorArg,
}

/// Flags for KV outside the pool, and for what is told about it.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "KV memory, while serving")]
pub(crate) struct TierArgs {
    /// Idle time after which the pool's memory goes back to the system; `off` keeps it
    #[arg(long, value_name = "TIME", default_value = "30s")]
    pub(crate) kv_idle_release: TimeSpan,
    /// Host memory, beside the pool, for KV that the pool has no room for
    #[arg(long, value_name = "SIZE", default_value = "0")]
    pub(crate) swap_space: ByteSize,
    /// Folder for KV that the pool has no room for; what is in it survives a restart
    #[arg(long, value_name = "DIR", requires = "kv_tier_size")]
    pub(crate) kv_tier_dir: Option<PathBuf>,
    /// Most bytes that the files in that folder take, such as 8GiB
    #[arg(long, value_name = "SIZE", requires = "kv_tier_dir")]
    pub(crate) kv_tier_size: Option<ByteSize>,
    /// Print a line a second about the KV memory
    #[arg(long)]
    pub(crate) log_kv: bool,
}

/// Flags of the HTTP side.
#[derive(Debug, Args)]
#[command(next_help_heading = "HTTP")]
pub(crate) struct HttpArgs {
    /// Address to listen on; 0.0.0.0 lets other machines in
    #[arg(long, value_name = "HOST", env = "MINI_INFER_HOST", default_value = "127.0.0.1")]
    pub(crate) host: String,
    /// Port to listen on; 0 takes any free one
    #[arg(long, value_name = "PORT", env = "MINI_INFER_PORT", default_value_t = 8000)]
    pub(crate) port: u16,
    /// Key that clients must send, as a bearer token or as x-api-key; may be repeated or
    /// comma-separated
    #[arg(
        long,
        value_name = "KEY",
        env = "MINI_INFER_API_KEY",
        value_delimiter = ',',
        hide_env_values = true
    )]
    pub(crate) api_key: Vec<String>,
    /// File with a key per line, `management` behind those that open management routes; may be
    /// repeated
    #[arg(long, value_name = "FILE")]
    pub(crate) api_key_file: Vec<PathBuf>,
    /// Key for management routes (/metrics, /v1/kv, adapters), which other keys then no longer
    /// open; may be repeated or comma-separated
    #[arg(
        long,
        value_name = "KEY",
        env = "MINI_INFER_MANAGEMENT_KEY",
        value_delimiter = ',',
        hide_env_values = true
    )]
    pub(crate) management_key: Vec<String>,
    /// Name that clients may reach this server by, beside localhost; may be repeated [default: any
    /// where HOST is not a loopback address]
    #[arg(long, value_name = "NAME")]
    pub(crate) allowed_host: Vec<String>,
    /// Origin whose web pages may call this server, as scheme and host, or `*`; may be
    /// repeated [default: none]
    #[arg(long, value_name = "ORIGIN")]
    pub(crate) cors_origin: Vec<CorsOrigin>,
    /// File with the server's certificate in PEM, then those that vouch for it: serves HTTPS; read
    /// again on SIGHUP
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub(crate) tls_cert: Option<PathBuf>,
    /// File with the certificate's private key in PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub(crate) tls_key: Option<PathBuf>,
    /// Most connections that are open at once; more are answered with 503
    #[arg(long, value_name = "CONNECTIONS", default_value_t = 4096,
        value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_connections: u32,
    /// Longest time that a client may take to send a request, or to read any of an answer
    #[arg(long, value_name = "TIME", default_value = "60s")]
    pub(crate) client_timeout: TimeSpan,
    /// Longest time that a request may take from its arrival on; x-request-timeout can shorten it
    #[arg(long, value_name = "TIME", default_value = "off")]
    pub(crate) request_timeout: TimeSpan,
    /// Most requests of one client, a key or else an address, that run or wait at once; more are
    /// refused with 429 [default: no limit]
    #[arg(long, value_name = "REQUESTS", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_requests_per_client: Option<u32>,
    /// Memory for stored responses (POST /v1/responses), of which the least recently used make room
    /// for others; 0 stores none
    #[arg(long, value_name = "SIZE", default_value = "64MiB")]
    pub(crate) response_store: ByteSize,
    /// Print a line about each request: who asked for what and how it went, never the text
    #[arg(long)]
    pub(crate) access_log: bool,
    /// OpenTelemetry collector that gets a span per request, such as http://localhost:4318
    #[arg(long, value_name = "URL", env = "MINI_INFER_OTLP_ENDPOINT")]
    pub(crate) otlp_endpoint: Option<String>,
    /// Makes sampling repeatable for requests that have no seed of their own
    #[arg(long, value_name = "SEED")]
    pub(crate) seed: Option<u64>,
    /// Seconds that running requests get to finish after Ctrl-C or SIGTERM
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    pub(crate) shutdown_timeout: u64,
    /// Least important events to log on standard error
    #[arg(long, value_name = "LEVEL", env = "MINI_INFER_LOG", value_enum,
        default_value_t = LogLevel::Warn)]
    pub(crate) log_level: LogLevel,
}

/// Flags of `pull`.
#[derive(Debug, Args)]
pub(crate) struct PullArgs {
    /// Alias (smollm2-135m, gemma3-270m) or Hub name (organisation/name)
    #[arg(value_name = "MODEL", default_value = DEFAULT_ALIAS)]
    pub(crate) model: String,
}

/// Flags of `info`.
#[derive(Debug, Args)]
pub(crate) struct InfoArgs {
    /// Model to plan for, as `serve` takes it; it must be in the cache or on this disk
    #[arg(long, value_name = "MODEL", env = "MINI_INFER_MODEL")]
    pub(crate) model: Option<String>,
    #[command(flatten)]
    pub(crate) loading: LoadingArgs,
    /// Measure for about a second what this machine can do at most, and what the model can
    /// therefore reach
    #[arg(long)]
    pub(crate) measure: bool,
    #[command(flatten)]
    pub(crate) engine: EngineArgs,
    #[command(flatten)]
    pub(crate) kv: KvArgs,
}

/// How sequences get their KV memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum KvAllocatorArg {
    /// Blocks on demand, shared where prefixes are equal
    Paged,
    /// One stretch for the longest sequence allowed, from the start
    ContiguousMax,
    /// One stretch for the prompt and the next power of two of the output asked for
    ContiguousPow2,
    /// One stretch for the prompt and all of the output asked for
    ContiguousExact,
}

/// How keys and values are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum KvDtypeArg {
    /// 32-bit floating point
    F32,
    /// 16-bit floating point, IEEE half precision
    F16,
    /// 16-bit floating point, the upper half of f32
    Bf16,
    /// 8-bit integers of rotated heads, with a scale for each token and head: half the memory
    Int8,
}

impl From<KvDtypeArg> for KvDtype {
    fn from(arg: KvDtypeArg) -> Self {
        match arg {
            KvDtypeArg::F32 => Self::F32,
            KvDtypeArg::F16 => Self::F16,
            KvDtypeArg::Bf16 => Self::Bf16,
            KvDtypeArg::Int8 => Self::Int8,
        }
    }
}

/// What matrices of floats are quantised to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum QuantizeArg {
    /// 8 bits and a scale for each 32 weights
    #[value(name = "q8_0")]
    Q8_0,
    /// 4 bits and a scale for each 32 weights
    #[value(name = "q4_0")]
    Q4_0,
}

impl From<QuantizeArg> for QuantizedType {
    fn from(arg: QuantizeArg) -> Self {
        match arg {
            QuantizeArg::Q8_0 => Self::Q8_0,
            QuantizeArg::Q4_0 => Self::Q4_0,
        }
    }
}

/// How embeddings are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum PoolingArg {
    /// As the checkpoint says, else the mean
    Auto,
    /// The mean of the states of all tokens
    Mean,
    /// The state of the last token, for models that are trained for that
    Last,
}

impl PoolingArg {
    /// Returns the pooling of a model whose checkpoint says `stated`.
    pub(crate) fn choose(self, stated: Option<Pooling>) -> Pooling {
        match self {
            Self::Auto => stated.unwrap_or(Pooling::Mean),
            Self::Mean => Pooling::Mean,
            Self::Last => Pooling::Last,
        }
    }
}

/// How much is logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogLevel {
    Off,
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn api_keys_are_repeatable_and_comma_separated() {
        let arguments = ["mini-infer", "serve", "--api-key", "a,b", "--api-key", "c"];
        let Command::Serve(serve) = Cli::parse_from(arguments).command else {
            panic!("`serve` was asked for");
        };
        assert_eq!(serve.http.api_key, ["a", "b", "c"]);
    }

    #[test]
    fn the_command_line_has_the_last_word_on_pooling() {
        assert_eq!(PoolingArg::Auto.choose(None), Pooling::Mean);
        assert_eq!(PoolingArg::Auto.choose(Some(Pooling::Last)), Pooling::Last);
        assert_eq!(PoolingArg::Mean.choose(Some(Pooling::Last)), Pooling::Mean);
        assert_eq!(PoolingArg::Last.choose(None), Pooling::Last);
    }

    #[test]
    fn both_ways_to_size_the_pool_at_once_are_refused() {
        let arguments = ["mini-infer", "serve", "--num-blocks", "9", "--kv-cache-memory", "1GiB"];
        assert!(Cli::try_parse_from(arguments).is_err());
    }
}
