//! Sizes of a KV pool, and where each number of a block lies.
//!
//! A block has up to two parts: the layers that attend to the whole context, and those that attend
//! to a sliding window and need their part of a block for a shorter time. Each part of a block is
//! one stretch of bytes, to commit, release or move at once; layers keep their order inside it:
//!
//! ```text
//! part:    layer keys | layer values | next layer keys | …
//! keys:    head 0 | head 1 | …, each [block_size / STRIP][head_dim][STRIP]   (tokens contiguous)
//! values:  head 0 | head 1 | …, each [block_size][head_dim]                  (dimensions contiguous)
//! ```
//!
//! so that one vector load covers one dimension of the keys of a strip of tokens, or the
//! dimensions of one token's value. Codes lie in pairs, which one instruction multiplies: two
//! dimensions of a key, the values of two tokens:
//!
//! ```text
//! keys:    [block_size / STRIP][head_dim / 2][STRIP][2]
//! values:  [block_size / 2][head_dim][2]
//! ```
//!
//! Each head's keys (and values) are then followed by a scale for each token of the block.

use mini_infer_core::{BlockSize, KvPart};

/// Most tokens in a strip of keys; blocks of 8 tokens have strips of 8.
const MAX_STRIP: usize = 16;

/// How KV elements are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvDtype {
    /// Single precision.
    F32,
    /// IEEE half precision.
    F16,
    /// The upper half of an f32.
    Bf16,
    /// One byte for each element of the rotated head, and a bf16 scale for each token and head.
    Int8,
}

impl KvDtype {
    /// Returns the bytes of one element.
    #[must_use]
    pub const fn element_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
            Self::Int8 => 1,
        }
    }

    /// Returns the bytes that one token's key (or value) of one head takes besides its elements.
    #[must_use]
    pub const fn scale_bytes(self) -> usize {
        match self {
            Self::F32 | Self::F16 | Self::Bf16 => 0,
            Self::Int8 => 2,
        }
    }

    /// Returns how many elements lie together: of neighbouring dimensions of a key, or of
    /// neighbouring tokens' values.
    pub(crate) const fn together(self) -> usize {
        match self {
            Self::F32 | Self::F16 | Self::Bf16 => 1,
            Self::Int8 => 2,
        }
    }

    /// Returns the name that `--kv-cache-dtype` uses.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::Int8 => "int8",
        }
    }
}

/// Which layers of a model attend to a sliding window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SlidingPattern {
    /// None does.
    #[default]
    None,
    /// All do but those whose number, counted from 1, is a multiple of this.
    AllButEvery(usize),
}

impl SlidingPattern {
    /// Returns the part of a block that `layer`, counted from 0, belongs to.
    #[must_use]
    pub const fn part(self, layer: usize) -> KvPart {
        match self {
            Self::AllButEvery(period) if !(layer + 1).is_multiple_of(period) => {
                KvPart::SlidingWindow
            }
            Self::None | Self::AllButEvery(_) => KvPart::FullAttention,
        }
    }

    /// Returns how many of the first `num_layers` layers belong to `part`: also the place of layer
    /// `num_layers` inside its part.
    const fn count(self, part: KvPart, num_layers: usize) -> usize {
        let full = match self {
            Self::None => num_layers,
            Self::AllButEvery(period) => num_layers / period,
        };
        match part {
            KvPart::FullAttention => full,
            KvPart::SlidingWindow => num_layers - full,
        }
    }
}

/// Sizes of a KV pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvLayout {
    /// Layers that have keys and values.
    pub num_layers: usize,
    /// Key and value heads of a layer.
    pub num_kv_heads: usize,
    /// Dimensions of a head.
    pub head_dim: usize,
    /// Tokens of a block.
    pub block_size: BlockSize,
    /// Stored form of an element.
    pub dtype: KvDtype,
    /// Layers whose part of a block can go before the rest.
    pub sliding: SlidingPattern,
}

/// Keys or values.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Side {
    Keys = 0,
    Values = 1,
}

impl KvLayout {
    /// Both parts of a block, in the order of their bytes.
    pub(crate) const PARTS: [KvPart; 2] = [KvPart::FullAttention, KvPart::SlidingWindow];

    /// Returns the bytes of one token's keys and values in all layers.
    #[must_use]
    pub const fn token_bytes(&self) -> usize {
        self.block_bytes() / self.block_size.tokens() as usize
    }

    /// Returns the bytes of one block, both parts.
    #[must_use]
    pub const fn block_bytes(&self) -> usize {
        self.part_bytes(KvPart::FullAttention) + self.part_bytes(KvPart::SlidingWindow)
    }

    /// Returns the bytes of one part of a block.
    #[must_use]
    pub const fn part_bytes(&self, part: KvPart) -> usize {
        2 * self.num_part_layers(part) * self.num_kv_heads * self.region_bytes()
    }

    /// Returns the number of layers in a part.
    #[must_use]
    pub const fn num_part_layers(&self, part: KvPart) -> usize {
        self.sliding.count(part, self.num_layers)
    }

    /// Bytes of one head's keys (or values) in one block: the unit of addressing.
    pub(crate) const fn region_bytes(&self) -> usize {
        self.scales_start() + self.block_size.tokens() as usize * self.dtype.scale_bytes()
    }

    /// Where the scales of a region begin: the bytes of its elements.
    pub(crate) const fn scales_start(&self) -> usize {
        self.head_dim * self.block_size.tokens() as usize * self.dtype.element_bytes()
    }

    /// Returns how many regions a block has in the part that `layer` belongs to.
    pub(crate) const fn num_regions(&self, layer: usize) -> usize {
        2 * self.num_part_layers(self.sliding.part(layer)) * self.num_kv_heads
    }

    /// Returns which region of a block's part holds one side of one head of one layer.
    pub(crate) fn region_index(&self, layer: usize, side: Side, head: usize) -> usize {
        assert!(layer < self.num_layers && head < self.num_kv_heads);
        let layer = self.sliding.count(self.sliding.part(layer), layer);
        (layer * 2 + side as usize) * self.num_kv_heads + head
    }

    /// Tokens of a strip of keys.
    pub(crate) const fn strip(&self) -> usize {
        let tokens = self.block_size.tokens() as usize;
        if tokens < MAX_STRIP { tokens } else { MAX_STRIP }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAYOUT: KvLayout = KvLayout {
        num_layers: 30,
        num_kv_heads: 3,
        head_dim: 64,
        block_size: BlockSize::DEFAULT,
        dtype: KvDtype::Bf16,
        sliding: SlidingPattern::None,
    };

    #[test]
    fn a_token_takes_the_bytes_that_the_arithmetic_says() {
        assert_eq!(LAYOUT.token_bytes(), 2 * 30 * 3 * 64 * 2);
        assert_eq!(LAYOUT.block_bytes(), 16 * LAYOUT.token_bytes());
        assert_eq!(LAYOUT.part_bytes(KvPart::SlidingWindow), 0);
        let int8 = KvLayout { dtype: KvDtype::Int8, ..LAYOUT };
        assert_eq!(int8.token_bytes(), 2 * 30 * 3 * (64 + 2));
        assert!(int8.token_bytes() * 100 <= LAYOUT.token_bytes() * 53);
    }

    #[test]
    fn layers_keep_their_order_inside_their_part_and_no_two_share_a_region() {
        let sliding = SlidingPattern::AllButEvery(6);
        let layout = KvLayout { num_layers: 14, sliding, ..LAYOUT };
        assert_eq!(layout.num_part_layers(KvPart::FullAttention), 2);
        assert_eq!(layout.num_part_layers(KvPart::SlidingWindow), 12);
        assert_eq!(layout.block_bytes() / 14 * 30, LAYOUT.block_bytes());
        for part in KvLayout::PARTS {
            let mut regions = Vec::new();
            for layer in (0..14).filter(|layer| sliding.part(*layer) == part) {
                for side in [Side::Keys, Side::Values] {
                    regions.extend((0..3).map(|head| layout.region_index(layer, side, head)));
                }
                assert_eq!(layout.num_regions(layer), 6 * layout.num_part_layers(part));
            }
            let expected: Vec<_> = (0..regions.len()).collect();
            assert_eq!(regions, expected);
            assert_eq!(regions.len() * layout.region_bytes(), layout.part_bytes(part));
        }
    }
}
