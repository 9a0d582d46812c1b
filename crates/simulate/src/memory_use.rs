//! What KV memory was used for, weighted by time.
//!
//! The words are those of the PagedAttention paper (Kwon et al., SOSP 2023, sections 3.1 and 6.2):
//! *live* slots hold a token, each counted once however many share it; *reserved* ones will, before
//! their sequence ends; *internal* ones were granted and never will; *external* ones nobody can
//! use. The last are what a buddy allocator rounds up, and, while a request waits because its
//! memory cannot be had, all blocks that are free or hold nothing but cached content: for every
//! allocator alike. Shares are of these four together. Memory that nobody asks for is *idle*: it
//! is no merit and no fault of an allocator, stays out of the shares, and is told for itself.

use mini_infer_core::BlockSize;
use mini_infer_kv::KvStats;
use serde::Serialize;
use std::time::Duration;

/// Whether a request waits for memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Demand {
    /// The first that waits was refused because its memory cannot be had.
    Unmet,
    /// None waits, or it waits for something else.
    Met,
    /// One waits, and the step had no budget left to ask for its memory: the next step that asks
    /// decides for this one too.
    Unknown,
}

/// Slots by use, times seconds.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct MemoryUse {
    seconds: f64,
    live: f64,
    reserved: f64,
    internal: f64,
    external: f64,
    idle: f64,
    /// Unused while demand was unknown, to become external or idle.
    undecided: f64,
    running: f64,
}

/// Shares of the memory that is in use or asked for; they add up to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct MemoryShares {
    /// Slots that hold a token.
    pub live_share: f64,
    /// Slots that hold none.
    pub waste: WasteShares,
    /// Part of the whole memory, over time, that nobody used or asked for.
    pub idle_share: f64,
}

/// Waste by cause, as shares of the memory that is in use or asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct WasteShares {
    /// Granted to a sequence that will use them later.
    pub reserved: f64,
    /// Granted to a sequence that never uses them.
    pub internal: f64,
    /// Lost to rounding and to placement.
    pub external: f64,
}

impl WasteShares {
    /// Returns all waste.
    #[must_use]
    pub fn total(&self) -> f64 {
        self.reserved + self.internal + self.external
    }
}

impl MemoryUse {
    /// Adds a time during which the memory was as `kv` says.
    pub(crate) fn add(
        &mut self,
        time: Duration,
        kv: &KvStats,
        block_size: BlockSize,
        num_running: u32,
        demand: Demand,
    ) {
        let seconds = time.as_secs_f64();
        let unused_blocks = u64::from(kv.num_free_blocks) + u64::from(kv.num_cached_blocks);
        let unused = (unused_blocks * u64::from(block_size.tokens())) as f64 * seconds;
        self.seconds += seconds;
        self.live += kv.num_live_tokens as f64 * seconds;
        self.reserved += kv.waste.reserved_slots as f64 * seconds;
        self.internal += kv.waste.internal_slots as f64 * seconds;
        self.external += kv.waste.external_slots as f64 * seconds;
        self.running += f64::from(num_running) * seconds;
        match demand {
            Demand::Unmet => self.external += unused + std::mem::take(&mut self.undecided),
            Demand::Met => self.idle += unused + std::mem::take(&mut self.undecided),
            Demand::Unknown => self.undecided += unused,
        }
    }

    /// Tells whether any time was added.
    pub(crate) fn is_empty(&self) -> bool {
        self.seconds == 0.0
    }

    /// Returns the time that was added.
    pub(crate) fn seconds(&self) -> f64 {
        self.seconds
    }

    /// Returns the mean number of running sequences.
    pub(crate) fn mean_running(&self) -> f64 {
        if self.is_empty() { 0.0 } else { self.running / self.seconds }
    }

    /// Returns the shares.
    pub(crate) fn shares(&self) -> MemoryShares {
        let used = self.live + self.reserved + self.internal + self.external;
        let share = |part: f64, whole: f64| if whole == 0.0 { 0.0 } else { part / whole };
        MemoryShares {
            live_share: share(self.live, used),
            waste: WasteShares {
                reserved: share(self.reserved, used),
                internal: share(self.internal, used),
                external: share(self.external, used),
            },
            idle_share: share(self.idle + self.undecided, used + self.idle + self.undecided),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mini_infer_kv::KvWaste;

    fn stats() -> KvStats {
        KvStats {
            num_blocks: 10,
            num_free_blocks: 4,
            num_active_blocks: 5,
            num_cached_blocks: 1,
            num_allocated_slots: 80,
            num_live_tokens: 60,
            waste: KvWaste { reserved_slots: 5, internal_slots: 10, external_slots: 5 },
            ..KvStats::default()
        }
    }

    #[test]
    fn unused_memory_is_waste_only_while_a_request_waits_for_it() {
        let mut memory = MemoryUse::default();
        let second = Duration::from_secs(1);
        memory.add(second, &stats(), BlockSize::DEFAULT, 2, Demand::Met);
        let shares = memory.shares();
        assert_eq!((shares.live_share, shares.waste.internal), (0.75, 0.125));
        assert_eq!(shares.idle_share, 0.5);
        memory.add(second, &stats(), BlockSize::DEFAULT, 4, Demand::Unmet);
        let shares = memory.shares();
        assert_eq!(shares.live_share, 0.5);
        assert_eq!(shares.waste.external, 90.0 / 240.0);
        assert!((shares.live_share + shares.waste.total() - 1.0).abs() < 1e-12);
        assert_eq!(memory.mean_running(), 3.0);
    }

    #[test]
    fn a_step_that_could_not_ask_for_memory_is_decided_by_the_next_that_does() {
        let second = Duration::from_secs(1);
        let shares = |demands: &[Demand]| {
            let mut memory = MemoryUse::default();
            for &demand in demands {
                memory.add(second, &stats(), BlockSize::DEFAULT, 1, demand);
            }
            memory.shares()
        };
        let [unmet, met, unknown] = [Demand::Unmet, Demand::Met, Demand::Unknown];
        assert_eq!(shares(&[unknown, unmet]), shares(&[unmet, unmet]));
        assert_eq!(shares(&[unknown, met]), shares(&[met, met]));
        assert_eq!(shares(&[unmet, unknown]), shares(&[unmet, met]));
    }

    #[test]
    fn a_step_counts_as_long_as_it_lasts() {
        let mut memory = MemoryUse::default();
        memory.add(Duration::from_secs(3), &stats(), BlockSize::DEFAULT, 8, Demand::Met);
        memory.add(Duration::from_secs(1), &KvStats::default(), BlockSize::DEFAULT, 0, Demand::Met);
        assert_eq!((memory.seconds(), memory.mean_running()), (4.0, 6.0));
        assert_eq!(memory.shares().live_share, 0.75);
    }
}
