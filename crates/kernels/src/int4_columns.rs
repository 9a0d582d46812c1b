//! Four-bit weights as GPTQ and AWQ store them, turned into rows.
//!
//! Both keep codes in 32-bit words, eight to a word, with one scale and one zero point for a group
//! of input features: `weight = scale * (code - zero_point)`. Their matrices are transposed,
//! `[in_features, out_features]`; what differs is which codes share a word:
//!
//! ```text
//! GPTQ  codes [in / 8, out]: word w holds inputs 8w .. 8w + 7, the first in the lowest bits
//! AWQ   codes [in, out / 8]: word w holds outputs 8w + {0, 2, 4, 6, 1, 3, 5, 7}, from the lowest
//! both  zero points [groups, out / 8], in the order of AWQ's codes or, for GPTQ, of the outputs
//!       scales [groups, out]
//! ```
//!
//! Sources: `pack` of AutoGPTQ's `QuantLinear`, and of AutoAWQ's `WQLinear_GEMM`. The rows are of
//! [`WeightType::Int4`], whose minimum is `-scale * zero_point` in f32 and therefore exact.
//!
//! Cost: each weight is read and written once, on all threads.

use crate::activation_rows::GROUP;
use crate::packed_matrix::for_each_tile;
use crate::reference::dequantize;
use crate::thread_pool::ThreadPool;
use crate::weight_type::WeightType;
use std::fmt;
use std::ops::Range;

/// Codes in a word.
const WORD_CODES: usize = 8;
/// Bytes of a word.
const WORD_BYTES: usize = 4;
/// Where in a word of AWQ the code of each of its eight output features is.
const AWQ_PLACES: [usize; WORD_CODES] = [0, 4, 1, 5, 2, 6, 3, 7];

/// Which codes share a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Int4Order {
    /// GPTQ, whose zero points are stored less one.
    Gptq,
    /// GPTQ's second format, whose zero points are stored as they are.
    GptqV2,
    /// AWQ (`gemm`).
    Awq,
}

/// A matrix of four-bit weights in columns.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Int4Columns<'a> {
    /// Which codes share a word.
    pub order: Int4Order,
    /// Rows of the result.
    pub out_features: usize,
    /// Weights in a row.
    pub in_features: usize,
    /// Input features that share a scale; a multiple of 32 that divides `in_features`.
    pub group_size: usize,
    /// Words of codes, little-endian.
    pub codes: &'a [u8],
    /// Words of zero points, little-endian.
    pub zero_points: &'a [u8],
    /// Number format of the scales, a float.
    pub scale_type: WeightType,
    /// `[in_features / group_size, out_features]`
    pub scales: &'a [u8],
    /// The group of each input feature, as 32-bit integers, where the checkpoint lists them.
    pub group_index: Option<&'a [u8]>,
}

impl Int4Columns<'_> {
    /// Returns the weights of some output features as rows of [`WeightType::Int4`],
    /// `[outputs.len(), in_features]`.
    ///
    /// # Errors
    /// When the fields do not fit each other, or groups are not runs of input features.
    ///
    /// # Panics
    /// When there are no such output features.
    pub fn to_rows(&self, pool: &ThreadPool, outputs: Range<usize>) -> Result<Vec<u8>, Int4Error> {
        self.check()?;
        assert!(outputs.start <= outputs.end && outputs.end <= self.out_features);
        let row_bytes = self.in_features / GROUP * WeightType::Int4.group_bytes();
        let mut rows = vec![0; outputs.len() * row_bytes];
        let mut unused = vec![(); outputs.len()];
        for_each_tile(pool, (&mut rows, row_bytes), (&mut unused, 1), |index, row, _| {
            let groups = row.chunks_exact_mut(WeightType::Int4.group_bytes());
            for (g, group) in groups.enumerate() {
                self.write_group(outputs.start + index, g * GROUP, group);
            }
        });
        Ok(rows)
    }

    /// Checks that the fields fit each other, which takes no look at codes and scales.
    ///
    /// # Errors
    /// When they do not, or groups are not runs of input features.
    pub fn check(&self) -> Result<(), Int4Error> {
        let Self { out_features, in_features, group_size, .. } = *self;
        if out_features == 0
            || !out_features.is_multiple_of(WORD_CODES)
            || in_features == 0
            || group_size == 0
            || !group_size.is_multiple_of(GROUP)
            || !in_features.is_multiple_of(group_size)
        {
            return Err(Int4Error::Shape { out_features, in_features, group_size });
        }
        let num_groups = in_features / group_size;
        let num_weights = in_features.checked_mul(out_features);
        let num_scales = num_groups.checked_mul(out_features);
        let fields = [
            ("codes", self.codes, num_weights.map(|count| count / 2)),
            ("zero points", self.zero_points, num_scales.map(|count| count / 2)),
            ("scales", self.scales, num_scales.and_then(|count| self.scale_type.bytes_for(count))),
            ("group indices", self.group_index.unwrap_or_default(), {
                let listed = self.group_index.map_or(0, |_| in_features);
                listed.checked_mul(WORD_BYTES)
            }),
        ];
        for (field, bytes, expected) in fields {
            if expected != Some(bytes.len()) {
                return Err(Int4Error::Length { field, got: bytes.len(), expected });
            }
        }
        if !self.scale_type.is_float() {
            return Err(Int4Error::ScaleType { got: self.scale_type });
        }
        let listed = self.group_index.unwrap_or_default().as_chunks::<WORD_BYTES>().0;
        for (input, group) in listed.iter().enumerate() {
            let (got, expected) = (u32::from_le_bytes(*group), input / group_size);
            if usize::try_from(got) != Ok(expected) {
                return Err(Int4Error::Reordered { input, got, expected });
            }
        }
        Ok(())
    }

    /// Writes the weights of input features `first_input ..` to one output feature:
    /// `[scale: f32, minimum: f32, q: 16 bytes]`.
    fn write_group(&self, output: usize, first_input: usize, group: &mut [u8]) {
        let scale_index = first_input / self.group_size * self.out_features + output;
        let scale_bytes = self.scale_type.group_bytes();
        let mut scale = [0.0];
        let stored = &self.scales[scale_index * scale_bytes..][..scale_bytes];
        dequantize(self.scale_type, stored, &mut scale);
        let minimum = -scale[0] * f32::from(self.zero_point(scale_index));
        group[..4].copy_from_slice(&scale[0].to_le_bytes());
        group[4..8].copy_from_slice(&minimum.to_le_bytes());
        let code = |i: usize| self.code(first_input + i, output);
        for (i, byte) in group[8..].iter_mut().enumerate() {
            *byte = code(i) | (code(i + GROUP / 2) << 4);
        }
    }

    fn code(&self, input: usize, output: usize) -> u8 {
        match self.order {
            Int4Order::Gptq | Int4Order::GptqV2 => {
                let word = input / WORD_CODES * self.out_features + output;
                nibble(self.codes, word, input % WORD_CODES)
            }
            Int4Order::Awq => {
                let word = (input * self.out_features + output) / WORD_CODES;
                nibble(self.codes, word, AWQ_PLACES[output % WORD_CODES])
            }
        }
    }

    /// Returns the zero point of scale `index`.
    fn zero_point(&self, index: usize) -> u8 {
        let (word, place) = (index / WORD_CODES, index % WORD_CODES);
        match self.order {
            // A zero point of 0 is stored as 15, the four bits of -1.
            Int4Order::Gptq => (nibble(self.zero_points, word, place) + 1) & 0x0f,
            Int4Order::GptqV2 => nibble(self.zero_points, word, place),
            Int4Order::Awq => nibble(self.zero_points, word, AWQ_PLACES[place]),
        }
    }
}

/// Returns code `place` of a little-endian word.
fn nibble(words: &[u8], word: usize, place: usize) -> u8 {
    (words[word * WORD_BYTES + place / 2] >> (place % 2 * 4)) & 0x0f
}

/// Four-bit weights that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Int4Error {
    /// Sizes that do not go together.
    Shape {
        /// Rows; eight share a word of zero points.
        out_features: usize,
        /// Weights in a row.
        in_features: usize,
        /// Input features that share a scale.
        group_size: usize,
    },
    /// A field of another length than the shape asks for.
    Length {
        /// Which one.
        field: &'static str,
        /// Bytes that are there.
        got: usize,
        /// Bytes that the shape asks for; `None` for more than there can be.
        expected: Option<usize>,
    },
    /// Scales that are not floats.
    ScaleType {
        /// Their number format.
        got: WeightType,
    },
    /// Input features that were put into groups in another order (`desc_act`).
    Reordered {
        /// The first such feature.
        input: usize,
        /// Its group.
        got: u32,
        /// The group it would have in order.
        expected: usize,
    },
}

impl fmt::Display for Int4Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Shape { out_features, in_features, group_size } => write!(
                f,
                "{out_features} x {in_features} weights in groups of {group_size}; supported are \
                 groups of a multiple of 32 that divides the second size, and a first size that is \
                 a multiple of 8"
            ),
            Self::Length { field, got, expected: Some(expected) } => {
                write!(f, "{got} bytes of {field}, expected {expected}")
            }
            Self::Length { field, got, expected: None } => {
                write!(f, "{got} bytes of {field} for a shape that overflows")
            }
            Self::ScaleType { got } => write!(f, "scales of type {got}, expected floats"),
            Self::Reordered { input, got, expected } => write!(
                f,
                "input feature {input} belongs to group {got} instead of {expected}: weights that \
                 were quantised in order of activations (desc_act) are not supported"
            ),
        }
    }
}

impl std::error::Error for Int4Error {}

#[cfg(test)]
mod tests {
    use super::*;
    use std::num::NonZeroUsize;

    const OUT_FEATURES: usize = 24;
    const IN_FEATURES: usize = 128;

    fn pool() -> ThreadPool {
        ThreadPool::new(NonZeroUsize::new(2).unwrap())
    }

    /// A fixture: its fields one after the other, then the weights `[out_features, in_features]`.
    struct Fixture {
        bytes: Vec<u8>,
        order: Int4Order,
        group_size: usize,
    }

    impl Fixture {
        fn read(name: &str, order: Int4Order, group_size: usize) -> Self {
            let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/int4");
            let bytes = std::fs::read(format!("{folder}/{name}_{group_size}.bin")).unwrap();
            Self { bytes, order, group_size }
        }

        fn all() -> Vec<Self> {
            let fixtures = [
                ("gptq", Int4Order::Gptq, 32),
                ("gptq", Int4Order::Gptq, 64),
                ("gptq", Int4Order::Gptq, 128),
                ("gptq_v2", Int4Order::GptqV2, 64),
                ("awq", Int4Order::Awq, 32),
                ("awq", Int4Order::Awq, 128),
            ];
            fixtures.map(|(name, order, group_size)| Self::read(name, order, group_size)).into()
        }

        fn split(&self) -> (Int4Columns<'_>, &[u8]) {
            let num_scales = IN_FEATURES / self.group_size * OUT_FEATURES;
            let (codes, rest) = self.bytes.split_at(IN_FEATURES * OUT_FEATURES / 2);
            let (zero_points, rest) = rest.split_at(num_scales / 2);
            let (scales, rest) = rest.split_at(num_scales * 2);
            let (group_index, weights) = rest.split_at(IN_FEATURES * 4);
            let columns = Int4Columns {
                order: self.order,
                out_features: OUT_FEATURES,
                in_features: IN_FEATURES,
                group_size: self.group_size,
                codes,
                zero_points,
                scale_type: WeightType::F16,
                scales,
                group_index: Some(group_index),
            };
            (columns, weights)
        }
    }

    #[test]
    fn rows_hold_the_weights_of_a_naive_unpacking_bit_for_bit() {
        for fixture in Fixture::all() {
            let (columns, expected) = fixture.split();
            for group_index in [columns.group_index, None] {
                let columns = Int4Columns { group_index, ..columns };
                let rows = columns.to_rows(&pool(), 0..OUT_FEATURES).unwrap();
                let some = columns.to_rows(&pool(), 5..16).unwrap();
                assert_eq!(some, rows[rows.len() / OUT_FEATURES * 5..][..some.len()]);
                assert_eq!(some.len() * OUT_FEATURES, rows.len() * 11);
                let mut weights = vec![f32::NAN; OUT_FEATURES * IN_FEATURES];
                dequantize(WeightType::Int4, &rows, &mut weights);
                assert_eq!(expected.len(), 4 * weights.len());
                for (i, (got, expected)) in
                    weights.iter().zip(expected.as_chunks::<4>().0).enumerate()
                {
                    let expected = f32::from_le_bytes(*expected);
                    let (order, size) = (fixture.order, fixture.group_size);
                    assert!(*got == expected, "{order:?} {size} weight {i}: {got}, not {expected}");
                }
            }
        }
    }

    #[test]
    fn fields_that_do_not_fit_are_named() {
        let fixture = Fixture::read("gptq", Int4Order::Gptq, 64);
        let (whole, _) = fixture.split();
        let check = |columns: Int4Columns<'_>, expected: &str| {
            let message = columns.check().unwrap_err().to_string();
            assert_eq!(columns.to_rows(&pool(), 0..0).unwrap_err().to_string(), message);
            assert!(message.contains(expected), "`{message}` does not say `{expected}`");
        };
        check(Int4Columns { codes: &whole.codes[1..], ..whole }, "1535 bytes of codes");
        check(Int4Columns { zero_points: &[], ..whole }, "0 bytes of zero points, expected 24");
        check(Int4Columns { scales: &[0], ..whole }, "1 bytes of scales, expected 96");
        check(Int4Columns { group_index: Some(&[0; 8]), ..whole }, "8 bytes of group indices");
        check(Int4Columns { scale_type: WeightType::F32, ..whole }, "96 bytes of scales");
        check(Int4Columns { scale_type: WeightType::Q8_0, ..whole }, "of scales");
        for group_size in [0, 16, 48, 256, usize::MAX] {
            check(Int4Columns { group_size, ..whole }, &format!("in groups of {group_size};"));
        }
        for out_features in [0, 12] {
            check(Int4Columns { out_features, ..whole }, &format!("{out_features} x 128 weights"));
        }
        let out_features = usize::MAX / 8 * 8;
        check(Int4Columns { out_features, ..whole }, "overflows");
        check(Int4Columns { in_features: 0, ..whole }, "24 x 0 weights");
        let mut reordered = whole.group_index.unwrap().to_vec();
        reordered.swap(4 * 3, 4 * 100);
        let columns = Int4Columns { group_index: Some(&reordered), ..whole };
        check(columns, "input feature 3 belongs to group 1 instead of 0");
    }
}
