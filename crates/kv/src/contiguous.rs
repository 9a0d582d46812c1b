//! KV memory as servers without paging manage it, for comparison: one piece for each sequence.
//!
//! A sequence gets a run of consecutive blocks from a buddy allocator when it starts, for as many
//! tokens as [`Reservation`] says, and keeps it to its end. Nothing is shared and nothing stays
//! behind. These are the baselines of the PagedAttention paper (Kwon et al., SOSP 2023, section
//! 6.1: Orca with max, pow2 and oracle lengths), and waste is counted as there (section 3.1): slots
//! that the sequence will use later are *reserved*, those it was granted and never uses are
//! *internal*, and what the run is longer than the grant is *external*. How long a sequence will be
//! is what its [`SequenceShape`] says, so reserved and internal are told apart exactly where that
//! is the true length.
//!
//! Invariants, checked by [`ContiguousMemory::check_invariants`]: runs do not overlap; live <=
//! final <= granted <= allocated slots. Starting and freeing cost O(blocks of the run), everything
//! else O(tokens it is about).

use crate::accounting::{BlockInfo, KvStats, KvWaste};
use crate::block_pool::BlockState;
use crate::block_table::{BlockTable, SequenceShape, SequenceStart};
use crate::buddy::{BuddyAllocator, Run};
use crate::kv_memory::{KvMemory, OutOfBlocks};
use crate::prefix_match::PrefixMatch;
use mini_infer_core::{BlockId, BlockSize, KvTransfer, TokenId};

/// For how many tokens a sequence gets memory when it starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reservation {
    /// As many as any sequence may have.
    MaxLength {
        /// The most tokens of a sequence.
        max_model_len: u32,
    },
    /// Those of the prompt, and the next power of two of the output: as if its length were known
    /// to a factor of two.
    NextPowerOfTwo {
        /// The most tokens of a sequence, which are never passed.
        max_model_len: u32,
    },
    /// As many as the sequence will have. Only an oracle knows.
    ExactLength,
}

impl Reservation {
    /// Returns for how many tokens a sequence of this shape gets slots.
    fn num_granted_slots(self, shape: SequenceShape) -> u32 {
        let SequenceShape { num_prompt_tokens, max_num_tokens } = shape;
        let wanted = match self {
            Self::MaxLength { max_model_len } => max_model_len,
            Self::NextPowerOfTwo { max_model_len } => {
                let output = max_num_tokens.saturating_sub(num_prompt_tokens);
                let rounded = output.checked_next_power_of_two().unwrap_or(u32::MAX);
                num_prompt_tokens.saturating_add(rounded).min(max_model_len)
            }
            Self::ExactLength => max_num_tokens,
        };
        wanted.max(max_num_tokens)
    }
}

/// Size and behaviour of contiguous KV memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContiguousConfig {
    /// Tokens per block, the unit of the buddy allocator.
    pub block_size: BlockSize,
    /// Blocks in the memory.
    pub num_blocks: u32,
    /// How much a sequence gets.
    pub reservation: Reservation,
}

impl ContiguousConfig {
    /// Returns for how many tokens the empty memory has room in one piece: the longest sequence
    /// that can ever start.
    #[must_use]
    pub fn num_slots_of_longest_run(&self) -> u32 {
        let num_blocks =
            BuddyAllocator::highest_order(self.num_blocks).map_or(0, |order| 1 << order);
        u32::saturating_mul(num_blocks, self.block_size.tokens())
    }
}

/// Sums over all sequences, in slots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Totals {
    /// Those that hold a token.
    num_live: u64,
    /// Those that will, at the end of each sequence.
    num_final: u64,
    /// Those that were asked for.
    num_granted: u64,
    /// Those of whole runs.
    num_allocated: u64,
}

/// The bookkeeping of contiguous KV memory.
#[derive(Clone, Debug)]
pub struct ContiguousMemory {
    config: ContiguousConfig,
    buddies: BuddyAllocator,
    /// Tokens in each block of a sequence's run; `None` for a block of no run.
    num_tokens: Vec<Option<u32>>,
    totals: Totals,
}

impl ContiguousMemory {
    /// Creates the bookkeeping of empty memory.
    #[must_use]
    pub fn new(config: ContiguousConfig) -> Self {
        Self {
            config,
            buddies: BuddyAllocator::new(config.num_blocks),
            num_tokens: vec![None; config.num_blocks as usize],
            totals: Totals::default(),
        }
    }

    /// Returns the number of slots that a sequence of this shape is granted.
    fn num_granted_slots(&self, shape: SequenceShape) -> u32 {
        self.config.reservation.num_granted_slots(shape)
    }

    /// Returns the order of the run that a sequence of this shape gets.
    fn order(&self, shape: SequenceShape) -> u32 {
        let num_slots = self.num_granted_slots(shape);
        BuddyAllocator::order_for(self.config.block_size.blocks_for(num_slots))
    }

    /// Returns the run of a table; `None` when it was never started.
    fn run(&self, table: &BlockTable) -> Option<Run> {
        let &BlockId(start) = table.blocks.first()?;
        Some(Run { start, order: self.order(table.start.shape) })
    }

    /// Returns what one table adds to the totals.
    fn totals_of(&self, table: &BlockTable) -> Totals {
        let Some(run) = self.run(table) else { return Totals::default() };
        let shape = table.start.shape;
        Totals {
            num_live: u64::from(table.num_computed_tokens),
            num_final: u64::from(shape.max_num_tokens),
            num_granted: u64::from(self.num_granted_slots(shape)),
            num_allocated: u64::from(run.num_blocks()) * u64::from(self.config.block_size.tokens()),
        }
    }

    /// Returns the entries of a run's blocks.
    fn blocks_of(&mut self, run: Run) -> &mut [Option<u32>] {
        &mut self.num_tokens[run.start as usize..][..run.num_blocks() as usize]
    }
}

impl KvMemory for ContiguousMemory {
    /// Takes no heed of withheld blocks: a sequence that runs never needs more.
    fn has_room(
        &self,
        _found: &PrefixMatch,
        _num_tokens: u32,
        shape: SequenceShape,
        _num_withheld_blocks: u64,
    ) -> bool {
        self.buddies.has_run(self.order(shape))
    }

    fn start(
        &mut self,
        found: &PrefixMatch,
        start: SequenceStart,
        _transfers: &mut Vec<KvTransfer>,
    ) -> BlockTable {
        assert_eq!(found.num_tokens(), 0, "contiguous memory shares nothing");
        let run = self.buddies.allocate(self.order(start.shape)).expect("there is room");
        self.blocks_of(run).fill(Some(0));
        let num_blocks = self.config.block_size.blocks_for(self.num_granted_slots(start.shape));
        let mut table = BlockTable::new(start);
        table.blocks.extend((run.start..run.start + num_blocks).map(BlockId));
        let added = self.totals_of(&table);
        self.totals.num_final += added.num_final;
        self.totals.num_granted += added.num_granted;
        self.totals.num_allocated += added.num_allocated;
        table
    }

    fn num_obtainable_slots(&self, table: &BlockTable) -> u32 {
        let num_granted = self.run(table).map_or(0, |_| self.num_granted_slots(table.start.shape));
        num_granted - table.num_computed_tokens
    }

    fn allocate(
        &mut self,
        table: &mut BlockTable,
        num_tokens: u32,
        _transfers: &mut Vec<KvTransfer>,
    ) -> Result<(), OutOfBlocks> {
        let available = self.num_obtainable_slots(table) + table.num_computed_tokens;
        if num_tokens <= available {
            return Ok(());
        }
        let blocks_for = |num_slots| self.config.block_size.blocks_for(num_slots);
        let needed = blocks_for(num_tokens) - blocks_for(available);
        Err(OutOfBlocks { needed, available: 0 })
    }

    fn mark_computed(&mut self, table: &mut BlockTable, tokens: &[TokenId]) {
        let num_tokens =
            u32::try_from(tokens.len()).expect("a sequence has fewer than 2^32 tokens");
        let num_before = table.num_computed_tokens;
        assert!(num_tokens >= num_before, "computed tokens never get fewer");
        assert!(num_tokens <= table.start.shape.max_num_tokens, "the sequence is longer than said");
        let size = self.config.block_size.tokens();
        for i in num_before / size..num_tokens.div_ceil(size) {
            let block = table.blocks[i as usize];
            self.num_tokens[block.index()] = Some((num_tokens - i * size).min(size));
        }
        self.totals.num_live += u64::from(num_tokens - num_before);
        table.num_computed_tokens = num_tokens;
    }

    fn fork(&mut self, _table: &BlockTable) -> Option<BlockTable> {
        None
    }

    fn free(&mut self, table: BlockTable) {
        let Some(run) = self.run(&table) else { return };
        let removed = self.totals_of(&table);
        self.totals.num_live -= removed.num_live;
        self.totals.num_final -= removed.num_final;
        self.totals.num_granted -= removed.num_granted;
        self.totals.num_allocated -= removed.num_allocated;
        self.blocks_of(run).fill(None);
        self.buddies.free(run);
    }

    /// Does nothing: no content stays behind, and memory that is reserved at once is kept.
    fn trim(&mut self, _keep_blocks: u32, _transfers: &mut Vec<KvTransfer>) {}

    fn stats(&self) -> KvStats {
        let Totals { num_live, num_final, num_granted, num_allocated } = self.totals;
        let num_free_blocks = self.buddies.num_free_blocks();
        KvStats {
            num_blocks: self.config.num_blocks,
            num_free_blocks,
            num_active_blocks: self.config.num_blocks - num_free_blocks,
            num_allocated_slots: num_allocated,
            num_live_tokens: num_live,
            waste: KvWaste {
                reserved_slots: num_final - num_live,
                internal_slots: num_granted - num_final,
                external_slots: num_allocated - num_granted,
            },
            ..KvStats::default()
        }
    }

    fn block(&self, block: BlockId) -> BlockInfo {
        match self.num_tokens[block.index()] {
            Some(num_tokens) => BlockInfo { state: BlockState::Active, ref_count: 1, num_tokens },
            None => BlockInfo { state: BlockState::Free, ref_count: 0, num_tokens: 0 },
        }
    }

    fn num_block_ids(&self) -> u32 {
        self.config.num_blocks
    }

    fn check_invariants(&self, tables: &[&BlockTable]) {
        self.buddies.check_invariants();
        let mut totals = Totals::default();
        let mut is_held = vec![false; self.num_tokens.len()];
        for table in tables {
            let Some(run) = self.run(table) else { continue };
            for block in run.start..run.start + run.num_blocks() {
                let was_held = std::mem::replace(&mut is_held[block as usize], true);
                assert!(!was_held, "block {block} is in two runs");
            }
            let added = self.totals_of(table);
            assert!(added.num_live <= added.num_final && added.num_final <= added.num_granted);
            assert!(added.num_granted <= added.num_allocated);
            totals.num_live += added.num_live;
            totals.num_final += added.num_final;
            totals.num_granted += added.num_granted;
            totals.num_allocated += added.num_allocated;
        }
        assert_eq!(totals, self.totals, "a table was dropped without `free`");
        let held = self.num_tokens.iter().map(Option::is_some);
        assert!(held.eq(is_held), "blocks are held by no table");
        let num_live: u64 = self.num_tokens.iter().flatten().map(|&num| u64::from(num)).sum();
        assert_eq!(num_live, totals.num_live);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mini_infer_core::mix64;

    const MAX: Reservation = Reservation::MaxLength { max_model_len: 512 };
    const POW2: Reservation = Reservation::NextPowerOfTwo { max_model_len: 512 };

    fn memory(num_blocks: u32, reservation: Reservation) -> ContiguousMemory {
        let block_size = BlockSize::DEFAULT;
        ContiguousMemory::new(ContiguousConfig { block_size, num_blocks, reservation })
    }

    fn start(memory: &mut ContiguousMemory, prompt: u32, max: u32) -> Option<BlockTable> {
        let shape = SequenceShape { num_prompt_tokens: prompt, max_num_tokens: max };
        let found = PrefixMatch::default();
        let start = SequenceStart { shape, ..SequenceStart::default() };
        memory
            .has_room(&found, prompt, shape, 0)
            .then(|| memory.start(&found, start, &mut Vec::new()))
    }

    /// Returns live, reserved, internal and external slots after one sequence of 100 prompt and
    /// 100 output tokens has computed 101.
    fn uses(reservation: Reservation) -> [u64; 4] {
        let mut memory = memory(64, reservation);
        let mut table = start(&mut memory, 100, 200).unwrap();
        memory.allocate(&mut table, 101, &mut Vec::new()).unwrap();
        memory.mark_computed(&mut table, &[0; 101]);
        memory.check_invariants(&[&table]);
        let stats = memory.stats();
        memory.free(table);
        memory.check_invariants(&[]);
        assert_eq!(memory.stats().num_free_blocks, 64);
        let waste = stats.waste;
        let all = [waste.reserved_slots, waste.internal_slots, waste.external_slots];
        assert_eq!(stats.num_live_tokens + all.iter().sum::<u64>(), stats.num_allocated_slots);
        [stats.num_live_tokens, all[0], all[1], all[2]]
    }

    #[test]
    fn waste_is_told_apart_by_what_becomes_of_it() {
        assert_eq!(uses(MAX), [101, 99, 312, 0]);
        // 100 + 128 slots are granted, in 15 blocks of a run of 16.
        assert_eq!(uses(POW2), [101, 99, 28, 28]);
        assert_eq!(uses(Reservation::ExactLength), [101, 99, 0, 56]);
    }

    #[test]
    fn a_sequence_that_runs_has_all_its_slots_and_no_more() {
        let mut memory = memory(32, Reservation::ExactLength);
        let mut table = start(&mut memory, 10, 200).unwrap();
        assert_eq!(memory.num_obtainable_slots(&table), 200);
        assert_eq!(memory.allocate(&mut table, 200, &mut Vec::new()), Ok(()));
        let expected = OutOfBlocks { needed: 1, available: 0 };
        assert_eq!(memory.allocate(&mut table, 210, &mut Vec::new()), Err(expected));
        assert!(memory.fork(&table).is_none());
        memory.free(table);
    }

    #[test]
    fn a_sequence_without_a_piece_long_enough_has_to_wait() {
        let mut memory = memory(48, Reservation::ExactLength);
        let long = start(&mut memory, 10, 512).unwrap();
        let short = start(&mut memory, 10, 100).unwrap();
        assert!(start(&mut memory, 10, 200).is_none(), "only half of the rest is in one piece");
        memory.free(short);
        let middle = start(&mut memory, 10, 200).unwrap();
        memory.check_invariants(&[&long, &middle]);
        assert_eq!(memory.block(BlockId(0)).state, BlockState::Active);
        memory.free(long);
        assert_eq!(memory.block(BlockId(0)).state, BlockState::Free);
        memory.free(middle);
    }

    #[test]
    fn the_longest_sequence_is_that_of_the_longest_piece() {
        let config = memory(983, MAX).config;
        assert_eq!(config.num_slots_of_longest_run(), 8192);
        assert_eq!(ContiguousConfig { num_blocks: 0, ..config }.num_slots_of_longest_run(), 0);
    }

    #[test]
    fn random_sequences_leave_nothing_behind() {
        for (seed, reservation) in (0..).zip([MAX, POW2, Reservation::ExactLength]) {
            let mut memory = memory(150, reservation);
            let mut tables: Vec<BlockTable> = Vec::new();
            for operation in 0..3000 {
                let random = mix64(mix64(seed) ^ operation);
                let number = u32::try_from(random >> 32).unwrap();
                if random.is_multiple_of(4) {
                    let max = 1 + number % 512;
                    tables.extend(start(&mut memory, 1 + number % max, max));
                } else if let Some(i) = number.checked_rem(u32::try_from(tables.len()).unwrap()) {
                    let mut table = tables.swap_remove(i as usize);
                    let max = table.start.shape.max_num_tokens;
                    let next = (table.num_computed_tokens + number % 90).min(max);
                    memory.allocate(&mut table, next, &mut Vec::new()).unwrap();
                    memory.mark_computed(&mut table, &vec![0; next as usize]);
                    if next == max { memory.free(table) } else { tables.push(table) }
                }
                memory.check_invariants(&tables.iter().collect::<Vec<_>>());
            }
            tables.into_iter().for_each(|table| memory.free(table));
            assert_eq!(memory.stats().num_free_blocks, 150, "seed {seed}");
        }
    }
}
