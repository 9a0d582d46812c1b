//! The bytes of all blocks, as the KV that each slot holds.
//!
//! Moved by transfers and written by forward passes, as an executor would; what an executor must
//! not rely on is nothing (`None`). Also counts what may be committed.

use crate::prefixes::Kv;
use mini_infer_core::{BlockId, BlockKey, KvPart, KvTransfer};
use mini_infer_kv::KvConfig;
use std::collections::BTreeMap;

/// One part of all blocks.
struct Part {
    /// `[num_block_ids, block_size]`.
    slots: Vec<Option<Kv>>,
    is_committed: Vec<bool>,
    weight: u64,
}

/// The memory of an executor and its tier.
pub(crate) struct Memory {
    size: usize,
    capacity: u64,
    full: Part,
    window: Option<Part>,
    /// What each key was saved for: the KV of a block.
    pub(crate) tier: BTreeMap<BlockKey, Vec<Kv>>,
    pub(crate) num_copies: u64,
}

impl Memory {
    pub(crate) fn new(config: &KvConfig, num_block_ids: u32) -> Self {
        let size = config.block_size.tokens() as usize;
        let part = |weight: u32| Part {
            slots: vec![None; num_block_ids as usize * size],
            is_committed: vec![false; num_block_ids as usize],
            weight: weight.into(),
        };
        let (full, window) = match config.window {
            None => (part(1), None),
            Some(window) => (part(window.full_weight), Some(part(window.window_weight))),
        };
        let whole = full.weight + window.as_ref().map_or(0, |window| window.weight);
        Self {
            size,
            capacity: u64::from(config.num_blocks) * whole,
            full,
            window,
            tier: BTreeMap::new(),
            num_copies: 0,
        }
    }

    /// Carries transfers out in order.
    pub(crate) fn transfer(&mut self, transfers: &[KvTransfer]) {
        for &transfer in transfers {
            match transfer {
                KvTransfer::Copy { from, to, num_tokens } => {
                    assert_ne!(from, to);
                    self.num_copies += 1;
                    self.copy(from, to, num_tokens as usize);
                }
                KvTransfer::Save { block, key } => self.save(block, key),
                KvTransfer::Discard { block, part } => {
                    let part = match part {
                        KvPart::FullAttention => &mut self.full,
                        KvPart::SlidingWindow => self.window.as_mut().unwrap(),
                    };
                    assert!(part.is_committed[block.index()], "nothing there to discard");
                    part.is_committed[block.index()] = false;
                    part.slots[block.index() * self.size..][..self.size].fill(None);
                }
            }
            self.check_capacity();
        }
    }

    /// Writes the KV of a token to all parts.
    pub(crate) fn write(&mut self, block: BlockId, offset: usize, kv: Kv) {
        let slot = block.index() * self.size + offset;
        for part in self.parts_mut() {
            part.slots[slot] = Some(kv);
            part.is_committed[block.index()] = true;
        }
        self.check_capacity();
    }

    /// Returns what a slot holds for the layers that see everything.
    pub(crate) fn full(&self, block: BlockId, offset: usize) -> Option<Kv> {
        self.full.slots[block.index() * self.size + offset]
    }

    /// Returns what a slot holds for the layers with a window; `None` where there are none.
    pub(crate) fn window(&self, block: BlockId, offset: usize) -> Option<Kv> {
        self.window.as_ref().and_then(|part| part.slots[block.index() * self.size + offset])
    }

    /// Tells whether any memory of a block may be committed.
    pub(crate) fn is_committed(&self, block: BlockId) -> bool {
        let parts = std::iter::once(&self.full).chain(&self.window);
        parts.into_iter().any(|part| part.is_committed[block.index()])
    }

    fn copy(&mut self, from: BlockId, to: BlockId, num_tokens: usize) {
        let size = self.size;
        for part in self.parts_mut() {
            let (from_start, to_start) = (from.index() * size, to.index() * size);
            part.slots.copy_within(from_start..from_start + num_tokens, to_start);
            part.slots[to_start + num_tokens..to_start + size].fill(None);
            part.is_committed[to.index()] = true;
        }
    }

    fn save(&mut self, block: BlockId, key: BlockKey) {
        let row = |slots: &[Option<Kv>]| -> Vec<Kv> {
            let whole = slots[block.index() * self.size..][..self.size].iter();
            whole.map(|kv| kv.expect("a saved block is whole")).collect()
        };
        let content = row(&self.full.slots);
        if let Some(window) = &self.window {
            assert_eq!(row(&window.slots), content, "a saved block is whole");
        }
        let saved = self.tier.entry(key).or_insert_with(|| content.clone());
        assert_eq!(*saved, content, "one key for two contents");
    }

    fn parts_mut(&mut self) -> impl Iterator<Item = &mut Part> {
        std::iter::once(&mut self.full).chain(&mut self.window)
    }

    fn check_capacity(&self) {
        let weight = |part: &Part| {
            part.weight * part.is_committed.iter().filter(|&&committed| committed).count() as u64
        };
        let committed = weight(&self.full) + self.window.as_ref().map_or(0, weight);
        assert!(committed <= self.capacity, "{committed} of {} committed", self.capacity);
    }
}
