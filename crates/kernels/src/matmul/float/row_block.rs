//! One block of rows times one or two tiles, with accumulators in registers.
//!
//! Each input feature costs one load of weights for each tile, one broadcast for each row, and a
//! fused multiply-add for each row and tile. One tile of 28 rows fills the 32 registers of AVX-512.
//! Up to 13 rows go with two tiles, so that there are enough sums that do not wait for each other;
//! rows that need several blocks never come in blocks as small. Elsewhere a block is one tile of up
//! to 6 rows: on AVX2 that takes 12 of 16 registers for sums.

use crate::lanes::{LANES, LaneFloat, Lanes};
use crate::row_view::RowView;

/// Tiles that are computed together at most.
pub(super) const MAX_TILES: usize = 2;
/// Rows of a block at most.
pub(super) const MAX_ROWS: usize = 28;

/// How many vectors of a tile ahead of their use weights are asked for: 4 KiB of bf16, which is
/// what one processor uses up in about half a microsecond.
const AHEAD: usize = 128;

/// The sizes of blocks that the registers of an instruction set hold.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    /// Tiles that are computed together.
    max_tiles: usize,
    /// Rows at most that are computed with that many tiles.
    rows_of_all: usize,
    /// Rows of a block at most; beyond `rows_of_all` with one tile.
    pub(super) max_rows: usize,
}

impl Shape {
    const WIDE: Self = Self { max_tiles: MAX_TILES, rows_of_all: 13, max_rows: MAX_ROWS };
    const NARROW: Self = Self { max_tiles: 1, rows_of_all: 6, max_rows: 6 };

    /// Returns the shape for the instruction set of `V`.
    #[inline(always)]
    pub(super) const fn of<V: Lanes>() -> Self {
        if V::ACCUMULATORS >= 24 { Self::WIDE } else { Self::NARROW }
    }

    /// Returns the tiles that are computed together with `num_rows`.
    pub(super) fn tiles(self, num_rows: usize) -> usize {
        if num_rows <= self.rows_of_all { self.max_tiles } else { 1 }
    }
}

/// Rows to multiply.
#[derive(Clone, Copy)]
pub(super) struct RowBlock<'a> {
    /// The values, `[in_features, num_rows]`.
    pub(super) x: &'a [f32],
    /// Number of rows.
    pub(super) num_rows: usize,
}

/// Where results go.
#[derive(Clone, Copy)]
pub(super) struct Place<'a> {
    /// The results, `[num_rows, out_features]`. Nobody else has those of this place.
    pub(super) out: &'a RowView<'a, f32>,
    /// Row of the block's first one.
    pub(super) first_row: usize,
    /// Output feature of the first lane.
    pub(super) first_out: usize,
}

/// Asks for the weights [`AHEAD`] vectors behind `lanes`, or what lies there.
#[inline(always)]
fn ask_ahead<T>(lanes: &[T; LANES]) {
    let place = std::ptr::from_ref(lanes).wrapping_add(AHEAD);
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        // SAFETY: a hint; it changes nothing and never faults, whatever the address.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(place.cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _no_hint = place;
}

/// Repeats `$body` for `$r = 0..$rows`, written out, so that accumulators stay in registers.
macro_rules! for_each_row {
    ($rows:ident, $r:ident => $body:block) => {
        for_each_row!($rows, $r, $body, 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22
            23 24 25 26 27)
    };
    ($rows:ident, $r:ident, $body:block, $($index:literal)*) => {
        $({
            const $r: usize = $index;
            if $r < $rows $body
        })*
    };
}

/// Multiplies a block of rows with as many tiles of `w` as [`Shape::tiles`] says.
#[inline(always)]
pub(super) fn multiply<V: Lanes, T: LaneFloat>(
    proof: V::Proof,
    w: [&[[T; LANES]]; MAX_TILES],
    block: RowBlock<'_>,
    place: Place<'_>,
) {
    macro_rules! by_rows {
        ($($tiles:literal: $($rows:literal)*),*) => {
            match block.num_rows {
                $($($rows => multiply_rows::<V, T, $tiles, $rows>(proof, w, block, place),)*)*
                other => unreachable!("blocks of {other} rows"),
            }
        };
    }
    if const { Shape::of::<V>().max_tiles == 1 } {
        by_rows!(1: 1 2 3 4 5 6);
    } else {
        by_rows!(
            2: 1 2 3 4 5 6 7 8 9 10 11 12 13,
            1: 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28
        );
    }
}

#[inline(always)]
fn multiply_rows<V: Lanes, T: LaneFloat, const TILES: usize, const ROWS: usize>(
    proof: V::Proof,
    w: [&[[T; LANES]]; MAX_TILES],
    block: RowBlock<'_>,
    place: Place<'_>,
) {
    let x = block.x.as_chunks::<ROWS>().0;
    let w = w.map(|w| &w[..x.len()]);
    let len = TILES * LANES;
    let mut sums = [[V::splat(proof, 0.0); TILES]; ROWS];
    for (k, x) in x.iter().enumerate() {
        let mut weights = [V::splat(proof, 0.0); TILES];
        for t in 0..TILES {
            weights[t] = T::load::<V>(proof, &w[t][k]);
            ask_ahead(&w[t][k]);
        }
        for_each_row!(ROWS, R => {
            let x = V::splat(proof, x[R]);
            for t in 0..TILES {
                sums[R][t] = weights[t].mul_add(x, sums[R][t]);
            }
        });
    }
    for_each_row!(ROWS, R => {
        // SAFETY: nobody else has this place, as its field says, and the piece ends here.
        let lanes = unsafe { place.out.piece(place.first_row + R, place.first_out, len) };
        for (lanes, sum) in lanes.as_chunks_mut::<LANES>().0.iter_mut().zip(sums[R]) {
            sum.store(lanes);
        }
    });
}
