//! The number formats that weights come in.
//!
//! Owns the names and sizes of the formats, as GGUF defines them (ggml's `ggml_type`) but for
//! [`WeightType::Int4`]: weights lie in quantisation groups of 32 or 256 along the input features,
//! each with its own scales. What the bytes of a group mean is in
//! [`crate::reference::dequantize`].

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
    /// 1.56 bits: a codebook of 2,048 times eight weights, 3-bit scales and signed minimums per 32.
    Iq1S,
    /// 1.75 bits: the codebook of IQ1_S, 3-bit scales per 16 weights, signed minimums per 8.
    Iq1M,
    /// 2.06 bits: a codebook of 256 times eight weights, 4-bit scales per 32.
    Iq2Xxs,
    /// 2.31 bits: a codebook of 512 times eight weights, 4-bit scales per 16.
    Iq2Xs,
    /// 2.56 bits: a codebook of 1,024 times eight weights, 4-bit scales per 16.
    Iq2S,
    /// 3.06 bits: a codebook of 256 times four weights, 4-bit scales per 32.
    Iq3Xxs,
    /// 3.44 bits: a codebook of 512 times four weights, 4-bit scales per 32.
    Iq3S,
    /// 4 bits that stand for uneven values, one scale per 32 weights.
    Iq4Nl,
    /// 4 bits that stand for uneven values, 6-bit scales per 32 weights.
    Iq4Xs,
    /// -1, 0 or 1, five weights to a byte, one scale per 256.
    Tq1_0,
    /// -1, 0 or 1 in 2 bits, one scale per 256 weights.
    Tq2_0,
    /// 4-bit floats (E2M1), one power of two per 32 weights (OCP Microscaling).
    Mxfp4,
    /// 4 bits, an f32 scale and minimum per 32 weights: what AWQ and GPTQ checkpoints hold, in
    /// rows. No GGUF file has it.
    Int4,
}

impl WeightType {
    /// Every format, in the order of the enum.
    pub const ALL: [Self; 26] = [
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
        Self::Iq1S,
        Self::Iq1M,
        Self::Iq2Xxs,
        Self::Iq2Xs,
        Self::Iq2S,
        Self::Iq3Xxs,
        Self::Iq3S,
        Self::Iq4Nl,
        Self::Iq4Xs,
        Self::Tq1_0,
        Self::Tq2_0,
        Self::Mxfp4,
        Self::Int4,
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
            Self::Q4_0
            | Self::Q4_1
            | Self::Q5_0
            | Self::Q5_1
            | Self::Q8_0
            | Self::Iq4Nl
            | Self::Mxfp4
            | Self::Int4 => 32,
            Self::Q2K
            | Self::Q3K
            | Self::Q4K
            | Self::Q5K
            | Self::Q6K
            | Self::Iq1S
            | Self::Iq1M
            | Self::Iq2Xxs
            | Self::Iq2Xs
            | Self::Iq2S
            | Self::Iq3Xxs
            | Self::Iq3S
            | Self::Iq4Xs
            | Self::Tq1_0
            | Self::Tq2_0 => 256,
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
            Self::Iq1S => 50,
            Self::Iq1M => 56,
            Self::Iq2Xxs => 66,
            Self::Iq2Xs => 74,
            Self::Iq2S => 82,
            Self::Iq3Xxs => 98,
            Self::Iq3S => 110,
            Self::Iq4Nl => 18,
            Self::Iq4Xs => 136,
            Self::Tq1_0 => 54,
            Self::Tq2_0 => 66,
            Self::Mxfp4 => 17,
            Self::Int4 => 24,
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
            Self::Iq1S => "IQ1_S",
            Self::Iq1M => "IQ1_M",
            Self::Iq2Xxs => "IQ2_XXS",
            Self::Iq2Xs => "IQ2_XS",
            Self::Iq2S => "IQ2_S",
            Self::Iq3Xxs => "IQ3_XXS",
            Self::Iq3S => "IQ3_S",
            Self::Iq4Nl => "IQ4_NL",
            Self::Iq4Xs => "IQ4_XS",
            Self::Tq1_0 => "TQ1_0",
            Self::Tq2_0 => "TQ2_0",
            Self::Mxfp4 => "MXFP4",
            Self::Int4 => "INT4",
        }
    }
}

impl fmt::Display for WeightType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
