//! Integer weights in tiles of 16 output features.
//!
//! For each tile and each group of 32 input features lie together the codes of all 16 features,
//! in the order that one dot-product instruction reads: four consecutive input features of
//! feature 0, the same four of feature 1, and so on, 64 bytes in all, then the next four.
//!
//! ```text
//! bytes:    f0 k0 k1 k2 k3 | f1 k0 k1 k2 k3 | … | f15 k0 k1 k2 k3      (word 0)
//!           f0 k4 k5 k6 k7 | …                                         (word 1)
//! nibbles:  word i in the low half of vector i, word i + 4 in its high half
//! ```
//!
//! Scales lie in their own buffer, `[num_tiles, num_groups, scales_per_group, 16]`, in the order
//! scale (or the scales of the two halves), then minimum.

use super::integer_group::read_group;
use super::{PackError, ReleaseBytes, TileSource, WeightRows};
use crate::activation_rows::{GROUP, GROUP_WORDS, PartSums, WeightOffsets};
use crate::float_format::{F16, StoredFloat};
use crate::lanes::LANES;
use crate::prefetch::prefetch;
use crate::reference::f16_to_f32;
use crate::thread_pool::ThreadPool;
use crate::weight_memory::{WeightBuffer, WeightMemory};
use crate::weight_type::WeightType;
#[cfg(target_arch = "x86_64")]
use std::ops::Range;

/// Bytes of a cache line.
pub(crate) const LINE_BYTES: usize = 64;

/// Bits that a stored code takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CodeWidth {
    /// Four bits, two words of codes to a vector.
    Nibble,
    /// Eight bits.
    Byte,
}

/// How scales and minimums are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ScaleFormat {
    /// One f16 scale for a group.
    F16,
    /// An f16 scale and an f16 minimum for a group.
    F16Minimum,
    /// One f32 scale for a group.
    F32,
    /// An f32 scale and an f32 minimum for a group.
    F32Minimum,
    /// Two f32 scales, one for each half of the group.
    F32Halves,
    /// Two f32 scales and two f32 minimums, one of each for each half of the group.
    F32HalvesMinimums,
}

impl ScaleFormat {
    /// Scale vectors of 16 lanes that a tile has for each group.
    pub(crate) const fn vectors(self) -> usize {
        match self {
            Self::F16 | Self::F32 => 1,
            Self::F16Minimum | Self::F32Minimum | Self::F32Halves => 2,
            Self::F32HalvesMinimums => 4,
        }
    }

    /// Whether minimums follow the scales.
    pub(crate) const fn has_minimum(self) -> bool {
        matches!(self, Self::F16Minimum | Self::F32Minimum | Self::F32HalvesMinimums)
    }

    /// Whether the halves of a group have a scale each.
    pub(crate) const fn has_halves(self) -> bool {
        matches!(self, Self::F32Halves | Self::F32HalvesMinimums)
    }

    /// Bytes of one scale.
    pub(crate) const fn element_bytes(self) -> usize {
        match self {
            Self::F16 | Self::F16Minimum => 2,
            Self::F32 | Self::F32Minimum | Self::F32Halves | Self::F32HalvesMinimums => 4,
        }
    }

    /// Bytes of a tile's scales for one group.
    pub(crate) const fn group_bytes(self) -> usize {
        self.vectors() * self.element_bytes() * LANES
    }
}

impl CodeWidth {
    /// Bytes of a tile's codes for one group.
    pub(crate) const fn group_bytes(self) -> usize {
        match self {
            Self::Nibble => LANES * GROUP / 2,
            Self::Byte => LANES * GROUP,
        }
    }
}

/// How an integer format is stored in tiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Scheme {
    /// Bits of a code.
    pub(crate) width: CodeWidth,
    /// The scales.
    pub(crate) scales: ScaleFormat,
    /// The code that stands for 0 before the minimum is added.
    pub(crate) zero_point: u8,
}

impl Scheme {
    /// Returns the scheme of an integer format, or `None` for formats packed as floats.
    pub(crate) const fn of(weight_type: WeightType) -> Option<Self> {
        use CodeWidth::{Byte, Nibble};
        use ScaleFormat::{F16, F16Minimum, F32, F32Halves, F32HalvesMinimums, F32Minimum};
        let (width, scales, zero_point) = match weight_type {
            WeightType::Q2K => (Nibble, F32HalvesMinimums, 0),
            WeightType::Q3K => (Nibble, F32Halves, 4),
            WeightType::Q4_0 => (Nibble, F16, 8),
            WeightType::Q4_1 => (Nibble, F16Minimum, 0),
            WeightType::Q4K | WeightType::Int4 => (Nibble, F32Minimum, 0),
            WeightType::Q5_0 => (Byte, F32, 16),
            WeightType::Q5_1 | WeightType::Q5K => (Byte, F32Minimum, 0),
            WeightType::Q6K => (Byte, F32Halves, 32),
            WeightType::Q8_0 | WeightType::Iq4Nl => (Byte, F16, 128),
            WeightType::Iq1S => (Nibble, F32Minimum, 1),
            WeightType::Iq1M => (Byte, F32Halves, 9),
            WeightType::Iq2Xxs | WeightType::Iq3Xxs | WeightType::Iq4Xs => (Byte, F32, 128),
            WeightType::Iq2Xs | WeightType::Iq2S => (Byte, F32Halves, 128),
            WeightType::Iq3S => (Nibble, F32Minimum, 8),
            WeightType::Tq1_0 | WeightType::Tq2_0 => (Nibble, F16, 1),
            WeightType::Mxfp4 => (Byte, F32, 12),
            WeightType::F32 | WeightType::F16 | WeightType::Bf16 => return None,
        };
        Some(Self { width, scales, zero_point })
    }

    /// Returns what products with such weights ask of their activations.
    pub(crate) const fn offsets(self) -> WeightOffsets {
        let parts = if self.scales.has_halves() { PartSums::Halves } else { PartSums::Group };
        WeightOffsets { zero_point: self.zero_point, parts }
    }

    /// Bytes of a tile's codes for one group.
    pub(crate) const fn code_bytes(self) -> usize {
        self.width.group_bytes()
    }

    /// Bytes of a tile's scales for one group.
    pub(crate) const fn scale_bytes(self) -> usize {
        self.scales.group_bytes()
    }
}

/// Integer weights of one part of a matrix.
#[derive(Debug)]
pub(crate) struct IntegerTiles {
    scheme: Scheme,
    num_groups: usize,
    codes: WeightBuffer,
    scales: WeightBuffer,
}

/// The scales and minimums of the halves of a group; equal where the format has one for both.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct LaneScales {
    /// The value of code 1.
    pub(crate) scales: [f32; 2],
    /// Added to every weight; 0 where the format has none.
    pub(crate) minimums: [f32; 2],
}

/// One tile: 16 output features over all input features.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IntegerTile<'a> {
    /// How to read it.
    pub(crate) scheme: Scheme,
    /// `[num_groups, code_bytes]`
    pub(crate) codes: &'a [u8],
    /// `[num_groups, scale_bytes]`
    pub(crate) scales: &'a [u8],
    /// The codes of the tile that follows; of the tile itself where it is the last.
    pub(crate) next_codes: &'a [u8],
    /// Its scales.
    pub(crate) next_scales: &'a [u8],
}

impl IntegerTiles {
    /// Packs `rows`, whose bytes fit their shape, into `memory`, and lets them be given back.
    pub(super) fn pack(
        pool: &ThreadPool,
        memory: &WeightMemory,
        scheme: Scheme,
        rows: &WeightRows<'_>,
        release: &ReleaseBytes<'_>,
    ) -> Result<Self, PackError> {
        let num_groups = rows.in_features / GROUP;
        let num_tiles = rows.out_features.div_ceil(LANES);
        let reserve = |tile_bytes: usize| {
            let num_bytes = num_tiles * tile_bytes;
            memory.take(num_bytes).map_err(|source| PackError::Memory { num_bytes, source })
        };
        let code_bytes = num_groups * scheme.code_bytes();
        let scale_bytes = num_groups * scheme.scale_bytes();
        let mut codes = reserve(code_bytes)?;
        let mut scales = reserve(scale_bytes)?;
        let source = TileSource { rows, release };
        let row_bytes = source.row_bytes();
        source.for_each_tile(
            pool,
            (codes.bytes_mut(), code_bytes),
            (scales.bytes_mut(), scale_bytes),
            |tile, codes, scales| {
                let stored = source.stored(tile..tile + 1);
                for lane in 0..source.num_rows(tile) {
                    let row = &stored[lane * row_bytes..][..row_bytes];
                    pack_lane(scheme, rows.weight_type, row, lane, codes, scales);
                }
            },
        );
        Ok(Self { scheme, num_groups, codes, scales })
    }

    /// Returns tile `index`.
    pub(crate) fn tile(&self, index: usize) -> IntegerTile<'_> {
        let code_bytes = self.num_groups * self.scheme.code_bytes();
        let scale_bytes = self.num_groups * self.scheme.scale_bytes();
        let (codes, scales) = (self.codes.bytes(), self.scales.bytes());
        let next = if (index + 2) * code_bytes <= codes.len() { index + 1 } else { index };
        IntegerTile {
            scheme: self.scheme,
            codes: &codes[index * code_bytes..][..code_bytes],
            scales: &scales[index * scale_bytes..][..scale_bytes],
            next_codes: &codes[next * code_bytes..][..code_bytes],
            next_scales: &scales[next * scale_bytes..][..scale_bytes],
        }
    }

    /// Returns the format of the tiles.
    pub(crate) fn scheme(&self) -> Scheme {
        self.scheme
    }

    pub(super) fn num_bytes(&self) -> usize {
        self.codes.bytes().len() + self.scales.bytes().len()
    }

    pub(super) fn row(&self, index: usize, out: &mut [f32]) {
        let tile = self.tile(index / LANES);
        let lane = index % LANES;
        let zero_point = f32::from(self.scheme.zero_point);
        for (g, out) in out.as_chunks_mut::<GROUP>().0.iter_mut().enumerate() {
            let LaneScales { scales, minimums } = tile.lane_scales(g, lane);
            for (k, weight) in out.iter_mut().enumerate() {
                let code = f32::from(tile.code(g, lane, k));
                let half = k / (GROUP / 2);
                *weight = scales[half] * (code - zero_point) + minimums[half];
            }
        }
    }
}

impl<'a> IntegerTile<'a> {
    /// Returns the codes and scales of a stretch of the tile.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn stretch(self, groups: Range<usize>) -> (&'a [u8], &'a [u8]) {
        let bytes = |size: usize| groups.start * size..groups.end * size;
        let scales = &self.scales[bytes(self.scheme.scale_bytes())];
        (&self.codes[bytes(self.scheme.code_bytes())], scales)
    }

    /// Asks for group `g` of the next tile, whose form the caller says so that it can be one that
    /// is known when it is compiled: weights that are read once come from memory, and the
    /// processor's own guesses end with each of its small pages.
    #[inline(always)]
    pub(crate) fn prefetch_next(&self, g: usize, width: CodeWidth, scales: ScaleFormat) {
        let (codes, scales) = (width.group_bytes(), scales.group_bytes());
        for line in self.next_codes[g * codes..][..codes].chunks(LINE_BYTES) {
            prefetch(&line[0]);
        }
        for line in self.next_scales[g * scales..][..scales].chunks(LINE_BYTES) {
            prefetch(&line[0]);
        }
    }

    /// Returns the code of input feature `k` of group `g` in `lane`.
    pub(crate) fn code(&self, g: usize, lane: usize, k: usize) -> u8 {
        let codes = &self.codes[g * self.scheme.code_bytes()..];
        let word = k / 4;
        let place = |vector: usize| codes[vector * LANES * 4 + lane * 4 + k % 4];
        match self.scheme.width {
            CodeWidth::Byte => place(word),
            CodeWidth::Nibble if word < GROUP_WORDS / 2 => place(word) & 0x0f,
            CodeWidth::Nibble => place(word - GROUP_WORDS / 2) >> 4,
        }
    }

    /// Returns the scales and minimums of group `g` in `lane`.
    pub(crate) fn lane_scales(&self, g: usize, lane: usize) -> LaneScales {
        let scales = &self.scales[g * self.scheme.scale_bytes()..];
        let half = |vector: usize| {
            let at = (vector * LANES + lane) * 2;
            f16_to_f32(u16::from_le_bytes([scales[at], scales[at + 1]]))
        };
        let single = |vector: usize| {
            let at = (vector * LANES + lane) * 4;
            f32::from_le_bytes([scales[at], scales[at + 1], scales[at + 2], scales[at + 3]])
        };
        let (scales, minimums) = match self.scheme.scales {
            ScaleFormat::F16 => ([half(0); 2], [0.0; 2]),
            ScaleFormat::F16Minimum => ([half(0); 2], [half(1); 2]),
            ScaleFormat::F32 => ([single(0); 2], [0.0; 2]),
            ScaleFormat::F32Minimum => ([single(0); 2], [single(1); 2]),
            ScaleFormat::F32Halves => ([single(0), single(1)], [0.0; 2]),
            ScaleFormat::F32HalvesMinimums => ([single(0), single(1)], [single(2), single(3)]),
        };
        LaneScales { scales, minimums }
    }
}

/// Writes one row of weights into its lane of a tile.
fn pack_lane(
    scheme: Scheme,
    weight_type: WeightType,
    row: &[u8],
    lane: usize,
    codes: &mut [u8],
    scales: &mut [u8],
) {
    let groups = codes
        .chunks_exact_mut(scheme.code_bytes())
        .zip(scales.chunks_exact_mut(scheme.scale_bytes()));
    if let Some((first, flip)) = stored_words(weight_type) {
        let rows = row.chunks_exact(weight_type.group_bytes());
        for (stored, (codes, scales)) in rows.zip(groups) {
            let words = stored[first..].as_chunks::<4>().0;
            for (vector, word) in codes.as_chunks_mut::<{ LANES * 4 }>().0.iter_mut().zip(words) {
                let word = u32::from_ne_bytes(*word) ^ flip;
                vector[lane * 4..][..4].copy_from_slice(&word.to_ne_bytes());
            }
            put_scales(scales, lane, stored[..first].as_chunks::<2>().0);
        }
        return;
    }
    for (g, (codes, scales)) in groups.enumerate() {
        let group = read_group(weight_type, row, g);
        pack_codes(scheme.width, &group.codes, lane, codes);
        let half = F16::narrow(group.scales[0]).0.to_le_bytes();
        let [scale, second] = group.scales.map(f32::to_le_bytes);
        let [minimum, second_minimum] = group.minimums.map(f32::to_le_bytes);
        match scheme.scales {
            ScaleFormat::F32 => put_scales(scales, lane, &[scale]),
            ScaleFormat::F32Minimum => put_scales(scales, lane, &[scale, minimum]),
            ScaleFormat::F32Halves => put_scales(scales, lane, &[scale, second]),
            ScaleFormat::F32HalvesMinimums => {
                put_scales(scales, lane, &[scale, second, minimum, second_minimum]);
            }
            // Narrowing is exact: such formats store their scales in half precision.
            ScaleFormat::F16 => put_scales(scales, lane, &[half]),
            ScaleFormat::F16Minimum => {
                unreachable!("formats with f16 minimums store their words as tiles do")
            }
        }
    }
}

/// Returns where the words of a group begin, and what their bytes are to be combined with, for
/// formats that store them as tiles do, behind f16 scales and minimums.
#[expect(clippy::wildcard_enum_match_arm, reason = "other formats are read group by group")]
const fn stored_words(weight_type: WeightType) -> Option<(usize, u32)> {
    match weight_type {
        WeightType::Q4_0 => Some((2, 0)),
        WeightType::Q4_1 => Some((4, 0)),
        // Signed codes become unsigned ones around 128.
        WeightType::Q8_0 => Some((2, 0x8080_8080)),
        _ => None,
    }
}

/// Writes the codes of a group into a lane.
fn pack_codes(width: CodeWidth, codes: &[u8; GROUP], lane: usize, packed: &mut [u8]) {
    let words = codes.as_chunks::<4>().0;
    let vectors = packed.as_chunks_mut::<{ LANES * 4 }>().0;
    match width {
        CodeWidth::Byte => {
            for (vector, word) in vectors.iter_mut().zip(words) {
                vector[lane * 4..][..4].copy_from_slice(word);
            }
        }
        CodeWidth::Nibble => {
            let (low, high) = words.split_at(GROUP_WORDS / 2);
            for ((vector, low), high) in vectors.iter_mut().zip(low).zip(high) {
                let word = u32::from_ne_bytes(*low) | (u32::from_ne_bytes(*high) << 4);
                vector[lane * 4..][..4].copy_from_slice(&word.to_ne_bytes());
            }
        }
    }
}

/// Writes the scales and minimums of a group into a lane.
fn put_scales<const BYTES: usize>(packed: &mut [u8], lane: usize, scales: &[[u8; BYTES]]) {
    let vectors = packed.as_chunks_mut::<BYTES>().0.chunks_exact_mut(LANES);
    for (vector, scale) in vectors.zip(scales) {
        vector[lane] = *scale;
    }
}
