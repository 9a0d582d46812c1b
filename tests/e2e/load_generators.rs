//! servebench, ours and the Python one, on one server: what they say of it must agree.

use crate::python_clients::servebench_in_python;
use crate::shared_server::DEFAULT;
use libtest_mimic::Trial;
use servebench::mock_server::{MockConfig, MockServer};
use servebench::report;
use servebench::results::{LevelResult, LoadValue, RunConfig, RunResult, Summary, TokenSource};
use std::path::Path;

pub(crate) fn trials() -> Vec<Trial> {
    trials![
        both_load_generators_agree_on_a_server_with_exact_times,
        servebench_measures_the_real_server_without_a_failed_request,
        each_load_generator_reads_the_others_files,
    ]
}

/// How far the two may differ.
const AGREEMENT: f64 = 0.03;
/// A busy machine can delay either program once; not every time.
const NUM_ATTEMPTS: usize = 4;

/// Closed loops that take a few seconds each.
fn config(url: String, model: &str) -> RunConfig {
    RunConfig {
        url,
        model: model.to_owned(),
        levels: [1.0, 8.0].map(LoadValue).to_vec(),
        num_requests: Some(8),
        input_len: 40,
        output_len: 12,
        warmup: 1,
        seed: 5,
        gpu_telemetry: false,
        ..RunConfig::default()
    }
}

/// Runs the Python program as `config` says.
fn run_in_python(config: &RunConfig, file: &str) -> RunResult {
    let record = Path::new(env!("CARGO_TARGET_TMPDIR")).join(file);
    let levels: Vec<String> = config.levels.iter().map(LoadValue::to_string).collect();
    let number = |number: Option<usize>| number.unwrap().to_string();
    let arguments = [
        ("--url", config.url.clone()),
        ("--model", config.model.clone()),
        ("--concurrency", levels.join(",")),
        ("--num-requests", number(config.num_requests)),
        ("--input-len", config.input_len.to_string()),
        ("--output-len", config.output_len.to_string()),
        ("--warmup", config.warmup.to_string()),
        ("--seed", config.seed.to_string()),
        ("--out", record.display().to_string()),
    ];
    let mut words = vec!["run".to_owned(), "--no-gpu".to_owned()];
    words.extend(arguments.into_iter().flat_map(|(flag, value)| [flag.to_owned(), value]));
    servebench_in_python(&words);
    RunResult::read(&record).unwrap()
}

/// Takes one figure out of a level.
type Figure = fn(&Summary) -> f64;

/// Returns what differs by more than is allowed.
fn disagreements(ours: &LevelResult, theirs: &LevelResult) -> Vec<String> {
    let figures: [(&str, Figure); 5] = [
        ("output throughput", |summary| summary.output_throughput),
        ("TTFT p50", |summary| summary.ttft.p50.unwrap()),
        ("TPOT p50", |summary| summary.tpot.p50.unwrap()),
        ("ITL p50", |summary| summary.itl.p50.unwrap()),
        ("E2E p50", |summary| summary.e2e.p50.unwrap()),
    ];
    figures
        .into_iter()
        .filter_map(|(name, figure)| {
            let (ours, theirs) = (figure(&ours.summary), figure(&theirs.summary));
            let differs = (ours / theirs - 1.0).abs() > AGREEMENT;
            differs.then(|| format!("{name}: {ours} here, {theirs} in Python"))
        })
        .collect()
}

fn both_load_generators_agree_on_a_server_with_exact_times() {
    let times = MockConfig { ttft_ms: 300.0, itl_ms: 20.0, ..MockConfig::default() };
    let server = MockServer::start(times).unwrap();
    let config = config(server.url(), "mock-model");
    let mut found = Vec::new();
    for _ in 0..NUM_ATTEMPTS {
        let theirs = run_in_python(&config, "servebench-agreement.json");
        let ours = servebench::benchmark(config.clone()).unwrap();
        assert_eq!((ours.levels.len(), theirs.levels.len()), (2, 2));
        let pairs = ours.levels.iter().zip(&theirs.levels);
        found = pairs.flat_map(|(ours, theirs)| disagreements(ours, theirs)).collect();
        if found.is_empty() {
            return;
        }
    }
    panic!("{NUM_ATTEMPTS} times: {found:#?}");
}

fn servebench_measures_the_real_server_without_a_failed_request() {
    let server = DEFAULT.get();
    let config = RunConfig {
        levels: [1.0, 4.0, 8.0].map(LoadValue).to_vec(),
        scrape_metrics: Some("auto".to_owned()),
        ..config(format!("http://{}/v1", server.address), "smollm2-135m")
    };
    let run = servebench::benchmark(config).unwrap();
    server.wait_until_idle();
    assert_eq!(run.environment.engine.as_deref(), Some("mini-infer"));
    assert_eq!(run.levels.len(), 3);
    for level in &run.levels {
        assert_eq!((level.summary.completed, level.summary.failed), (8, 0), "{:?}", level.summary);
        for request in &level.requests {
            assert_eq!((request.output_tokens, request.token_source), (12, TokenSource::Usage));
        }
        let metrics = level.prometheus_metrics.as_ref().unwrap();
        assert_eq!(metrics["generation_tokens_total"], 8.0 * 12.0, "{metrics:?}");
    }
    let html = report::html::page(std::slice::from_ref(&run));
    let text = report::terminal::run_text(&run);
    for label in ["c=1", "c=4", "c=8"] {
        assert!(html.contains(label) && text.contains(label), "{label}");
    }
}

fn each_load_generator_reads_the_others_files() {
    let server = MockServer::start(MockConfig::default()).unwrap();
    let config = config(server.url(), "mock-model");
    let theirs = run_in_python(&config, "servebench-theirs.json");
    assert!(report::terminal::run_text(&theirs).contains("c=8"));
    let ours = Path::new(env!("CARGO_TARGET_TMPDIR")).join("servebench-ours.json");
    servebench::benchmark(config).unwrap().write(&ours).unwrap();
    let printed = servebench_in_python(&["report".to_owned(), ours.display().to_string()]);
    assert!(printed.contains("c=8"), "{printed}");
}
