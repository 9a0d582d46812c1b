//! What happens to a token's queries, keys and values between their projection and attention.
//!
//! A bias is added, heads are normalised, queries and keys are rotated to the token's position, and
//! keys and values are stored: all of it for one token after the other, while its row is in the
//! nearest cache. Every step has a fixed order of operations on that row.
//!
//! Threads take whole blocks of tokens, so that no two write to one block. Reads and writes each
//! row once, and writes its keys and values once more in their stored form.

use crate::dispatch::for_each_lanes;
use crate::elementwise::rms_norm_in_place;
use crate::isa::Isa;
use crate::kv_storage::KvStorage;
use crate::lanes::{LANES, Lanes};
use crate::row_view::RowView;
use crate::store_kv::StoredTokens;
use crate::thread_pool::ThreadPool;
use mini_infer_core::{BlockId, SlotId};
use std::ops::Range;

/// Values below which the work stays on the calling thread, which then takes a few microseconds.
const MIN_VALUES_TO_SPLIT: usize = 1 << 13;
/// Widest head that is rotated: bounds the stack memory.
const MAX_HEAD_DIM: usize = 256;

/// The rows of a step: for each token its queries, keys and values.
#[derive(Clone, Copy, Debug)]
pub struct TokenHeads<'a> {
    /// Query heads.
    pub num_heads: usize,
    /// Key heads, and as many value heads.
    pub num_kv_heads: usize,
    /// Dimensions of a head.
    pub head_dim: usize,
    /// Added to every row, `[(num_heads + 2 * num_kv_heads) * head_dim]`.
    pub bias: Option<&'a [f32]>,
    /// How heads are normalised, where they are.
    pub norms: Option<HeadNorms<'a>>,
}

/// Weights of the norms of heads.
#[derive(Clone, Copy, Debug)]
pub struct HeadNorms<'a> {
    /// For each query head, `[head_dim]`.
    pub query: &'a [f32],
    /// For each key head, `[head_dim]`.
    pub key: &'a [f32],
    /// Added to the mean square.
    pub epsilon: f32,
}

/// Which two dimensions of a head a rotation turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RotaryPairs {
    /// Dimensions `2i` and `2i + 1`.
    Neighbours,
    /// Dimensions `i` and `i + num_pairs`.
    Halves,
}

/// The rotation of one row: cosines and sines of its position, one for each pair.
#[derive(Clone, Copy, Debug)]
pub struct Rotation<'a> {
    /// Which dimensions make a pair.
    pub pairs: RotaryPairs,
    /// `[num_pairs]`
    pub cos: &'a [f32],
    /// `[num_pairs]`
    pub sin: &'a [f32],
}

/// Tokens of the step that lie in one block, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct BlockRun {
    block: BlockId,
    first_row: usize,
    end_row: usize,
}

/// Memory that is reused from step to step.
#[derive(Debug, Default)]
pub struct TokenHeadsScratch {
    runs: Vec<BlockRun>,
}

impl TokenHeads<'_> {
    /// Returns the width of a row.
    #[must_use]
    pub const fn width(&self) -> usize {
        self.num_rotated() + self.num_kv_heads * self.head_dim
    }

    const fn num_rotated(&self) -> usize {
        (self.num_heads + self.num_kv_heads) * self.head_dim
    }

    /// Prepares the rows of a layer, `[slots.len(), width]`, in place and stores their keys and
    /// values in `slots`. `rotation` returns that of a row.
    ///
    /// # Panics
    /// When lengths do not fit one another or the storage, or a slot does not exist.
    #[expect(clippy::too_many_arguments, reason = "one kernel call, no natural grouping")]
    pub fn prepare_and_store<'r>(
        &self,
        isa: Isa,
        pool: &ThreadPool,
        rows: &mut [f32],
        rotation: impl Fn(usize) -> Rotation<'r> + Sync,
        storage: &mut KvStorage,
        layer: usize,
        slots: &[SlotId],
        scratch: &mut TokenHeadsScratch,
    ) {
        let (width, head_dim) = (self.width(), self.head_dim);
        let layout = *storage.layout();
        assert_eq!((layout.num_kv_heads, layout.head_dim), (self.num_kv_heads, head_dim));
        assert_eq!(rows.len(), slots.len() * width);
        assert!(self.bias.is_none_or(|bias| bias.len() == width));
        let first_key = self.num_heads * head_dim;
        let num_values = rows.len();
        let stored = StoredTokens::new(storage, layer);
        let rows = RowView::new(rows, width);
        let prepare = |range: Range<usize>| {
            for row in range {
                let slot = slots[row];
                // SAFETY: each row is prepared once, by the thread that has its run of tokens.
                let row_values = unsafe { rows.piece(row, 0, width) };
                let rotation = rotation(row);
                let num_pairs = rotation.cos.len();
                assert!(rotation.sin.len() == num_pairs && 2 * num_pairs <= head_dim);
                prepare_row(isa, row_values, self, rotation);
                // SAFETY: the slots of other threads lie in other blocks, as `block_runs` checks;
                // without that, one thread has them all.
                unsafe { stored.write(isa, slot, &row_values[first_key..]) };
            }
        };
        if num_values < MIN_VALUES_TO_SPLIT || !scratch.find_runs(slots, layout.block_size.tokens())
        {
            prepare(0..slots.len());
            return;
        }
        let runs = &scratch.runs;
        pool.split(runs.len(), |range| {
            runs[range].iter().for_each(|run| prepare(run.first_row..run.end_row));
        });
    }
}

impl TokenHeadsScratch {
    /// Cuts the rows into runs that lie in one block each; returns whether all blocks differ, as
    /// they do unless a sequence is twice in the step.
    fn find_runs(&mut self, slots: &[SlotId], block_tokens: u32) -> bool {
        self.runs.clear();
        for (row, slot) in slots.iter().enumerate() {
            let block = BlockId(slot.0 / block_tokens);
            match self.runs.last_mut() {
                Some(run) if run.block == block => run.end_row = row + 1,
                _ => self.runs.push(BlockRun { block, first_row: row, end_row: row + 1 }),
            }
        }
        self.runs.sort_unstable();
        self.runs.windows(2).all(|pair| pair[0].block != pair[1].block)
    }
}

for_each_lanes! {
    fn prepare_row(row: &mut [f32], heads: &TokenHeads<'_>, rotation: Rotation<'_>) = prepare_body
}

#[inline(always)]
fn prepare_body<V: Lanes>(
    proof: V::Proof,
    row: &mut [f32],
    heads: &TokenHeads<'_>,
    rotation: Rotation<'_>,
) {
    if let Some(bias) = heads.bias {
        for (x, bias) in row.iter_mut().zip(bias) {
            *x += bias;
        }
    }
    let rotated = &mut row[..heads.num_rotated()];
    if let Some(norms) = &heads.norms {
        let (queries, keys) = rotated.split_at_mut(heads.num_heads * heads.head_dim);
        for (part, weight) in [(queries, norms.query), (keys, norms.key)] {
            for head in part.chunks_exact_mut(heads.head_dim) {
                rms_norm_in_place::<V>(proof, head, weight, norms.epsilon);
            }
        }
    }
    match rotation.pairs {
        RotaryPairs::Neighbours => rotate_neighbours(rotated, heads.head_dim, rotation),
        RotaryPairs::Halves => rotate_halves(rotated, heads.head_dim, rotation),
    }
}

#[inline(always)]
fn rotate_halves(heads: &mut [f32], head_dim: usize, rotation: Rotation<'_>) {
    for head in heads.chunks_exact_mut(head_dim) {
        let (first, second) = head.split_at_mut(rotation.cos.len());
        let pairs = first.iter_mut().zip(second);
        for ((a, b), (cos, sin)) in pairs.zip(rotation.cos.iter().zip(rotation.sin)) {
            (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
        }
    }
}

/// Each dimension is multiplied by its pair's cosine, and its neighbour by the sine, with the sign
/// that belongs to it: sixteen at a time, once the factors are written out for every dimension.
#[inline(always)]
fn rotate_neighbours(heads: &mut [f32], head_dim: usize, rotation: Rotation<'_>) {
    let num_rotated = 2 * rotation.cos.len();
    let (mut cos, mut sin) = ([0.0; MAX_HEAD_DIM], [0.0; MAX_HEAD_DIM]);
    let pairs = cos.as_chunks_mut::<2>().0.iter_mut().zip(sin.as_chunks_mut::<2>().0);
    for ((cos, sin), (c, s)) in pairs.zip(rotation.cos.iter().zip(rotation.sin)) {
        (*cos, *sin) = ([*c, *c], [-*s, *s]);
    }
    let (cos, sin) = (&cos[..num_rotated], &sin[..num_rotated]);
    let (cos_lanes, cos_rest) = cos.as_chunks::<LANES>();
    let (sin_lanes, sin_rest) = sin.as_chunks::<LANES>();
    for head in heads.chunks_exact_mut(head_dim) {
        let (lanes, rest) = head[..num_rotated].as_chunks_mut::<LANES>();
        for ((x, cos), sin) in lanes.iter_mut().zip(cos_lanes).zip(sin_lanes) {
            let before = *x;
            for i in 0..LANES {
                x[i] = before[i] * cos[i] + before[i ^ 1] * sin[i];
            }
        }
        let pairs = rest.as_chunks_mut::<2>().0.iter_mut();
        let factors = cos_rest.as_chunks::<2>().0.iter().zip(sin_rest.as_chunks::<2>().0);
        for ([a, b], (cos, sin)) in pairs.zip(factors) {
            (*a, *b) = (*a * cos[0] + *b * sin[0], *b * cos[1] + *a * sin[1]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::elementwise::rms_norm;
    use crate::kv_layout::{KvDtype, KvLayout, SlidingPattern};
    use mini_infer_core::BlockSize;
    use std::num::NonZeroUsize;

    const HEADS: TokenHeads<'_> =
        TokenHeads { num_heads: 5, num_kv_heads: 2, head_dim: 48, bias: None, norms: None };
    const NUM_BLOCKS: u32 = 40;

    fn wave(len: usize) -> Vec<f32> {
        (0..len).map(|i| ((i * i % 97) as f32 - 48.0) * 0.13).collect()
    }

    fn storage() -> KvStorage {
        let layout = KvLayout {
            num_layers: 2,
            num_kv_heads: HEADS.num_kv_heads,
            head_dim: HEADS.head_dim,
            block_size: BlockSize::DEFAULT,
            dtype: KvDtype::F16,
            sliding: SlidingPattern::None,
        };
        KvStorage::reserve(layout, NUM_BLOCKS).unwrap()
    }

    fn bytes(storage: &KvStorage) -> Vec<Vec<u8>> {
        let mut scratch = Vec::new();
        let blocks = (0..NUM_BLOCKS).map(BlockId);
        blocks.map(|block| storage.export_block(block, &mut scratch).to_vec()).collect()
    }

    /// The angles of a row: different for each pair and row.
    fn angles(row: usize, num_pairs: usize) -> (Vec<f32>, Vec<f32>) {
        (0..num_pairs).map(|i| ((row + i * 3) as f32 * 0.37).sin_cos()).map(|(s, c)| (c, s)).unzip()
    }

    /// What the kernel must do, one number after the other.
    fn expected(heads: &TokenHeads<'_>, pairs: RotaryPairs, num_pairs: usize, rows: &mut [f32]) {
        let pool = ThreadPool::new(NonZeroUsize::MIN);
        for (index, row) in rows.chunks_exact_mut(heads.width()).enumerate() {
            if let Some(bias) = heads.bias {
                row.iter_mut().zip(bias).for_each(|(x, bias)| *x += bias);
            }
            let (cos, sin) = angles(index, num_pairs);
            let rotated = row[..heads.num_rotated()].chunks_exact_mut(heads.head_dim);
            for (h, head) in rotated.enumerate() {
                if let Some(norms) = heads.norms {
                    let weight = if h < heads.num_heads { norms.query } else { norms.key };
                    let input = head.to_vec();
                    rms_norm(Isa::Scalar, &pool, &input, weight, norms.epsilon, head);
                }
                for i in 0..num_pairs {
                    let (a, b) = match pairs {
                        RotaryPairs::Neighbours => (2 * i, 2 * i + 1),
                        RotaryPairs::Halves => (i, i + num_pairs),
                    };
                    let (x, y) = (head[a], head[b]);
                    head[a] = x * cos[i] - y * sin[i];
                    head[b] = x * sin[i] + y * cos[i];
                }
            }
        }
    }

    /// Runs the kernel on every instruction set, on one thread and on three.
    fn check(heads: TokenHeads<'_>, pairs: RotaryPairs, num_pairs: usize, slots: &[SlotId]) {
        let input = wave(slots.len() * heads.width());
        let mut expected_rows = input.clone();
        expected(&heads, pairs, num_pairs, &mut expected_rows);
        let angles: Vec<_> = (0..slots.len()).map(|row| angles(row, num_pairs)).collect();
        let mut first_bytes = None;
        for isa in Isa::all_present() {
            for num_threads in [1, 3] {
                let pool = ThreadPool::new(NonZeroUsize::new(num_threads).unwrap());
                let (mut rows, mut storage) = (input.clone(), storage());
                let mut scratch = TokenHeadsScratch::default();
                heads.prepare_and_store(
                    isa,
                    &pool,
                    &mut rows,
                    |row| Rotation { pairs, cos: &angles[row].0, sin: &angles[row].1 },
                    &mut storage,
                    1,
                    slots,
                    &mut scratch,
                );
                assert_eq!(rows, expected_rows, "{} {num_threads}", isa.name());
                let bytes = bytes(&storage);
                assert!(*first_bytes.get_or_insert_with(|| bytes.clone()) == bytes);
            }
        }
        let mut storage = storage();
        let first = heads.num_heads * heads.head_dim;
        let pool = ThreadPool::new(NonZeroUsize::MIN);
        let width = heads.width();
        crate::store_kv(Isa::Scalar, &pool, &mut storage, 1, slots, &expected_rows, width, first);
        assert!(first_bytes == Some(bytes(&storage)), "what is stored");
    }

    fn slots_of(blocks: impl Iterator<Item = u32>) -> Vec<SlotId> {
        blocks.flat_map(|block| (0..16).map(move |i| SlotId(block * 16 + i))).collect()
    }

    #[test]
    fn rows_are_biased_normalised_rotated_and_stored_in_this_order() {
        let bias = wave(HEADS.width() + 5)[5..].to_vec();
        let (query, key) = (wave(60)[12..].to_vec(), wave(70)[22..].to_vec());
        let norms = Some(HeadNorms { query: &query, key: &key, epsilon: 1e-6 });
        let many = slots_of((0..12).map(|i| i * 7 % NUM_BLOCKS));
        for slots in [&many[..], &many[3..40], &many[..1]] {
            for pairs in [RotaryPairs::Neighbours, RotaryPairs::Halves] {
                for num_pairs in [24, 16, 5] {
                    check(HEADS, pairs, num_pairs, slots);
                    let bias = Some(&bias[..]);
                    check(TokenHeads { bias, norms, ..HEADS }, pairs, num_pairs, slots);
                }
            }
        }
    }

    #[test]
    fn tokens_of_one_block_that_lie_apart_in_the_step_are_stored_all() {
        let mut slots = slots_of(0..8);
        slots.sort_by_key(|slot| (slot.0 % 2, slot.0));
        check(HEADS, RotaryPairs::Halves, 24, &slots);
    }
}
