//! Panels with AVX2, with and without AVX-VNNI.

mod products;
mod quantize;
mod tiles;

pub(super) use products::kernel;
pub(super) use quantize::quantize_quad;
pub(super) use tiles::decode;

use super::activations::ZERO;
use crate::activation_rows::GROUP_WORDS;
use crate::isa::Avx2;
use crate::packed_matrix::{CodeWidth, Scheme};

/// Rows from which on panels are faster than tiles.
pub(super) const LEAST_ROWS: usize = 11;
/// Tiles of a panel: a stretch of them leaves room for rows in an L1 cache of 32 KiB.
pub(super) const NUM_TILES: usize = 2;

/// The zero point of codes that use all eight bits.
const FULL_ZERO_POINT: u8 = 128;

/// How the products of a scheme's codes are added up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sums {
    /// In 32 bits at once, by AVX-VNNI.
    Dots,
    /// In 16 bits over this many words, as far as that is exact, then in 32.
    Words(usize),
    /// In 32 bits after each word, whose codes use all eight bits: activations have to be signed.
    Full,
}

impl Sums {
    /// Returns how it is done for a scheme.
    ///
    /// The products of two unsigned activations and signed weights, which one lane of 16 bits adds
    /// up for each word, are at most `2 * 255 * |w|`. So 16 bits hold those of four words of codes
    /// of four bits (`|w|` up to 15), of all eight words where the sums begin with what brings
    /// their range around 0 (see [`first_sum`]), and of two words of the other codes in bytes, none
    /// of which is more than 32 from what stands for 0.
    const fn of(proof: Avx2, scheme: Scheme) -> Self {
        if proof.vnni.is_some() {
            return Self::Dots;
        }
        match (scheme.width, scheme.zero_point) {
            (CodeWidth::Nibble, _) if scheme.scales.has_halves() => Self::Words(GROUP_WORDS / 2),
            (CodeWidth::Nibble, _) => Self::Words(GROUP_WORDS),
            (CodeWidth::Byte, FULL_ZERO_POINT) => Self::Full,
            (CodeWidth::Byte, _) => Self::Words(2),
        }
    }
}

/// Returns what sums in 16 bits begin with: over a whole group of four-bit codes, minus the middle
/// of the range that they can come to, which then goes no further than 30,600 on either side.
pub(super) const fn first_sum(proof: Avx2, scheme: Scheme) -> i16 {
    // What one step of the weights makes of eight words, halved: 2 * 8 * 255 / 2.
    const HALF_STEP: i16 = 2040;
    const _: () = assert!(GROUP_WORDS == 8);
    match Sums::of(proof, scheme) {
        Sums::Words(GROUP_WORDS) => HALF_STEP * (2 * scheme.zero_point as i16 - 15),
        Sums::Dots | Sums::Words(_) | Sums::Full => 0,
    }
}

/// Returns the byte that stands for an activation of 0.
pub(super) const fn zero(proof: Avx2, scheme: Scheme) -> u8 {
    match Sums::of(proof, scheme) {
        Sums::Full => 0,
        Sums::Dots | Sums::Words(_) => ZERO,
    }
}
