//! A part of keys that is known without storing it.
//!
//! Where a key projection has a bias, each key holds that bias, turned to the token's position. In
//! some models (Qwen2.5) a few of its pairs of dimensions are a hundred times larger than anything
//! that depends on the token, and would leave int8 keys few codes for the rest. Keys can therefore
//! be stored without those pairs' bias: attention adds their products with the query, which depend
//! on nothing but the two positions. Exact up to f32 rounding; two multiply-adds per pair and
//! score, beside the `head_dim` of the stored key.

use crate::lanes::LANES;
use std::sync::Arc;

/// Most pairs of one head: bounds the stack memory of attention.
pub(crate) const MAX_PAIRS: usize = 8;

/// What is left out of the stored keys of one layer.
#[derive(Clone, Debug)]
pub struct KeyOffset {
    /// Pairs of each KV head.
    heads: Vec<Vec<OffsetPair>>,
}

/// A pair of dimensions that position embedding turns together, and what their keys lack.
#[derive(Clone, Debug)]
pub struct OffsetPair {
    /// The two dimensions in a head.
    pub dimensions: [usize; 2],
    /// What the key of a token at position 0 lacks.
    pub offset: [f32; 2],
    /// How it turns.
    pub turns: Arc<PairTurns>,
}

/// Cosine and sine of a pair's angle at each position.
#[derive(Clone, Debug)]
pub struct PairTurns {
    cos: Vec<[f32; LANES]>,
    sin: Vec<[f32; LANES]>,
}

impl PairTurns {
    /// Takes the cosine and the sine of the angle for each position from 0 on.
    #[must_use]
    pub fn new(turns: impl IntoIterator<Item = [f32; 2]>) -> Self {
        let (cos, sin): (Vec<f32>, Vec<f32>) =
            turns.into_iter().map(|[cos, sin]| (cos, sin)).unzip();
        Self { cos: in_lanes(cos), sin: in_lanes(sin) }
    }

    /// Returns the cosines and sines of the sixteen positions from `first` on, a multiple of
    /// sixteen; zeros past the last one.
    pub(crate) fn strip(&self, first: usize) -> (&[f32; LANES], &[f32; LANES]) {
        (&self.cos[first / LANES], &self.sin[first / LANES])
    }
}

fn in_lanes(mut values: Vec<f32>) -> Vec<[f32; LANES]> {
    values.resize(values.len().next_multiple_of(LANES), 0.0);
    values.as_chunks().0.to_vec()
}

impl KeyOffset {
    /// Most pairs of one head.
    pub const MAX_PAIRS: usize = MAX_PAIRS;

    /// Gathers the pairs of each KV head.
    ///
    /// # Panics
    /// When a head has more than eight.
    #[must_use]
    pub fn new(heads: Vec<Vec<OffsetPair>>) -> Self {
        for pairs in &heads {
            assert!(pairs.len() <= MAX_PAIRS, "{} pairs of at most {MAX_PAIRS}", pairs.len());
        }
        Self { heads }
    }

    /// Returns the pairs of one KV head.
    pub(crate) fn pairs(&self, head: usize) -> &[OffsetPair] {
        &self.heads[head]
    }
}

impl OffsetPair {
    /// Returns the factors on cosine and sine whose sum is the product of `query`, turned to its
    /// own position, with the offset turned to a key's.
    pub(crate) fn factors(&self, query: &[f32]) -> [f32; 2] {
        let [x, y] = self.dimensions.map(|dimension| query[dimension]);
        let [a, b] = self.offset;
        [x.mul_add(a, y * b), y.mul_add(a, -(x * b))]
    }
}
