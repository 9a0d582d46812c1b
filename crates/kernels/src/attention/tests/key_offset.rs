//! Keys with large biased channels, at the head sizes of Qwen2.5-0.5B.

use super::*;
use crate::key_offset::PairTurns;
use std::sync::Arc;

const HEADS: AttentionShape = AttentionShape { window: Some(64), scale: 0.125, ..shape(14, 2, 64) };
const WIDTH: usize = (14 + 2 + 2) * 64;
const NUM_TOKENS: usize = 700;

/// Numbers of mean 0 and deviation 1, nearly normal.
struct Normal(u32);

impl Normal {
    fn next(&mut self) -> f32 {
        let mut uniform = || {
            self.0 = self.0.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (self.0 >> 8) as f32 / 16_777_216.0 - 0.5
        };
        (0..12).map(|_| uniform()).sum()
    }
}

/// Cosine and sine of pair `i` at a position, for a base of a million.
fn turn(i: usize, position: usize) -> [f32; 2] {
    let angle = position as f64 * 1e6_f64.powf(i as f64 / -32.0);
    [angle.cos() as f32, angle.sin() as f32]
}

/// Turns a head to a position; dimension `i` is turned with `i + 32`.
fn turned(head: &[f32], position: usize) -> Vec<f32> {
    let mut turned = head.to_vec();
    for i in 0..32 {
        let ([cos, sin], [x, y]) = (turn(i, position), [head[i], head[i + 32]]);
        (turned[i], turned[i + 32]) = (x * cos - y * sin, x * sin + y * cos);
    }
    turned
}

/// Biases of three pairs of each KV head, the largest `magnitude` long.
fn offset(magnitude: f32) -> KeyOffset {
    let pair = |i: usize, share: f32, angle: f32| OffsetPair {
        dimensions: [i, i + 32],
        offset: [angle.cos(), angle.sin()].map(|part| part * magnitude * share),
        turns: Arc::new(PairTurns::new((0..NUM_TOKENS).map(|position| turn(i, position)))),
    };
    KeyOffset::new(vec![
        vec![pair(30, 1.0, 0.4), pair(17, 0.6, 2.0), pair(11, 0.3, 4.0)],
        vec![pair(27, 1.0, 5.0), pair(9, 0.6, 1.0), pair(21, 0.3, 3.0)],
    ])
}

/// Rows `[queries, keys, values]` whose keys hold `biases`. The value of a token is 1 in the
/// dimension of its position modulo 64, so that a window of 64 tokens gives probabilities.
fn rows(biases: Option<&KeyOffset>) -> Vec<f32> {
    let mut normal = Normal(5);
    let mut rows = Vec::new();
    for position in 0..NUM_TOKENS {
        for head in 0..16 {
            let deviation = if head < 14 { 1.5 } else { 1.3 };
            let mut numbers: Vec<f32> = (0..64).map(|_| normal.next() * deviation).collect();
            if let (Some(biases), 14..) = (biases, head) {
                for pair in biases.pairs(head - 14) {
                    for (dimension, bias) in pair.dimensions.into_iter().zip(pair.offset) {
                        numbers[dimension] += bias;
                    }
                }
            }
            rows.extend(turned(&numbers, position));
        }
        let value: Vec<f32> = (0..64).map(|d| f32::from(d == position % 64)).collect();
        rows.extend([&value[..], &value].concat());
    }
    rows
}

/// Returns the probabilities that each query's window gets, `[num_tokens * num_heads, 64]`.
fn probabilities(dtype: KvDtype, rows: &[f32], offset: Option<&KeyOffset>, isa: Isa) -> Vec<f32> {
    let layout = KvLayout {
        num_layers: 1,
        num_kv_heads: 2,
        head_dim: 64,
        block_size: BlockSize::DEFAULT,
        dtype,
        sliding: SlidingPattern::None,
    };
    let num_blocks = BlockSize::DEFAULT.blocks_for(NUM_TOKENS as u32);
    let mut storage = KvStorage::reserve(layout, num_blocks).unwrap();
    let table: Vec<_> = (0..num_blocks).map(BlockId).collect();
    let mut batch = Batch::default();
    batch.push_sequence(&[0; NUM_TOKENS], 0, &table, BlockSize::DEFAULT, false);
    let pool = pool(2);
    store_kv(isa, &pool, &mut storage, 0, &batch.slot_mapping, rows, WIDTH, 14 * 64);
    let mut out = vec![0.0; NUM_TOKENS * 14 * 64];
    attention(isa, &pool, &HEADS, rows, WIDTH, 0, offset, &batch, &storage, &mut out);
    out
}

/// Mean KL divergence of rows of 64 probabilities, which may sum up to nearly 1.
fn divergence(exact: &[f32], got: &[f32]) -> f64 {
    let mut total = 0.0;
    for (exact, got) in exact.chunks_exact(64).zip(got.chunks_exact(64)) {
        let sum = |row: &[f32]| row.iter().map(|p| f64::from(p.max(1e-12))).sum::<f64>();
        let (exact_sum, got_sum) = (sum(exact), sum(got));
        for (p, q) in exact.iter().zip(got) {
            let [p, q] =
                [(p, exact_sum), (q, got_sum)].map(|(p, sum)| f64::from(p.max(1e-12)) / sum);
            total += p * (p / q).ln();
        }
    }
    total / (exact.len() / 64) as f64
}

#[test]
fn what_keys_lack_is_added_to_the_same_bits_on_every_isa() {
    let offset = offset(100.0);
    let (whole, stored) = (rows(Some(&offset)), rows(None));
    let exact = probabilities(KvDtype::F32, &whole, None, Isa::Scalar);
    let mut first = None;
    for isa in Isa::all_present() {
        let got = probabilities(KvDtype::F32, &stored, Some(&offset), isa);
        for (exact, got) in exact.iter().zip(&got) {
            // Scores reach 100 and are sums of 64 products.
            assert!((exact - got).abs() < 64.0 * 100.0 * f32::EPSILON, "{exact} {got}");
        }
        assert_eq!(first.get_or_insert_with(|| got.clone()), &got);
    }
}

#[test]
fn int8_keys_are_as_good_with_large_biases_as_without_where_the_biases_are_not_stored() {
    let isa = Isa::all_present()[0];
    for magnitude in [30.0, 100.0, 300.0] {
        let offset = offset(magnitude);
        let (whole, stored) = (rows(Some(&offset)), rows(None));
        let exact = probabilities(KvDtype::F32, &whole, None, isa);
        let with_biases = probabilities(KvDtype::Int8, &whole, None, isa);
        let without = probabilities(KvDtype::Int8, &stored, Some(&offset), isa);
        let bf16 = probabilities(KvDtype::Bf16, &whole, None, isa);
        let [with_biases, without, bf16] =
            [with_biases, without, bf16].map(|got| divergence(&exact, &got));
        println!(
            "biases of {magnitude}: mean KL divergence {with_biases:.1e} stored, {without:.1e} not \
             stored, {bf16:.1e} stored as bf16"
        );
        assert!(without < 2e-4, "{without}");
        assert!(with_biases > 2.0 * without, "{with_biases} {without}");
    }
}
