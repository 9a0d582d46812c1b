//! The PagedAttention paper's figure 2, reproduced: shares of KV memory on a saturated queue.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use mini_infer_simulate::{
    Allocator, AllocatorReport, GeneratedTrace, LatencyLimits, Load, MachineSpeed, Report, Settings,
};

/// The settings of the paper: 12 GiB for OPT-13B's KV.
fn settings(load: Load) -> Settings {
    Settings {
        load,
        kv_tokens: Settings::default_kv_tokens(2048),
        max_model_len: 2048,
        max_num_seqs: 1024,
        max_batched_tokens: Settings::default_max_batched_tokens(&MachineSpeed::DEFAULT),
        speed: MachineSpeed::DEFAULT,
        limits: LatencyLimits::DEFAULT,
    }
}

/// Enough requests for shares to settle.
fn run(load: Load, seed: u64) -> Report {
    run_some(400, load, seed)
}

fn run_some(num_requests: usize, load: Load, seed: u64) -> Report {
    let trace = GeneratedTrace::SHAREGPT.generate(num_requests, seed);
    Report::new(trace, &settings(load), &Allocator::all(), 2).unwrap()
}

fn find<'a>(report: &'a Report, name: &str) -> &'a AllocatorReport {
    report.allocators.iter().find(|run| run.name == name).unwrap()
}

fn check_sums(report: &Report) {
    for run in &report.allocators {
        let shares = run.memory;
        let sum = shares.live_share + shares.waste.total();
        assert!((sum - 1.0).abs() < 1e-9, "{}: {shares:?}", run.name);
    }
}

#[test]
fn live_shares_have_the_order_and_the_size_of_the_papers() {
    let report = run(Load::Backlog, 1);
    check_sums(&report);
    // The paper's shares in percent: 20.4, 26.8, 38.2, and 96.3 for paging in blocks of 16.
    for (name, least, most) in [
        ("contiguous-max", 0.18, 0.23),
        ("contiguous-pow2", 0.24, 0.40),
        ("contiguous-oracle", 0.34, 0.50),
        ("paged-16", 0.94, 0.98),
    ] {
        let live = find(&report, name).memory.live_share;
        assert!((least..most).contains(&live), "{name}: {live}");
    }
    let order = ["contiguous-max", "contiguous-pow2", "contiguous-oracle", "paged-64", "paged-32"];
    let live = order.map(|name| find(&report, name).memory.live_share);
    assert!(live.is_sorted(), "{live:?}");
    let running = order.map(|name| find(&report, name).mean_running);
    assert!(running.is_sorted(), "{running:?}");
    let ratio =
        find(&report, "paged-16").mean_running / find(&report, "contiguous-max").mean_running;
    assert!(ratio > 4.0, "{ratio} times as many requests run at once");
}

#[test]
fn waste_of_the_contiguous_ones_is_of_the_kinds_that_the_paper_found() {
    let report = run(Load::Backlog, 2);
    let max = find(&report, "contiguous-max");
    // Seven sequences of 2,048 tokens fit, whatever their length.
    assert_eq!(max.peak_running, 7);
    let external = f64::from(15_728 - 7 * 2048) / 15_728.0;
    assert!((max.memory.waste.external - external).abs() < 1e-3, "{:?}", max.memory);
    assert!(max.memory.waste.internal > 0.5);
    let oracle = find(&report, "contiguous-oracle");
    assert!(oracle.memory.waste.internal.abs() < 1e-9, "an oracle grants no slot too many");
    for run in report.allocators.iter().filter(|run| run.name.starts_with("paged")) {
        assert_eq!(run.memory.waste.reserved, 0.0, "{}", run.name);
    }
    let contiguous = report.allocators.iter().filter(|run| run.name.starts_with("contiguous"));
    assert_eq!(contiguous.map(|run| run.preemptions).sum::<u64>(), 0);
}

#[test]
fn sixteen_requests_at_a_time_waste_less_than_two_percent() {
    let report = run(Load::Concurrent { num_requests: 16 }, 3);
    check_sums(&report);
    for name in ["paged-8", "paged-16", "paged-16-shared"] {
        let run = find(&report, name);
        assert!(run.memory.waste.total() < 0.02, "{name}: {:?}", run.memory);
        assert_eq!((run.peak_running, run.preemptions), (16, 0));
        assert!(run.mean_running > 15.9, "{name}: {}", run.mean_running);
    }
}

#[test]
fn equal_inputs_give_equal_bytes() {
    let first = run_some(40, Load::Backlog, 4);
    let second = run_some(40, Load::Backlog, 4);
    assert_eq!(first.to_json(), second.to_json());
    assert_eq!(first.to_svg().unwrap(), second.to_svg().unwrap());
    assert_eq!(first.to_lines(), second.to_lines());
    assert_ne!(first.to_json(), run_some(40, Load::Backlog, 5).to_json());
}

#[test]
fn json_has_the_fields_that_others_read() {
    let report = run_some(40, Load::Backlog, 6);
    let json: serde_json::Value = serde_json::from_str(&report.to_json()).unwrap();
    let allocators = json["allocators"].as_array().unwrap();
    let names: Vec<_> = allocators.iter().map(|run| run["name"].as_str().unwrap()).collect();
    let expected = "contiguous-max contiguous-pow2 contiguous-oracle paged-8 paged-16 paged-32 \
                    paged-64 paged-16-shared";
    assert_eq!(names, expected.split(' ').collect::<Vec<_>>());
    for run in allocators {
        for field in ["live_share", "mean_running", "hit_rate", "hit_rate_bound", "goodput"] {
            assert!(run[field].is_f64(), "{field}: {run}");
        }
        for field in ["peak_running", "preemptions"] {
            assert!(run[field].is_u64(), "{field}: {run}");
        }
        for field in ["reserved", "internal", "external"] {
            assert!(run["waste"][field].is_f64(), "{field}: {run}");
        }
    }
}
