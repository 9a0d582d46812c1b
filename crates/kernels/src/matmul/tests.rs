//! Products against a plain f64 sum over the same codes, on every instruction set present.

use super::*;
use crate::activation_rows::{GROUP, GroupCodes, HighCodes, PartSums, QuadGroup, WeightOffsets};
use crate::packed_matrix::{IntegerTile, WeightRows};
use crate::reference::dequantize;
use crate::weight_memory::WeightMemory;
use crate::weight_type::WeightType;
use std::num::NonZeroUsize;

/// A small generator of repeatable numbers (an LCG with the constants of Numerical Recipes).
struct Numbers(u32);

impl Numbers {
    fn next(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        self.0 >> 8
    }

    /// Uniform in -1..1, with a rare outlier of up to 30.
    fn activation(&mut self) -> f32 {
        let uniform = self.next() as f32 / 8_388_608.0 - 1.0;
        if self.next().is_multiple_of(97) { uniform * 30.0 } else { uniform }
    }
}

/// Byte offsets of the f16 fields in a quantisation group.
fn half_fields(weight_type: WeightType) -> &'static [usize] {
    match weight_type {
        WeightType::F32 | WeightType::F16 | WeightType::Bf16 => &[],
        WeightType::Q4_0 | WeightType::Q5_0 | WeightType::Q8_0 => &[0],
        WeightType::Q4_1 | WeightType::Q5_1 | WeightType::Q4K | WeightType::Q5K => &[0, 2],
        WeightType::Q2K => &[80, 82],
        WeightType::Q3K => &[108],
        WeightType::Q6K => &[208],
        WeightType::Iq1S
        | WeightType::Iq2Xxs
        | WeightType::Iq2Xs
        | WeightType::Iq2S
        | WeightType::Iq3Xxs
        | WeightType::Iq3S
        | WeightType::Iq4Nl
        | WeightType::Iq4Xs => &[0],
        WeightType::Tq1_0 => &[52],
        WeightType::Tq2_0 => &[64],
        // Their scales are set apart.
        WeightType::Iq1M | WeightType::Mxfp4 | WeightType::Int4 => &[],
    }
}

/// Stored weights with random codes and scales around 0.01.
#[expect(clippy::wildcard_enum_match_arm, reason = "all others are quantisation groups")]
fn random_weights(weight_type: WeightType, count: usize, numbers: &mut Numbers) -> Vec<u8> {
    let float = |numbers: &mut Numbers| numbers.next() as f32 / 8_388_608.0 - 1.0;
    match weight_type {
        WeightType::F32 => (0..count).flat_map(|_| float(numbers).to_le_bytes()).collect(),
        WeightType::Bf16 => (0..count)
            .flat_map(|_| ((float(numbers).to_bits() >> 16) as u16).to_le_bytes())
            .collect(),
        // Halves with exponents from 2^-15 to 2^1 and random signs and mantissas.
        WeightType::F16 => {
            (0..count).flat_map(|_| (numbers.next() as u16 & 0xbfff).to_le_bytes()).collect()
        }
        _ => {
            let num_bytes = weight_type.bytes_for(count).unwrap();
            let bytes = (0..num_bytes).map(|_| numbers.next() as u8).collect();
            with_small_scales(weight_type, bytes, numbers)
        }
    }
}

/// Quantisation groups of these bytes but for their scales.
fn with_small_scales(weight_type: WeightType, bytes: Vec<u8>, numbers: &mut Numbers) -> Vec<u8> {
    let mut bytes = bytes;
    for group in bytes.chunks_exact_mut(weight_type.group_bytes()) {
        for &field in half_fields(weight_type) {
            // An f16 of 2^-7 to 2^-6, of either sign.
            let half = 0x2000 | (numbers.next() as u16 & 0x83ff);
            group[field..field + 2].copy_from_slice(&half.to_le_bytes());
        }
        if weight_type == WeightType::Int4 {
            let [scale, minimum] =
                [0; 2].map(|_| (numbers.next() as f32 / 8_388_608.0 - 1.0) / 64.0);
            group[..4].copy_from_slice(&scale.to_le_bytes());
            group[4..8].copy_from_slice(&minimum.to_le_bytes());
        }
        if weight_type == WeightType::Mxfp4 {
            group[0] = 120 + group[0] % 4;
        }
        if weight_type == WeightType::Iq1M {
            // The f16 0x2400, one digit in each of four words.
            for (byte, digit) in [(49, 0), (51, 0), (53, 4), (55, 2)] {
                group[byte] = (group[byte] & 0x0f) | (digit << 4);
            }
        }
    }
    bytes
}

struct Case {
    weight_type: WeightType,
    out_features: usize,
    in_features: usize,
    weights: Vec<u8>,
    x: Vec<f32>,
}

impl Case {
    fn random(weight_type: WeightType, out: usize, width: usize, rows: usize) -> Self {
        let mut numbers = Numbers(out as u32 * 31 + width as u32 * 7 + rows as u32);
        let weights = random_weights(weight_type, out * width, &mut numbers);
        let x = (0..rows * width).map(|_| numbers.activation()).collect();
        Self { weight_type, out_features: out, in_features: width, weights, x }
    }

    fn packed(&self, pool: &ThreadPool) -> PackedMatrix {
        let rows = WeightRows {
            weight_type: self.weight_type,
            out_features: self.out_features,
            in_features: self.in_features,
            bytes: &self.weights,
        };
        PackedMatrix::pack(pool, &WeightMemory::default(), &[rows]).unwrap()
    }

    fn product(&self, isa: Isa, num_threads: usize, x: &[f32]) -> Vec<f32> {
        let pool = pool(num_threads);
        let mut out = vec![f32::NAN; x.len() / self.in_features * self.out_features];
        let mut scratch = QuantizedRows::default();
        matmul(isa, &pool, x, &self.packed(&pool), &mut scratch, &mut out);
        out
    }

    /// The activations as the kernel sees them: quantised for integer weights.
    fn seen_activations(&self) -> Vec<f32> {
        if crate::packed_matrix::Scheme::of(self.weight_type).is_none() {
            return self.x.clone();
        }
        let (isa, pool) = (Isa::Scalar, pool(1));
        let offsets = WeightOffsets { zero_point: 0, parts: PartSums::Group };
        let mut rows = QuantizedRows::default();
        let mut seen = Vec::new();
        for row in self.x.chunks_exact(self.in_features) {
            rows.quantize(isa, &pool, row, self.in_features, offsets);
            let (quads, high) = rows.block(0).quad(0);
            for (quad, high) in quads.iter().zip(high) {
                seen.extend(wide_codes(quad, high).map(|code| code as f32 * quad.scales[0]));
            }
        }
        seen
    }

    /// Checks `out` against f64 sums; each f32 step may be off by half a unit in the last place
    /// of the largest partial sum, which the sum of magnitudes bounds.
    fn check(&self, out: &[f32], context: &str) {
        let mut wide = vec![0.0; self.out_features * self.in_features];
        dequantize(self.weight_type, &self.weights, &mut wide);
        let x = self.seen_activations();
        for (row, x) in x.chunks_exact(self.in_features).enumerate() {
            for (o, w) in wide.chunks_exact(self.in_features).enumerate() {
                let products = || x.iter().zip(w).map(|(x, w)| f64::from(*x) * f64::from(*w));
                let expected: f64 = products().sum();
                let magnitude: f64 = products().map(f64::abs).sum();
                // Offset codes cancel: |code - zero| <= |w| / scale, but the minimum's share is
                // added apart, so its magnitude counts too; 8 covers both for 4-bit codes and up.
                let steps = self.in_features as f64;
                let bound = 8.0 * steps * f64::from(f32::EPSILON) * magnitude + 1e-6;
                let got = f64::from(out[row * self.out_features + o]);
                assert!(
                    (got - expected).abs() <= bound,
                    "{context}: row {row} output {o}: {got} for {expected} (bound {bound})"
                );
            }
        }
    }
}

/// The codes of the first row, with their high bytes.
fn wide_codes(quad: &QuadGroup, high: &HighCodes) -> [i32; GROUP] {
    let byte =
        |words: &GroupCodes, i: usize| i32::from(words[i / 4].to_le_bytes()[i % 4].cast_signed());
    std::array::from_fn(|i| {
        let is_wide = quad.high_words & (1 << (i / 4)) != 0;
        byte(&quad.codes[0], i) + if is_wide { 256 * byte(&high[0], i) } else { 0 }
    })
}

fn pool(num_threads: usize) -> ThreadPool {
    ThreadPool::new(NonZeroUsize::new(num_threads).unwrap())
}

#[test]
fn products_match_f64_sums_and_are_bit_equal_on_every_isa() {
    for weight_type in WeightType::ALL {
        let group = weight_type.group_size().max(GROUP);
        for (out, groups, rows) in [(1, 1, 1), (16, 2, 2), (17, 3, 7), (40, 2, 16), (35, 1, 41)] {
            let case = Case::random(weight_type, out, groups * group, rows);
            let mut first: Option<Vec<f32>> = None;
            for isa in Isa::all_present() {
                let product = case.product(isa, 2, &case.x);
                case.check(&product, &format!("{weight_type} on {}", isa.name()));
                let first = first.get_or_insert_with(|| product.clone());
                assert!(*first == product, "{weight_type} differs on {}", isa.name());
            }
        }
    }
}

/// The defining loop of one output value: see the module header.
fn defined_value(tile: IntegerTile<'_>, lane: usize, row: &QuantizedRows) -> f32 {
    let (quads, high) = row.block(0).quad(0);
    let format = tile.scheme.scales;
    let num_parts = if format.has_halves() { 2 } else { 1 };
    let mut acc = 0.0_f32;
    for (g, (quad, high)) in quads.iter().zip(high).enumerate() {
        let codes = wide_codes(quad, high);
        let scales = tile.lane_scales(g, lane);
        for part in 0..num_parts {
            let features = GROUP / num_parts * part..GROUP / num_parts * (part + 1);
            let sum: i32 = features.clone().map(|k| codes[k]).sum();
            let weight = |k: usize| i32::from(tile.code(g, lane, k));
            let dot: i32 = features.map(|k| weight(k) * codes[k]).sum();
            let dot = dot - i32::from(tile.scheme.zero_point) * sum;
            acc = (dot as f32).mul_add(scales.scales[part] * quad.scales[0], acc);
            if format.has_minimum() {
                acc = scales.minimums[part].mul_add(quad.scales[0] * sum as f32, acc);
            }
        }
    }
    acc
}

/// Every integer format that differs in its tiles, with and without wide words, in as many rows as
/// blocks, fours and panels can be cut into, and a number of tiles that leaves panels of one, two
/// and three, whole and cut off.
#[test]
fn integer_products_are_the_defining_loop_bit_for_bit_on_every_isa() {
    let pool = pool(2);
    let mut schemes = Vec::new();
    for (i, weight_type) in WeightType::ALL.into_iter().enumerate() {
        let Some(scheme) = crate::packed_matrix::Scheme::of(weight_type) else { continue };
        if schemes.contains(&scheme) {
            continue;
        }
        schemes.push(scheme);
        let groups = [1, 2, 3, 19, 37][i % 5];
        let width = if weight_type.group_size() == GROUP { groups * GROUP } else { 768 };
        let out_features = [33, 65, 16, 80][i % 4];
        let case = Case::random(weight_type, out_features, width, 40);
        let packed = case.packed(&pool);
        let Tiles::Integer(tiles) = &packed.parts()[0].tiles else { panic!("integer tiles") };
        let mut expected = Vec::new();
        let mut num_wide = 0;
        for x in case.x.chunks_exact(width) {
            let mut row = QuantizedRows::default();
            row.quantize(Isa::Scalar, &pool, x, width, scheme.offsets());
            num_wide += row.block(0).quad(0).0.iter().filter(|quad| quad.high_words != 0).count();
            expected.extend(
                (0..out_features).map(|o| defined_value(tiles.tile(o / LANES), o % LANES, &row)),
            );
        }
        assert!(groups == 1 || (1..40 * width / GROUP).contains(&num_wide), "{num_wide} wide");
        for isa in Isa::all_present() {
            let mut out = vec![f32::NAN; 40 * out_features];
            for num_rows in 1..=40 {
                let out = &mut out[..num_rows * out_features];
                let x = &case.x[..num_rows * width];
                matmul(isa, &pool, x, &packed, &mut QuantizedRows::default(), out);
                let is_equal = *out == expected[..num_rows * out_features];
                assert!(is_equal, "{weight_type}, {num_rows} rows on {}", isa.name());
                if isa == Isa::Scalar && num_rows == 5 {
                    break;
                }
            }
        }
    }
}

/// Codes of one value all over, the least and the largest among them, with activations of one
/// magnitude: what overflows where sums are kept in few bits.
#[test]
fn the_largest_sums_are_exact_on_every_isa() {
    let mut numbers = Numbers(5);
    for weight_type in WeightType::ALL {
        if crate::packed_matrix::Scheme::of(weight_type).is_none() {
            continue;
        }
        let width = weight_type.group_size().max(2 * GROUP);
        for byte in [0x00, 0x0f, 0xf0, 0x77, 0x80, 0x88, 0xff] {
            let bytes = vec![byte; 20 * weight_type.bytes_for(width).unwrap()];
            let weights = with_small_scales(weight_type, bytes, &mut numbers);
            let sign = |i: usize| if (i / width).is_multiple_of(2) { 1.0 } else { -1.0 };
            let x = (0..30 * width).map(sign).collect();
            let case = Case { weight_type, out_features: 20, in_features: width, weights, x };
            let expected = case.product(Isa::Scalar, 1, &case.x);
            for isa in Isa::all_present() {
                for num_rows in [1, 2, 30] {
                    let product = case.product(isa, 1, &case.x[..num_rows * width]);
                    let is_equal = product == expected[..num_rows * 20];
                    assert!(is_equal, "{weight_type} of {byte:#x} on {}", isa.name());
                }
            }
        }
    }
}

#[test]
fn a_row_does_not_depend_on_how_many_rows_or_threads_there_are() {
    for weight_type in [WeightType::Q4_1, WeightType::Q8_0, WeightType::Q6K, WeightType::Bf16] {
        let width = 512;
        let case = Case::random(weight_type, 50, width, 37);
        for isa in Isa::all_present() {
            let all = case.product(isa, 1, &case.x);
            for num_threads in [2, 3] {
                assert!(case.product(isa, num_threads, &case.x) == all);
            }
            for (first, count) in [(0, 1), (5, 2), (7, 3), (20, 16), (11, 26)] {
                let some = case.product(isa, 2, &case.x[first * width..(first + count) * width]);
                assert!(some == all[first * 50..(first + count) * 50]);
            }
        }
    }
}

#[test]
fn stacked_parts_of_different_formats_equal_their_own_products() {
    let (a, b) =
        (Case::random(WeightType::Q4_1, 24, 256, 3), Case::random(WeightType::Q6K, 7, 256, 3));
    let pool = pool(2);
    let rows = |case: &Case| case.packed(&pool).out_features();
    let parts = [&a, &b].map(|case| WeightRows {
        weight_type: case.weight_type,
        out_features: rows(case),
        in_features: 256,
        bytes: &case.weights,
    });
    let stacked = PackedMatrix::pack(&pool, &WeightMemory::default(), &parts).unwrap();
    let isa = Isa::all_present()[0];
    let mut out = vec![0.0; 3 * 31];
    matmul(isa, &pool, &a.x, &stacked, &mut QuantizedRows::default(), &mut out);
    let (first, second) = (a.product(isa, 1, &a.x), b.product(isa, 1, &a.x));
    for (row, out) in out.chunks_exact(31).enumerate() {
        assert_eq!(out[..24], first[row * 24..][..24]);
        assert_eq!(out[24..], second[row * 7..][..7]);
    }
}

#[test]
fn packed_rows_are_the_dequantised_weights_bit_for_bit() {
    for weight_type in WeightType::ALL {
        let case = Case::random(weight_type, 19, 512, 1);
        let packed = case.packed(&pool(2));
        let mut expected = vec![0.0; 19 * 512];
        dequantize(weight_type, &case.weights, &mut expected);
        let mut row = vec![0.0; 512];
        for (i, expected) in expected.chunks_exact(512).enumerate() {
            packed.row(i, &mut row);
            assert_eq!(row, expected, "row {i} of {weight_type}");
        }
    }
}

#[test]
fn a_broken_activation_breaks_its_own_row_only() {
    for weight_type in [WeightType::Q4_1, WeightType::Q8_0, WeightType::F32] {
        let mut case = Case::random(weight_type, 16, 64, 3);
        let good = case.product(Isa::Scalar, 1, &case.x);
        case.x[64 + 5] = f32::NAN;
        for isa in Isa::all_present() {
            let out = case.product(isa, 2, &case.x);
            assert_eq!(out[..16], good[..16]);
            assert!(out[16..32].iter().all(|value| value.is_nan()));
            assert_eq!(out[32..], good[32..]);
            // The same among as many rows as panels are for.
            let many: Vec<f32> = case.x.iter().copied().cycle().take(64 * 30).collect();
            let many = case.product(isa, 2, &many);
            for out in many.chunks_exact(48) {
                assert_eq!(out[..16], good[..16]);
                assert!(out[16..32].iter().all(|value| value.is_nan()));
                assert_eq!(out[32..], good[32..]);
            }
        }
    }
}

#[test]
fn bytes_that_do_not_fit_the_shape_are_refused() {
    let pool = pool(1);
    let bytes = [0; 20];
    let rows = |out_features, in_features| WeightRows {
        weight_type: WeightType::Q4_1,
        out_features,
        in_features,
        bytes: &bytes,
    };
    assert!(PackedMatrix::pack(&pool, &WeightMemory::default(), &[rows(1, 32)]).is_ok());
    for (out_features, in_features) in [(2, 32), (1, 64), (1, 16), (1, 0), (usize::MAX, 32)] {
        assert!(
            PackedMatrix::pack(&pool, &WeightMemory::default(), &[rows(out_features, in_features)])
                .is_err()
        );
    }
}
