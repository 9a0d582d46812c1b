//! Saved runs, by this program and by the Python one, through the library and the command line.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use servebench::report::{comparison, csv, markdown, terminal};
use servebench::results::{RunResult, Summary};
use servebench::statistics::{complete, summarize};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn python_file() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/python-1.1.3.json")
}

fn python_run() -> RunResult {
    RunResult::read(&python_file()).unwrap()
}

#[track_caller]
fn assert_close(what: &str, ours: Option<f64>, theirs: Option<f64>) {
    match (ours, theirs) {
        (None, None) => {}
        (Some(ours), Some(theirs)) => {
            let difference = (ours - theirs).abs();
            assert!(difference <= 1e-9 * theirs.abs().max(1.0), "{what}: {ours}, not {theirs}");
        }
        _ => panic!("{what}: {ours:?}, not {theirs:?}"),
    }
}

/// Compares the figures that the Python program has, but for the steady state, which it computes in
/// another way.
#[track_caller]
fn assert_same_figures(ours: &Summary, theirs: &Summary) {
    assert_eq!((ours.completed, ours.failed), (theirs.completed, theirs.failed));
    assert_eq!(ours.errors, theirs.errors);
    assert_eq!(ours.token_sources, theirs.token_sources);
    for (what, of) in [
        ("request throughput", (|s| Some(s.request_throughput)) as fn(&Summary) -> Option<f64>),
        ("output throughput", |s| Some(s.output_throughput)),
        ("input throughput", |s| s.input_throughput),
        ("goodput", |s| Some(s.goodput)),
        ("attainment", |s| s.slo_attainment),
        ("output tokens", |s| s.output_tokens_mean),
        ("tokens per piece", |s| s.tokens_per_chunk),
        ("reasoning", |s| s.reasoning_share),
    ] {
        assert_close(what, of(ours), of(theirs));
    }
    for (what, ours, theirs) in [
        ("TTFT", &ours.ttft, &theirs.ttft),
        ("TPOT", &ours.tpot, &theirs.tpot),
        ("ITL", &ours.itl, &theirs.itl),
        ("E2E", &ours.e2e, &theirs.e2e),
        ("answer", &ours.answer_start, &theirs.answer_start),
    ] {
        assert_eq!(ours.count, theirs.count, "{what}");
        assert_close(what, ours.mean, theirs.mean);
        assert_close(what, ours.p50, theirs.p50);
        assert_close(what, ours.p90, theirs.p90);
        assert_close(what, ours.p99, theirs.p99);
        assert_close(what, ours.max, theirs.max);
    }
}

#[test]
fn figures_computed_from_requests_of_the_python_program_are_its_own() {
    let run = python_run();
    assert_eq!(run.levels.len(), 2);
    for level in &run.levels {
        let ours = summarize(&level.requests, level.duration, run.config.slo());
        assert_same_figures(&ours, &level.summary);
        assert_eq!((ours.completed, ours.failed), (9, 1), "the file holds a failed request");
        assert!(ours.goodput > 0.0 && ours.slo_attainment < Some(0.9));
    }
}

#[test]
fn repeats_of_the_python_program_are_computed_again_run_by_run() {
    let theirs = python_run();
    let mut ours = python_run();
    complete(&mut ours);
    for (ours, theirs) in ours.levels.iter().zip(&theirs.levels) {
        let (ours_each, theirs_each) =
            (ours.repeats.as_ref().unwrap(), theirs.repeats.as_ref().unwrap());
        assert_eq!(ours_each.len(), 2);
        for (ours, theirs) in ours_each.iter().zip(theirs_each) {
            assert_same_figures(ours, theirs);
        }
        let (ours, theirs) =
            (ours.repeat_metrics.as_ref().unwrap(), theirs.repeat_metrics.as_ref().unwrap());
        for (name, theirs) in theirs {
            let ours = &ours[name];
            assert_close(name, Some(ours.mean), Some(theirs.mean));
            assert_close(name, Some(ours.std), Some(theirs.std));
            // Its critical value is rounded to three decimals.
            let half =
                |ci95: Option<(f64, f64)>| ci95.map(|(low, high)| (high - low) / 2.0).unwrap();
            let (ours, theirs) = (half(ours.ci95), half(theirs.ci95));
            assert!((ours - theirs).abs() <= 1e-4 * theirs, "{name}: {ours}, not {theirs}");
        }
        assert!(ours.contains_key("ttft_p99"), "what it does not have is added");
    }
}

#[test]
fn a_run_of_the_python_program_is_in_every_report() {
    let mut run = python_run();
    complete(&mut run);
    let runs = [run.clone(), run];
    let reports = [
        terminal::run_text(&runs[0]),
        markdown::report_text(&runs),
        csv::levels_csv(&runs),
        csv::requests_csv(&runs[0]),
        comparison::text(&runs),
    ];
    for report in reports {
        assert!(report.contains("rate=20") && report.contains("rate=inf"), "{report}");
    }
}

#[test]
fn a_run_is_read_as_it_was_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("new/run.json");
    let mut run = python_run();
    complete(&mut run);
    run.write(&path).unwrap();
    // Not `assert_eq`, which would print thousands of numbers.
    assert!(RunResult::read(&path).unwrap() == run, "a number or a field changed on the way");
}

fn servebench(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_servebench")).args(arguments).output().unwrap()
}

fn code(output: &Output) -> Option<i32> {
    output.status.code()
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[test]
fn check_exits_with_0_when_nothing_is_worse_1_when_it_is_and_2_when_misused() {
    let folder = tempfile::tempdir().unwrap();
    let baseline = python_file();
    let baseline = baseline.to_str().unwrap();
    let write = |name: &str, run: &RunResult| {
        let path = folder.path().join(name);
        run.write(&path).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let flags = ["--max-error-rate-pct", "20"];
    let check = |candidate: &str| {
        servebench(&[&["check", candidate, "--baseline", baseline][..], &flags].concat())
    };
    assert_eq!(code(&check(baseline)), Some(0));

    let mut slower = python_run();
    for level in &mut slower.levels {
        for request in level.requests.iter_mut().filter(|request| request.ok) {
            request.ttft = request.ttft.map(|ttft| ttft * 2.0);
        }
    }
    let failed = check(&write("slower.json", &slower));
    assert_eq!(code(&failed), Some(1));
    assert!(stdout(&failed).contains("FAILED"), "{}", stdout(&failed));

    let mut fewer = python_run();
    fewer.levels.pop();
    let failed = check(&write("fewer.json", &fewer));
    assert_eq!(code(&failed), Some(1));
    assert!(stdout(&failed).contains("rate=inf: the baseline has this level"));

    let mut other = python_run();
    other.config.input_len = 4096;
    let refused = check(&write("other.json", &other));
    assert_eq!(code(&refused), Some(2));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("the prompt lengths differ"));
    assert_eq!(code(&check("no-such-file.json")), Some(2));
    assert_eq!(code(&servebench(&["check", baseline])), Some(2));
}

#[test]
fn check_writes_json_for_programs() {
    let path = python_file();
    let path = path.to_str().unwrap();
    let output = servebench(&["check", path, "-b", path, "--max-error-rate-pct", "5", "--json"]);
    assert_eq!(code(&output), Some(1));
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["passed"], false);
    assert_eq!(json["levels"][0]["label"], "rate=20");
    let metrics = json["levels"][0]["metrics"].as_array().unwrap();
    let errors = metrics.iter().find(|metric| metric["metric"] == "failed requests").unwrap();
    assert_eq!((&errors["verdict"], &errors["candidate"]), (&"fail".into(), &10.0.into()));
}

#[test]
fn report_writes_the_kind_of_file_that_its_ending_names() {
    let folder = tempfile::tempdir().unwrap();
    let run = python_file();
    let run = run.to_str().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
    for (name, start) in [
        ("a.md", "# Servebench report"),
        ("b.csv", "run,label,mode"),
        ("c.html", "<!doctype html>"),
    ] {
        assert_eq!(code(&servebench(&["report", run, "--out", &at(name)])), Some(0), "{name}");
        let beginning = read(name).chars().take(40).collect::<String>().to_lowercase();
        assert!(beginning.starts_with(&start.to_lowercase()), "{name}: {beginning}");
    }
    let (levels, requests) = (at("new/levels.csv"), at("requests.csv"));
    let both = servebench(&["report", run, "--csv", &levels, "--csv-requests", &requests]);
    assert_eq!(code(&both), Some(0));
    assert_eq!(read("new/levels.csv").lines().count(), 3);
    assert_eq!(read("requests.csv").lines().count(), 21);
    for misuse in [
        &["report", run, "--out", &at("a.pdf")][..],
        &["report", run, run, "--csv-requests", &requests],
        &["report", run, "--slo-ttft-ms", "-5"],
        &["report"],
        &["compare", run],
    ] {
        assert_eq!(code(&servebench(misuse)), Some(2), "{misuse:?}");
    }
}

#[test]
fn report_judges_by_the_slo_that_it_is_given() {
    let run = python_file();
    let run = run.to_str().unwrap();
    let lenient =
        stdout(&servebench(&["report", run, "--slo-ttft-ms", "5000", "--slo-tpot-ms", "999"]));
    assert!(lenient.contains("TTFT ≤ 5000 ms and TPOT ≤ 999 ms"), "{lenient}");
    // Nine of ten completed.
    assert!(lenient.contains(" 90 %"), "{lenient}");
}
