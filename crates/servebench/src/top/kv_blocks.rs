//! The KV blocks of a mini-infer server, from `GET /v1/kv`.
//!
//! The server lists blocks where sequences hold them, so which of the others are cached and which
//! are free is known as a number only. The map therefore sorts blocks by state.

use serde_json::Value;

/// What a block holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BlockState {
    /// More than one sequence holds it.
    Shared,
    /// One sequence holds it.
    Active,
    /// No sequence holds it, but its content can be hit.
    Cached,
    /// It has no content.
    Free,
}

impl BlockState {
    /// All states, in the order of the map.
    pub(super) const ALL: [Self; 4] = [Self::Shared, Self::Active, Self::Cached, Self::Free];

    /// Returns its name.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Shared => "shared",
            Self::Active => "active",
            Self::Cached => "cached",
            Self::Free => "free",
        }
    }
}

/// The KV memory of a server.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct KvBlocks {
    /// Blocks by state, in the order of [`BlockState::ALL`]; a shared block is not active too.
    pub(super) counts: [u64; 4],
    /// Tokens per block.
    pub(super) block_size: u64,
    /// Sequences that run or wait.
    pub(super) num_sequences: usize,
    /// Part of the slots in active blocks that holds no token, `0..=1`.
    pub(super) waste: f64,
    /// Slots saved by sharing.
    pub(super) shared_tokens: u64,
}

/// Squares of a map, and how many blocks each stands for.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct BlockMap {
    pub(super) squares: Vec<BlockState>,
    pub(super) blocks_per_square: u64,
}

impl KvBlocks {
    /// Reads the answer; `None` when it is none of `/v1/kv`.
    pub(super) fn parse(map: &Value) -> Option<Self> {
        let blocks = &map["blocks"];
        let shared = blocks["shared"].as_u64()?;
        // Shared blocks are active ones.
        let active = blocks["active"].as_u64()?.saturating_sub(shared);
        Some(Self {
            counts: [shared, active, blocks["cached"].as_u64()?, blocks["free"].as_u64()?],
            block_size: map["block_size"].as_u64()?,
            num_sequences: map["sequences"].as_array()?.len(),
            waste: map["waste"]["total"]["share"].as_f64()?,
            shared_tokens: map["shared_tokens"].as_u64()?,
        })
    }

    /// Returns the number of blocks.
    pub(super) fn total(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Returns the blocks by state in at most `num_squares` squares. A square that has blocks of
    /// several states shows the first of them, so that no state disappears behind free blocks.
    pub(super) fn map(&self, num_squares: u64) -> BlockMap {
        let blocks_per_square = self.total().div_ceil(num_squares.max(1)).max(1);
        let mut squares = Vec::new();
        let mut end = 0;
        let mut covered = 0;
        for (state, count) in BlockState::ALL.into_iter().zip(self.counts) {
            end += count;
            while covered < end {
                squares.push(state);
                covered += blocks_per_square;
            }
        }
        BlockMap { squares, blocks_per_square }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn blocks(counts: [u64; 4]) -> KvBlocks {
        KvBlocks { counts, block_size: 16, num_sequences: 0, waste: 0.0, shared_tokens: 0 }
    }

    #[test]
    fn the_answer_is_read_and_shared_blocks_are_counted_once() {
        let map = json!({
            "block_size": 16, "shared_tokens": 32, "sequences": [{}, {}],
            "blocks": {"total": 100, "free": 60, "active": 30, "cached": 10, "shared": 5},
            "waste": {"total": {"slots": 9, "share": 0.02}},
        });
        let kv = KvBlocks::parse(&map).unwrap();
        assert_eq!((kv.counts, kv.total()), ([5, 25, 10, 60], 100));
        assert_eq!((kv.num_sequences, kv.shared_tokens), (2, 32));
        assert_eq!(KvBlocks::parse(&json!({"error": "loading"})), None);
    }

    #[test]
    fn a_map_fits_its_squares_and_hides_no_state() {
        use BlockState::{Active, Cached, Free, Shared};
        let map = blocks([1, 2, 1, 4]).map(100);
        let expected = [Shared, Active, Active, Cached, Free, Free, Free, Free];
        assert_eq!((map.squares.as_slice(), map.blocks_per_square), (expected.as_slice(), 1));
        let map = blocks([0, 1, 0, 11_649]).map(600);
        assert_eq!((map.squares[0], map.squares[1]), (Active, Free));
        assert_eq!(map.blocks_per_square, 20);
        for num_squares in 1..200 {
            for counts in [[3, 50, 20, 1000], [0, 0, 0, 7], [1, 1, 1, 1], [0; 4]] {
                let map = blocks(counts).map(num_squares);
                assert!(map.squares.len() as u64 <= num_squares, "{counts:?} in {num_squares}");
            }
        }
    }
}
