//! Integer tiles with AVX2: two vectors of eight output features make a tile.
//!
//! A lone row multiplies both halves of a tile as they are read, so that a step of one sequence is
//! bound by reading its weights; several rows share the decoded codes of one half after the other.

mod group;

use super::stored_form::{
    ByteCodes, Codes, F16Scale, F16ScaleMinimum, F32HalfScales, F32HalfScalesMinimums, F32Scale,
    F32ScaleMinimum, FullByteCodes, NibbleCodes, Scales,
};
use super::{TileKernel, TileRows};
use crate::activation_rows::{GROUP_WORDS, HighCodes, QUAD, QuadGroup, RowBlock};
use crate::isa::Avx2;
use crate::lanes::LANES;
use crate::packed_matrix::{CodeWidth, IntegerTile, ScaleFormat, Scheme};
use group::{
    add_dots, add_wide, load_codes, load_scales, load_word, multiply, multiply_halves,
    multiply_halves_with_vnni, multiply_with_vnni, store, word_dots, word_dots_with_vnni,
};
use std::arch::x86_64::{_mm256_set1_epi32, _mm256_setzero_ps};

/// Lanes of one vector; a tile has two halves of this width.
const HALF_LANES: usize = LANES / 2;
/// The zero point of codes that use all eight bits.
const FULL_ZERO_POINT: u8 = 128;

/// Returns the kernel that `$module` has for codes and a format of scales.
macro_rules! kernel {
    ($module:ident, $codes:ty, $scales:expr) => {
        match $scales {
            ScaleFormat::F16 => $module::tile_rows::<$codes, F16Scale>,
            ScaleFormat::F16Minimum => $module::tile_rows::<$codes, F16ScaleMinimum>,
            ScaleFormat::F32 => $module::tile_rows::<$codes, F32Scale>,
            ScaleFormat::F32Minimum => $module::tile_rows::<$codes, F32ScaleMinimum>,
            ScaleFormat::F32Halves => $module::tile_rows::<$codes, F32HalfScales>,
            ScaleFormat::F32HalvesMinimums => $module::tile_rows::<$codes, F32HalfScalesMinimums>,
        }
    };
}

/// Returns the kernel for tiles of `scheme`; the proof is what makes calling it sound.
pub(super) fn kernel(proof: Avx2, scheme: Scheme) -> TileKernel {
    if proof.vnni.is_some() {
        return match scheme.width {
            CodeWidth::Nibble => kernel!(dot_products, NibbleCodes, scheme.scales),
            CodeWidth::Byte => kernel!(dot_products, ByteCodes, scheme.scales),
        };
    }
    match (scheme.width, scheme.zero_point) {
        (CodeWidth::Nibble, _) => kernel!(multiplications, NibbleCodes, scheme.scales),
        (CodeWidth::Byte, FULL_ZERO_POINT) => {
            kernel!(multiplications, FullByteCodes, scheme.scales)
        }
        (CodeWidth::Byte, _) => kernel!(multiplications, ByteCodes, scheme.scales),
    }
}

/// Defines a module whose `tile_rows` multiplies with given functions, compiled for `$features`.
macro_rules! tile_rows_with {
    (
        $(#[$doc:meta])*
        $module:ident,
        $multiply_halves:ident,
        $multiply:ident,
        $word_dots:ident,
        $features:literal
    ) => {
        $(#[$doc])*
        mod $module {
            use super::*;

            pub(super) fn tile_rows<C: Codes, S: Scales>(
                tile: IntegerTile<'_>,
                rows: RowBlock<'_>,
                out: &mut TileRows,
            ) {
                // SAFETY: only `kernel` hands this function out, for a proof that the features
                // are present.
                unsafe { tile_rows_avx2::<C, S>(tile, rows, out) }
            }

            /// Covers the block with passes of up to four rows.
            #[target_feature(enable = $features)]
            fn tile_rows_avx2<C: Codes, S: Scales>(
                tile: IntegerTile<'_>,
                rows: RowBlock<'_>,
                out: &mut TileRows,
            ) {
                for (index, out) in out.as_chunks_mut::<QUAD>().0.iter_mut().enumerate() {
                    let x = match rows.num_rows.saturating_sub(index * QUAD) {
                        0 => break,
                        num_rows => (num_rows, rows.quad(index)),
                    };
                    match x {
                        (1, x) => one_row::<C, S>(tile, x, &mut out[0]),
                        (2, x) => quad_rows::<2, C, S>(tile, x, out),
                        (3, x) => quad_rows::<3, C, S>(tile, x, out),
                        (_, x) => quad_rows::<QUAD, C, S>(tile, x, out),
                    }
                }
            }

            /// Multiplies the first of four rows with the tile.
            ///
            /// The row's wide word, if a group has one, is added without a branch, of which the
            /// processor would guess one in six wrong.
            #[inline]
            #[target_feature(enable = $features)]
            fn one_row<C: Codes, S: Scales>(
                tile: IntegerTile<'_>,
                (quads, high): (&[QuadGroup], &[HighCodes]),
                out: &mut [f32; LANES],
            ) {
                let code_groups = tile.codes.chunks_exact(C::WIDTH.group_bytes());
                let scale_groups = tile.scales.chunks_exact(S::FORMAT.group_bytes());
                let mut acc = [_mm256_setzero_ps(); 2];
                let groups = code_groups.zip(scale_groups).zip(quads.iter().zip(high));
                for (g, ((w_codes, w_scales), (quad, high))) in groups.enumerate() {
                    tile.prefetch_next(g, C::WIDTH, S::FORMAT);
                    let word = quad.high_words.trailing_zeros() as usize % GROUP_WORDS;
                    let high = if quad.high_words == 0 { 0 } else { high[0][word] };
                    let high = _mm256_set1_epi32(high);
                    let dots = $multiply_halves::<C, S>(w_codes, &quad.codes[0]);
                    for (half, mut dots) in dots.into_iter().enumerate() {
                        let codes = load_word::<C>(w_codes, half, word);
                        add_wide::<S>(&mut dots, word, $word_dots::<C>(codes, high));
                        let w_scales = load_scales::<S>(w_scales, half);
                        acc[half] = add_dots::<C, S>(acc[half], dots, &w_scales, quad, 0);
                    }
                }
                for (lanes, acc) in out.as_chunks_mut::<HALF_LANES>().0.iter_mut().zip(acc) {
                    store(lanes, acc);
                }
            }

            /// Multiplies the first `ROWS` of four rows with the tile, one half of its lanes after
            /// the other.
            #[inline]
            #[target_feature(enable = $features)]
            fn quad_rows<const ROWS: usize, C: Codes, S: Scales>(
                tile: IntegerTile<'_>,
                (quads, high): (&[QuadGroup], &[HighCodes]),
                out: &mut [[f32; LANES]; QUAD],
            ) {
                for half in 0..2 {
                    let code_groups = tile.codes.chunks_exact(C::WIDTH.group_bytes());
                    let scale_groups = tile.scales.chunks_exact(S::FORMAT.group_bytes());
                    let mut acc = [_mm256_setzero_ps(); ROWS];
                    let groups = code_groups.zip(scale_groups).zip(quads.iter().zip(high));
                    for (g, ((w_codes, w_scales), (quad, high))) in groups.enumerate() {
                        if half == 0 {
                            tile.prefetch_next(g, C::WIDTH, S::FORMAT);
                        }
                        let codes = load_codes::<C>(w_codes, half);
                        let w_scales = load_scales::<S>(w_scales, half);
                        for r in 0..ROWS {
                            let mut dots = $multiply::<C, S>(&codes, &quad.codes[r]);
                            let mut left = quad.high_words;
                            while left != 0 {
                                let word = left.trailing_zeros() as usize % GROUP_WORDS;
                                left &= left - 1;
                                let high = _mm256_set1_epi32(high[r][word]);
                                let codes = load_word::<C>(w_codes, half, word);
                                add_wide::<S>(&mut dots, word, $word_dots::<C>(codes, high));
                            }
                            acc[r] = add_dots::<C, S>(acc[r], dots, &w_scales, quad, r);
                        }
                    }
                    for (out, acc) in out.iter_mut().zip(acc) {
                        store(&mut out.as_chunks_mut::<HALF_LANES>().0[half], acc);
                    }
                }
            }
        }
    };
}

tile_rows_with!(
    /// With AVX2's own multiplications.
    multiplications,
    multiply_halves,
    multiply,
    word_dots,
    "avx2,fma,f16c"
);
tile_rows_with!(
    /// With AVX-VNNI's dot products.
    dot_products,
    multiply_halves_with_vnni,
    multiply_with_vnni,
    word_dots_with_vnni,
    "avx2,fma,f16c,avxvnni"
);
