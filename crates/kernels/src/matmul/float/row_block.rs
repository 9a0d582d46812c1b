//! One block of rows times one or two tiles, with accumulators in registers.
//!
//! Each input feature costs one load of weights for each tile, one broadcast for each row, and a
//! fused multiply-add for each row and tile. Two tiles of 14 rows fill the 32 registers of AVX-512
//! (28 sums, two weights, a broadcast); one tile of 6 rows the 16 half as wide ones of AVX2.

use super::MAX_TILES;
use crate::lanes::{LANES, LaneFloat, Lanes};

/// Rows of a block at most on any instruction set.
pub(super) const MAX_ROWS: usize = 14;

/// Accumulators of a block, `[rows, tiles, lanes]`.
#[derive(Default)]
pub(super) struct Sums(pub(super) [[[f32; LANES]; MAX_TILES]; MAX_ROWS]);

impl Sums {
    pub(super) fn clear(&mut self, num_rows: usize) {
        self.0[..num_rows].fill([[0.0; LANES]; MAX_TILES]);
    }
}

/// Returns the tiles that are computed together.
pub(super) const fn tiles<V: Lanes>() -> usize {
    if V::IN_REGISTERS >= 32 { 2 } else { 1 }
}

/// Returns the rows of a block at most.
pub(super) const fn max_rows<V: Lanes>() -> usize {
    if V::IN_REGISTERS >= 32 { MAX_ROWS } else { 6 }
}

/// Weights that are asked for while others are used.
#[derive(Clone, Copy)]
pub(super) struct Ahead {
    tiles: [*const u8; MAX_TILES],
    step: usize,
}

impl Ahead {
    /// Weights some bytes ahead of those in use.
    #[inline(always)]
    pub(super) fn in_stream<T>(tiles: [&[[T; LANES]]; MAX_TILES], num_bytes: usize) -> Self {
        let tiles = tiles.map(|tile| tile.as_ptr().cast::<u8>().wrapping_add(num_bytes));
        Self { tiles, step: size_of::<[T; LANES]>() }
    }

    /// Weights of the tiles from input feature `next` on, or of the tiles after them.
    #[inline(always)]
    pub(super) fn to_next<T>(
        w: &[[T; LANES]],
        tiles: [usize; MAX_TILES],
        in_features: usize,
        next: usize,
    ) -> Self {
        let skip = if next == in_features { in_features } else { 0 };
        let tiles = tiles
            .map(|tile| w.as_ptr().wrapping_add(tile * in_features + next + skip).cast::<u8>());
        Self { tiles, step: size_of::<[T; LANES]>() }
    }

    #[inline(always)]
    fn ask(&self, tile: usize, k: usize) {
        let place = self.tiles[tile].wrapping_add(k * self.step);
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            // SAFETY: a hint; it reads nothing and never faults, whatever the address.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(place.cast()) };
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _no_hint = place;
    }
}

/// Repeats `$body` for `$r = 0..$rows`, written out, so that accumulators stay in registers.
macro_rules! for_each_row {
    ($rows:ident, $r:ident => $body:block) => {
        for_each_row!($rows, $r, $body, 0 1 2 3 4 5 6 7 8 9 10 11 12 13)
    };
    ($rows:ident, $r:ident, $body:block, $($index:literal)*) => {
        $({
            const $r: usize = $index;
            if $r < $rows $body
        })*
    };
}

/// Adds `num_rows` rows times the tiles to `sums`; `x` is their panel, `[in_features, num_rows]`.
#[inline(always)]
pub(super) fn multiply<V: Lanes, T: LaneFloat>(
    proof: V::Proof,
    w: [&[[T; LANES]]; MAX_TILES],
    x: &[f32],
    num_rows: usize,
    ahead: Ahead,
    sums: &mut Sums,
) {
    macro_rules! by_rows {
        ($tiles:literal: $($rows:literal)*) => {
            match num_rows {
                $($rows => rows::<V, T, $tiles, $rows>(proof, w, x, ahead, sums),)*
                other => unreachable!("blocks of {other} rows"),
            }
        };
    }
    if const { tiles::<V>() } == 2 {
        by_rows!(2: 1 2 3 4 5 6 7 8 9 10 11 12 13 14);
    } else {
        by_rows!(1: 1 2 3 4 5 6);
    }
}

#[inline(always)]
fn rows<V: Lanes, T: LaneFloat, const TILES: usize, const ROWS: usize>(
    proof: V::Proof,
    w: [&[[T; LANES]]; MAX_TILES],
    x: &[f32],
    ahead: Ahead,
    sums: &mut Sums,
) {
    let x = x.as_chunks::<ROWS>().0;
    let w = w.map(|w| &w[..x.len()]);
    let mut acc = [[V::splat(proof, 0.0); TILES]; ROWS];
    for_each_row!(ROWS, R => {
        for t in 0..TILES {
            acc[R][t] = V::load(proof, &sums.0[R][t]);
        }
    });
    for (k, x) in x.iter().enumerate() {
        let mut weights = [V::splat(proof, 0.0); TILES];
        for t in 0..TILES {
            weights[t] = T::load::<V>(proof, &w[t][k]);
            ahead.ask(t, k);
        }
        for_each_row!(ROWS, R => {
            let x = V::splat(proof, x[R]);
            for t in 0..TILES {
                acc[R][t] = weights[t].mul_add(x, acc[R][t]);
            }
        });
    }
    for_each_row!(ROWS, R => {
        for t in 0..TILES {
            acc[R][t].store(&mut sums.0[R][t]);
        }
    });
}
