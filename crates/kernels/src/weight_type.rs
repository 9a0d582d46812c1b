//! The number formats that weights come in.
//!
//! Owns the names and sizes of the formats, as GGUF defines them (ggml's `ggml_type`): weights lie
//! in quantisation groups of 32 or 256 along the input features, each with its own scales. What
//! the bytes of a group mean is in [`crate::reference::dequantize`].

use std::fmt;

/// The number format of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WeightType {
    /// IEEE single precision.
    F32,
    /// IEEE half precision.
    F16,
    /// The upper half of an f32.
    Bf16,
    /// 4 bits, one scale per 32 weights.
    Q4_0,
    /// 4 bits, one scale and one minimum per 32 weights.
    Q4_1,
    /// 5 bits, one scale per 32 weights.
    Q5_0,
    /// 5 bits, one scale and one minimum per 32 weights.
    Q5_1,
    /// 8 bits, one scale per 32 weights.
    Q8_0,
    /// 2 bits, 4-bit scales and minimums per 16 weights.
    Q2K,
    /// 3 bits, 6-bit scales per 16 weights.
    Q3K,
    /// 4 bits, 6-bit scales and minimums per 32 weights.
    Q4K,
    /// 5 bits, 6-bit scales and minimums per 32 weights.
    Q5K,
    /// 6 bits, 8-bit scales per 16 weights.
    Q6K,
}

impl WeightType {
    /// Every format, in the order of the enum.
    pub const ALL: [Self; 13] = [
        Self::F32,
        Self::F16,
        Self::Bf16,
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Q8_0,
        Self::Q2K,
        Self::Q3K,
        Self::Q4K,
        Self::Q5K,
        Self::Q6K,
    ];

    /// Returns whether weights are plain floats, which are multiplied as f32; all others are
    /// multiplied as integers.
    #[must_use]
    pub const fn is_float(self) -> bool {
        self.group_size() == 1
    }

    /// Returns the number of weights in a quantisation group (1 for plain floats).
    #[must_use]
    pub const fn group_size(self) -> usize {
        match self {
            Self::F32 | Self::F16 | Self::Bf16 => 1,
            Self::Q4_0 | Self::Q4_1 | Self::Q5_0 | Self::Q5_1 | Self::Q8_0 => 32,
            Self::Q2K | Self::Q3K | Self::Q4K | Self::Q5K | Self::Q6K => 256,
        }
    }

    /// Returns the number of bytes of a quantisation group.
    #[must_use]
    pub const fn group_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
            Self::Q4_0 => 18,
            Self::Q4_1 => 20,
            Self::Q5_0 => 22,
            Self::Q5_1 => 24,
            Self::Q8_0 => 34,
            Self::Q2K => 84,
            Self::Q3K => 110,
            Self::Q4K => 144,
            Self::Q5K => 176,
            Self::Q6K => 210,
        }
    }

    /// Returns the number of bytes that `num_weights` take, or `None` when they are not whole
    /// groups or their bytes overflow.
    #[must_use]
    pub const fn bytes_for(self, num_weights: usize) -> Option<usize> {
        if !num_weights.is_multiple_of(self.group_size()) {
            return None;
        }
        (num_weights / self.group_size()).checked_mul(self.group_bytes())
    }

    /// Returns the format's name as GGUF tools write it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "F32",
            Self::F16 => "F16",
            Self::Bf16 => "BF16",
            Self::Q4_0 => "Q4_0",
            Self::Q4_1 => "Q4_1",
            Self::Q5_0 => "Q5_0",
            Self::Q5_1 => "Q5_1",
            Self::Q8_0 => "Q8_0",
            Self::Q2K => "Q2_K",
            Self::Q3K => "Q3_K",
            Self::Q4K => "Q4_K",
            Self::Q5K => "Q5_K",
            Self::Q6K => "Q6_K",
        }
    }
}

impl fmt::Display for WeightType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
