//! Kernels that treat each value or row by itself: norms, gates and sums.
//!
//! Sums over a row run in sixteen lanes, in four such sums where the row is long enough, which are
//! added in a fixed order at the end, so a result is the same on every instruction set. Rows are
//! split over the threads where there are enough of them; a thread gets the same rows from kernel
//! to kernel, and so finds them in its cache.

use crate::dispatch::for_each_lanes;
use crate::exp::exp_lanes;
use crate::isa::Isa;
use crate::lanes::{LANES, Lanes};
use crate::row_view::RowView;
use crate::thread_pool::ThreadPool;

/// Values below which a kernel stays on the calling thread: it then takes a few microseconds,
/// handing out work about one.
const MIN_VALUES_TO_SPLIT: usize = 1 << 13;
/// Sums that a row's squares are added up in.
const NUM_SUMS: usize = 4;

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

/// The weights of [`add_and_norm`].
#[derive(Clone, Copy, Debug)]
pub struct AddAndNorm<'a> {
    /// Weight of a norm over the summand, where it has one, `[width]`.
    pub summand_norm: Option<&'a [f32]>,
    /// Weight of the norm over the sum, `[width]`.
    pub sum_norm: &'a [f32],
    /// Added to every mean square.
    pub epsilon: f32,
}

/// Adds `x`, normalised where `weights` says so, to `sum`, and writes the norm of the result to
/// `out`, row by row. All are `[rows, width]`.
///
/// # Panics
/// When the lengths differ or are not whole rows.
pub fn add_and_norm(
    isa: Isa,
    pool: &ThreadPool,
    x: &[f32],
    sum: &mut [f32],
    weights: AddAndNorm<'_>,
    out: &mut [f32],
) {
    let width = weights.sum_norm.len();
    assert!(weights.summand_norm.is_none_or(|weight| weight.len() == width));
    assert!(x.len() == sum.len() && x.len().is_multiple_of(width), "x and sum are whole rows");
    assert_eq!(x.len(), out.len());
    if x.len() < MIN_VALUES_TO_SPLIT {
        let rows = x.chunks_exact(width).zip(sum.chunks_exact_mut(width));
        for ((x, sum), out) in rows.zip(out.chunks_exact_mut(width)) {
            add_and_norm_row(isa, x, sum, weights, out);
        }
        return;
    }
    let (sum, out) = (RowView::new(sum, width), RowView::new(out, width));
    pool.split(x.len() / width, |range| {
        for row in range {
            // SAFETY: `split` gives each row to one call only.
            let sum = unsafe { sum.piece(row, 0, width) };
            // SAFETY: as above.
            let out = unsafe { out.piece(row, 0, width) };
            add_and_norm_row(isa, &x[row * width..][..width], sum, weights, out);
        }
    });
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

/// Calls `body` with each row of `x` and the same row of `out`, split over the threads.
fn for_row_pairs(
    pool: &ThreadPool,
    x: &[f32],
    x_width: usize,
    out: &mut [f32],
    out_width: usize,
    body: impl Fn(&[f32], &mut [f32]) + Sync,
) {
    if x.len() < MIN_VALUES_TO_SPLIT {
        x.chunks_exact(x_width).zip(out.chunks_exact_mut(out_width)).for_each(|(x, out)| {
            body(x, out);
        });
        return;
    }
    let num_rows = out.len() / out_width;
    let out = RowView::new(out, out_width);
    pool.split(num_rows, |range| {
        for row in range {
            // SAFETY: `split` gives each row to one call only.
            let out = unsafe { out.piece(row, 0, out_width) };
            body(&x[row * x_width..][..x_width], out);
        }
    });
}

for_each_lanes! {
    fn rms_norm_row(x: &[f32], weight: &[f32], epsilon: f32, out: &mut [f32]) = rms_norm_body
}

#[inline(always)]
fn rms_norm_body<V: Lanes>(
    proof: V::Proof,
    x: &[f32],
    weight: &[f32],
    epsilon: f32,
    out: &mut [f32],
) {
    let factor = norm_factor::<V>(proof, x, epsilon);
    for ((out, x), weight) in out.iter_mut().zip(x).zip(weight) {
        *out = x * factor * weight;
    }
}

/// Replaces a row by its norm.
#[inline(always)]
pub(crate) fn rms_norm_in_place<V: Lanes>(
    proof: V::Proof,
    x: &mut [f32],
    weight: &[f32],
    epsilon: f32,
) {
    let factor = norm_factor::<V>(proof, x, epsilon);
    for (x, weight) in x.iter_mut().zip(weight) {
        *x = *x * factor * weight;
    }
}

for_each_lanes! {
    fn add_and_norm_row(x: &[f32], sum: &mut [f32], weights: AddAndNorm<'_>, out: &mut [f32]) = add_and_norm_body
}

#[inline(always)]
fn add_and_norm_body<V: Lanes>(
    proof: V::Proof,
    x: &[f32],
    sum: &mut [f32],
    weights: AddAndNorm<'_>,
    out: &mut [f32],
) {
    match weights.summand_norm {
        None => {
            for (sum, x) in sum.iter_mut().zip(x) {
                *sum += x;
            }
        }
        Some(weight) => {
            let factor = norm_factor::<V>(proof, x, weights.epsilon);
            for ((sum, x), weight) in sum.iter_mut().zip(x).zip(weight) {
                *sum += x * factor * weight;
            }
        }
    }
    rms_norm_body::<V>(proof, sum, weights.sum_norm, weights.epsilon, out);
}

/// Returns `1 / sqrt(mean(x^2) + epsilon)`.
#[inline(always)]
fn norm_factor<V: Lanes>(proof: V::Proof, x: &[f32], epsilon: f32) -> f32 {
    let mut sums = [V::splat(proof, 0.0); NUM_SUMS];
    let (chunks, rest) = x.as_chunks::<{ NUM_SUMS * LANES }>();
    for chunk in chunks {
        for (sum, lanes) in sums.iter_mut().zip(chunk.as_chunks::<LANES>().0) {
            let lanes = V::load(proof, lanes);
            *sum = lanes.mul_add(lanes, *sum);
        }
    }
    let (chunks, rest) = rest.as_chunks::<LANES>();
    for lanes in chunks {
        let lanes = V::load(proof, lanes);
        sums[0] = lanes.mul_add(lanes, sums[0]);
    }
    let lanes = V::load(proof, &padded(rest));
    sums[1] = lanes.mul_add(lanes, sums[1]);
    let sum = sums[0].add(sums[1]).add(sums[2].add(sums[3]));
    #[expect(clippy::cast_precision_loss, reason = "widths are far below 2^24")]
    let mean = sum.sum_lanes() / x.len() as f32;
    1.0 / (mean + epsilon).sqrt()
}

/// Returns fewer than sixteen values, and zeros.
#[inline(always)]
fn padded(rest: &[f32]) -> [f32; LANES] {
    let mut lanes = [0.0; LANES];
    lanes[..rest.len()].copy_from_slice(rest);
    lanes
}

for_each_lanes! {
    fn silu_gate_row(gate_up: &[f32], out: &mut [f32]) = silu_gate_body
}

#[inline(always)]
fn silu_gate_body<V: Lanes>(proof: V::Proof, gate_up: &[f32], out: &mut [f32]) {
    gate_body::<V, SILU>(proof, gate_up, out);
}

for_each_lanes! {
    fn gelu_gate_row(gate_up: &[f32], out: &mut [f32]) = gelu_gate_body
}

#[inline(always)]
fn gelu_gate_body<V: Lanes>(proof: V::Proof, gate_up: &[f32], out: &mut [f32]) {
    gate_body::<V, GELU>(proof, gate_up, out);
}

/// `gate * sigmoid(gate)`.
const SILU: u8 = 0;
/// `gate * sigmoid(2u)` with `u = sqrt(2 / pi) * (gate + c gate^3)`, which is
/// `gate / 2 * (1 + tanh(u))`.
const GELU: u8 = 1;

/// Writes `gate * sigmoid(…) * up`, as `KIND` says.
#[inline(always)]
fn gate_body<V: Lanes, const KIND: u8>(proof: V::Proof, gate_up: &[f32], out: &mut [f32]) {
    let (gate, up) = gate_up.split_at(out.len());
    let ((gates, gate_rest), (ups, up_rest)) = (gate.as_chunks(), up.as_chunks());
    let (outs, out_rest) = out.as_chunks_mut();
    for ((out, gate), up) in outs.iter_mut().zip(gates).zip(ups) {
        gate_lanes::<V, KIND>(proof, gate, up, out);
    }
    if !out_rest.is_empty() {
        let mut lanes = [0.0; LANES];
        gate_lanes::<V, KIND>(proof, &padded(gate_rest), &padded(up_rest), &mut lanes);
        out_rest.copy_from_slice(&lanes[..out_rest.len()]);
    }
}

#[inline(always)]
fn gate_lanes<V: Lanes, const KIND: u8>(
    proof: V::Proof,
    gate: &[f32; LANES],
    up: &[f32; LANES],
    out: &mut [f32; LANES],
) {
    const TWICE_SQRT_2_OVER_PI: f32 = 1.595_769;
    const CUBIC: f32 = 0.044_715;
    let x = V::load(proof, gate);
    let splat = |value| V::splat(proof, value);
    let exponent = match KIND {
        SILU => x,
        _ => {
            let cube = splat(CUBIC).mul(x).mul(x).mul_add(x, x);
            splat(TWICE_SQRT_2_OVER_PI).mul(cube)
        }
    };
    let mut power = [0.0; LANES];
    exp_lanes(proof, splat(-1.0).mul(exponent)).store(&mut power);
    for i in 0..LANES {
        out[i] = gate[i] / (1.0 + power[i]) * up[i];
    }
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
    fn norms_and_gates_match_their_formulas_and_are_equal_on_every_isa() {
        let pool = pool();
        for width in [1, 5, 16, 31, 64, 119, 576] {
            for num_rows in [1, 2, 7, 40] {
                let x = wave(width * num_rows);
                let weight = wave(width + 3)[3..].to_vec();
                let gate_up = wave(2 * width * num_rows);
                let mut first: Option<Vec<Vec<f32>>> = None;
                for isa in Isa::all_present() {
                    let mut normed = vec![0.0; x.len()];
                    rms_norm(isa, &pool, &x, &weight, 1e-5, &mut normed);
                    let mut silu = vec![0.0; x.len()];
                    silu_gate(isa, &pool, &gate_up, width, &mut silu);
                    let mut gelu = vec![0.0; x.len()];
                    gelu_tanh_gate(isa, &pool, &gate_up, width, &mut gelu);
                    check_against_f64(&x, &weight, &gate_up, width, [&normed, &silu, &gelu]);
                    let results = vec![normed, silu, gelu];
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
        [normed, silu, gelu]: [&[f32]; 3],
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
            let gate = f64::from(gate_up[row * 2 * width + column]);
            let up = f64::from(gate_up[(row * 2 + 1) * width + column]);
            close(silu[i], gate / (1.0 + (-gate).exp()) * up);
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (gate + 0.044715 * gate.powi(3));
            close(gelu[i], 0.5 * gate * (1.0 + inner.tanh()) * up);
        }
    }

    #[test]
    fn adding_and_normalising_is_the_sum_and_the_norm_of_it() {
        let pool = pool();
        for (width, num_rows) in [(5, 3), (64, 7), (576, 40)] {
            let x = wave(width * num_rows);
            let before: Vec<f32> = x.iter().rev().map(|x| x * 0.7 + 0.1).collect();
            let weights: Vec<_> = (1..3).map(|i| wave(width + i)[i..].to_vec()).collect();
            for isa in Isa::all_present() {
                for summand_norm in [None, Some(&weights[0][..])] {
                    let mut summand = x.clone();
                    if let Some(weight) = summand_norm {
                        rms_norm(isa, &pool, &x, weight, 1e-6, &mut summand);
                    }
                    let expected: Vec<_> =
                        before.iter().zip(&summand).map(|(a, b)| a + b).collect();
                    let mut expected_norm = vec![0.0; x.len()];
                    rms_norm(isa, &pool, &expected, &weights[1], 1e-6, &mut expected_norm);
                    let (mut sum, mut normed) = (before.clone(), vec![0.0; x.len()]);
                    let weights = AddAndNorm { summand_norm, sum_norm: &weights[1], epsilon: 1e-6 };
                    add_and_norm(isa, &pool, &x, &mut sum, weights, &mut normed);
                    assert_eq!((sum, normed), (expected, expected_norm));
                }
            }
        }
    }
}
