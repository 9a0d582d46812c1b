//! Moving KV between blocks and tiers: whoever reads the moved blocks gets the bits that the
//! originals would have given.

#![allow(clippy::unwrap_used, reason = "a device of the host that fails fails the test")]

use mini_infer_core::{
    Batch, BlockId, BlockKey, BlockSize, BlockTier, Executor, KvPart, KvTransfer, TokenId,
};
use mini_infer_kernels::{Isa, KvDtype, KvLayout, KvStorage, SlidingPattern};
use mini_infer_model::ops::cpu::CpuOps;
use mini_infer_model::ops::reference::{ReferenceKv, ReferenceOps};
use mini_infer_model::{Checkpoint, ModelExecutor, Transformer};
use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

const NUM_BLOCKS: u32 = 16;

/// Keeps everything, and loses what it is told to lose.
#[derive(Default)]
struct MapTier(HashMap<BlockKey, Vec<u8>>);

impl BlockTier for MapTier {
    fn holds(&self, key: &BlockKey) -> bool {
        self.0.contains_key(key)
    }

    fn save(&mut self, key: &BlockKey, bytes: &[u8]) {
        self.0.insert(*key, bytes.to_vec());
    }

    fn restore(&mut self, key: &BlockKey, bytes: &mut [u8]) -> bool {
        self.0.get(key).is_some_and(|saved| {
            bytes.copy_from_slice(saved);
            true
        })
    }

    fn restore_time(&self) -> Duration {
        Duration::from_micros(7)
    }
}

fn checkpoint(name: &str) -> Checkpoint {
    let folder = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata"));
    Checkpoint::open(&folder.join(name)).expect("a valid file")
}

/// Calls `check` with each model on each kind of ops, windows in a part of their own included.
fn on_all_devices(check: impl Fn(&mut dyn Executor, &str)) {
    for name in ["tiny-llama/q4_1.gguf", "tiny-gemma3/q8_0.gguf", "tiny-gemma2/f16.gguf"] {
        let checkpoint = checkpoint(name);
        let config = checkpoint.config();
        let model = Transformer::load(&checkpoint, ReferenceOps::new(1), 256).unwrap();
        let kv = ReferenceKv::new(config, NUM_BLOCKS as usize, BlockSize::DEFAULT);
        let tier = Box::new(MapTier::default());
        check(&mut ModelExecutor::new(model, kv).with_tier(tier), &format!("{name}, reference"));
        let sliding = config.sliding.as_ref().map_or(SlidingPattern::None, |sliding| {
            SlidingPattern::AllButEvery(sliding.full_every)
        });
        let layout = KvLayout {
            num_layers: config.num_layers,
            num_kv_heads: config.attention.num_kv_heads,
            head_dim: config.attention.head_dim,
            block_size: BlockSize::DEFAULT,
            dtype: KvDtype::F16,
            sliding,
        };
        let ops = CpuOps::new(Isa::from_env().unwrap(), NonZeroUsize::new(2).unwrap());
        let model = Transformer::load(&checkpoint, ops, 256).unwrap();
        let kv = KvStorage::reserve(layout, NUM_BLOCKS).unwrap();
        let tier = Box::new(MapTier::default());
        check(&mut ModelExecutor::new(model, kv).with_tier(tier), &format!("{name}, CPU"));
    }
}

fn prompt() -> Vec<TokenId> {
    (0..40).map(|i| 3 + i * 7 % 90).collect()
}

/// Computes the prompt's tokens from `start` on and returns the last one's logits, as bits.
fn logits(executor: &mut dyn Executor, start: u32, table: [u32; 3]) -> Vec<u32> {
    let mut batch = Batch::default();
    let table = table.map(BlockId);
    let tokens = &prompt()[start as usize..];
    batch.push_sequence(tokens, start, &table, BlockSize::DEFAULT, true);
    let mut logits = Vec::new();
    executor.forward(&batch, &mut logits).unwrap();
    logits.iter().map(|logit| logit.to_bits()).collect()
}

#[test]
fn a_copied_tail_continues_as_its_original_would_and_leaves_it_alone() {
    on_all_devices(|executor, context| {
        let expected = logits(executor, 0, [4, 9, 2]);
        let copy =
            |from, to| KvTransfer::Copy { from: BlockId(from), to: BlockId(to), num_tokens: 7 };
        // The second copy reads what the first has written.
        executor.transfer(&[copy(2, 11), copy(11, 1)]);
        for tail in [1, 2, 11] {
            assert!(logits(executor, 39, [4, 9, tail]) == expected, "{context}, block {tail}");
        }
    });
}

#[test]
fn a_saved_block_comes_back_into_any_block() {
    on_all_devices(|executor, context| {
        let expected = logits(executor, 0, [4, 9, 2]);
        let (key, unknown) = (BlockKey([1; 32]), BlockKey([2; 32]));
        executor.transfer(&[
            KvTransfer::Save { block: BlockId(9), key },
            KvTransfer::Copy { from: BlockId(0), to: BlockId(9), num_tokens: 16 },
        ]);
        assert!(
            logits(executor, 39, [4, 9, 2]) != expected,
            "{context}: the block was overwritten"
        );
        assert!(executor.holds(&key) && executor.restore(&key, BlockId(13)));
        assert!(logits(executor, 39, [4, 13, 2]) == expected, "{context}");
        assert!(!executor.holds(&unknown) && !executor.restore(&unknown, BlockId(13)));
        assert_eq!(executor.restore_time(), Duration::from_micros(7));
    });
}

#[test]
fn discarding_blocks_changes_no_other() {
    on_all_devices(|executor, context| {
        let expected = logits(executor, 0, [4, 9, 2]);
        let parts = [KvPart::SlidingWindow, KvPart::FullAttention];
        let others = (0..NUM_BLOCKS).rev().filter(|block| ![4, 9, 2].contains(block));
        let transfers: Vec<_> = others
            .flat_map(|block| parts.map(|part| KvTransfer::Discard { block: BlockId(block), part }))
            .collect();
        executor.transfer(&transfers);
        assert!(logits(executor, 39, [4, 9, 2]) == expected, "{context}");
    });
}

/// A block's window part can go as soon as all its tokens lie before the window of the next one.
#[test]
fn what_lies_behind_the_window_is_not_missed() {
    /// Of the tiny Gemmas; Llama has no window, and its blocks no such part.
    const WINDOW: u32 = 24;
    on_all_devices(|executor, context| {
        let table = [4, 9, 2, 7, 12].map(BlockId);
        let expected: Vec<_> = (0..80).map(|at| one_token(executor, at, &table)).collect();
        let got: Vec<_> = (0..80)
            .map(|at: u32| {
                let num_hidden = (at + 1).saturating_sub(WINDOW) / 16;
                let part = KvPart::SlidingWindow;
                let discards = table.iter().map(|&block| KvTransfer::Discard { block, part });
                executor.transfer(&discards.take(num_hidden as usize).collect::<Vec<_>>());
                one_token(executor, at, &table)
            })
            .collect();
        assert!(got == expected, "{context}");
    });
}

/// Computes the token at `position` of a sequence and returns its logits, as bits.
fn one_token(executor: &mut dyn Executor, position: u32, table: &[BlockId]) -> Vec<u32> {
    let mut batch = Batch::default();
    batch.push_sequence(&[3 + position * 7 % 90], position, table, BlockSize::DEFAULT, true);
    let mut logits = Vec::new();
    executor.forward(&batch, &mut logits).unwrap();
    logits.iter().map(|logit| logit.to_bits()).collect()
}
