//! `mini-infer simulate`: what a way to manage KV memory is worth, without a model.
//!
//! Runs the engine that serves over recorded or generated requests, once for each allocator, and
//! prints a table; JSON and a figure go to files.

use crate::cli_simulate::{SimulateArgs, SimulatedMemoryArgs, WorkloadArgs};
use crate::error::CommandError;
use crate::output;
use mini_infer_simulate::{
    Allocator, GeneratedTrace, LatencyLimits, Load, MachineSpeed, Report, Settings, Trace,
};
use std::fs;
use std::num::NonZero;
use std::path::Path;
use std::thread;

/// Requests to generate when none are asked for: minutes of the busiest machine, milliseconds of
/// this one.
const DEFAULT_NUM_GENERATED: u32 = 2000;

/// More sequences at once than memory has room for in the workloads at hand.
const DEFAULT_MAX_NUM_SEQS: u32 = 1024;

/// Simulates every allocator that was asked for and tells the results.
///
/// # Errors
/// When the trace cannot be read, the numbers do not fit together, or a result cannot be written.
pub(crate) fn run(args: &SimulateArgs) -> Result<(), CommandError> {
    let allocators =
        Allocator::parse_list(&args.memory.allocator).map_err(CommandError::Simulate)?;
    let (trace, default_load) = open_trace(&args.workload)?;
    let settings = settings(args, &trace, default_load)?;
    let num_threads = thread::available_parallelism().map_or(1, NonZero::get).min(allocators.len());
    let report =
        Report::new(trace, &settings, &allocators, num_threads).map_err(CommandError::Simulate)?;
    match &args.json {
        Some(path) if path.as_os_str() == "-" => output::text(report.to_json()),
        Some(path) => {
            report.to_lines().iter().for_each(output::line);
            write(path, &report.to_json())?;
        }
        None => report.to_lines().iter().for_each(output::line),
    }
    if let Some(path) = &args.svg {
        write(path, &report.to_svg().map_err(CommandError::Simulate)?)?;
    }
    Ok(())
}

/// Reads or makes the trace; the load is the one that suits it.
fn open_trace(args: &WorkloadArgs) -> Result<(Trace, Load), CommandError> {
    if let Some(generated) = GeneratedTrace::by_name(&args.trace) {
        let num_requests = args.requests.unwrap_or(DEFAULT_NUM_GENERATED);
        return Ok((generated.generate(num_requests as usize, args.seed), Load::Backlog));
    }
    let mut trace = Trace::read(Path::new(&args.trace))
        .map_err(|error| CommandError::Simulate(error.into()))?;
    if let Some(num_requests) = args.requests {
        trace.requests.truncate(num_requests as usize);
    }
    Ok((trace, Load::Arrivals { rate_scale: 1.0 }))
}

fn settings(
    args: &SimulateArgs,
    trace: &Trace,
    default_load: Load,
) -> Result<Settings, CommandError> {
    let SimulateArgs { workload, memory, speed, .. } = args;
    let load = match (workload.saturate, workload.concurrency, workload.rate_scale) {
        (true, _, _) => Load::Backlog,
        (false, Some(num_requests), _) => Load::Concurrent { num_requests },
        (false, None, Some(rate_scale)) => Load::Arrivals { rate_scale },
        (false, None, None) => default_load,
    };
    let longest = trace.num_tokens_of_longest().max(GeneratedTrace::SHAREGPT.limit);
    let max_model_len = memory.max_model_len.unwrap_or(longest);
    let speed = MachineSpeed {
        prefill_rate: speed.prefill_rate,
        decode_rate: speed.decode_rate,
        step_floor: speed.step_floor,
    };
    let max_batched_tokens = memory
        .max_num_batched_tokens
        .unwrap_or_else(|| Settings::default_max_batched_tokens(&speed));
    let max_num_seqs =
        memory.max_num_seqs.unwrap_or_else(|| DEFAULT_MAX_NUM_SEQS.min(max_batched_tokens));
    Ok(Settings {
        load,
        kv_tokens: kv_tokens(memory, max_model_len)?,
        max_model_len,
        max_num_seqs,
        max_batched_tokens,
        speed,
        limits: LatencyLimits { ttft: workload.ttft_limit, tpot: workload.tpot_limit },
    })
}

/// Returns the size of the KV memory in tokens.
fn kv_tokens(args: &SimulatedMemoryArgs, max_model_len: u32) -> Result<u64, CommandError> {
    if let (Some(memory), Some(token)) = (args.kv_cache_memory, args.kv_bytes_per_token) {
        return memory.0.checked_div(token.0).ok_or(CommandError::NoBytesPerToken);
    }
    Ok(args.kv_tokens.unwrap_or_else(|| Settings::default_kv_tokens(max_model_len)))
}

fn write(path: &Path, text: &str) -> Result<(), CommandError> {
    fs::write(path, text).map_err(CommandError::system(format!("write {}", path.display())))
}
