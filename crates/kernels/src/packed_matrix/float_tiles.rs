//! Float weights in tiles of 16 output features, `[num_tiles, in_features, 16]`.
//!
//! F32, F16 and BF16 keep their stored bits.

use super::{PackError, ReleaseBytes, TileSource, WeightRows};
use crate::float_format::{Bf16, F16, StoredFloat};
use crate::lanes::LANES;
use crate::thread_pool::ThreadPool;
use crate::weight_memory::{WeightBuffer, WeightMemory};
use crate::weight_type::WeightType;

/// Input features that are moved together: a cache line of bf16 from each row, to a piece of the
/// tile that stays in the nearest cache.
const PIECE: usize = 32;
/// Elements of two bytes in a word of eight, which are moved together.
const WORD: usize = 4;

/// Float weights of one part of a matrix.
#[derive(Debug)]
pub(crate) struct FloatTiles {
    in_features: usize,
    format: Format,
    data: WeightBuffer,
}

#[derive(Clone, Copy, Debug)]
enum Format {
    F32,
    F16,
    Bf16,
}

impl Format {
    /// Returns the format of a float type.
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "a matrix of another type is not packed here"
    )]
    fn of(weight_type: WeightType) -> Self {
        match weight_type {
            WeightType::F32 => Self::F32,
            WeightType::F16 => Self::F16,
            WeightType::Bf16 => Self::Bf16,
            _ => unreachable!("{weight_type} has integer tiles"),
        }
    }
}

/// The weights as lanes of their stored type, `[num_tiles * in_features]`.
#[derive(Clone, Copy, Debug)]
pub(crate) enum FloatWeights<'a> {
    /// Single precision.
    F32(&'a [[f32; LANES]]),
    /// Half precision.
    F16(&'a [[F16; LANES]]),
    /// Upper halves of f32.
    Bf16(&'a [[Bf16; LANES]]),
}

impl FloatTiles {
    /// Packs `rows`, whose bytes fit their shape, into `memory`, and lets them be given back.
    pub(super) fn pack(
        pool: &ThreadPool,
        memory: &WeightMemory,
        rows: &WeightRows<'_>,
        release: &ReleaseBytes<'_>,
    ) -> Result<Self, PackError> {
        let format = Format::of(rows.weight_type);
        let num_tiles = rows.out_features.div_ceil(LANES);
        let tile_bytes = rows.in_features * LANES * rows.weight_type.group_bytes();
        let num_bytes = num_tiles * tile_bytes;
        let mut data =
            memory.take(num_bytes).map_err(|source| PackError::Memory { num_bytes, source })?;
        let source = TileSource { rows, release };
        let has_words = rows.in_features.is_multiple_of(WORD);
        let is_whole = |tile| has_words && source.num_rows(tile) == LANES;
        let mut unused = vec![(); num_tiles];
        let (data_tiles, no_tiles) = ((data.bytes_mut(), tile_bytes), (&mut unused[..], 1));
        source.for_each_tile(pool, data_tiles, no_tiles, |tile, data, _| {
            let stored = source.stored(tile..tile + 1);
            match format {
                Format::F16 | Format::Bf16 if is_whole(tile) => put_whole_tile(data, stored),
                Format::F32 => put_tile::<4>(data, stored),
                Format::F16 | Format::Bf16 => put_tile::<2>(data, stored),
            }
        });
        Ok(Self { in_features: rows.in_features, format, data })
    }

    /// Returns the weights.
    pub(crate) fn weights(&self) -> FloatWeights<'_> {
        let bytes = self.data.bytes();
        match self.format {
            Format::F32 => FloatWeights::F32(lanes(bytemuck::cast_slice(bytes))),
            Format::F16 => FloatWeights::F16(lanes(bytemuck::cast_slice(bytes))),
            Format::Bf16 => FloatWeights::Bf16(lanes(bytemuck::cast_slice(bytes))),
        }
    }

    pub(super) fn num_bytes(&self) -> usize {
        self.data.bytes().len()
    }

    pub(super) fn row(&self, index: usize, out: &mut [f32]) {
        match self.weights() {
            FloatWeights::F32(lanes) => self.lane(lanes, index, out),
            FloatWeights::F16(lanes) => self.lane(lanes, index, out),
            FloatWeights::Bf16(lanes) => self.lane(lanes, index, out),
        }
    }

    fn lane<T: StoredFloat>(&self, weights: &[[T; LANES]], index: usize, out: &mut [f32]) {
        let tile = &weights[index / LANES * self.in_features..][..self.in_features];
        for (out, lanes) in out.iter_mut().zip(tile) {
            *out = lanes[index % LANES].widen();
        }
    }
}

fn lanes<T>(values: &[T]) -> &[[T; LANES]] {
    values.as_chunks().0
}

/// Writes up to [`LANES`] rows of stored elements as a tile.
fn put_tile<const BYTES: usize>(tile: &mut [u8], rows: &[u8]) {
    let tile = tile.as_chunks_mut::<BYTES>().0.as_chunks_mut::<LANES>().0;
    let rows = rows.as_chunks::<BYTES>().0;
    let in_features = tile.len();
    for (piece, tile) in tile.chunks_mut(PIECE).enumerate() {
        let features = piece * PIECE..piece * PIECE + tile.len();
        for (lane, row) in rows.chunks_exact(in_features).enumerate() {
            for (lanes, element) in tile.iter_mut().zip(&row[features.clone()]) {
                lanes[lane] = *element;
            }
        }
    }
}

/// Writes [`LANES`] rows of two-byte elements, whole words in each, as a tile: what [`put_tile`]
/// does, half as long again as fast (2.4 GB/s on a core where that does 1.7 and copying 3.2).
fn put_whole_tile(tile: &mut [u8], rows: &[u8]) {
    let row_bytes = rows.len() / LANES;
    let words: [&[[u8; 8]]; LANES] =
        std::array::from_fn(|lane| rows[lane * row_bytes..][..row_bytes].as_chunks().0);
    // Each block is a word's features, and each feature four words of lanes.
    let blocks = tile.as_chunks_mut::<8>().0.as_chunks_mut::<LANES>().0;
    for (i, block) in blocks.iter_mut().enumerate() {
        for quad in 0..LANES / WORD {
            let rows = std::array::from_fn(|row| u64::from_le_bytes(words[quad * WORD + row][i]));
            for (feature, word) in transpose(rows).into_iter().enumerate() {
                block[feature * (LANES / WORD) + quad] = word.to_le_bytes();
            }
        }
    }
}

/// Transposes four words of four elements.
fn transpose([a, b, c, d]: [u64; WORD]) -> [u64; WORD] {
    const EVEN: u64 = 0x0000_ffff_0000_ffff;
    const LOW: u64 = 0x0000_0000_ffff_ffff;
    let even = |x: u64, y: u64| (x & EVEN) | ((y & EVEN) << 16);
    let odd = |x: u64, y: u64| ((x >> 16) & EVEN) | (y & !EVEN);
    // Features 0 and 2 of two rows, then 1 and 3.
    let (ab, ab_odd, cd, cd_odd) = (even(a, b), odd(a, b), even(c, d), odd(c, d));
    let low = |x: u64, y: u64| (x & LOW) | (y << 32);
    let high = |x: u64, y: u64| (x >> 32) | (y & !LOW);
    [low(ab, cd), low(ab_odd, cd_odd), high(ab, cd), high(ab_odd, cd_odd)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_tiles_have_the_bits_of_tiles_that_are_written_one_by_one() {
        for in_features in [4, 8, 36, 900] {
            let bytes = (0..in_features * LANES * 2).map(|i| (i * 31 + i / 7).to_le_bytes()[0]);
            let rows: Vec<u8> = bytes.collect();
            let mut expected = vec![0; rows.len()];
            put_tile::<2>(&mut expected, &rows);
            let mut tile = vec![0; rows.len()];
            put_whole_tile(&mut tile, &rows);
            assert!(tile == expected, "{in_features} features");
        }
    }
}
