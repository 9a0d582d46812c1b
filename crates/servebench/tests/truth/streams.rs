//! Every metric of closed loops with 1 to 512 streams, and of requests that differ.

use super::{
    Errors, Truth, alone, check_stats, config, gaps, level, measure_until_true, percentile, slack,
    times,
};
use servebench::mock_server::{MockConfig, MockServer};
use servebench::results::{LevelResult, LoadValue, RunConfig};
use std::fs;

/// Compares every time of a level.
fn compare(errors: &mut Errors, level: &LevelResult, slack: f64, truth: Truth) {
    let summary = &level.summary;
    let (ttft, e2e) = (times(level, |request| request.ttft), times(level, |request| request.e2e));
    let tpot =
        times(level, |request| Some((request.e2e? - request.ttft?) / (Truth::NUM_TOKENS - 1.0)));
    let gaps = gaps(level);
    for (stats, times) in [
        (&summary.ttft, &ttft),
        (&summary.e2e, &e2e),
        (&summary.tpot, &tpot),
        (&summary.itl, &gaps),
    ] {
        check_stats(stats, times);
    }
    check_stats(
        &summary.normalised_latency,
        &e2e.iter().map(|e2e| e2e / Truth::NUM_TOKENS).collect::<Vec<f64>>(),
    );
    assert_eq!(gaps.len(), summary.completed * 5);
    assert_eq!((summary.output_tokens_mean, summary.tokens_per_chunk), (Some(6.0), Some(1.0)));
    assert_eq!((summary.failed, summary.token_sources.get("usage")), (0, Some(&summary.completed)));

    for (what, times, truth) in [("TTFT", &ttft, truth.ttft_ms), ("E2E", &e2e, truth.e2e_ms())] {
        assert!(times[0] >= truth, "{what} of {} ms cannot be: it takes {truth} ms", times[0]);
        errors.near(&format!("shortest {what}"), times[0], truth, 0.0);
        errors.near(what, percentile(times, 50), truth, slack);
    }
    errors.near("TPOT", percentile(&tpot, 50), truth.itl_ms, slack / 5.0);
    errors.near("ITL", percentile(&gaps, 50), truth.itl_ms, 0.0);
}

/// Measures a closed loop and compares every metric.
fn check_closed_loop(num_streams: u32, num_waves: u32, truth: Truth) {
    let _alone = alone();
    let server = MockServer::start(truth.server()).unwrap();
    let num_requests = num_streams * num_waves;
    measure_until_true(|errors| {
        server.reset(truth.server());
        let level = level(RunConfig {
            levels: vec![LoadValue(num_streams.into())],
            num_requests: Some(num_requests as usize),
            slo_ttft_ms: Some(truth.ttft_ms - 1.0),
            ..config(&server)
        });
        let slack = slack(&server, &level);
        compare(errors, &level, slack, truth);
        let (summary, num_requests) = (&level.summary, f64::from(num_requests));
        // All rates are over the same time: that of the waves, what is late in each, and what the
        // client needs to send the first one.
        let duration_ms = truth.e2e_ms() * f64::from(num_waves);
        let starts = times(&level, |request| Some(request.start));
        let first_wave = starts[num_streams as usize - 1];
        let ends = times(&level, |request| Some(request.start + request.e2e?));
        let duration = ends[ends.len() - 1] / 1e3;
        assert!(duration * 1e3 >= duration_ms, "{duration} s cannot be");
        let late = first_wave + slack * f64::from(num_waves);
        errors.near("duration", duration * 1e3, duration_ms, late);
        errors.near("duration", summary.duration * 1e3, duration * 1e3, 0.0);
        let stats = server.stats();
        for (what, rate, total) in [
            ("requests/s", summary.request_throughput, num_requests),
            ("output tokens/s", summary.output_throughput, num_requests * Truth::NUM_TOKENS),
            ("prompt tokens/s", summary.input_throughput.unwrap(), stats.prompt_tokens as f64),
        ] {
            errors.within(what, rate, total / duration, 0.01);
        }
        assert_eq!((summary.goodput, summary.slo_attainment), (0.0, Some(0.0)));
        assert!(stats.peak <= num_streams as usize, "{} requests at once", stats.peak);
        // A client that needs longer to send them than one takes has fewer in flight.
        errors.within("streams", stats.peak as f64, num_streams.into(), 0.0);
        assert_eq!(stats.total as f64, num_requests);
        assert_eq!(stats.output_tokens as f64, num_requests * Truth::NUM_TOKENS);
    });
}

#[test]
fn metrics_of_1_stream_are_true() {
    check_closed_loop(1, 4, Truth { ttft_ms: 200.0, itl_ms: 50.0 });
}

#[test]
fn metrics_of_16_streams_are_true() {
    check_closed_loop(16, 4, Truth { ttft_ms: 300.0, itl_ms: 80.0 });
}

#[test]
fn metrics_of_64_streams_are_true() {
    check_closed_loop(64, 3, Truth { ttft_ms: 400.0, itl_ms: 100.0 });
}

#[test]
fn metrics_of_512_streams_are_true() {
    check_closed_loop(512, 2, Truth { ttft_ms: 1000.0, itl_ms: 250.0 });
}

#[test]
fn times_that_differ_by_request_are_true_one_by_one() {
    let _alone = alone();
    let server = MockServer::start(MockConfig {
        ttft_ms: 100.0,
        prefill_ms_per_token: 20.0,
        itl_ms: 20.0,
        ..MockConfig::default()
    })
    .unwrap();
    // Prompts of 1 to 10 words: first tokens after 120, 140, ... 300 ms.
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("prompts.txt");
    let prompts: String = (1..=10).map(|words| "word ".repeat(words) + "\n").collect();
    fs::write(&path, prompts).unwrap();
    measure_until_true(|errors| {
        let level = level(RunConfig {
            prompts: path.display().to_string(),
            num_requests: Some(10),
            output_len: 2,
            slo_ttft_ms: Some(210.0),
            slo_tpot_ms: Some(30.0),
            ..config(&server)
        });
        let slack = slack(&server, &level);
        check_stats(&level.summary.ttft, &times(&level, |request| request.ttft));
        for request in &level.requests {
            let (words, ttft) = (request.prompt_tokens.unwrap(), request.ttft.unwrap() * 1e3);
            let truth = 100.0 + 20.0 * words as f64;
            assert!(ttft >= truth, "{ttft} ms cannot be: it takes {truth} ms");
            errors.near(&format!("TTFT of {words} words"), ttft, truth, slack);
        }
        // 120 to 200 ms are five of ten. The ten take 210 ms each in the mean, and 20 more for the
        // second token.
        errors.within("attainment", level.summary.slo_attainment.unwrap(), 0.5, 0.0);
        errors.within("goodput", level.summary.goodput, 5.0 / level.duration, 0.001);
        errors.near("duration", level.duration * 1e3, 2300.0, 10.0 * slack);
    });
}
