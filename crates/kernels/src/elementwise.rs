//! Kernels that treat each value or row by itself: norms, gates, sums and rotations.
//!
//! Sums over a row run in sixteen lanes that are added in a fixed order at the end, so a result
//! is the same on every instruction set.

use crate::dispatch::for_each_isa;
use crate::exp::exp;
use crate::isa::Isa;
use crate::lanes::LANES;
use crate::row_view::RowView;
use crate::thread_pool::ThreadPool;

/// Rows below which a kernel stays on the calling thread: handing out work costs about as much.
const MIN_ROWS_TO_SPLIT: usize = 4;

/// Writes `x * weight / sqrt(mean(x^2) + epsilon)` for each row of `x`.
///
/// # Panics
/// When `x` is not whole rows of `weight.len()`, or `out` differs from it in length.
pub fn rms_norm(
    isa: Isa,
    pool: &ThreadPool,
    x: &[f32],
    weight: &[f32],
    epsilon: f32,
    out: &mut [f32],
) {
    let width = weight.len();
    assert!(x.len() == out.len() && x.len().is_multiple_of(width), "x and out are whole rows");
    for_row_pairs(pool, x, width, out, width, |x, out| rms_norm_row(isa, x, weight, epsilon, out));
}

/// Writes `silu(gate) * up` for each row `[gate, up]` of `gate_up`.
///
/// # Panics
/// When `gate_up` is not twice as long as `out`, in rows of `2 * width` and `width`.
pub fn silu_gate(isa: Isa, pool: &ThreadPool, gate_up: &[f32], width: usize, out: &mut [f32]) {
    assert_eq!(gate_up.len(), 2 * out.len());
    for_row_pairs(pool, gate_up, 2 * width, out, width, |x, out| silu_gate_row(isa, x, out));
}

/// Writes `gelu(gate) * up` (tanh approximation) for each row `[gate, up]` of `gate_up`.
///
/// # Panics
/// When `gate_up` is not twice as long as `out`, in rows of `2 * width` and `width`.
pub fn gelu_tanh_gate(isa: Isa, pool: &ThreadPool, gate_up: &[f32], width: usize, out: &mut [f32]) {
    assert_eq!(gate_up.len(), 2 * out.len());
    for_row_pairs(pool, gate_up, 2 * width, out, width, |x, out| gelu_gate_row(isa, x, out));
}

/// Adds `x` to `into`, element by element.
///
/// # Panics
/// When the lengths differ.
pub fn add(isa: Isa, x: &[f32], into: &mut [f32]) {
    assert_eq!(x.len(), into.len());
    add_slices(isa, x, into);
}

/// Which two dimensions of a head a rotation turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RotaryPairs {
    /// Dimensions `2i` and `2i + 1`.
    Neighbours,
    /// Dimensions `i` and `i + num_pairs`.
    Halves,
}

/// The rotation of one row: cosines and sines of its position, one for each pair.
#[derive(Clone, Copy, Debug)]
pub struct Rotation<'a> {
    /// Which dimensions make a pair.
    pub pairs: RotaryPairs,
    /// `[num_pairs]`
    pub cos: &'a [f32],
    /// `[num_pairs]`
    pub sin: &'a [f32],
}

/// Rotates the leading `2 * num_pairs` dimensions of each head of `heads`, in place.
///
/// # Panics
/// When `heads` is not whole heads of `head_dim`, or the pairs do not fit a head.
pub fn rotate(isa: Isa, heads: &mut [f32], head_dim: usize, rotation: Rotation<'_>) {
    let num_pairs = rotation.cos.len();
    assert!(heads.len().is_multiple_of(head_dim) && 2 * num_pairs <= head_dim);
    assert_eq!(rotation.sin.len(), num_pairs);
    rotate_heads(isa, heads, head_dim, rotation);
}

/// Calls `body` with each row of `x` and the same row of `out`, split over the threads.
fn for_row_pairs(
    pool: &ThreadPool,
    x: &[f32],
    x_width: usize,
    out: &mut [f32],
    out_width: usize,
    body: impl Fn(&[f32], &mut [f32]) + Sync,
) {
    let num_rows = out.len() / out_width;
    if num_rows < MIN_ROWS_TO_SPLIT {
        x.chunks_exact(x_width).zip(out.chunks_exact_mut(out_width)).for_each(|(x, out)| {
            body(x, out);
        });
        return;
    }
    let out = RowView::new(out, out_width);
    pool.split(num_rows, |range| {
        for row in range {
            // SAFETY: `split` gives each row to one call only.
            let out = unsafe { out.piece(row, 0, out_width) };
            body(&x[row * x_width..][..x_width], out);
        }
    });
}

for_each_isa! {
    fn rms_norm_row(x: &[f32], weight: &[f32], epsilon: f32, out: &mut [f32]) = rms_norm_body
}

#[inline(always)]
fn rms_norm_body(x: &[f32], weight: &[f32], epsilon: f32, out: &mut [f32]) {
    let mut lanes = [0.0_f32; LANES];
    let (chunks, rest) = x.as_chunks::<LANES>();
    for chunk in chunks {
        for (lane, value) in lanes.iter_mut().zip(chunk) {
            *lane = value.mul_add(*value, *lane);
        }
    }
    for (lane, value) in lanes.iter_mut().zip(rest) {
        *lane = value.mul_add(*value, *lane);
    }
    #[expect(clippy::cast_precision_loss, reason = "widths are far below 2^24")]
    let mean = sum_lanes(&lanes) / x.len() as f32;
    let factor = 1.0 / (mean + epsilon).sqrt();
    for ((out, x), weight) in out.iter_mut().zip(x).zip(weight) {
        *out = x * factor * weight;
    }
}

for_each_isa! {
    fn silu_gate_row(gate_up: &[f32], out: &mut [f32]) = silu_gate_body
}

#[inline(always)]
fn silu_gate_body(gate_up: &[f32], out: &mut [f32]) {
    let (gate, up) = gate_up.split_at(out.len());
    for ((out, gate), up) in out.iter_mut().zip(gate).zip(up) {
        *out = gate / (1.0 + exp(-gate)) * up;
    }
}

for_each_isa! {
    fn gelu_gate_row(gate_up: &[f32], out: &mut [f32]) = gelu_gate_body
}

#[inline(always)]
fn gelu_gate_body(gate_up: &[f32], out: &mut [f32]) {
    // gelu(x) = x / 2 * (1 + tanh(u)) = x * sigmoid(2u), with u = sqrt(2 / pi) * (x + c x^3).
    const TWICE_SQRT_2_OVER_PI: f32 = 1.595_769;
    const CUBIC: f32 = 0.044_715;
    let (gate, up) = gate_up.split_at(out.len());
    for ((out, gate), up) in out.iter_mut().zip(gate).zip(up) {
        let inner = TWICE_SQRT_2_OVER_PI * (CUBIC * gate * gate).mul_add(*gate, *gate);
        *out = gate / (1.0 + exp(-inner)) * up;
    }
}

for_each_isa! {
    fn add_slices(x: &[f32], into: &mut [f32]) = add_body
}

#[inline(always)]
fn add_body(x: &[f32], into: &mut [f32]) {
    for (into, x) in into.iter_mut().zip(x) {
        *into += x;
    }
}

for_each_isa! {
    fn rotate_heads(heads: &mut [f32], head_dim: usize, rotation: Rotation<'_>) = rotate_body
}

#[inline(always)]
fn rotate_body(heads: &mut [f32], head_dim: usize, rotation: Rotation<'_>) {
    let num_pairs = rotation.cos.len();
    let angles = || rotation.cos.iter().zip(rotation.sin);
    for head in heads.chunks_exact_mut(head_dim) {
        match rotation.pairs {
            RotaryPairs::Neighbours => {
                for ([a, b], (cos, sin)) in head.as_chunks_mut().0.iter_mut().zip(angles()) {
                    (*a, *b) = (*a * cos - *b * sin, *a * sin + *b * cos);
                }
            }
            RotaryPairs::Halves => {
                let (first, second) = head.split_at_mut(num_pairs);
                for ((a, b), (cos, sin)) in first.iter_mut().zip(second).zip(angles()) {
                    (*a, *b) = (*a * cos - *b * sin, *a * sin + *b * cos);
                }
            }
        }
    }
}

/// Adds sixteen lanes pairwise, in a fixed order.
#[inline(always)]
fn sum_lanes(lanes: &[f32; LANES]) -> f32 {
    let eight: [f32; 8] = std::array::from_fn(|i| lanes[i] + lanes[i + 8]);
    let four: [f32; 4] = std::array::from_fn(|i| eight[i] + eight[i + 4]);
    (four[0] + four[2]) + (four[1] + four[3])
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::num::NonZeroUsize;

    fn pool() -> ThreadPool {
        ThreadPool::new(NonZeroUsize::new(2).unwrap())
    }

    fn wave(len: usize) -> Vec<f32> {
        (0..len).map(|i| ((i * i % 97) as f32 - 48.0) * 0.13).collect()
    }

    #[test]
    fn norms_gates_and_sums_match_their_formulas_and_are_equal_on_every_isa() {
        for width in [1, 5, 16, 31, 64, 576] {
            for num_rows in [1, 2, 7] {
                let x = wave(width * num_rows);
                let weight = wave(width + 3)[3..].to_vec();
                let gate_up = wave(2 * width * num_rows);
                let mut first: Option<Vec<Vec<f32>>> = None;
                for isa in Isa::all_present() {
                    let mut normed = vec![0.0; x.len()];
                    rms_norm(isa, &pool(), &x, &weight, 1e-5, &mut normed);
                    let mut silu = vec![0.0; x.len()];
                    silu_gate(isa, &pool(), &gate_up, width, &mut silu);
                    let mut gelu = vec![0.0; x.len()];
                    gelu_tanh_gate(isa, &pool(), &gate_up, width, &mut gelu);
                    let mut sum = x.clone();
                    add(isa, &normed, &mut sum);
                    check_against_f64(&x, &weight, &gate_up, width, [&normed, &silu, &gelu, &sum]);
                    let results = vec![normed, silu, gelu, sum];
                    assert_eq!(first.get_or_insert_with(|| results.clone()), &results);
                }
            }
        }
    }

    fn check_against_f64(
        x: &[f32],
        weight: &[f32],
        gate_up: &[f32],
        width: usize,
        [normed, silu, gelu, sum]: [&[f32]; 4],
    ) {
        let close = |got: f32, expected: f64| {
            let bound = 1e-5 * expected.abs().max(1e-3);
            assert!((f64::from(got) - expected).abs() <= bound, "{got} for {expected}");
        };
        for (i, value) in x.iter().enumerate() {
            let (row, column) = (i / width, i % width);
            let squares: f64 =
                x[row * width..][..width].iter().map(|v| f64::from(*v) * f64::from(*v)).sum();
            let factor = 1.0 / (squares / width as f64 + 1e-5).sqrt();
            close(normed[i], f64::from(*value) * factor * f64::from(weight[column]));
            assert_eq!(sum[i], normed[i] + value);
            let gate = f64::from(gate_up[row * 2 * width + column]);
            let up = f64::from(gate_up[(row * 2 + 1) * width + column]);
            close(silu[i], gate / (1.0 + (-gate).exp()) * up);
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (gate + 0.044715 * gate.powi(3));
            close(gelu[i], 0.5 * gate * (1.0 + inner.tanh()) * up);
        }
    }

    #[test]
    fn rotation_turns_pairs_and_leaves_the_other_dimensions() {
        // Products with these are exact, so that the formulas can be written as they are.
        let (cos, sin) = ([0.75_f32, 0.5], [0.5_f32, 0.25]);
        for isa in Isa::all_present() {
            let mut head = [1.0, 2.0, 3.0, 4.0, 5.0];
            let pairs = RotaryPairs::Neighbours;
            rotate(isa, &mut head, 5, Rotation { pairs, cos: &cos, sin: &sin });
            assert_eq!(head, [0.75 - 1.0, 0.5 + 1.5, 1.5 - 1.0, 0.75 + 2.0, 5.0]);
            let mut head = [1.0, 2.0, 3.0, 4.0, 5.0];
            let pairs = RotaryPairs::Halves;
            rotate(isa, &mut head, 5, Rotation { pairs, cos: &cos, sin: &sin });
            assert_eq!(head, [0.75 - 1.5, 1.0 - 1.0, 0.5 + 2.25, 0.5 + 2.0, 5.0]);
        }
    }
}
