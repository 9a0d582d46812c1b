//! Throughput while the load is what it is meant to be.
//!
//! Leaves out the start, when the server fills, and the end, when no more requests come and it
//! drains. Both are cut by time: the window opens when the first request has ended, but not before
//! a fifth of the time in which requests are due has passed; it closes when the last one is due.
//! Inside, each piece of text counts with its share of its request's tokens, and each request with
//! the share of its time, so that neither edge favours requests that happen to straddle it.
//!
//! (servebench 1.1.3 cuts the first requests by number, counts the drain, and leaves out tokens of
//! cut requests that arrive inside the window; its figure is lower for all three.)

use super::distribution::stats;
use super::{as_f64, tokens_as_f64};
use crate::results::RequestResult;

/// Fewest completed requests that say anything about a steady state.
const MIN_REQUESTS: usize = 8;

/// Share of the time in which requests are due that counts as start, at least.
const RAMP_SHARE: f64 = 0.2;

/// Throughput within the window.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct SteadyState {
    /// Completed requests per second.
    pub(super) requests_per_s: f64,
    /// Output tokens of completed requests per second.
    pub(super) output_tokens_per_s: f64,
}

/// Returns the throughput without start and end; `None` when what remains is shorter than a request
/// or when fewer than eight requests completed. Times in one level count from one start.
pub(super) fn steady_state(requests: &[RequestResult]) -> Option<SteadyState> {
    let completed: Vec<(&RequestResult, f64)> = requests
        .iter()
        .filter(|request| request.ok)
        .filter_map(|request| Some((request, request.start + request.e2e?)))
        .collect();
    if completed.len() < MIN_REQUESTS {
        return None;
    }
    let first_due = requests.iter().map(|request| request.start).fold(f64::INFINITY, f64::min);
    let last_due = requests.iter().map(|request| request.start).fold(0.0, f64::max);
    let first_end = completed.iter().map(|(_, end)| *end).fold(f64::INFINITY, f64::min);
    let opens = first_end.max(first_due + RAMP_SHARE * (last_due - first_due));
    let length = last_due - opens;
    let median_e2e = stats(completed.iter().filter_map(|(request, _)| request.e2e)).p50?;
    if length <= 0.0 || length < median_e2e {
        return None;
    }
    let mut num_requests = 0.0;
    let mut num_tokens = 0.0;
    for (request, end) in completed {
        let inside = |time: f64| time >= opens && time < last_due;
        let overlap = (end.min(last_due) - request.start.max(opens)).max(0.0);
        let own_length = end - request.start;
        num_requests +=
            if own_length > 0.0 { overlap / own_length } else { f64::from(u8::from(inside(end))) };
        let num_pieces = request.chunk_times.len();
        if num_pieces > 0 {
            let arrived =
                request.chunk_times.iter().filter(|time| inside(request.start + **time)).count();
            num_tokens +=
                tokens_as_f64(request.output_tokens) * as_f64(arrived) / as_f64(num_pieces);
        }
    }
    Some(SteadyState {
        requests_per_s: num_requests / length,
        output_tokens_per_s: num_tokens / length,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::statistics::sample_requests::even_request;
    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};

    /// A closed loop of `num_streams` in which a request of `n` tokens takes `ttft + n · gap`.
    fn closed_loop(num_streams: usize, num_requests: usize, seed: u64) -> Vec<RequestResult> {
        let mut rng = StdRng::seed_from_u64(seed);
        let mut free_at = vec![0.0; num_streams];
        let mut requests = Vec::new();
        for index in 0..num_requests {
            let stream =
                (0..num_streams).min_by(|a, b| f64::total_cmp(&free_at[*a], &free_at[*b])).unwrap();
            let num_tokens = rng.random_range(20..60);
            let request = even_request(index, free_at[stream], 0.2, 0.02, num_tokens);
            free_at[stream] += request.e2e.unwrap();
            requests.push(request);
        }
        requests
    }

    #[test]
    fn equal_requests_in_step_have_the_throughput_of_their_streams() {
        // Four streams, four requests each: 0.5 s to the first token, then 5 gaps of 0.1 s.
        let requests: Vec<RequestResult> =
            (0..16).map(|i| even_request(i, as_f64(i / 4), 0.5, 0.1, 6)).collect();
        let got = steady_state(&requests).unwrap();
        assert!((got.requests_per_s - 4.0).abs() < 1e-9, "{got:?}");
        // From 1 s until 3 s: two whole turns.
        assert!((got.output_tokens_per_s - 24.0).abs() < 1e-9, "{got:?}");
    }

    #[test]
    fn start_and_end_of_a_closed_loop_do_not_lower_the_steady_throughput() {
        for seed in 0..20 {
            let requests = closed_loop(16, 400, seed);
            let end = requests.iter().map(|r| r.start + r.e2e.unwrap()).fold(0.0, f64::max);
            let num_tokens: u64 = requests.iter().map(|request| request.output_tokens).sum();
            // Mean of 39.5 tokens in 0.2 + 38.5 · 0.02 s, by 16 streams.
            let truth = 16.0 * 39.5 / (0.2 + 38.5 * 0.02);
            let got = steady_state(&requests).unwrap();
            let error = (got.output_tokens_per_s / truth - 1.0).abs();
            assert!(error < 0.04, "seed {seed}: {got:?}, not {truth}");
            assert!(
                (got.requests_per_s / (truth / 39.5) - 1.0).abs() < 0.06,
                "seed {seed}: {got:?}"
            );
            assert!(tokens_as_f64(num_tokens) / end < got.output_tokens_per_s, "seed {seed}");
        }
    }

    #[test]
    fn requests_all_at_once_have_no_steady_state() {
        let at_once: Vec<RequestResult> =
            (0..100).map(|i| even_request(i, 0.0, 0.1, 0.01, 50)).collect();
        assert_eq!(steady_state(&at_once), None);
        assert_eq!(steady_state(&closed_loop(2, 7, 1)), None, "seven are too few");
        assert_eq!(steady_state(&[]), None);
    }
}
