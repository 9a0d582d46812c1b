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

/// Few groups do not reach every entry of a codebook, so that a digest (FNV-1a over the weights'
/// bits) of many stands in for a large fixture.
#[test]
fn every_codebook_entry_stands_for_the_weights_of_the_python_reference() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/dequantize/codebooks.txt");
    let digests = std::fs::read_to_string(path).expect("digests of codebooks");
    assert_eq!(digests.lines().count(), 6);
    for line in digests.lines() {
        let (name, expected) = line.split_once(' ').expect("a name and a digest");
        let weight_type =
            WeightType::ALL.into_iter().find(|one| one.name() == name).expect("a known type");
        const NUM_GROUPS: usize = 1024;
        let mut state = 1_u32;
        let mut stored: Vec<u8> = (0..NUM_GROUPS * weight_type.group_bytes())
            .map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                state.to_be_bytes()[0]
            })
            .collect();
        for group in stored.chunks_exact_mut(weight_type.group_bytes()) {
            // The scale 1 in half precision.
            group[..2].copy_from_slice(&0x3c00_u16.to_le_bytes());
        }
        let mut weights = vec![0.0_f32; NUM_GROUPS * weight_type.group_size()];
        dequantize(weight_type, &stored, &mut weights);
        let digest = weights.iter().fold(0xcbf2_9ce4_8422_2325_u64, |digest, weight| {
            (digest ^ u64::from(weight.to_bits())).wrapping_mul(0x100_0000_01b3)
        });
        assert_eq!(format!("{digest:016x}"), expected, "{name}");
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
