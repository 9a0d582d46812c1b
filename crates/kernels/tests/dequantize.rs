//! Stored weights against the `gguf` Python package's reference (testdata/make_dequantize.py).

use mini_infer_kernels::WeightType;
use mini_infer_kernels::reference::{bf16_to_f32, dequantize, f16_to_f32};

/// Returns the stored bytes of a fixture and the weights that they stand for.
fn fixture(weight_type: WeightType) -> (Vec<u8>, Vec<f32>) {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/dequantize");
    let mut stored =
        std::fs::read(format!("{folder}/{weight_type}.bin")).expect("a fixture per type");
    let group_total = weight_type.group_bytes() + 4 * weight_type.group_size();
    assert_eq!(stored.len() % group_total, 0);
    let num_groups = stored.len() / group_total;
    let weights = stored.split_off(num_groups * weight_type.group_bytes());
    let weights = weights.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
    (stored, weights)
}

#[test]
fn every_weight_type_equals_the_python_reference_bit_for_bit() {
    for weight_type in WeightType::ALL {
        let (stored, expected) = fixture(weight_type);
        let mut got = vec![f32::NAN; expected.len()];
        dequantize(weight_type, &stored, &mut got);
        for (i, (got, expected)) in got.iter().zip(&expected).enumerate() {
            assert_eq!(got.to_bits(), expected.to_bits(), "{weight_type} weight {i}: {got}");
        }
    }
}

#[test]
fn sixteen_bit_specials_survive_widening() {
    assert_eq!(f16_to_f32(0x7c00), f32::INFINITY);
    assert_eq!(f16_to_f32(0xfc00), f32::NEG_INFINITY);
    assert!(f16_to_f32(0x7e00).is_nan());
    assert_eq!(f16_to_f32(0x0001), 2.0_f32.powi(-24));
    assert_eq!(f16_to_f32(0x83ff), -1023.0 * 2.0_f32.powi(-24));
    assert_eq!(f16_to_f32(0x7bff), 65504.0);
    assert_eq!(f16_to_f32(0x8000).to_bits(), (-0.0_f32).to_bits());
    assert_eq!(bf16_to_f32(0x3f80), 1.0);
    assert!(bf16_to_f32(0x7fc0).is_nan());
}

#[test]
fn weights_that_are_not_whole_groups_have_no_size() {
    assert_eq!(WeightType::Q4K.bytes_for(512), Some(288));
    assert_eq!(WeightType::Q4K.bytes_for(500), None);
    assert_eq!(WeightType::F32.bytes_for(usize::MAX), None);
}
