//! A line a second about the KV memory, for people who watch a server work.
//!
//! A line comes each second while the engine has work and once more when it has none, so an idle
//! server logs nothing. Lines are never less than a second apart, however short the requests. The
//! fields keep their names and order, so that a line can also be cut apart by a program.

use crate::ratio::Ratio;
use crate::state::AppState;
use mini_infer_engine::EngineStats;
use std::time::Duration;
use tokio::time::sleep;

/// Time between two lines.
const INTERVAL: Duration = Duration::from_secs(1);

/// Calls `write` with each line, until it is dropped.
pub(crate) async fn run(state: AppState, mut write: impl FnMut(&str)) {
    let serving = state.loaded().await;
    let monitor = serving.engine.monitor();
    let mut watch = monitor.watch_busy();
    let mut is_busy = *watch.borrow_and_update();
    loop {
        if !is_busy && watch.changed().await.is_err() {
            return;
        }
        sleep(INTERVAL).await;
        // Read before the numbers: work that begins or ends after this gets a line of its own.
        is_busy = *watch.borrow_and_update();
        write(&line(&monitor.stats()));
    }
}

/// Returns the line for a moment.
fn line(stats: &EngineStats) -> String {
    let (kv, counters) = (&stats.kv, &stats.counters);
    let share = |part, whole| format!("{:.1}%", 100.0 * Ratio { part, whole }.value());
    let waste = &kv.waste;
    let num_wasted = waste.reserved_slots + waste.internal_slots + waste.external_slots;
    format!(
        "kv running={} waiting={} active={} cached={} free={} shared={} live_tokens={} waste={} \
         reserved={} internal={} external={} hit_rate={} evicted={} preempted={}",
        stats.num_running_seqs,
        stats.num_waiting_seqs,
        kv.num_active_blocks,
        kv.num_cached_blocks,
        kv.num_free_blocks,
        kv.num_shared_blocks,
        kv.num_live_tokens,
        share(num_wasted, kv.num_allocated_slots),
        waste.reserved_slots,
        waste.internal_slots,
        waste.external_slots,
        share(counters.num_hit_tokens, counters.num_queried_tokens),
        kv.num_evicted_blocks,
        counters.num_preemptions,
    )
}
