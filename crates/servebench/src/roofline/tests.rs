//! Points of known runs under known peaks.

use super::*;
use crate::results::{Environment, LoadValue, Mode, RunConfig, Stats, Summary};

/// A run with a level for each concurrency and mean TPOT, with all streams decoding all the time.
pub(super) fn run(levels: &[(f64, f64)]) -> RunResult {
    let levels = levels.iter().map(|(concurrency, tpot)| {
        let summary = Summary {
            output_throughput: concurrency / tpot,
            input_throughput: Some(100.0),
            tpot: Stats { mean: Some(*tpot), ..Stats::default() },
            ..Summary::default()
        };
        let load = LoadValue(*concurrency);
        LevelResult::new(Mode::Concurrency, load, 10.0, Vec::new(), summary)
    });
    let levels = levels.collect();
    RunResult::new("a run".to_owned(), RunConfig::default(), Environment::default(), levels)
}

pub(super) fn model(num_parameters: f64, weight_bytes: f64) -> ModelSize {
    let source = "parameters given, weights given".to_owned();
    ModelSize { name: "a model".to_owned(), num_parameters, weight_bytes, source }
}

/// 50 GB/s and 1 T op/s, which meet at 20 operations per byte.
pub(super) fn peaks() -> Peaks {
    Peaks {
        device: "a machine".to_owned(),
        bandwidth: 50e9,
        ops_per_s: 1e12,
        source: "both given".to_owned(),
        notes: Vec::new(),
        measured: None,
    }
}

fn near(got: f64, expected: f64) {
    assert!((got / expected - 1.0).abs() < 1e-9, "{got} instead of {expected}");
}

#[test]
fn one_stream_reads_the_weights_for_each_token() {
    let point = &analyse(&run(&[(1.0, 0.02)]), &peaks(), &model(1e9, 0.5e9))[0];
    let decode = point.decode.unwrap();
    near(decode.num_streams, 1.0);
    near(decode.bytes_per_token, 0.5e9);
    near(decode.intensity, 4.0);
    // 0.5 GB in 20 ms is 25 of 50 GB/s; 2 GFLOP in 20 ms lie on that line.
    near(decode.mbu, 0.5);
    near(decode.ops_per_s, 1e11);
    near(decode.most_tokens_per_s, 100.0);
    // 50 output and 100 prompt tokens of 2 G op each.
    near(point.mfu, 0.3);
    assert_eq!(Bound::at(decode.intensity, &peaks()), Bound::Memory);
}

#[test]
fn streams_share_a_step_until_arithmetic_is_the_limit() {
    let points = analyse(&run(&[(4.0, 0.02), (32.0, 0.1)]), &peaks(), &model(1e9, 0.5e9));
    let [four, many] = [0, 1].map(|i| points[i].decode.unwrap());
    near(four.bytes_per_token, 0.125e9);
    near(four.mbu, 0.5);
    near(four.most_tokens_per_s, 400.0);
    near(many.intensity, 128.0);
    near(many.most_tokens_per_s, 500.0);
    assert_eq!(Bound::at(many.intensity, &peaks()), Bound::Compute);
}

#[test]
fn streams_that_do_not_always_decode_are_counted_as_little_s_law_says() {
    let mut run = run(&[(8.0, 0.02)]);
    // Half of the time the eight streams wait or prefill.
    run.levels[0].summary.output_throughput = 200.0;
    near(analyse(&run, &peaks(), &model(1e9, 0.5e9))[0].decode.unwrap().num_streams, 4.0);
    run.levels[0].summary.output_throughput = 10.0;
    near(analyse(&run, &peaks(), &model(1e9, 0.5e9))[0].decode.unwrap().num_streams, 1.0);
}

#[test]
fn cached_prompt_tokens_are_not_computed_and_unknown_ones_not_counted() {
    let mut run = run(&[(1.0, 0.02)]);
    run.levels[0].summary.cached_share = Some(0.75);
    near(analyse(&run, &peaks(), &model(1e9, 0.5e9))[0].mfu, 75.0 * 2e9 / 1e12);
    run.levels[0].summary.input_throughput = None;
    near(analyse(&run, &peaks(), &model(1e9, 0.5e9))[0].mfu, 50.0 * 2e9 / 1e12);
    let text = run_text(&run, &peaks(), &model(1e9, 0.5e9));
    assert!(text.contains("MFU is that of the output alone"), "{text}");
}

#[test]
fn a_level_without_decode_steps_has_no_bandwidth() {
    let mut run = run(&[(1.0, 0.02)]);
    run.levels[0].summary.tpot.mean = None;
    assert_eq!(analyse(&run, &peaks(), &model(1e9, 0.5e9))[0].decode, None);
    let text = run_text(&run, &peaks(), &model(1e9, 0.5e9));
    assert!(text.lines().any(|line| line.starts_with("1 c=1") && line.ends_with('-')), "{text}");
}

#[test]
fn more_than_everything_is_shown_and_called_wrong() {
    let text = run_text(&run(&[(1.0, 0.001)]), &peaks(), &model(1e9, 0.5e9));
    assert!(text.contains("1000.0%"), "{text}");
    assert!(text.contains("warning: MBU is above 100 % at c=1"), "{text}");
    assert!(text.contains("warning: MFU is above 100 % at c=1"), "{text}");
    let text = run_text(&run(&[(1.0, 0.02)]), &peaks(), &model(1e9, 0.5e9));
    assert!(!text.contains("warning"), "{text}");
}

#[test]
fn without_a_run_the_text_tells_what_is_possible_and_no_measurement() {
    let text = limits_text(&peaks(), Some(&model(1e9, 0.5e9)));
    assert!(text.contains("  1 stream     100.0 tokens/s, limited by memory"), "{text}");
    assert!(text.contains(" 64 streams    500.0 tokens/s, limited by compute"), "{text}");
    assert!(!text.contains("MBU"), "{text}");
    assert!(limits_text(&peaks(), None).contains("pass --model"), "{text}");
}
