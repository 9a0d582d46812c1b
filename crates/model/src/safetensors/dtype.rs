//! The number formats of safetensors.

use mini_infer_kernels::WeightType;

/// A number format by its name in the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Dtype {
    name: &'static str,
    /// Bits of an element.
    num_bits: usize,
}

/// All formats of the reference implementation (safetensors 0.8, `Dtype`).
const ALL: &[Dtype] = &[
    Dtype { name: "BOOL", num_bits: 8 },
    Dtype { name: "F4", num_bits: 4 },
    Dtype { name: "F6_E2M3", num_bits: 6 },
    Dtype { name: "F6_E3M2", num_bits: 6 },
    Dtype { name: "U8", num_bits: 8 },
    Dtype { name: "I8", num_bits: 8 },
    Dtype { name: "F8_E5M2", num_bits: 8 },
    Dtype { name: "F8_E4M3", num_bits: 8 },
    Dtype { name: "F8_E8M0", num_bits: 8 },
    Dtype { name: "F8_E4M3FNUZ", num_bits: 8 },
    Dtype { name: "F8_E5M2FNUZ", num_bits: 8 },
    Dtype { name: "I16", num_bits: 16 },
    Dtype { name: "U16", num_bits: 16 },
    Dtype { name: "F16", num_bits: 16 },
    Dtype { name: "BF16", num_bits: 16 },
    Dtype { name: "I32", num_bits: 32 },
    Dtype { name: "U32", num_bits: 32 },
    Dtype { name: "F32", num_bits: 32 },
    Dtype { name: "C64", num_bits: 64 },
    Dtype { name: "F64", num_bits: 64 },
    Dtype { name: "I64", num_bits: 64 },
    Dtype { name: "U64", num_bits: 64 },
];

impl Dtype {
    /// Returns the format of a name.
    pub(super) fn named(name: &str) -> Option<Self> {
        ALL.iter().copied().find(|dtype| dtype.name == name)
    }

    pub(super) fn name(self) -> &'static str {
        self.name
    }

    /// Returns the bytes that elements take; `None` when they end inside a byte or overflow.
    pub(super) fn bytes_for(self, num_elements: usize) -> Option<usize> {
        let num_bits = num_elements.checked_mul(self.num_bits)?;
        num_bits.is_multiple_of(8).then_some(num_bits / 8)
    }

    /// Returns the format as one that weights can have.
    pub(super) fn weight_type(self) -> Option<WeightType> {
        WEIGHT_TYPES.into_iter().find(|weight_type| weight_type.name() == self.name)
    }
}

/// The formats that weights can have; GGUF calls them the same.
pub(super) const WEIGHT_TYPES: [WeightType; 3] =
    [WeightType::Bf16, WeightType::F16, WeightType::F32];
