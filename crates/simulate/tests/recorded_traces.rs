//! Recorded traces: small ones in the public formats, and the public ones where they are at hand.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use mini_infer_simulate::{
    Allocator, LatencyLimits, Load, MachineSpeed, Report, Settings, SimulateError, Trace,
};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A file that goes away with its owner.
struct TestFile {
    path: PathBuf,
}

impl TestFile {
    fn new(name: &str, text: &str) -> Self {
        let path = std::env::temp_dir().join(format!("mini-infer-{}-{name}", std::process::id()));
        fs::write(&path, text).unwrap();
        Self { path }
    }
}

impl Drop for TestFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

fn settings(trace: &Trace, load: Load) -> Settings {
    let max_model_len = trace.num_tokens_of_longest().max(2048);
    Settings {
        load,
        kv_tokens: Settings::default_kv_tokens(max_model_len),
        max_model_len,
        max_num_seqs: 1024,
        max_batched_tokens: Settings::default_max_batched_tokens(&MachineSpeed::DEFAULT),
        speed: MachineSpeed::DEFAULT,
        limits: LatencyLimits::DEFAULT,
    }
}

fn run(trace: &Trace, settings: &Settings, allocators: &str) -> Result<Report, SimulateError> {
    Report::new(trace.clone(), settings, &Allocator::parse_list(allocators).unwrap(), 2)
}

/// Twelve conversations of one system prompt, four turns each, in turn.
fn conversations() -> String {
    let mut lines = String::new();
    for turn in 1_u64..=4 {
        for user in 0..12 {
            let mut ids = vec![0, 1];
            ids.extend((1..=turn).map(|turn| 100 + user * 10 + turn));
            let timestamp = (turn * 12 + user) * 400;
            let input_length = ids.len() * 512 - 100;
            lines += &format!(
                "{{\"timestamp\": {timestamp}, \"input_length\": {input_length}, \
                 \"output_length\": 40, \"hash_ids\": {ids:?}}}\n"
            );
        }
    }
    lines
}

#[test]
fn a_large_cache_hits_what_an_endless_one_would() {
    let file = TestFile::new("conversations.jsonl", &conversations());
    let trace = Trace::read(&file.path).unwrap();
    let load = Load::Arrivals { rate_scale: 1.0 };
    let large = Settings { kv_tokens: 200_000, ..settings(&trace, load) };
    let report = run(&trace, &large, "paged-16,paged-16-shared").unwrap();
    let [alone, shared] = &report.allocators[..] else { panic!("two runs") };
    assert_eq!(alone.hit_rate, 0.0);
    let (rate, bound) = (shared.hit_rate, shared.hit_rate_bound);
    assert!(bound > 0.5, "{bound}");
    assert!(rate <= bound && rate > bound - 0.001, "{rate} of {bound}");
    let small = Settings { kv_tokens: 6000, ..large };
    let report = run(&trace, &small, "paged-16-shared").unwrap();
    assert!(report.allocators[0].hit_rate < rate, "a small cache forgets");
}

#[test]
fn a_request_waits_from_its_arrival_to_its_admission() {
    let header = "TIMESTAMP,ContextTokens,GeneratedTokens\r\n";
    let lines = "2023-11-16 18:15:00.5,10,100\r\n2023-11-16 18:15:00.5,10,100\r\n\
                 2023-11-16 18:15:10,10,1\r\n";
    let file = TestFile::new("three.csv", &format!("{header}{lines}"));
    let trace = Trace::read(&file.path).unwrap();
    assert_eq!(trace.requests[2].arrival, Duration::from_millis(9500));
    let all = settings(&trace, Load::Arrivals { rate_scale: 1.0 });
    let one_at_a_time = Settings { max_num_seqs: 1, ..all };
    let run = run(&trace, &one_at_a_time, "paged-16").unwrap().allocators.remove(0);
    // The second waits for the hundred steps of the first, the third for nobody.
    let delay = run.queueing_delay_s.unwrap();
    assert!((delay.mean - 2.0 / 3.0).abs() < 1e-6 && (delay.p99 - 2.0).abs() < 1e-6, "{delay:?}");
    assert!((run.simulated_s - 9.52).abs() < 1e-6);
    assert!((run.tpot_s.unwrap().mean - 0.02).abs() < 1e-6);
    assert!((run.goodput - 2.0 / 9.52).abs() < 1e-6, "the second one's first token is late");
    assert_eq!(run.peak_running, 1);
}

#[test]
fn faster_arrivals_fill_the_same_machine_more() {
    let file = TestFile::new("faster.jsonl", &conversations());
    let trace = Trace::read(&file.path).unwrap();
    let running = |rate_scale| {
        let settings = settings(&trace, Load::Arrivals { rate_scale });
        run(&trace, &settings, "paged-16").unwrap().allocators[0].mean_running
    };
    assert!(running(4.0) > 3.0 * running(1.0));
}

#[test]
fn bad_files_name_the_file_the_line_and_what_was_expected() {
    let message = |name: &str, text: &str| {
        let file = TestFile::new(name, text);
        let message = Trace::read(&file.path).unwrap_err().to_string();
        assert!(message.contains(&file.path.display().to_string()), "{message}");
        message
    };
    assert!(message("empty", "").contains("has no requests; expected lines of TIMESTAMP,"));
    assert!(message("header", "TIMESTAMP,ContextTokens,GeneratedTokens\n").contains("no requests"));
    assert!(message("other", "a,b\n1,2\n").contains("line 1: expected the header TIMESTAMP,"));
    let text = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:00,10,100\n\n2023-1";
    assert!(message("cut", text).contains("line 4: expected the three columns"));
    let text = conversations().replacen("hash_ids", "hashes", 1);
    assert!(message("field", &text).contains("line 1: expected an object"));
    let text = conversations() + "{\"timestamp\": 1";
    assert!(message("end", &text).contains("line 49: expected an object"));
    let file = TestFile::new("bytes", "");
    fs::write(&file.path, [b'{', 0xFF, 0xFE]).unwrap();
    assert!(Trace::read(&file.path).unwrap_err().to_string().contains("cannot be read"));
    let missing = Trace::read(Path::new("no-such-trace.csv")).unwrap_err().to_string();
    assert_eq!(missing, "trace no-such-trace.csv cannot be read");
}

#[test]
fn settings_that_cannot_work_are_refused_with_what_would() {
    let file = TestFile::new("refused.jsonl", &conversations());
    let trace = Trace::read(&file.path).unwrap();
    let good = settings(&trace, Load::Backlog);
    let refused = |settings: Settings| run(&trace, &settings, "all").unwrap_err().to_string();
    let message = refused(Settings { kv_tokens: 3000, ..good });
    assert!(
        message.contains("contiguous-max needs KV memory for at least 4096 tokens"),
        "{message}"
    );
    let message = refused(Settings { max_model_len: 100, ..good });
    assert!(message.contains("the shortest has 1476 tokens"), "{message}");
    let message = refused(Settings { max_num_seqs: 5000, max_batched_tokens: 2048, ..good });
    assert!(message.contains("max_num_seqs = 5000"), "{message}");
    let load = Load::Arrivals { rate_scale: 0.0 };
    assert!(refused(Settings { load, ..good }).contains("--rate-scale is 0"));
    let longer = Settings { max_model_len: 2100, kv_tokens: 9000, ..good };
    let report = run(&trace, &longer, "paged-8").unwrap();
    assert_eq!((report.trace.num_requests, report.trace.num_left_out), (24, 24));
}

/// The public traces lie beside the repository or nowhere.
fn public_trace(name: &str) -> Option<Trace> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/traces").join(name);
    if !path.exists() {
        eprintln!("skipped: {} is not there", path.display());
        return None;
    }
    Some(Trace::read(&path).unwrap())
}

#[test]
fn public_traces_waste_less_than_two_percent_at_sixteen_requests() {
    for (name, num_requests, bound) in [
        ("azure-llm-2023-conv.csv", 19_366, 0.0),
        ("azure-llm-2023-code.csv", 8819, 0.0),
        ("mooncake-conversation.jsonl", 12_031, 0.374),
        ("mooncake-synthetic.jsonl", 3993, 0.651),
    ] {
        let Some(mut trace) = public_trace(name) else { continue };
        assert_eq!(trace.requests.len(), num_requests);
        let measured = mini_infer_simulate::hit_rate_bound(&trace.requests);
        assert!((measured - bound).abs() < 1e-3, "{name}: {measured}");
        trace.requests.truncate(150);
        let settings = settings(&trace, Load::Concurrent { num_requests: 16 });
        for run in run(&trace, &settings, "paged-16,paged-16-shared").unwrap().allocators {
            let waste = run.memory.waste;
            assert!(waste.total() < 0.02, "{name}, {}: {waste:?}", run.name);
            assert!(run.hit_rate <= run.hit_rate_bound);
        }
    }
}
