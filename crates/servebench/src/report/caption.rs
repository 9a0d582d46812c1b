//! Short texts that name a run: what answered, on which machine, what load it stood.

use super::number;
use crate::results::{CapacityReason, CapacityResult, Mode, RunResult};

/// Returns what answered: engine and its version; the run's label where no engine is known.
#[must_use]
pub(crate) fn engine(run: &RunResult) -> String {
    let environment = &run.environment;
    match (&environment.engine, &environment.engine_version) {
        (Some(engine), Some(version)) => format!("{engine} {version}"),
        (Some(engine), None) => engine.clone(),
        (None, _) => run.label.clone(),
    }
}

/// Returns the machine of the client in one line; `None` when nothing is known of it.
#[must_use]
pub(crate) fn machine(run: &RunResult) -> Option<String> {
    let environment = &run.environment;
    let cpu = environment.cpu.clone().or_else(|| environment.client_cpu.clone());
    let ram = environment.ram_gb.map(|gib| format!("{} GiB RAM", number::short(gib)));
    let gpus = environment.gpus.iter().flatten().cloned();
    let parts: Vec<String> = cpu.into_iter().chain(ram).chain(gpus).collect();
    (!parts.is_empty()).then(|| parts.join(", "))
}

/// Returns what a load of this kind counts, for a number of it.
#[must_use]
pub(crate) fn load_unit(mode: Mode, load: f64) -> &'static str {
    match mode {
        Mode::Concurrency if load == 1.0 => "user at once",
        Mode::Concurrency => "users at once",
        Mode::Rate => "requests/s",
    }
}

/// Returns the capacity in words, such as `at least 8 users at once`.
#[must_use]
pub(crate) fn capacity(capacity: &CapacityResult) -> String {
    let load = |load: f64| format!("{} {}", number::exact(load), load_unit(capacity.mode, load));
    match (capacity.capacity, capacity.reason) {
        (Some(most), CapacityReason::MaxReached) => format!("at least {}", load(most)),
        (Some(most), CapacityReason::Converged | CapacityReason::StartFailed) => load(most),
        (None, _) => match capacity.first_fail {
            Some(first_fail) => format!("below {}", load(first_fail)),
            None => "unknown".to_owned(),
        },
    }
}

/// Returns what a request must meet, such as `first token within 500 ms and 50 ms per token`.
#[must_use]
pub(crate) fn slo(slo_ttft_ms: Option<f64>, slo_tpot_ms: Option<f64>) -> Option<String> {
    let ttft = slo_ttft_ms.map(|ms| format!("first token within {} ms", number::exact(ms)));
    let tpot = slo_tpot_ms.map(|ms| format!("at most {} ms per token", number::exact(ms)));
    let parts: Vec<String> = ttft.into_iter().chain(tpot).collect();
    (!parts.is_empty()).then(|| parts.join(" and "))
}
