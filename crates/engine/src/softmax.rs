//! Sums of exponentials over a row of logits.
//!
//! Plain Rust that the compiler turns into vector code; no operation is reordered, so results are
//! the same on every machine. The exponential is Cody-Waite reduction and a polynomial, within
//! 2 units in the last place for the arguments of a softmax, which are never positive.

/// Independent accumulators: enough for two AVX-512 or eight SSE registers.
const LANES: usize = 32;

/// Accumulators for what is left of a row, or all of a very short one.
const SHORT_LANES: usize = 16;

/// Returns the largest logit of a row, `None` when one is infinite or not a number.
#[inline]
pub(crate) fn finite_max(row: &[f32]) -> Option<f32> {
    // Folding many accumulators at the end pays only in a long row.
    if row.len() < 4 * LANES {
        max_in_lanes::<SHORT_LANES>(row)
    } else {
        max_in_lanes::<LANES>(row)
    }
}

/// Returns the first index of a row that holds its largest logit, `None` when one is infinite or
/// not a number.
pub(crate) fn finite_argmax(row: &[f32]) -> Option<usize> {
    let (mut max, mut first) = (f32::NEG_INFINITY, 0);
    for (i, span) in row.chunks(SPAN).enumerate() {
        let of_span = finite_max(span)?;
        if of_span > max {
            (max, first) = (of_span, i * SPAN);
        }
    }
    // Only the span that holds it is looked at again.
    let span = &row[first..row.len().min(first + SPAN)];
    let (chunks, rest) = span.as_chunks::<SHORT_LANES>();
    for (start, chunk) in (first..).step_by(SHORT_LANES).zip(chunks) {
        // One bit for each logit and no early exit, so that this is vector code.
        let equal = (0..SHORT_LANES).fold(0, |bits, i| bits | u32::from(chunk[i] == max) << i);
        if equal != 0 {
            return Some(start + equal.trailing_zeros() as usize);
        }
    }
    let first = first + span.len() - rest.len();
    rest.iter().position(|&logit| logit == max).map(|i| first + i)
}

/// Returns the largest logit, `None` when one is not finite, with `N` accumulators.
#[inline]
fn max_in_lanes<const N: usize>(row: &[f32]) -> Option<f32> {
    let (chunks, rest) = row.as_chunks::<N>();
    let mut max = f32::NEG_INFINITY;
    // A sum with a number that is not finite is not finite either.
    let mut sum = 0.0;
    for &logit in rest {
        max = larger(logit, max);
        sum += logit;
    }
    if let Some((first, chunks)) = chunks.split_first() {
        let (mut maxima, mut sums) = (*first, *first);
        for chunk in chunks {
            for i in 0..N {
                maxima[i] = larger(chunk[i], maxima[i]);
                sums[i] += chunk[i];
            }
        }
        let mut width = N;
        while width > 1 {
            width /= 2;
            for i in 0..width {
                maxima[i] = larger(maxima[i], maxima[i + width]);
                sums[i] += sums[i + width];
            }
        }
        max = larger(maxima[0], max);
        sum += sums[0];
    }
    // Huge numbers may have a sum that is not finite, too.
    let is_finite = sum.is_finite() || row.iter().all(|logit| logit.is_finite());
    (is_finite && !row.is_empty()).then_some(max)
}

/// The larger of two numbers, in the one instruction that does not care for NaN.
#[inline]
pub(crate) fn larger(a: f32, b: f32) -> f32 {
    if a > b { a } else { b }
}

/// How a logit becomes the weight of its token: `exp((logit - max) / temperature)`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Weighting {
    /// Largest logit of the row; its weight is 1.
    max: f32,
    /// What the logits are multiplied with: finite, so that the largest keeps its weight at any
    /// temperature.
    scale: f32,
}

impl Weighting {
    /// Creates that of a row with the largest logit `max`; the temperature is positive.
    pub(crate) fn new(max: f32, temperature: f32) -> Self {
        Self { max, scale: temperature.recip().min(f32::MAX) }
    }

    /// Returns the weight of one logit, in `0..=1`.
    #[inline]
    pub(crate) fn of(self, logit: f32) -> f32 {
        exp_nonpositive((logit - self.max) * self.scale)
    }

    /// Returns the natural logarithm of a logit's weight.
    pub(crate) fn exponent(self, logit: f32) -> f64 {
        (f64::from(logit) - f64::from(self.max)) * f64::from(self.scale)
    }

    /// Writes the weight of each logit.
    pub(crate) fn fill(self, logits: &[f32], weights: &mut [f32]) {
        for (logit, weight) in logits.iter().zip(weights) {
            *weight = self.of(*logit);
        }
    }

    /// Returns the sum of the weights of `logits`.
    pub(crate) fn sum(self, logits: &[f32]) -> f64 {
        let (chunks, rest) = logits.as_chunks::<LANES>();
        let mut sums = [0.0_f32; LANES];
        let mut total = 0.0_f64;
        // Lanes are emptied often, so that single precision loses nothing that matters.
        for group in chunks.chunks(SPAN / LANES) {
            for chunk in group {
                for i in 0..LANES {
                    sums[i] += self.of(chunk[i]);
                }
            }
            total += sums.iter().map(|&sum| f64::from(sum)).sum::<f64>();
            sums = [0.0; LANES];
        }
        total + rest.iter().map(|&logit| f64::from(self.of(logit))).sum::<f64>()
    }
}

/// Maps the logits of one row to natural-log probabilities.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LogSoftmax {
    max: f64,
    log_sum: f64,
}

impl LogSoftmax {
    /// Creates that of a row with the largest logit `max`.
    pub(crate) fn of_row(row: &[f32], max: f32) -> Self {
        let log_sum = Weighting::new(max, 1.0).sum(row).ln();
        Self { max: f64::from(max), log_sum }
    }

    /// Returns the log probability of a logit of the row; finite.
    pub(crate) fn at(self, logit: f32) -> f32 {
        #[expect(clippy::cast_possible_truncation, reason = "rounded, and kept finite")]
        let rounded = (f64::from(logit) - self.max - self.log_sum) as f32;
        rounded.max(f32::MIN)
    }
}

/// Logits whose weights are added up together: a lane adds up few enough of them that single
/// precision loses nothing that matters.
pub(crate) const SPAN: usize = 1024;

/// Below this, the exponential is smaller than the least normal number and taken as 0.
const SMALLEST_ARGUMENT: f32 = -87.3;

/// Returns `exp(x)` for `x <= 0`.
#[inline]
fn exp_nonpositive(x: f32) -> f32 {
    // Adding 1.5 * 2^23 rounds to an integer, which then stands in the lowest bits.
    const ROUND: f32 = 12_582_912.0;
    const LN_2_HIGH: f32 = 0.693_359_4;
    const LN_2_LOW: f32 = -2.121_944_4e-4;
    let clamped = if x > SMALLEST_ARGUMENT { x } else { SMALLEST_ARGUMENT };
    let shifted = clamped * std::f32::consts::LOG2_E + ROUND;
    let power = shifted - ROUND;
    let r = clamped - power * LN_2_HIGH - power * LN_2_LOW;
    // Minimax polynomial of the Cephes library's expf on [-ln 2 / 2, ln 2 / 2].
    let mut p = 1.987_569_2e-4;
    p = p * r + 1.398_199_9e-3;
    p = p * r + 8.333_452e-3;
    p = p * r + 4.166_579_6e-2;
    p = p * r + 1.666_666_5e-1;
    p = p * r + 5e-1;
    let mantissa = p * (r * r) + r + 1.0;
    // The rounded power is in -126..=0, so adding the bias keeps the exponent in range.
    let scale = f32::from_bits(shifted.to_bits().wrapping_add(127) << 23);
    if x > SMALLEST_ARGUMENT { mantissa * scale } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exponential_is_within_two_units_in_the_last_place() {
        for i in 0..87_000_u32 {
            let x = -1e-3 * i as f32;
            let exact = f64::from(x).exp();
            let error = (f64::from(exp_nonpositive(x)) - exact).abs() / exact;
            assert!(error < 2.0 * f64::from(f32::EPSILON), "exp({x}) is off by {error}");
        }
        assert_eq!(exp_nonpositive(0.0), 1.0);
        assert_eq!(exp_nonpositive(-1000.0), 0.0);
        assert_eq!(exp_nonpositive(f32::NEG_INFINITY), 0.0);
    }

    #[test]
    fn a_sum_agrees_with_double_precision_at_every_length() {
        let weighting = Weighting::new(4.0, 0.7);
        let row: Vec<f32> = (0..3000_u16).map(|i| f32::from(i % 97) / 24.0).collect();
        for len in [0, 1, 31, 32, 33, 1023, 1024, 1025, 3000] {
            let exact: f64 =
                row[..len].iter().map(|&x| ((f64::from(x) - 4.0) / f64::from(0.7_f32)).exp()).sum();
            let error = (weighting.sum(&row[..len]) - exact).abs();
            assert!(error <= 4.0 * f64::from(f32::EPSILON) * exact, "length {len}");
        }
    }

    #[test]
    fn a_maximum_exists_only_in_a_finite_row() {
        for len in [1, 7, 15, 16, 17, 31, 32, 33, 127, 128, 161] {
            for at in [0, len / 2, len - 1] {
                let mut row = vec![-2.5; len];
                row[at] = -0.5;
                assert_eq!(finite_max(&row), Some(-0.5));
                assert_eq!(finite_argmax(&row), Some(at));
                for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                    row[at] = bad;
                    assert_eq!(finite_max(&row), None, "{bad} at {at} of {len}");
                    assert_eq!(finite_argmax(&row), None);
                }
            }
        }
        assert_eq!(finite_max(&[]), None);
        assert_eq!(finite_argmax(&[0.0, 2.0, -0.0, 2.0]), Some(1), "the first of equals");
        assert_eq!(finite_argmax(&[-0.0, 0.0]), Some(0), "zeros are equal");
    }
}
