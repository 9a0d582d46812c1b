//! Blocks in host memory: swap space for the KV pool.
//!
//! Invariant: the footprints of all blocks together never pass the capacity, also not while one
//! replaces another; the block used longest ago goes first. Memory follows use: a block's memory is
//! taken when it is saved and given back when it is evicted, or becomes that of the block it was
//! evicted for. Each operation costs its hash look-up and at most one copy of the block.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mini_infer_core::{BlockKey, BlockTier};

use crate::block_copy::copy_block;
use crate::error::TierError;
use crate::footprint::footprint;
use crate::lru_map::LruMap;
use crate::restore_time::RestoreTime;
use crate::shared::Shared;
use crate::stats::HostStats;

/// Blocks in host memory.
pub struct HostTier {
    blocks: LruMap<BlockKey, Arc<[u8]>>,
    held_bytes: u64,
    capacity_bytes: u64,
    restore_time: RestoreTime,
    stats: Shared<HostStats>,
}

impl HostTier {
    /// Creates an empty tier that takes at most `capacity_bytes` of memory.
    ///
    /// # Errors
    /// [`TierError::TooSmall`] when not one block of `block_bytes` fits.
    pub fn new(capacity_bytes: u64, block_bytes: usize) -> Result<Self, TierError> {
        let needed_bytes = footprint(block_bytes);
        if needed_bytes > capacity_bytes {
            return Err(TierError::TooSmall { capacity_bytes, needed_bytes });
        }
        Ok(Self {
            blocks: LruMap::new(),
            held_bytes: 0,
            capacity_bytes,
            restore_time: RestoreTime::default(),
            stats: Shared::new(HostStats { capacity_bytes, ..HostStats::default() }),
        })
    }

    /// Returns the statistics, to be read from other threads.
    pub(crate) fn shared_stats(&self) -> Shared<HostStats> {
        self.stats.clone()
    }

    /// Keeps a copy of `bytes`, evicting as many blocks as needed, and returns it for others to
    /// share; `None` when the block alone is above the capacity. Tells `on_evict` which go.
    pub(crate) fn keep(
        &mut self,
        key: &BlockKey,
        bytes: &[u8],
        mut on_evict: impl FnMut(&BlockKey, &Arc<[u8]>),
    ) -> Option<Arc<[u8]>> {
        if let Some(held) = self.blocks.touch(key) {
            return Some(Arc::clone(held));
        }
        let needed_bytes = footprint(bytes.len());
        if needed_bytes > self.capacity_bytes {
            return None;
        }
        let mut num_evicted = 0;
        let mut spare = None;
        while self.held_bytes + needed_bytes > self.capacity_bytes {
            let (key, evicted) =
                self.blocks.pop_oldest().expect("an empty tier has room for what fits at all");
            self.held_bytes -= footprint(evicted.len());
            num_evicted += 1;
            on_evict(&key, &evicted);
            spare = Some(evicted);
        }
        let kept = copy_block(spare, bytes);
        self.blocks.insert(*key, Arc::clone(&kept));
        self.held_bytes += needed_bytes;

        let mut stats = self.stats.lock();
        stats.num_saved_blocks += 1;
        stats.num_evicted_blocks += num_evicted;
        stats.held_bytes = self.held_bytes;
        stats.num_held_blocks = self.blocks.len() as u64;
        Some(kept)
    }
}

impl BlockTier for HostTier {
    fn holds(&self, key: &BlockKey) -> bool {
        self.blocks.contains(key)
    }

    fn save(&mut self, key: &BlockKey, bytes: &[u8]) {
        self.keep(key, bytes, |_, _| {});
    }

    fn restore(&mut self, key: &BlockKey, bytes: &mut [u8]) -> bool {
        let start = Instant::now();
        let Some(held) = self.blocks.touch(key).filter(|held| held.len() == bytes.len()) else {
            return false;
        };
        bytes.copy_from_slice(held);
        self.restore_time.record(start, Instant::now());
        self.stats.lock().num_restored_blocks += 1;
        true
    }

    fn restore_time(&self) -> Duration {
        self.restore_time.estimate(Instant::now())
    }
}

impl fmt::Debug for HostTier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("HostTier").field(&*self.stats.lock()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK_BYTES: usize = 8000;

    fn key(i: u8) -> BlockKey {
        BlockKey([i; 32])
    }

    fn tier(num_blocks: u64) -> HostTier {
        HostTier::new(num_blocks * footprint(BLOCK_BYTES), BLOCK_BYTES).unwrap()
    }

    fn holds(tier: &mut HostTier, i: u8) -> bool {
        let mut bytes = [0; BLOCK_BYTES];
        let restored = tier.restore(&key(i), &mut bytes);
        assert!(!restored || bytes == [i; BLOCK_BYTES], "block {i} holds another's bytes");
        restored
    }

    #[test]
    fn the_block_used_longest_ago_goes_first() {
        let mut tier = tier(2);
        tier.save(&key(1), &[1; BLOCK_BYTES]);
        tier.save(&key(2), &[2; BLOCK_BYTES]);
        assert!(holds(&mut tier, 1));
        tier.save(&key(3), &[3; BLOCK_BYTES]);
        assert!(holds(&mut tier, 1) && !holds(&mut tier, 2) && holds(&mut tier, 3));
        tier.save(&key(1), &[1; BLOCK_BYTES]);
        tier.save(&key(4), &[4; BLOCK_BYTES]);
        assert!(holds(&mut tier, 1) && !holds(&mut tier, 3) && holds(&mut tier, 4));
    }

    #[test]
    fn the_capacity_is_never_passed_and_memory_comes_back() {
        let mut tier = tier(3);
        for i in 0..100 {
            let len = BLOCK_BYTES / if i % 7 == 0 { 1 } else { 5 };
            tier.save(&key(i), &vec![i; len]);
            let stats = *tier.stats.lock();
            assert!(stats.held_bytes <= stats.capacity_bytes);
            let held: u64 = (0..=i)
                .filter_map(|i| tier.blocks.touch(&key(i)).map(|held| footprint(held.len())))
                .sum();
            assert_eq!(held, stats.held_bytes);
        }
        assert!(tier.stats.lock().num_evicted_blocks > 0);
    }

    #[test]
    fn an_evicted_blocks_memory_becomes_its_successors_unless_somebody_reads_it() {
        let mut tier = tier(1);
        let no_one = |_: &BlockKey, _: &Arc<[u8]>| {};
        let first = tier.keep(&key(1), &[1; BLOCK_BYTES], no_one).unwrap();
        let second = tier.keep(&key(2), &[2; BLOCK_BYTES], no_one).unwrap();
        assert!(first.iter().all(|&byte| byte == 1), "a block that is read was overwritten");
        let place = second.as_ptr();
        drop(second);
        let third = tier.keep(&key(3), &[3; BLOCK_BYTES], no_one).unwrap();
        assert_eq!(third.as_ptr(), place);
        assert!(holds(&mut tier, 3));
    }

    #[test]
    fn a_block_that_cannot_fit_is_declined_and_evicts_nothing() {
        let mut tier = tier(1);
        tier.save(&key(1), &[1; BLOCK_BYTES]);
        tier.save(&key(2), &[2; 3 * BLOCK_BYTES]);
        assert!(holds(&mut tier, 1) && !tier.holds(&key(2)));
        assert!(matches!(HostTier::new(100, BLOCK_BYTES), Err(TierError::TooSmall { .. })));
    }

    #[test]
    fn a_block_of_another_length_is_not_restored() {
        let mut tier = tier(1);
        tier.save(&key(1), &[1; BLOCK_BYTES]);
        assert!(!tier.restore(&key(1), &mut [0; BLOCK_BYTES - 1]));
        assert!(tier.restore_time() < Duration::from_secs(1));
    }
}
