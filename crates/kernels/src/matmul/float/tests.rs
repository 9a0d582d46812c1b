//! Float products against the loop that defines them, bit by bit on every instruction set.

use crate::activation_rows::QuantizedRows;
use crate::isa::Isa;
use crate::matmul::float::{Pieces, num_chunks};
use crate::matmul::matmul;
use crate::packed_matrix::{PackedMatrix, WeightRows};
use crate::reference::dequantize;
use crate::thread_pool::ThreadPool;
use crate::weight_memory::WeightMemory;
use crate::weight_type::WeightType;
use std::num::NonZeroUsize;

const FLOATS: [WeightType; 3] = [WeightType::F32, WeightType::F16, WeightType::Bf16];

/// A product whose definition is simple enough to be read.
struct Case {
    weight_type: WeightType,
    out_features: usize,
    in_features: usize,
    weights: Vec<u8>,
    x: Vec<f32>,
}

impl Case {
    fn new(weight_type: WeightType, out: usize, in_features: usize, num_rows: usize) -> Self {
        let mut state = 1_u32;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / 8_388_608.0 - 1.0
        };
        let mut weights = Vec::new();
        for _ in 0..out * in_features {
            let weight = next();
            if weight_type == WeightType::F32 {
                weights.extend(weight.to_le_bytes());
            } else if weight_type == WeightType::F16 {
                // Below 2, of either sign, some of them subnormal.
                weights.extend(((weight.to_bits() >> 3) as u16 & 0xbfff).to_le_bytes());
            } else {
                weights.extend(((weight.to_bits() >> 16) as u16).to_le_bytes());
            }
        }
        let x = (0..num_rows * in_features).map(|_| next() * 3.0).collect();
        Self { weight_type, out_features: out, in_features, weights, x }
    }

    fn expected(&self) -> Vec<f32> {
        let mut wide = vec![0.0; self.out_features * self.in_features];
        dequantize(self.weight_type, &self.weights, &mut wide);
        let mut out = Vec::new();
        for x in self.x.chunks_exact(self.in_features) {
            for w in wide.chunks_exact(self.in_features) {
                out.push(w.iter().zip(x).fold(0.0_f32, |acc, (w, x)| w.mul_add(*x, acc)));
            }
        }
        out
    }

    /// Checks products of the first rows, for each of `row_counts`.
    fn check(&self, row_counts: impl Iterator<Item = usize> + Clone) {
        let expected = self.expected();
        let pool = ThreadPool::new(NonZeroUsize::new(2).unwrap());
        let rows = WeightRows {
            weight_type: self.weight_type,
            out_features: self.out_features,
            in_features: self.in_features,
            bytes: &self.weights,
        };
        let packed = PackedMatrix::pack(&pool, &WeightMemory::default(), &[rows]).unwrap();
        let mut scratch = QuantizedRows::default();
        // NaN has many bit patterns, and which one a sum gets is not part of the definition.
        let bits = |out: &[f32]| -> Vec<u32> {
            out.iter().map(|v| if v.is_nan() { u32::MAX } else { v.to_bits() }).collect()
        };
        for isa in Isa::all_present() {
            for num_rows in row_counts.clone() {
                let x = &self.x[..num_rows * self.in_features];
                // What was there before must not show.
                let mut out = vec![f32::NAN; num_rows * self.out_features];
                matmul(isa, &pool, x, &packed, &mut scratch, &mut out);
                assert_eq!(
                    bits(&out),
                    bits(&expected[..out.len()]),
                    "{} rows, {} x {} of {} on {}",
                    num_rows,
                    self.out_features,
                    self.in_features,
                    self.weight_type,
                    isa.name()
                );
            }
        }
    }
}

#[test]
fn every_number_of_rows_gives_the_bits_of_the_defining_loop() {
    for weight_type in FLOATS {
        Case::new(weight_type, 49, 37, 40).check(1..=40);
    }
}

#[test]
fn tiles_that_are_partly_padding_and_lone_input_features_are_exact() {
    for weight_type in FLOATS {
        for out_features in [1, 15, 16, 17, 31, 32, 33, 48, 64] {
            for in_features in [1, 2, 33] {
                let row_counts = [1, 5, 6, 7, 14, 15, 28, 29, 61];
                Case::new(weight_type, out_features, in_features, 61).check(row_counts.into_iter());
            }
        }
    }
}

#[test]
fn rows_that_fill_several_chunks_are_exact() {
    Case::new(WeightType::Bf16, 17, 3001, 67).check([66, 67].into_iter());
}

#[test]
fn pieces_cover_every_unit_once_and_chunks_never_outnumber_blocks() {
    for num_units in 1..200 {
        for share in 1..10 {
            let pieces = Pieces { num_units, share };
            let covered: Vec<usize> = (0..pieces.count()).flat_map(|i| pieces.piece(i)).collect();
            assert_eq!(covered, (0..num_units).collect::<Vec<_>>());
        }
        assert_eq!(num_chunks(num_units, 1000, 4), 1);
        assert!((1..=num_units).contains(&num_chunks(num_units, 100 << 20, 4)));
    }
}

#[test]
fn nan_and_infinity_reach_what_reads_them_and_nothing_else() {
    for weight_type in FLOATS {
        let mut case = Case::new(weight_type, 35, 24, 31);
        case.x[5] = f32::NAN;
        case.x[2 * 24 + 7] = f32::INFINITY;
        case.x[30 * 24 + 1] = f32::NEG_INFINITY;
        let huge = vec![0x7f; weight_type.bytes_for(1).unwrap()];
        let place = 20 * 24 * huge.len();
        case.weights[place..place + huge.len()].copy_from_slice(&huge);
        let expected = case.expected();
        assert!(expected[..35].iter().all(|value| value.is_nan()));
        assert!(expected[35..55].iter().all(|value| value.is_finite()));
        case.check([1, 3, 14, 31].into_iter());
    }
}
