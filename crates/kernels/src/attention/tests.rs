//! Attention against plain f64 softmax, on every instruction set present.

mod key_offset;

use super::*;
use crate::float_format::{Bf16, F16, StoredFloat};
use crate::kv_layout::{KvLayout, SlidingPattern};
use crate::kv_rotation::rotate_to_codes;
use crate::kv_rotation::tests::rotated_back;
use crate::store_kv::store_kv;
use mini_infer_core::{BlockId, BlockSize};
use std::num::NonZeroUsize;

fn pool(num_threads: usize) -> ThreadPool {
    ThreadPool::new(NonZeroUsize::new(num_threads).unwrap())
}

/// A sequence of random rows `[queries, keys, values]` and its attention, computed in pieces.
struct Case {
    shape: AttentionShape,
    dtype: KvDtype,
    block_size: BlockSize,
    rows: Vec<f32>,
    num_tokens: usize,
    memory: Memory,
}

/// What lies where no token's keys and values are to be read.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Memory {
    /// Zeros, and the tokens that no query sees any more.
    Kept,
    /// Bytes that are NaN in every format: in slots not written yet, and from the moment that no
    /// query sees any token of a block.
    Poisoned,
}

impl Case {
    fn new(shape: AttentionShape, dtype: KvDtype, block_size: u32, num_tokens: usize) -> Self {
        let block_size = BlockSize::new(block_size).unwrap();
        let mut state = 12345_u32;
        let width = (shape.num_heads + 2 * shape.num_kv_heads) * shape.head_dim;
        let rows = (0..num_tokens * width)
            .map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 8) as f32 / 8_388_608.0 - 1.0
            })
            .collect();
        Self { shape, dtype, block_size, rows, num_tokens, memory: Memory::Kept }
    }

    /// Stores all keys and values; returns them with their blocks and one more.
    fn filled(&self) -> (KvStorage, Vec<BlockId>) {
        let num_blocks = self.block_size.blocks_for(self.num_tokens as u32) + 1;
        let mut storage = KvStorage::reserve(self.layout(), num_blocks).unwrap();
        let table: Vec<_> = (0..num_blocks).rev().map(BlockId).collect();
        let mut batch = Batch::default();
        batch.push_sequence(&vec![0; self.num_tokens], 0, &table, self.block_size, false);
        let first_key = self.shape.num_heads * self.shape.head_dim;
        let (isa, pool, slots) = (Isa::all_present()[0], pool(2), &batch.slot_mapping);
        store_kv(isa, &pool, &mut storage, 1, slots, &self.rows, self.width(), first_key);
        (storage, table)
    }

    fn layout(&self) -> KvLayout {
        KvLayout {
            num_layers: 2,
            num_kv_heads: self.shape.num_kv_heads,
            head_dim: self.shape.head_dim,
            block_size: self.block_size,
            dtype: self.dtype,
            sliding: SlidingPattern::None,
        }
    }

    fn width(&self) -> usize {
        self.rows.len() / self.num_tokens
    }

    /// Computes all tokens in chunks of `chunk`, blocks in falling order.
    fn attend(&self, isa: Isa, num_threads: usize, chunk: usize) -> Vec<f32> {
        let pool = pool(num_threads);
        let num_blocks = self.block_size.blocks_for(self.num_tokens as u32) + 1;
        let layout = self.layout();
        let mut storage = KvStorage::reserve(layout, num_blocks).unwrap();
        let table: Vec<_> = (0..num_blocks).rev().map(BlockId).collect();
        let poison = vec![0xff; layout.block_bytes()];
        if self.memory == Memory::Poisoned {
            table.iter().for_each(|block| storage.import_block(*block, &poison));
        }
        let width = self.width();
        let first_key = self.shape.num_heads * self.shape.head_dim;
        let mut all = Vec::new();
        for start in (0..self.num_tokens).step_by(chunk) {
            let len = chunk.min(self.num_tokens - start);
            if let (Memory::Poisoned, Some(window)) = (self.memory, self.shape.window) {
                let num_hidden = (start + 1).saturating_sub(window);
                let hidden = &table[..num_hidden / self.block_size.tokens() as usize];
                hidden.iter().for_each(|block| storage.import_block(*block, &poison));
            }
            let mut batch = Batch::default();
            batch.push_sequence(&vec![0; len], start as u32, &table, self.block_size, false);
            let rows = &self.rows[start * width..(start + len) * width];
            store_kv(isa, &pool, &mut storage, 1, &batch.slot_mapping, rows, width, first_key);
            let mut out = vec![f32::NAN; len * first_key];
            attention(isa, &pool, &self.shape, rows, width, 1, None, &batch, &storage, &mut out);
            all.extend(out);
        }
        all
    }

    /// Plain attention in f64 over the stored form of keys and values.
    fn expected(&self, token: usize, head: usize) -> Vec<f64> {
        let AttentionShape { num_heads, num_kv_heads, head_dim, scale, window, soft_cap } =
            self.shape;
        let first_seen = window.map_or(0, |window| (token + 1).saturating_sub(window));
        let kv_head = head / (num_heads / num_kv_heads);
        let row =
            |t: usize, first: usize| &self.rows[t * self.width() + first * head_dim..][..head_dim];
        let stored = |t: usize, first: usize| self.stored(row(t, first));
        let scores: Vec<f64> = (first_seen..=token)
            .map(|t| {
                let keys = stored(t, num_heads + kv_head);
                let query = row(token, head).iter();
                let product = query.zip(keys).map(|(q, k)| f64::from(*q) * k).sum::<f64>();
                let score = product * f64::from(scale);
                soft_cap.map(f64::from).map_or(score, |cap| cap * (score / cap).tanh())
            })
            .collect();
        let maximum = scores.iter().copied().fold(f64::MIN, f64::max);
        let weights: Vec<f64> = scores.iter().map(|s| (s - maximum).exp()).collect();
        let total: f64 = weights.iter().sum();
        let mut out = vec![0.0; head_dim];
        for (weight, t) in weights.iter().zip(first_seen..) {
            let values = stored(t, num_heads + num_kv_heads + kv_head);
            out.iter_mut().zip(values).for_each(|(out, value)| *out += weight / total * value);
        }
        out
    }

    /// Returns what the stored form of a head's key or value stands for.
    fn stored(&self, head: &[f32]) -> Vec<f64> {
        match self.dtype {
            KvDtype::F32 => head.iter().map(|x| f64::from(*x)).collect(),
            KvDtype::F16 => head.iter().map(|x| f64::from(F16::narrow(*x).widen())).collect(),
            KvDtype::Bf16 => head.iter().map(|x| f64::from(Bf16::narrow(*x).widen())).collect(),
            KvDtype::Int8 => {
                let mut codes = vec![0; head.len()];
                let scale = rotate_to_codes(Isa::Scalar, &mut head.to_vec(), &mut codes);
                let rotated = codes.iter().map(|code| f64::from(*code) * f64::from(scale.widen()));
                rotated_back(&rotated.collect::<Vec<_>>())
            }
        }
    }

    fn check(&self, out: &[f32]) {
        let AttentionShape { num_heads, head_dim, .. } = self.shape;
        for token in (0..self.num_tokens).step_by(37).chain([self.num_tokens - 1]) {
            for head in 0..num_heads {
                let got = &out[(token * num_heads + head) * head_dim..][..head_dim];
                for (got, expected) in got.iter().zip(self.expected(token, head)) {
                    // Values are below 1; a score is off by at most head_dim roundings, and where
                    // codes are stored by those of the query to 16 bits, a weight by one to 15.
                    let bound = match self.dtype {
                        KvDtype::Int8 => 1e-4,
                        KvDtype::F32 | KvDtype::F16 | KvDtype::Bf16 => {
                            4.0 * head_dim as f64 * f64::from(f32::EPSILON)
                        }
                    };
                    assert!((f64::from(*got) - expected).abs() < bound, "{got} {expected}");
                }
            }
        }
    }
}

const fn shape(num_heads: usize, num_kv_heads: usize, head_dim: usize) -> AttentionShape {
    AttentionShape { num_heads, num_kv_heads, head_dim, scale: 0.7, window: None, soft_cap: None }
}

const DTYPES: [KvDtype; 4] = [KvDtype::F32, KvDtype::F16, KvDtype::Bf16, KvDtype::Int8];

/// Every width of a tile, its remainders, and odd numbers of chunks.
const GROUPS: [AttentionShape; 7] = [
    shape(1, 1, 80),
    shape(4, 2, 96),
    shape(5, 1, 32),
    shape(6, 1, 64),
    shape(16, 2, 64),
    AttentionShape { scale: 0.2, ..shape(13, 1, 128) },
    AttentionShape { window: Some(130), ..shape(33, 1, 16) },
];

const SHAPES: [AttentionShape; 8] = [
    shape(9, 3, 64),
    AttentionShape { scale: 1.0, ..shape(14, 2, 16) },
    AttentionShape { scale: 0.5, ..shape(4, 4, 48) },
    AttentionShape { scale: 0.1, ..shape(10, 1, 256) },
    AttentionShape { window: Some(5), ..shape(6, 2, 32) },
    // Wider than a partition, and not whole blocks.
    AttentionShape { window: Some(261), ..shape(4, 1, 64) },
    // Scores on both sides of the cap, and far beyond it.
    AttentionShape { soft_cap: Some(5.0), ..shape(4, 2, 32) },
    AttentionShape { soft_cap: Some(0.5), window: Some(100), scale: 2.0, ..shape(7, 1, 48) },
];

#[test]
fn attention_matches_f64_softmax_and_is_bit_equal_on_every_isa() {
    for shape in SHAPES {
        for dtype in DTYPES {
            let case = Case::new(shape, dtype, 16, 300);
            let mut first: Option<Vec<f32>> = None;
            for isa in Isa::all_present() {
                let out = case.attend(isa, 2, 300);
                case.check(&out);
                assert_eq!(first.get_or_insert_with(|| out.clone()), &out);
            }
        }
    }
}

#[test]
fn chunks_threads_and_block_size_do_not_change_a_bit() {
    for (shape, dtype) in SHAPES.into_iter().flat_map(|shape| DTYPES.map(|dtype| (shape, dtype))) {
        let isa = Isa::all_present()[0];
        let expected = Case::new(shape, dtype, 16, 530).attend(isa, 1, 530);
        for (block_size, num_threads, chunk) in
            [(8, 2, 1), (16, 3, 7), (8, 1, 30), (16, 2, 64), (32, 1, 255), (64, 2, 257)]
        {
            let case = Case::new(shape, dtype, block_size, 530);
            let out = case.attend(isa, num_threads, chunk);
            assert!(out == expected, "{dtype:?} in {block_size}, chunk {chunk} of {shape:?}");
        }
    }
}

#[test]
fn what_lies_before_the_window_and_after_the_last_token_is_never_used() {
    let windows = [1, 16, 261].map(|tokens| {
        let window = Some(tokens);
        AttentionShape { window, ..shape(3, 1, 32) }
    });
    for (shape, dtype) in windows.into_iter().flat_map(|shape| DTYPES.map(|dtype| (shape, dtype))) {
        for isa in Isa::all_present() {
            for (block_size, chunk) in [(8, 1), (16, 37), (64, 300)] {
                let kept = Case::new(shape, dtype, block_size, 300);
                let expected = kept.attend(isa, 1, chunk);
                assert!(expected.iter().all(|value| value.is_finite()));
                let poisoned = Case { memory: Memory::Poisoned, ..kept };
                let out = poisoned.attend(isa, 1, chunk);
                assert!(out == expected, "{dtype:?} in {block_size}, chunk {chunk}, {shape:?}");
            }
        }
    }
}

#[test]
fn a_broken_key_or_value_breaks_only_the_queries_that_see_it() {
    let window = Some(9);
    for (shape, dtype) in
        [SHAPES[0], AttentionShape { window, ..SHAPES[0] }].into_iter().zip(DTYPES.repeat(2))
    {
        let mut case = Case::new(shape, dtype, 16, 40);
        let good = case.attend(Isa::Scalar, 1, 40);
        let width = case.width();
        let row = 9 * 64;
        // The first key head and the first value head.
        for (first, broken) in [(9 * 64, f32::NAN), (12 * 64, f32::INFINITY)] {
            let place = 20 * width + first;
            let kept = std::mem::replace(&mut case.rows[place], broken);
            for (isa, chunk) in Isa::all_present().into_iter().flat_map(|isa| [(isa, 40), (isa, 1)])
            {
                let out = case.attend(isa, 2, chunk);
                assert_eq!(out[..20 * row], good[..20 * row]);
                assert!(!out[20 * row].is_finite());
                let sees = |token: usize| shape.window.is_none_or(|window| token < 20 + window);
                for token in 21..40 {
                    let place = token * row;
                    assert_eq!(sees(token), !out[place].is_finite(), "token {token}");
                }
            }
            case.rows[place] = kept;
        }
    }
}

#[test]
fn any_number_of_heads_in_a_group_gives_the_same_bits_in_decode_as_in_prefill() {
    for (shape, dtype) in GROUPS.into_iter().zip(DTYPES.repeat(2)) {
        for isa in Isa::all_present() {
            let case = Case::new(shape, dtype, 16, 140);
            let whole = case.attend(isa, 2, 140);
            case.check(&whole);
            for (block_size, chunk) in [(16, 1), (8, 3), (32, 9)] {
                let case = Case::new(shape, dtype, block_size, 140);
                let out = case.attend(isa, 2, chunk);
                assert!(out == whole, "{dtype:?}, chunk {chunk} of {shape:?}, {}", isa.name());
            }
        }
    }
}

#[test]
fn sequences_beside_it_change_no_bit_of_a_sequence() {
    let shape = SHAPES[0];
    let lens = [(1, 400), (70, 300), (1, 3), (2, 129), (5, 0), (130, 0)];
    for dtype in DTYPES {
        let case = Case::new(shape, dtype, 16, 600);
        let (mut storage, table) = case.filled();
        let (width, out_width) = (case.width(), 9 * 64);
        let attend = |sequences: &[(usize, usize)], storage: &KvStorage| {
            let (mut batch, mut queries) = (Batch::default(), Vec::new());
            for (len, start) in sequences {
                let tokens = vec![0; *len];
                batch.push_sequence(&tokens, *start as u32, &table, case.block_size, false);
                queries.extend_from_slice(&case.rows[start * width..(start + len) * width]);
            }
            let mut out = vec![f32::NAN; batch.num_tokens() * out_width];
            let (isa, pool) = (Isa::all_present()[0], pool(3));
            attention(isa, &pool, &shape, &queries, width, 1, None, &batch, storage, &mut out);
            out
        };
        let together = attend(&lens, &storage);
        let alone: Vec<f32> =
            lens.iter().flat_map(|sequence| attend(&[*sequence], &storage)).collect();
        assert!(together == alone, "{dtype:?}");
        // Blocks beyond the contexts are nobody's.
        let last = *table.last().expect("several blocks");
        storage.import_block(last, &vec![0xff; storage.block_bytes()]);
        assert!(attend(&lens, &storage) == together, "{dtype:?}");
    }
}
