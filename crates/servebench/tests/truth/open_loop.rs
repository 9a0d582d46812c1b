//! Requests that are due whether or not earlier ones have ended.

use super::{
    Truth, alone, check_stats, config, level, measure_until_true, percentile, slack, times,
};
use servebench::mock_server::{MockConfig, MockServer};
use servebench::results::{LoadValue, Mode, RunConfig};

#[test]
fn an_open_loop_counts_from_when_a_request_is_due_however_long_it_waits() {
    let _alone = alone();
    // One request at a time, all due at the start: the k-th waits for k requests of 150 ms.
    let truth = Truth { ttft_ms: 100.0, itl_ms: 10.0 };
    let in_server = MockConfig { slots: Some(1), ..truth.server() };
    for (behaviour, max_concurrency) in [(in_server, None), (truth.server(), Some(1))] {
        let server = MockServer::start(behaviour.clone()).unwrap();
        measure_until_true(|errors| {
            server.reset(behaviour.clone());
            let level = level(RunConfig {
                mode: Mode::Rate,
                levels: vec![LoadValue(f64::INFINITY)],
                num_requests: Some(6),
                max_concurrency,
                ..config(&server)
            });
            let slack = slack(&server, &level);
            for (num_before, ttft) in (0..).zip(times(&level, |request| request.ttft)) {
                let truth = truth.ttft_ms + f64::from(num_before) * truth.e2e_ms();
                assert!(ttft >= truth, "{ttft} ms cannot be: it takes {truth} ms");
                // A client that sends them one by one may be late with each.
                errors.near("TTFT", ttft, truth, f64::from(num_before + 1) * (slack + 1.0));
            }
        });
    }
}

#[test]
fn an_open_loop_sends_at_its_rate() {
    let _alone = alone();
    let server = MockServer::start(Truth { ttft_ms: 100.0, itl_ms: 10.0 }.server()).unwrap();
    measure_until_true(|errors| {
        let level = level(RunConfig {
            mode: Mode::Rate,
            levels: vec![LoadValue(60.0)],
            duration: Some(2.0),
            seed: 5,
            ..config(&server)
        });
        // The number of arrivals in two seconds has a deviation of 11.
        assert!((75..=165).contains(&level.requests.len()), "{} requests", level.requests.len());
        let last = level.requests.iter().map(|request| request.start).fold(0.0, f64::max);
        assert!((1.5..2.0).contains(&last), "the last request was due after {last} s");
        let delays = times(&level, |request| request.send_delay);
        check_stats(&level.summary.send_delay, &delays);
        errors.near("send delay", percentile(&delays, 50), 0.0, 0.0);
    });
}
