//! `servebench quick`.

use super::console::{Console, exit_code, save, stop_on_ctrl_c};
use super::find_capacity::{SearchRange, search};
use super::run::print_seed;
use super::workload_args::random_seed;
use crate::detect::{self, KNOWN_PORTS, Server};
use crate::error::ServebenchError;
use crate::load::{Benchmark, runtime};
use crate::output;
use crate::results::{CapacityReason, CapacityResult, LevelResult, RunConfig, RunResult};
use clap::Args;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::process::ExitCode;

const NUM_REQUESTS: usize = 16;
const TIMEOUT_S: f64 = 120.0;
const TARGET: f64 = 0.9;

/// Arguments of the command.
#[derive(Debug, Args)]
pub(crate) struct QuickArgs {
    /// Base URL of the API [default: the first server found on the usual ports of this machine]
    #[arg(long)]
    url: Option<String>,
    /// Model to measure [default: the one that is loaded, or the first that can chat]
    #[arg(long)]
    model: Option<String>,
    /// Most users to try
    #[arg(long, value_name = "USERS", default_value = "32")]
    max: NonZeroUsize,
    /// Longest time to the first token that a user is content with
    #[arg(long, value_name = "MS", default_value_t = 500.0)]
    slo_ttft_ms: f64,
    /// Longest time per further token that a user is content with
    #[arg(long, value_name = "MS", default_value_t = 50.0)]
    slo_tpot_ms: f64,
    /// Bearer token
    #[arg(long, env = "OPENAI_API_KEY", hide_env_values = true, value_name = "KEY")]
    api_key: Option<String>,
    /// Where the run is saved [default: servebench-quick-<engine>-<model>.json]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

pub(crate) fn run(args: &QuickArgs) -> Result<ExitCode, ServebenchError> {
    let runtime = runtime(NonZeroUsize::MIN)?;
    let (server, model) = runtime.block_on(choose(
        args.url.as_deref(),
        args.model.as_deref(),
        args.api_key.as_deref(),
    ))?;
    let engine = [Some(server.engine.as_str()), server.version.as_deref()];
    let engine = engine.into_iter().flatten().collect::<Vec<_>>().join(" ");
    output::line(format!("servebench quick: {engine} at {}, model {model}", server.url));
    let benchmark = Benchmark::new(config(args, &server, &model))?
        .label(format!("{} {model}", server.engine))
        .notes(Some("servebench quick".to_owned()))
        .api_key(args.api_key.clone());
    print_seed(benchmark.config().seed, None);
    let out = args.out.clone().unwrap_or_else(|| default_out(&server.engine, &model).into());
    #[expect(clippy::cast_precision_loss, reason = "a number of users is small")]
    let max = args.max.get() as f64;
    let range = SearchRange { start: 1.0, max, target: TARGET, tolerance: 0.1 };
    let mut console = Console::new(Some(&out)).with_target(TARGET);
    let result = runtime.block_on(async {
        let stop = stop_on_ctrl_c();
        search(&benchmark, range, &mut console, &stop).await
    });
    console.finish();
    let run = result?;
    output::line("");
    output::line(format!("{engine}, {model}{}", machine(&run)));
    for line in answer(&run) {
        output::line(line);
    }
    if let Some(path) = save(&run, Some(&out))? {
        let path = path.display();
        output::line("");
        output::line(format!(
            "saved {path}; to show it: servebench share {path}; in full: servebench report {path} \
             --out report.html"
        ));
    }
    Ok(exit_code(&run))
}

/// Returns the server to measure and its model, where the user names neither: the first that is
/// found, and the model that it has loaded.
pub(crate) async fn choose(
    url: Option<&str>,
    model: Option<&str>,
    api_key: Option<&str>,
) -> Result<(Server, String), ServebenchError> {
    let server = match url {
        Some(url) => detect::identify_or_explain(url, api_key).await?,
        None => find_local().await?,
    };
    let model = match model {
        Some(model) => model.to_owned(),
        None => pick_model(&server).await?,
    };
    Ok((server, model))
}

async fn find_local() -> Result<Server, ServebenchError> {
    let mut found = detect::find_local().await.into_iter();
    let Some(server) = found.next() else {
        let ports: Vec<String> =
            KNOWN_PORTS.iter().map(|(port, engine)| format!("{engine} :{port}")).collect();
        return Err(ServebenchError::Server {
            url: "http://127.0.0.1".to_owned(),
            message: format!(
                "no server of language models answers on the usual ports ({}); start one, or say \
                 where it is with --url",
                ports.join(", ")
            ),
        });
    };
    let others: Vec<String> =
        found.map(|other| format!("{} ({})", other.engine, other.url)).collect();
    if !others.is_empty() {
        output::line(format!("also found: {}; --url chooses", others.join(", ")));
    }
    Ok(server)
}

/// Returns the model that Ollama has loaded, or else the first that can chat.
async fn pick_model(server: &Server) -> Result<String, ServebenchError> {
    if server.engine == "Ollama" {
        for model in &server.models {
            if detect::model_info(server, model).await.is_some() {
                return Ok(model.clone());
            }
        }
    }
    let chat = server.models.iter().find(|model| !model.to_lowercase().contains("embed"));
    chat.or(server.models.first()).cloned().ok_or_else(|| ServebenchError::Server {
        url: server.url.clone(),
        message: format!(
            "{} lists no models; load one first, or name it with --model",
            server.engine
        ),
    })
}

fn config(args: &QuickArgs, server: &Server, model: &str) -> RunConfig {
    RunConfig {
        url: server.url.clone(),
        model: model.to_owned(),
        levels: Vec::new(),
        num_requests: Some(NUM_REQUESTS),
        seed: random_seed(),
        timeout: TIMEOUT_S,
        slo_ttft_ms: Some(args.slo_ttft_ms),
        slo_tpot_ms: Some(args.slo_tpot_ms),
        ..RunConfig::default()
    }
}

fn default_out(engine: &str, model: &str) -> String {
    format!("servebench-quick-{}-{}.json", slug(engine), slug(model))
}

/// Returns a name of letters, digits, dots and single dashes.
fn slug(name: &str) -> String {
    let parts = name.split(|c: char| !c.is_ascii_alphanumeric() && c != '.');
    parts.filter(|part| !part.is_empty()).collect::<Vec<_>>().join("-").to_lowercase()
}

fn machine(run: &RunResult) -> String {
    let environment = &run.environment;
    if environment.local_server != Some(true) {
        return String::new();
    }
    let memory = environment.ram_gb.map(|gib| format!("{gib:.0} GiB"));
    let gpus = environment.gpus.clone().unwrap_or_default();
    let parts = environment.cpu.clone().into_iter().chain(memory).chain(gpus);
    format!(" on {}", parts.collect::<Vec<_>>().join(", "))
}

/// Returns what the run means, for people who do not know TTFT and TPOT.
fn answer(run: &RunResult) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(one) = level(run, Some(1.0)).filter(|level| level.summary.completed > 0) {
        lines.push(format!(
            "One user:    first token in {}, then {} tokens/s",
            ms(one.summary.ttft.p50),
            speed(one)
        ));
    }
    match &run.capacity {
        Some(capacity) => lines.extend(capacity_lines(run, capacity)),
        None => lines.push("Capacity:    unknown, the search was stopped".to_owned()),
    }
    lines
}

fn capacity_lines(run: &RunResult, capacity: &CapacityResult) -> Vec<String> {
    let goals = [
        capacity.slo_ttft_ms.map(|limit| format!("first token < {limit} ms")),
        capacity.slo_tpot_ms.map(|limit| format!(">= {:.0} tokens/s each", 1000.0 / limit)),
    ];
    let goals = goals.into_iter().flatten().collect::<Vec<_>>().join(" and ");
    let share = capacity.target * 100.0;
    let Some(load) = capacity.capacity else {
        return start_failed_lines(run, capacity, &format!("{goals} for {share:.0}% of requests"));
    };
    let users = users(load);
    let at_least = if capacity.reason == CapacityReason::MaxReached { "at least " } else { "" };
    let mut lines = vec![format!(
        "Capacity:    {at_least}{users} at once ({goals}, for {share:.0}% of requests)"
    )];
    let Some(at) = level(run, Some(load)) else { return lines };
    lines.push(format!(
        "{:<13}{:.0} tokens/s in total, {} tokens/s each, first token p99 {}",
        format!("At {users}:"),
        at.summary.output_throughput,
        speed(at),
        ms(at.summary.ttft.p99),
    ));
    if let Some(fail) = level(run, capacity.first_fail) {
        lines.extend(why(at, fail, capacity, &run.environment.engine));
    }
    lines
}

fn start_failed_lines(run: &RunResult, capacity: &CapacityResult, target: &str) -> Vec<String> {
    let mut lines = vec![format!("Capacity:    even one user misses the target ({target}).")];
    let first = level(run, capacity.first_fail);
    let error = first.and_then(|level| level.requests.iter().find_map(|r| r.error.as_deref()));
    lines.push(match error {
        Some(error) => format!("Why:         requests fail: {error}"),
        None => "             Try a smaller model, or a looser target: --slo-ttft-ms 2000 \
                 --slo-tpot-ms 200"
            .to_owned(),
    });
    lines
}

/// Returns why the capacity ends where it does, by comparing it with the load that failed.
fn why(
    at: &LevelResult,
    fail: &LevelResult,
    capacity: &CapacityResult,
    engine: &Option<String>,
) -> Vec<String> {
    let (at_load, fail_load) = (at.value, fail.value);
    if fail.summary.failed > 0 {
        let error = fail.requests.iter().find_map(|r| r.error.as_deref()).unwrap_or_default();
        return vec![format!("Why:         at {fail_load} users requests fail: {error}")];
    }
    // A request that waits half an answer's time for its first token is not computed slowly: it
    // stands in a queue until another one ends.
    let queues = matches!(
        (fail.summary.ttft.p90, at.summary.e2e.p50),
        (Some(ttft), Some(e2e)) if ttft > 0.5 * e2e
    );
    if queues {
        let users = users(at_load.0);
        let mut lines = vec![format!(
            "Why:         above {users} requests queue: the server works on about \
             {at_load} at once (first token p90 {} at {fail_load})",
            ms(fail.summary.ttft.p90),
        )];
        if engine.as_deref() == Some("Ollama") && at_load.0 <= 2.0 {
            lines.push(
                "Tip:         Ollama may serve one request at a time; set OLLAMA_NUM_PARALLEL=4, \
                 restart it, and run this again"
                    .to_owned(),
            );
        }
        return lines;
    }
    let misses = |figure: Option<f64>, limit: Option<f64>| matches!((figure, limit), (Some(figure), Some(limit)) if figure * 1e3 > limit);
    let slow_start = misses(fail.summary.ttft.p90, capacity.slo_ttft_ms);
    let slow_tokens = misses(fail.summary.tpot.p90, capacity.slo_tpot_ms);
    let reason = match (slow_start, slow_tokens) {
        (true, true) => "first token and tokens after it come too late",
        (true, false) => "first tokens come too late: prompts wait for each other",
        (false, true) => "tokens come too slowly: the server shares its speed among users",
        (false, false) => "too few requests meet the target",
    };
    vec![format!(
        "Why:         at {fail_load} users {reason} (p90: first token {}, then {} each)",
        ms(fail.summary.ttft.p90),
        ms(fail.summary.tpot.p90),
    )]
}

fn users(load: f64) -> String {
    if load == 1.0 { "1 user".to_owned() } else { format!("{load} users") }
}

fn level(run: &RunResult, load: Option<f64>) -> Option<&LevelResult> {
    run.levels.iter().find(|level| Some(level.value.0) == load)
}

/// Returns the tokens per second that one user sees after the first.
fn speed(level: &LevelResult) -> String {
    level.summary.tpot.p50.map_or("?".to_owned(), |tpot| format!("{:.0}", 1.0 / tpot))
}

fn ms(seconds: Option<f64>) -> String {
    seconds.map_or("?".to_owned(), |seconds| format!("{:.0} ms", seconds * 1e3))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::{Environment, LoadValue, Mode, Stats, Summary};

    #[test]
    fn a_file_name_has_no_odd_characters() {
        let name = default_out("llama.cpp", "Qwen/Qwen2.5 0.5B:q4_K_M");
        assert_eq!(name, "servebench-quick-llama.cpp-qwen-qwen2.5-0.5b-q4-k-m.json");
    }

    fn measured(load: f64, ttft_p90: f64, tpot: f64) -> LevelResult {
        let stats = |value: f64| Stats { p50: Some(value), p90: Some(value), ..Stats::default() };
        let summary = Summary {
            completed: 16,
            ttft: stats(ttft_p90),
            tpot: stats(tpot),
            e2e: stats(1.0),
            ..Summary::default()
        };
        LevelResult::new(Mode::Concurrency, LoadValue(load), 1.0, Vec::new(), summary)
    }

    /// Returns the answer to a search in which 1 user passes and 2 fail with these figures.
    fn answer_when_two_fail(ttft_p90: f64, tpot: f64, engine: &str) -> String {
        let capacity = CapacityResult {
            mode: Mode::Concurrency,
            target: 0.9,
            slo_ttft_ms: Some(300.0),
            slo_tpot_ms: Some(50.0),
            capacity: Some(1.0),
            first_fail: Some(2.0),
            reason: CapacityReason::Converged,
        };
        let environment = Environment { engine: Some(engine.to_owned()), ..Environment::default() };
        let levels = vec![measured(1.0, 0.1, 0.02), measured(2.0, ttft_p90, tpot)];
        let mut run = RunResult::new(String::new(), RunConfig::default(), environment, levels);
        run.capacity = Some(capacity);
        answer(&run).join("\n")
    }

    #[test]
    fn the_answer_says_why_the_capacity_ends_where_it_does() {
        let queues = answer_when_two_fail(0.9, 0.02, "Ollama");
        assert!(queues.contains("Capacity:    1 user at once"), "{queues}");
        assert!(queues.contains("above 1 user requests queue"), "{queues}");
        assert!(queues.contains("OLLAMA_NUM_PARALLEL"), "{queues}");
        let late = answer_when_two_fail(0.4, 0.02, "vLLM");
        assert!(late.contains("at 2 users first tokens come too late"), "{late}");
        let slow = answer_when_two_fail(0.1, 0.09, "vLLM");
        assert!(slow.contains("at 2 users tokens come too slowly"), "{slow}");
        assert!(slow.contains("One user:    first token in 100 ms, then 50 tokens/s"), "{slow}");
    }
}
