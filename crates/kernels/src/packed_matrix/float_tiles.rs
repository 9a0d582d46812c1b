//! Float weights in tiles of 16 output features, `[num_tiles, in_features, 16]`.
//!
//! F32, F16 and BF16 keep their stored bits.

use super::{PackError, WeightRows, for_each_tile};
use crate::float_format::{Bf16, F16, StoredFloat};
use crate::lanes::LANES;
use crate::mapped_buffer::MappedBuffer;
use crate::thread_pool::ThreadPool;
use crate::weight_type::WeightType;

/// Input features that are moved together: a cache line of bf16 from each row, to a piece of the
/// tile that stays in the nearest cache.
const PIECE: usize = 32;

/// Float weights of one part of a matrix.
#[derive(Debug)]
pub(crate) struct FloatTiles {
    in_features: usize,
    format: Format,
    data: MappedBuffer,
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
    /// Packs `rows`, whose bytes fit their shape.
    pub(super) fn pack(pool: &ThreadPool, rows: &WeightRows<'_>) -> Result<Self, PackError> {
        let format = Format::of(rows.weight_type);
        let num_tiles = rows.out_features.div_ceil(LANES);
        let tile_bytes = rows.in_features * LANES * rows.weight_type.group_bytes();
        let num_bytes = num_tiles * tile_bytes;
        let mut data = MappedBuffer::new(num_bytes)
            .map_err(|source| PackError::Memory { num_bytes, source })?;
        let row_bytes = rows.bytes.len() / rows.out_features.max(1);
        let mut unused = vec![(); num_tiles];
        for_each_tile(pool, (data.bytes_mut(), tile_bytes), (&mut unused, 1), |tile, data, _| {
            let first = tile * LANES;
            let num_rows = LANES.min(rows.out_features - first);
            let stored = &rows.bytes[first * row_bytes..(first + num_rows) * row_bytes];
            match format {
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
