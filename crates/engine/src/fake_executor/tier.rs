//! A tier for the fake executor, which can be bad at keeping blocks.
//!
//! What happens to a block is a function of the seed and the number of blocks saved so far, so that
//! a run replays exactly.

use super::storage::Stored;
use mini_infer_core::{BlockKey, FixedHashMap, mix64};
use std::time::Duration;

/// What becomes of a block that was offered.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Kept {
    Whole(Vec<Stored>),
    /// The tier says that it holds the block, and finds out otherwise when asked for it.
    Damaged,
}

/// Keeps the blocks that are evicted from the fake executor's memory.
#[derive(Clone, Debug)]
pub struct FakeTier {
    restore_time: Duration,
    losses: Losses,
    num_saves: u64,
    kept: FixedHashMap<BlockKey, Kept>,
}

#[derive(Clone, Copy, Debug)]
struct Losses {
    /// Of so many blocks one is declined and one damaged; 0 for none.
    one_in: u64,
    seed: u64,
}

impl FakeTier {
    /// Creates an empty tier that claims to need this long for one block, and loses none.
    #[must_use]
    pub fn new(restore_time: Duration) -> Self {
        let losses = Losses { one_in: 0, seed: 0 };
        Self { restore_time, losses, num_saves: 0, kept: FixedHashMap::default() }
    }

    /// Returns the tier with losses: of `one_in` blocks about one is declined and one damaged.
    #[must_use]
    pub fn with_losses(self, one_in: u32, seed: u64) -> Self {
        Self { losses: Losses { one_in: u64::from(one_in), seed }, ..self }
    }

    /// Returns how long a restore is said to take.
    pub(super) fn restore_time(&self) -> Duration {
        self.restore_time
    }

    /// Tells whether the tier says that it holds `key`.
    pub(super) fn holds(&self, key: &BlockKey) -> bool {
        self.kept.contains_key(key)
    }

    /// Takes a block.
    ///
    /// # Panics
    /// When other content was saved under the same key.
    pub(super) fn save(&mut self, key: BlockKey, content: Vec<Stored>) {
        self.num_saves += 1;
        let Losses { one_in, seed } = self.losses;
        let fate = mix64(seed.wrapping_add(self.num_saves)).checked_rem(one_in);
        match fate {
            Some(0) => {}
            Some(1) => {
                self.kept.insert(key, Kept::Damaged);
            }
            _ => {
                let whole = Kept::Whole(content);
                let before = self.kept.insert(key, whole.clone());
                let same = before.is_none_or(|before| before == Kept::Damaged || before == whole);
                assert!(same, "one key stands for two blocks");
            }
        }
    }

    /// Returns what is kept under `key`; forgets it when it is damaged.
    pub(super) fn restore(&mut self, key: &BlockKey) -> Option<Vec<Stored>> {
        match self.kept.get(key)? {
            Kept::Whole(content) => Some(content.clone()),
            Kept::Damaged => {
                self.kept.remove(key);
                None
            }
        }
    }
}
