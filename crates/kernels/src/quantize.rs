//! Float weights to quantised ones, as `--quantize` does when a model is loaded.
//!
//! The arithmetic is that of ggml's `quantize_row_q8_0_ref` and `quantize_row_q4_0_ref`
//! (ggml-quants.c) and of the `gguf` Python package, so that the result has the bytes a converted
//! GGUF file would have. There is no other choice of scales and no calibration.
//!
//! Cost: each weight is read once, on all threads; the result is allocated, the source stays.

use crate::activation_rows::GROUP;
use crate::float_format::{F16, StoredFloat};
use crate::packed_matrix::{ReleaseBytes, WeightRows, for_each_row};
use crate::reference::dequantize;
use crate::thread_pool::ThreadPool;
use crate::weight_type::WeightType;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A format that float weights can be quantised to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuantizedType {
    /// 8 bits, one scale per 32 weights.
    Q8_0,
    /// 4 bits, one scale per 32 weights.
    Q4_0,
}

impl QuantizedType {
    /// Every such format.
    pub const ALL: [Self; 2] = [Self::Q8_0, Self::Q4_0];

    /// Returns the number format of the result.
    #[must_use]
    pub const fn weight_type(self) -> WeightType {
        match self {
            Self::Q8_0 => WeightType::Q8_0,
            Self::Q4_0 => WeightType::Q4_0,
        }
    }

    /// Returns the format that is called `name`, in any case.
    #[must_use]
    pub fn by_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|to| to.weight_type().name().eq_ignore_ascii_case(name))
    }
}

/// Returns `rows`, which are floats, in another format: row-major, as a checkpoint stores them.
/// `release` is called with each stretch of their bytes that is not needed any more, from any thread.
///
/// # Errors
/// When the rows are not floats or not whole quantisation groups, their bytes do not fit their
/// shape, or a weight is not finite or too large for the format's scales.
pub fn quantize(
    pool: &ThreadPool,
    rows: &WeightRows<'_>,
    to: QuantizedType,
    release: &ReleaseBytes<'_>,
) -> Result<Vec<u8>, QuantizeError> {
    let (source, num_bytes) = (rows.weight_type, rows.bytes.len());
    let row_bytes = source
        .bytes_for(rows.in_features)
        .filter(|row| source.is_float() && row.checked_mul(rows.out_features) == Some(num_bytes))
        .ok_or(QuantizeError::NotFloatRows { weight_type: source })?;
    let out_row_bytes = to
        .weight_type()
        .bytes_for(rows.in_features)
        .ok_or(QuantizeError::Width { in_features: rows.in_features, to })?;
    let mut out = vec![0; rows.out_features * out_row_bytes];
    if out.is_empty() {
        return Ok(out);
    }
    let first_unfit = AtomicUsize::new(usize::MAX);
    for_each_row(pool, rows, release, (&mut out, out_row_bytes), |index, out| {
        let row = &rows.bytes[index * row_bytes..][..row_bytes];
        if let Err(UnfitGroup) = quantize_row(source, row, to, out) {
            first_unfit.fetch_min(index, Ordering::Relaxed);
        }
    });
    match first_unfit.into_inner() {
        usize::MAX => Ok(out),
        row => Err(QuantizeError::Unfit { row, to }),
    }
}

/// A group with a weight that is not finite or too large.
struct UnfitGroup;

fn quantize_row(
    source: WeightType,
    row: &[u8],
    to: QuantizedType,
    out: &mut [u8],
) -> Result<(), UnfitGroup> {
    let source_groups = row.chunks_exact(GROUP * source.group_bytes());
    let out_groups = out.chunks_exact_mut(to.weight_type().group_bytes());
    for (stored, out) in source_groups.zip(out_groups) {
        let mut weights = [0.0; GROUP];
        dequantize(source, stored, &mut weights);
        let (scale, codes) = out.split_at_mut(2);
        let step = match to {
            QuantizedType::Q8_0 => q8_0(&weights, codes),
            QuantizedType::Q4_0 => q4_0(&weights, codes),
        };
        let half = F16::narrow(step);
        // A group with a NaN may have a finite step, for maxima leave NaNs out.
        if !half.widen().is_finite() || weights.iter().any(|weight| weight.is_nan()) {
            return Err(UnfitGroup);
        }
        scale.copy_from_slice(&half.0.to_le_bytes());
    }
    Ok(())
}

/// Returns the inverse of a step; 0 for groups of zeros and for those whose step is too small to
/// have an inverse, and is 0 in half precision.
fn inverse(step: f32) -> f32 {
    let inverse = 1.0 / step;
    if inverse.is_finite() { inverse } else { 0.0 }
}

/// Writes 32 signed bytes, rounded half away from zero, and returns their step.
#[expect(clippy::cast_possible_truncation, reason = "codes are at most 127 in magnitude")]
fn q8_0(weights: &[f32; GROUP], codes: &mut [u8]) -> f32 {
    let step = weights.iter().fold(0.0_f32, |largest, weight| largest.max(weight.abs())) / 127.0;
    let inverse = inverse(step);
    for (code, weight) in codes.iter_mut().zip(weights) {
        *code = ((weight * inverse).round() as i8).cast_unsigned();
    }
    step
}

/// Writes 32 nibbles, in which the weight of largest magnitude, the first of several, is 0 (for
/// -8) and returns their step, which has the opposite sign of that weight.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "codes are from 0.5 to 16.5 before they are cut"
)]
fn q4_0(weights: &[f32; GROUP], codes: &mut [u8]) -> f32 {
    let mut extreme = 0.0_f32;
    for weight in weights {
        if weight.abs() > extreme.abs() {
            extreme = *weight;
        }
    }
    let step = extreme / -8.0;
    let inverse = inverse(step);
    let code = |weight: f32| ((weight * inverse + 8.5) as u8).min(15);
    for (i, byte) in codes.iter_mut().enumerate() {
        *byte = code(weights[i]) | (code(weights[i + GROUP / 2]) << 4);
    }
    step
}

/// Weights that cannot be quantised.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QuantizeError {
    /// The source is quantised already, or its bytes do not fit its shape.
    NotFloatRows {
        /// Number format of the source.
        weight_type: WeightType,
    },
    /// Rows are not whole quantisation groups.
    Width {
        /// Weights in a row.
        in_features: usize,
        /// The format that was asked for.
        to: QuantizedType,
    },
    /// A weight is NaN, infinite, or too large for a scale in half precision.
    Unfit {
        /// The first row with such a weight.
        row: usize,
        /// The format that was asked for.
        to: QuantizedType,
    },
}

impl fmt::Display for QuantizeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotFloatRows { weight_type } => {
                write!(f, "only whole rows of floats can be quantised, not {weight_type}")
            }
            Self::Width { in_features, to } => write!(
                f,
                "rows of {in_features} weights are not whole groups of {}",
                to.weight_type()
            ),
            Self::Unfit { row, to } => write!(
                f,
                "row {row} has a weight that is not finite or too large for {}",
                to.weight_type()
            ),
        }
    }
}

impl std::error::Error for QuantizeError {}

#[cfg(test)]
mod tests {
    use super::*;
    use std::num::NonZeroUsize;

    fn pool() -> ThreadPool {
        ThreadPool::new(NonZeroUsize::new(2).unwrap())
    }

    fn quantized(weights: &[f32], width: usize, to: QuantizedType) -> Result<Vec<u8>, String> {
        let bytes: Vec<_> = weights.iter().flat_map(|weight| weight.to_le_bytes()).collect();
        let (weight_type, out_features) = (WeightType::F32, weights.len() / width);
        let rows = WeightRows { weight_type, out_features, in_features: width, bytes: &bytes };
        quantize(&pool(), &rows, to, &|_| {}).map_err(|error| error.to_string())
    }

    #[test]
    fn groups_equal_the_python_reference_byte_for_byte() {
        for to in QuantizedType::ALL {
            let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/quantize");
            let file = std::fs::read(format!("{folder}/{}.bin", to.weight_type())).unwrap();
            let group_total = to.weight_type().group_bytes() + 4 * GROUP;
            assert_eq!(file.len() % group_total, 0);
            let num_groups = file.len() / group_total;
            let (weights, expected) = file.split_at(num_groups * 4 * GROUP);
            for in_features in [GROUP, num_groups * GROUP] {
                let out_features = num_groups * GROUP / in_features;
                let weight_type = WeightType::F32;
                let rows = WeightRows { weight_type, out_features, in_features, bytes: weights };
                assert_eq!(quantize(&pool(), &rows, to, &|_| {}).unwrap(), expected, "{to:?}");
            }
        }
    }

    #[test]
    fn every_float_format_is_read() {
        let weights: Vec<f32> = (0_i16..64).map(|i| f32::from(i - 20) / 16.0).collect();
        for to in QuantizedType::ALL {
            let expected = quantized(&weights, 64, to).unwrap();
            let halves = weights.iter().flat_map(|w| F16::narrow(*w).0.to_le_bytes());
            let upper = weights.iter().flat_map(|w| w.to_le_bytes()[2..].to_vec());
            for (weight_type, bytes) in [
                (WeightType::F16, halves.collect::<Vec<_>>()),
                (WeightType::Bf16, upper.collect::<Vec<_>>()),
            ] {
                let rows =
                    WeightRows { weight_type, out_features: 1, in_features: 64, bytes: &bytes };
                assert_eq!(
                    quantize(&pool(), &rows, to, &|_| {}).unwrap(),
                    expected,
                    "{weight_type}"
                );
            }
        }
    }

    #[test]
    fn weights_without_a_step_become_zeros() {
        for to in QuantizedType::ALL {
            for tiny in [0.0, 1e-44, -1e-39] {
                let bytes = quantized(&[tiny; GROUP], GROUP, to).unwrap();
                let mut weights = [f32::NAN; GROUP];
                dequantize(to.weight_type(), &bytes, &mut weights);
                assert_eq!(weights, [0.0; GROUP]);
            }
        }
    }

    #[test]
    fn what_cannot_be_quantised_is_named() {
        for to in QuantizedType::ALL {
            for unfit in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e38] {
                let mut weights = [1.0; 3 * GROUP];
                weights[GROUP + 7] = unfit;
                let message = quantized(&weights, GROUP, to).unwrap_err();
                assert!(message.starts_with("row 1 has a weight that is not finite"), "{message}");
            }
            let message = quantized(&[0.0; 40], 40, to).unwrap_err();
            assert!(message.starts_with("rows of 40 weights"), "{message}");
        }
        let bytes = [0; 34];
        let rows = |weight_type, out_features| WeightRows {
            weight_type,
            out_features,
            in_features: 32,
            bytes: &bytes,
        };
        for rows in [rows(WeightType::Q8_0, 1), rows(WeightType::F16, usize::MAX)] {
            let error = quantize(&pool(), &rows, QuantizedType::Q4_0, &|_| {}).unwrap_err();
            assert_eq!(error, QuantizeError::NotFloatRows { weight_type: rows.weight_type });
        }
    }

    #[test]
    fn formats_are_found_by_name_in_any_case() {
        assert_eq!(QuantizedType::by_name("q8_0"), Some(QuantizedType::Q8_0));
        assert_eq!(QuantizedType::by_name("Q4_0"), Some(QuantizedType::Q4_0));
        assert_eq!(QuantizedType::by_name("q4_1"), None);
    }
}
