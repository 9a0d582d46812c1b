//! What a stop keeps.

use crate::loops::{Prompts, config};
use crate::scripted_server::{ScriptedServer, Step, answer};
use servebench::load::{Benchmark, Observer, Progress, StopHandle};
use servebench::results::{Mode, RunConfig, RunResult};
use std::sync::Arc;

/// What each level sends.
const NUM_REQUESTS: usize = 4;

/// Stops the `num_levels`th level when `after` of its requests have ended.
struct Stopper {
    stop: StopHandle,
    num_levels: usize,
    after: usize,
    num_levels_seen: usize,
}

impl Observer for Stopper {
    fn progress(&mut self, progress: &Progress) {
        // A level before it may be seen at any count: how often it is looked at is up to the clock.
        if self.num_levels_seen + 1 == self.num_levels && progress.num_ended == self.after {
            self.stop.stop();
        }
    }

    fn level_ended(&mut self, run: &RunResult) {
        self.num_levels_seen = run.levels.len();
    }
}

/// Runs `levels` of `mode`. The first `answered` requests of all get answers; the level in which
/// that ends is stopped, as soon as `after` requests of it have ended.
async fn run_stopped(mode: Mode, levels: &[f64], answered: usize, after: usize) -> RunResult {
    let server =
        ScriptedServer::start(
            move |number, _| {
                if number < answered { answer(&["one"]) } else { vec![Step::Hold] }
            },
        )
        .await;
    let config = RunConfig { num_requests: Some(NUM_REQUESTS), ..config(&server, mode, levels) };
    let benchmark = Benchmark::with_prompts(config, Arc::<Prompts>::default()).unwrap();
    let stop = StopHandle::default();
    let num_levels = answered / NUM_REQUESTS + 1;
    let mut stopper = Stopper { stop: stop.clone(), num_levels, after, num_levels_seen: 0 };
    let run = benchmark.run(&mut stopper, &stop).await.unwrap();
    assert_eq!(stopper.num_levels_seen, run.levels.len());
    run
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_keeps_levels_and_requests_that_have_ended() {
    // Four requests of the first level and two of the second are answered; one user waits.
    let run = run_stopped(Mode::Concurrency, &[1.0, 1.0, 1.0], 6, 2).await;
    assert!(run.interrupted);
    let kept: Vec<_> =
        run.levels.iter().map(|level| (level.requests.len(), level.num_interrupted)).collect();
    assert_eq!(kept, [(4, None), (2, Some(1))]);
    assert!(run.levels.iter().all(|level| level.summary.failed == 0));
    assert_eq!(run.config.levels.len(), 3, "what was asked stays");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_that_a_stop_aborts_are_counted_and_are_no_failures() {
    let run = run_stopped(Mode::Rate, &[f64::INFINITY], 1, 1).await;
    let level = &run.levels[0];
    assert_eq!((level.requests.len(), level.num_interrupted), (1, Some(3)));
    assert_eq!(level.summary.failed, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_level_that_is_stopped_before_its_first_answer_leaves_nothing() {
    let run = run_stopped(Mode::Concurrency, &[2.0], 0, 0).await;
    assert!(run.interrupted && run.levels.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_before_the_start_measures_nothing() {
    let server = ScriptedServer::start(|_, _| answer(&["one"])).await;
    let config = config(&server, Mode::Concurrency, &[1.0]);
    let benchmark = Benchmark::with_prompts(config, Arc::<Prompts>::default()).unwrap();
    let stop = StopHandle::default();
    stop.stop();
    let run = benchmark.run(&mut servebench::load::Silent, &stop).await.unwrap();
    assert!(run.interrupted && run.levels.is_empty());
    assert!(server.seen().is_empty(), "nothing is sent after a stop");
}
