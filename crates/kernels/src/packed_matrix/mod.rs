//! Weight matrices repacked for the dot-product instructions.
//!
//! A matrix `[out_features, in_features]` is cut into tiles of [`LANES`] output features, so that
//! one vector lane belongs to one output feature from the first product to the last. Quantised
//! values and scales are exactly the checkpoint's; only their places change. A matrix is a stack
//! of parts, because fused projections (query, key and value) may come in different formats.
//!
//! Cost: packing reads and writes each weight once, on all threads. What has been read can be given
//! back on the way, so that stored and packed weights are not in memory together.

mod float_tiles;
mod integer_group;
mod integer_tiles;

pub(crate) use float_tiles::{FloatTiles, FloatWeights};
#[cfg(target_arch = "x86_64")]
pub(crate) use integer_tiles::LINE_BYTES;
pub(crate) use integer_tiles::{CodeWidth, IntegerTile, IntegerTiles, ScaleFormat, Scheme};

use crate::activation_rows::GROUP;
use crate::lanes::LANES;
use crate::thread_pool::ThreadPool;
use crate::weight_memory::WeightMemory;
use crate::weight_type::WeightType;
use std::fmt;
use std::io;
use std::ops::Range;

/// Stored bytes between two calls that give them back: small beside any model, large enough for the
/// system call (some 30 µs for this much mapped memory) not to count.
const RELEASED_BYTES: usize = 4 << 20;

/// Weights as a checkpoint stores them, row-major `[out_features, in_features]`.
#[derive(Clone, Copy, Debug)]
pub struct WeightRows<'a> {
    /// Number format of the bytes.
    pub weight_type: WeightType,
    /// Number of rows.
    pub out_features: usize,
    /// Weights in a row.
    pub in_features: usize,
    /// The rows one after the other.
    pub bytes: &'a [u8],
}

impl WeightRows<'_> {
    /// Returns the bytes that the rows will take in a [`PackedMatrix`].
    #[must_use]
    pub fn packed_bytes(&self) -> usize {
        let tile_bytes = match Scheme::of(self.weight_type) {
            Some(scheme) => self.in_features / GROUP * (scheme.code_bytes() + scheme.scale_bytes()),
            None => self.in_features * LANES * self.weight_type.group_bytes(),
        };
        self.out_features.div_ceil(LANES) * tile_bytes
    }
}

/// A weight matrix in the layout that the kernels read, `[out_features, in_features]`.
#[derive(Debug)]
pub struct PackedMatrix {
    in_features: usize,
    out_features: usize,
    parts: Vec<Part>,
}

/// Rows of a [`PackedMatrix`] that share a format.
#[derive(Debug)]
pub(crate) struct Part {
    /// First output feature of the part in the whole matrix.
    pub(crate) first_out: usize,
    /// Output features of the part; the last tile may be partly padding.
    pub(crate) out_features: usize,
    /// The weights.
    pub(crate) tiles: Tiles,
}

/// The weights of a part.
#[derive(Debug)]
pub(crate) enum Tiles {
    /// Small integer codes with scales.
    Integer(IntegerTiles),
    /// Plain floats.
    Float(FloatTiles),
}

impl PackedMatrix {
    /// Packs the rows of `parts` into `memory`, one part below the other.
    ///
    /// # Errors
    /// When a part's bytes do not fit its shape, the parts differ in `in_features`, or memory for
    /// the packed weights cannot be reserved.
    pub fn pack(
        pool: &ThreadPool,
        memory: &WeightMemory,
        parts: &[WeightRows<'_>],
    ) -> Result<Self, PackError> {
        Self::pack_and_release(pool, memory, parts, &|_| {})
    }

    /// Packs as [`Self::pack`] does, and calls `release` with each stretch of the parts' bytes that
    /// is not needed any more, from any thread.
    ///
    /// # Errors
    /// As [`Self::pack`].
    pub fn pack_and_release(
        pool: &ThreadPool,
        memory: &WeightMemory,
        parts: &[WeightRows<'_>],
        release: &ReleaseBytes<'_>,
    ) -> Result<Self, PackError> {
        let in_features = parts.first().map_or(0, |part| part.in_features);
        let mut packed = Self { in_features, out_features: 0, parts: Vec::new() };
        for rows in parts {
            let expected = rows
                .weight_type
                .bytes_for(rows.in_features)
                .and_then(|row_bytes| row_bytes.checked_mul(rows.out_features));
            if rows.in_features == 0
                || rows.in_features != in_features
                || expected != Some(rows.bytes.len())
            {
                return Err(PackError::Shape {
                    weight_type: rows.weight_type,
                    out_features: rows.out_features,
                    in_features: rows.in_features,
                    num_bytes: rows.bytes.len(),
                });
            }
            let tiles = match Scheme::of(rows.weight_type) {
                Some(scheme) => {
                    Tiles::Integer(IntegerTiles::pack(pool, memory, scheme, rows, release)?)
                }
                None => Tiles::Float(FloatTiles::pack(pool, memory, rows, release)?),
            };
            let first_out = packed.out_features;
            packed.out_features += rows.out_features;
            packed.parts.push(Part { first_out, out_features: rows.out_features, tiles });
        }
        Ok(packed)
    }

    /// Returns the number of input features.
    #[must_use]
    pub fn in_features(&self) -> usize {
        self.in_features
    }

    /// Returns the number of output features of all parts together.
    #[must_use]
    pub fn out_features(&self) -> usize {
        self.out_features
    }

    /// Returns the bytes that the packed weights take.
    #[must_use]
    pub fn num_bytes(&self) -> usize {
        self.parts
            .iter()
            .map(|part| match &part.tiles {
                Tiles::Integer(tiles) => tiles.num_bytes(),
                Tiles::Float(tiles) => tiles.num_bytes(),
            })
            .sum()
    }

    /// Writes row `index` to `out` as f32, as an embedding lookup does.
    ///
    /// # Panics
    /// When there is no such row or `out` is not `in_features` long.
    pub fn row(&self, index: usize, out: &mut [f32]) {
        assert_eq!(out.len(), self.in_features);
        let part = self
            .parts
            .iter()
            .find(|part| (part.first_out..part.first_out + part.out_features).contains(&index))
            .expect("the row is below out_features");
        match &part.tiles {
            Tiles::Integer(tiles) => tiles.row(index - part.first_out, out),
            Tiles::Float(tiles) => tiles.row(index - part.first_out, out),
        }
    }

    /// Returns the parts in the order of their output features.
    pub(crate) fn parts(&self) -> &[Part] {
        &self.parts
    }
}

/// Who is told which stored bytes are not needed any more.
pub type ReleaseBytes<'a> = dyn Fn(&[u8]) + Sync + 'a;

/// The stored bytes of tiles, given back when the tiles are written.
#[derive(Clone, Copy)]
struct TileSource<'a> {
    rows: &'a WeightRows<'a>,
    release: &'a ReleaseBytes<'a>,
}

impl TileSource<'_> {
    fn row_bytes(&self) -> usize {
        self.rows.bytes.len() / self.rows.out_features.max(1)
    }

    /// Returns how many output features tile `tile` has.
    fn num_rows(&self, tile: usize) -> usize {
        LANES.min(self.rows.out_features - tile * LANES)
    }

    /// Returns the rows of a stretch of tiles.
    fn stored(&self, tiles: Range<usize>) -> &[u8] {
        let first = tiles.start * LANES;
        let end = (tiles.end * LANES).min(self.rows.out_features);
        &self.rows.bytes[first * self.row_bytes()..end * self.row_bytes()]
    }

    /// Calls `write` as [`for_each_tile`] does, and gives back what it has read.
    fn for_each_tile<A: Send, B: Send>(
        &self,
        pool: &ThreadPool,
        first: (&mut [A], usize),
        second: (&mut [B], usize),
        write: impl Fn(usize, &mut [A], &mut [B]) + Sync,
    ) {
        let tile_bytes = (LANES * self.row_bytes()).max(1);
        let num_tiles = (RELEASED_BYTES / tile_bytes).max(1);
        for_each_tile_by(pool, num_tiles, first, second, write, |tiles| {
            (self.release)(self.stored(tiles));
        });
    }
}

/// Calls `write` with every tile's index and its pieces of two per-tile buffers, on all threads.
pub(crate) fn for_each_tile<A: Send, B: Send>(
    pool: &ThreadPool,
    first: (&mut [A], usize),
    second: (&mut [B], usize),
    write: impl Fn(usize, &mut [A], &mut [B]) + Sync,
) {
    for_each_tile_by(pool, usize::MAX, first, second, write, |_| {});
}

/// Calls `write` with the index of every one of `rows` and its piece of `out`, on all threads, and
/// `release` with the bytes of rows that were written.
pub(crate) fn for_each_row(
    pool: &ThreadPool,
    rows: &WeightRows<'_>,
    release: &ReleaseBytes<'_>,
    out: (&mut [u8], usize),
    write: impl Fn(usize, &mut [u8]) + Sync,
) {
    let row_bytes = rows.bytes.len() / rows.out_features.max(1);
    let stretch = (RELEASED_BYTES / row_bytes.max(1)).max(1);
    let mut unused = vec![(); rows.out_features];
    let write = |row, out: &mut [u8], _: &mut [()]| write(row, out);
    for_each_tile_by(pool, stretch, out, (&mut unused, 1), write, |written| {
        release(&rows.bytes[written.start * row_bytes..written.end * row_bytes]);
    });
}

/// Calls `write` as [`for_each_tile`] does, and `done` with every `stretch` of tiles that were
/// written, or fewer.
fn for_each_tile_by<A: Send, B: Send>(
    pool: &ThreadPool,
    stretch: usize,
    first: (&mut [A], usize),
    second: (&mut [B], usize),
    write: impl Fn(usize, &mut [A], &mut [B]) + Sync,
    done: impl Fn(Range<usize>) + Sync,
) {
    let num_tiles = first.0.len() / first.1;
    assert_eq!(second.0.len() / second.1, num_tiles);
    let first_rows = crate::row_view::RowView::new(first.0, first.1);
    let second_rows = crate::row_view::RowView::new(second.0, second.1);
    pool.split(num_tiles, |range| {
        for start in range.clone().step_by(stretch) {
            let tiles = start..range.end.min(start.saturating_add(stretch));
            for tile in tiles.clone() {
                // SAFETY: `split` gives each tile to one call only, and a tile is a row of the view.
                let a = unsafe { first_rows.piece(tile, 0, first.1) };
                // SAFETY: as above.
                let b = unsafe { second_rows.piece(tile, 0, second.1) };
                write(tile, a, b);
            }
            done(tiles);
        }
    });
}

/// Weights that cannot be packed.
#[derive(Debug)]
pub enum PackError {
    /// The bytes do not fit the shape, or the parts differ in width.
    Shape {
        /// Number format of the part.
        weight_type: WeightType,
        /// Rows of the part.
        out_features: usize,
        /// Weights in a row.
        in_features: usize,
        /// Bytes that were given.
        num_bytes: usize,
    },
    /// Memory could not be reserved.
    Memory {
        /// Bytes that were asked for.
        num_bytes: usize,
        /// What the system said.
        source: io::Error,
    },
}

impl fmt::Display for PackError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Shape { weight_type, out_features, in_features, num_bytes } => write!(
                f,
                "{num_bytes} bytes do not hold a {weight_type} matrix of {out_features} x \
                 {in_features}, or its parts differ in width"
            ),
            Self::Memory { num_bytes, .. } => {
                write!(f, "cannot reserve {num_bytes} bytes for packed weights")
            }
        }
    }
}

impl std::error::Error for PackError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Memory { source, .. } => Some(source),
            Self::Shape { .. } => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::num::NonZeroUsize;
    use std::sync::Mutex;

    /// Checks that every byte of the parts is given back once, in stretches of bounded size.
    fn check_released(num_threads: usize, shapes: &[(WeightType, usize, usize)]) {
        let pool = ThreadPool::new(NonZeroUsize::new(num_threads).unwrap());
        let stored = shapes.iter().map(|(weight_type, out_features, in_features)| {
            vec![0; out_features * weight_type.bytes_for(*in_features).unwrap()]
        });
        let stored: Vec<_> = stored.collect();
        let parts = shapes.iter().zip(&stored).map(|(shape, bytes)| {
            let (weight_type, out_features, in_features) = *shape;
            WeightRows { weight_type, out_features, in_features, bytes }
        });
        let parts: Vec<_> = parts.collect();
        let released = Mutex::new(Vec::new());
        let release = |bytes: &[u8]| {
            released.lock().unwrap().push((bytes.as_ptr().addr(), bytes.len()));
        };
        PackedMatrix::pack_and_release(&pool, &WeightMemory::default(), &parts, &release).unwrap();
        let mut released = released.into_inner().unwrap();
        released.sort_unstable();
        for (part, shape) in parts.iter().zip(shapes) {
            let start = part.bytes.as_ptr().addr();
            let mut end = start;
            for (first, num_bytes) in &released {
                if (start..start + part.bytes.len()).contains(first) {
                    assert_eq!(*first, end, "{shape:?}");
                    assert!(*num_bytes <= RELEASED_BYTES, "{num_bytes} bytes of {shape:?}");
                    end += num_bytes;
                }
            }
            assert_eq!(end - start, part.bytes.len(), "{shape:?}");
        }
    }

    #[test]
    fn stored_bytes_are_given_back_once_they_are_packed() {
        for num_threads in [1, 3] {
            let bf16 = WeightType::Bf16;
            check_released(num_threads, &[(bf16, 40, 2048), (bf16, 3000, 2048)]);
            check_released(
                num_threads,
                &[(WeightType::Q4_0, 17, 2048), (WeightType::Q6K, 9000, 2048)],
            );
        }
    }

    #[test]
    fn the_bytes_planned_for_a_matrix_are_those_it_takes() {
        let pool = ThreadPool::new(NonZeroUsize::MIN);
        for weight_type in WeightType::ALL {
            let (out_features, in_features) = (17, 512);
            let row_bytes = weight_type.bytes_for(in_features).unwrap();
            let bytes = vec![0; out_features * row_bytes];
            let rows = WeightRows { weight_type, out_features, in_features, bytes: &bytes };
            let packed = PackedMatrix::pack(&pool, &WeightMemory::default(), &[rows]).unwrap();
            assert_eq!(rows.packed_bytes(), packed.num_bytes(), "{weight_type}");
        }
    }
}
