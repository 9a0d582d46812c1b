//! Flags of `simulate`.

use crate::byte_size::ByteSize;
use clap::Args;
use std::path::PathBuf;
use std::time::Duration;

/// Flags of `simulate`.
#[derive(Debug, Args)]
pub(crate) struct SimulateArgs {
    #[command(flatten)]
    pub(crate) workload: WorkloadArgs,
    #[command(flatten)]
    pub(crate) memory: SimulatedMemoryArgs,
    #[command(flatten)]
    pub(crate) speed: SpeedArgs,
    /// Write the results as JSON; `-` writes them to standard output instead of the table
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Write the results as a figure
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
}

/// What is asked of the server, and when.
#[derive(Debug, Args)]
#[command(next_help_heading = "Workload")]
pub(crate) struct WorkloadArgs {
    /// Recorded requests in Azure's CSV or Mooncake's JSON Lines, or generated lengths as in
    /// `sharegpt` or `alpaca`
    #[arg(long, value_name = "FILE|NAME", default_value = "sharegpt")]
    pub(crate) trace: String,
    /// Requests to generate, or to take from the start of a recorded trace [default: 2000
    /// generated, all recorded]
    #[arg(long, value_name = "REQUESTS", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) requests: Option<u32>,
    /// Makes other generated requests
    #[arg(long, value_name = "SEED", default_value_t = 0)]
    pub(crate) seed: u64,
    /// All requests are there from the start [default for generated ones]
    #[arg(long, conflicts_with_all = ["concurrency", "rate_scale"])]
    pub(crate) saturate: bool,
    /// Always this many requests wait or run
    #[arg(long, value_name = "REQUESTS", conflicts_with = "rate_scale",
        value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) concurrency: Option<u32>,
    /// Requests arrive as recorded, this many times as fast [default for recorded ones: 1];
    /// generated ones arrive at random, this many a second
    #[arg(long, value_name = "FACTOR")]
    pub(crate) rate_scale: Option<f64>,
    /// Most time to the first token for goodput
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = parse_time)]
    pub(crate) ttft_limit: Duration,
    /// Most time for each later token, in the mean over a request, for goodput
    #[arg(long, value_name = "TIME", default_value = "100ms", value_parser = parse_time)]
    pub(crate) tpot_limit: Duration,
}

/// The KV memory, how it is managed, and the limits of the engine.
#[derive(Debug, Args)]
#[command(next_help_heading = "Memory")]
pub(crate) struct SimulatedMemoryArgs {
    /// Ways to manage KV memory: `all`, or some of contiguous-max, contiguous-pow2,
    /// contiguous-oracle, paged-8, paged-16, paged-32, paged-64 and paged-16-shared, separated by
    /// commas
    #[arg(long, value_name = "NAMES", default_value = "all")]
    pub(crate) allocator: String,
    /// Size of the KV memory in tokens [default: 15728 as in the PagedAttention paper, or 8 of the
    /// longest requests where they are longer than 2048]
    #[arg(long, value_name = "TOKENS", conflicts_with = "kv_cache_memory",
        value_parser = clap::value_parser!(u64).range(1..=u64::from(u32::MAX)))]
    pub(crate) kv_tokens: Option<u64>,
    /// Size of the KV memory in bytes, such as 2GiB
    #[arg(long, value_name = "SIZE", requires = "kv_bytes_per_token")]
    pub(crate) kv_cache_memory: Option<ByteSize>,
    /// Bytes of KV per token, as `info --model` prints them
    #[arg(long, value_name = "SIZE", requires = "kv_cache_memory")]
    pub(crate) kv_bytes_per_token: Option<ByteSize>,
    /// Longest prompt and output together; longer requests are left out [default: 2048, or the
    /// longest request where it is longer]
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(2..))]
    pub(crate) max_model_len: Option<u32>,
    /// Most sequences that run at once [default: 1024, or the tokens of a step where they are fewer]
    #[arg(long, value_name = "SEQS", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_num_seqs: Option<u32>,
    /// Most tokens that one step computes [default: 512 with --prefill-rate, else 65536]
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_num_batched_tokens: Option<u32>,
}

/// How fast the model is. By default only memory matters: a step takes the same time whatever it
/// computes.
#[derive(Debug, Args)]
#[command(next_help_heading = "Speed")]
pub(crate) struct SpeedArgs {
    /// Prompt tokens per second [default: as many as steps hold]
    #[arg(long, value_name = "TOKENS")]
    pub(crate) prefill_rate: Option<f64>,
    /// Output tokens per second, of all requests together [default: as many as steps hold]
    #[arg(long, value_name = "TOKENS")]
    pub(crate) decode_rate: Option<f64>,
    /// Shortest step: what one token for one request takes
    #[arg(long, value_name = "TIME", default_value = "20ms", value_parser = parse_time)]
    pub(crate) step_floor: Duration,
}

/// Reads a time such as `2s`, `1.5s` or `100ms`.
fn parse_time(text: &str) -> Result<Duration, String> {
    let expected = || format!("`{text}` is not a time such as 2s, 1.5s or 100ms");
    let (number, seconds) = match (text.strip_suffix("ms"), text.strip_suffix('s')) {
        (Some(number), _) => (number, 1e-3),
        (None, Some(number)) => (number, 1.0),
        (None, None) => return Err(expected()),
    };
    let number: f64 = number.trim().parse().map_err(|_| expected())?;
    Duration::try_from_secs_f64(number * seconds).map_err(|_| expected())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Command};
    use clap::Parser;

    fn parse(flags: &[&str]) -> Result<SimulateArgs, String> {
        let arguments = ["mini-infer", "simulate"].into_iter().chain(flags.iter().copied());
        match Cli::try_parse_from(arguments) {
            Ok(Cli { command: Command::Simulate(args) }) => Ok(args),
            Ok(_) => panic!("`simulate` was asked for"),
            Err(error) => Err(error.to_string()),
        }
    }

    #[test]
    fn times_are_read_with_their_unit() {
        let args = parse(&["--ttft-limit", "1.5s", "--tpot-limit", "50ms"]).unwrap();
        assert_eq!(args.workload.ttft_limit, Duration::from_millis(1500));
        assert_eq!(args.workload.tpot_limit, Duration::from_millis(50));
        for wrong in ["5", "ms", "-1s", "1e400s", "NaNs"] {
            let message = parse(&["--ttft-limit", wrong]).unwrap_err();
            assert!(message.contains("such as 2s") || message.contains("unexpected"), "{message}");
        }
    }

    #[test]
    fn loads_and_sizes_exclude_each_other() {
        parse(&["--concurrency", "16"]).unwrap();
        for flags in [
            &["--concurrency", "16", "--saturate"][..],
            &["--rate-scale", "2", "--saturate"],
            &["--rate-scale", "2", "--concurrency", "16"],
            &["--kv-tokens", "9", "--kv-cache-memory", "1GiB"],
            &["--kv-cache-memory", "1GiB"],
            &["--kv-bytes-per-token", "9"],
            &["--requests", "0"],
        ] {
            assert!(parse(flags).is_err(), "{flags:?}");
        }
    }
}
