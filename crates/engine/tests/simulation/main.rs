//! Deterministic simulation of the engine.
//!
//! Each seed makes one scenario: a tiny pool, requests whose prompts share prefixes over an alphabet
//! of a few tokens, of three clients, two tenants and two adapters, with several choices or beams;
//! arrivals, aborts, stop strings, constraints, questions about prompts, priorities, trims, a tier
//! that loses and damages blocks, prompts that pass the layers in several steps, and injected device
//! failures. It runs on a manual clock and the fake executor, whose logits are a function of the
//! whole prefix and which checks every slot that it reads. After every step all invariants are
//! checked; at the end every request
//! must have got exactly the tokens and log probabilities of its solo run without cache, a beam
//! search those of a plain one, and what is chosen from changed logits must be the best of them.
//!
//! `MINI_INFER_SIM_SEED=7 cargo test -p mini-infer-engine --test simulation` replays one seed;
//! `MINI_INFER_SIM_RUNS=100000` sets the number of seeds.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod beam_reference;
mod comparison;
mod coverage;
mod fair_shares;
mod fake_constraint;
mod greedy_reference;
mod paced_executor;
mod random;
mod runner;
mod scenario;
mod solo_rows;
mod target_itl;
mod transcript;

use coverage::Coverage;
use runner::Simulation;
use scenario::Scenario;

/// Seeds in a release build, enough to meet rare coincidences; a debug build is slower.
const NUM_RUNS: u64 = if cfg!(debug_assertions) { 2_000 } else { 10_000 };

#[test]
fn every_request_gets_its_solo_run_whatever_else_is_served() {
    let from_env = |name: &str| std::env::var(name).ok().map(|value| value.parse().unwrap());
    if let Some(seed) = from_env("MINI_INFER_SIM_SEED") {
        println!("{:#?}", Scenario::new(seed));
        println!("{:#?}", run(seed));
        return;
    }
    let num_runs = from_env("MINI_INFER_SIM_RUNS").unwrap_or(NUM_RUNS);
    let mut seen = Coverage::default();
    for seed in 0..num_runs {
        seen.add(run(seed));
    }
    println!("{num_runs} runs: {seen:?}");
    if num_runs >= 2_000 {
        seen.assert_everything_happened();
    }
}

/// Runs one seed, naming it when something fails.
fn run(seed: u64) -> Coverage {
    struct NameSeedOnPanic(u64);
    impl Drop for NameSeedOnPanic {
        fn drop(&mut self) {
            if std::thread::panicking() {
                eprintln!("replay with MINI_INFER_SIM_SEED={}", self.0);
            }
        }
    }
    let _guard = NameSeedOnPanic(seed);
    let scenario = Scenario::new(seed);
    let mut simulation = Simulation::new(&scenario);
    simulation.run();
    let num_checked = comparison::compare_with_solo_runs(&simulation);
    Coverage::of(&simulation, num_checked)
}
