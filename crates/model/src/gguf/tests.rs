//! GGUF files made by hand, whole and damaged.

use super::builder::{Builder, array, string};
use super::*;

fn refusal(bytes: Vec<u8>) -> String {
    GgufFile::parse(bytes.into()).err().map(|error| error.to_string()).unwrap_or_default()
}

/// A valid file with every kind of thing in it.
fn sample() -> Builder {
    let words = [string("Ġa"), string(""), string("ß")].concat();
    Builder::default()
        .pair("general.architecture", 8, &string("llama"))
        .pair("llama.block_count", 10, &2_u64.to_le_bytes())
        .pair("negative", 5, &(-7_i32).to_le_bytes())
        .pair("epsilon", 6, &1e-5_f32.to_le_bytes())
        .pair("flag", 7, &[1])
        .pair("tokens", 9, &array(8, 3, &words))
        .pair("ids", 9, &array(4, 2, &[1, 0, 0, 0, 2, 0, 0, 0]))
        .pair("nested", 9, &array(9, 2, &[array(0, 1, &[5]), array(0, 0, &[])].concat()))
        .tensor("norm", &[4], 0, 0)
        .tensor("matrix", &[32, 3], 8, 32)
        .data(32 + 3 * 34)
}

#[test]
fn a_whole_file_gives_back_its_values_and_tensors() {
    let file = GgufFile::parse(sample().build().into()).unwrap();
    let metadata = file.metadata();
    assert_eq!(metadata.require::<&str>("general.architecture").unwrap(), "llama");
    assert_eq!(metadata.require::<u32>("llama.block_count").unwrap(), 2);
    assert_eq!(metadata.require::<i32>("negative").unwrap(), -7);
    assert_eq!(metadata.get::<f32>("epsilon").unwrap(), Some(1e-5));
    assert_eq!(metadata.get::<bool>("flag").unwrap(), Some(true));
    assert_eq!(metadata.get::<bool>("absent").unwrap(), None);
    assert_eq!(metadata.require::<Vec<&str>>("tokens").unwrap(), ["Ġa", "", "ß"]);
    assert_eq!(metadata.require::<Vec<u32>>("ids").unwrap(), [1, 2]);
    assert_eq!(metadata.require::<Vec<Vec<u32>>>("nested").unwrap(), [vec![5], vec![]]);
    let matrix = file.tensor("matrix").unwrap();
    assert_eq!((matrix.shape, matrix.out_features(), matrix.in_features()), (&[3, 32][..], 3, 32));
    let bytes = matrix.stored_bytes();
    assert_eq!((bytes.len(), bytes[0]), (102, 32));
    assert_eq!(file.tensor_names().collect::<Vec<_>>(), ["matrix", "norm"]);
    assert!(file.tensor("absent").is_none());
}

#[test]
fn values_of_another_type_are_errors_that_name_the_key() {
    let file = GgufFile::parse(sample().build().into()).unwrap();
    let check = |got: Result<(), ModelError>, expected: &str| {
        assert_eq!(got.unwrap_err().to_string(), expected);
    };
    let metadata = file.metadata();
    check(
        metadata.get::<u32>("negative").map(drop),
        "metadata key `negative` is of type INT32 (-7), expected an integer from 0 to 2^32 - 1",
    );
    check(
        metadata.get::<&str>("tokens").map(drop),
        "metadata key `tokens` is of type ARRAY of 3 STRING, expected a STRING of UTF-8 text",
    );
    check(metadata.require::<u32>("absent").map(drop), "metadata key `absent` is missing");
}

#[test]
fn every_truncation_is_an_error() {
    let whole = sample().build();
    for len in 0..whole.len() {
        assert!(!refusal(whole[..len].to_vec()).is_empty(), "cut at {len}");
    }
    assert_eq!(refusal(whole), "");
}

#[test]
fn no_single_changed_byte_makes_the_reader_panic() {
    let whole = sample().build();
    for at in 0..whole.len() {
        for value in [0, 1, 9, 0x7f, 0xff] {
            let mut damaged = whole.clone();
            damaged[at] = value;
            if let Ok(file) = GgufFile::parse(damaged.into()) {
                for key in file.metadata().keys() {
                    let _ = file.metadata().get::<Vec<&str>>(key);
                }
                for name in file.tensor_names() {
                    let tensor = file.tensor(name).unwrap();
                    assert_eq!(tensor.to_f32().len(), tensor.num_weights());
                }
            }
        }
    }
}

#[test]
fn absurd_counts_fail_before_anything_is_sized_by_them() {
    let absurd = 1_u64 << 60;
    for offset in [8, 16] {
        let mut file = sample().build();
        file[offset..offset + 8].copy_from_slice(&absurd.to_le_bytes());
        assert!(refusal(file).starts_with("1152921504606846976 "));
    }
    let file = |value_type, value: &[u8]| Builder::default().pair("k", value_type, value);
    assert!(
        refusal(file(8, &absurd.to_le_bytes()).build()).contains("takes 1152921504606846976 bytes")
    );
    for element_type in [0, 8, 9, 10] {
        let message = refusal(file(9, &array(element_type, absurd, &[0; 64])).build());
        assert!(message.contains("elements of a metadata array"), "{message}");
    }
    let huge = Builder::default().tensor("t", &[1 << 32, 1 << 32], 0, 0).data(64);
    assert!(refusal(huge.build()).contains("the shape of tensor `t`"));
}

#[test]
fn deeply_nested_arrays_are_refused() {
    let mut value = array(0, 0, &[]);
    for _ in 0..4 {
        value = array(9, 1, &value);
    }
    let message = refusal(Builder::default().pair("deep", 9, &value).build());
    assert!(message.contains("levels of metadata arrays"), "{message}");
}

#[test]
fn files_that_contradict_themselves_are_refused_by_name() {
    let check = |builder: Builder, expected: &str| {
        let message = refusal(builder.build());
        assert!(message.contains(expected), "`{message}` does not say `{expected}`");
    };
    let base = || Builder::default().data(256);
    check(base().pair("k", 7, &[2]), "a truth value in the metadata is 2");
    check(base().pair("k", 13, &[0]), "a metadata value type is 13");
    check(base().pair("k", 0, &[0]).pair("k", 0, &[0]), "metadata key `k` appears twice");
    check(base().pair("general.alignment", 4, &24_u32.to_le_bytes()), "power of two");
    check(base().pair("general.alignment", 4, &0_u32.to_le_bytes()), "power of two");
    check(base().tensor("t", &[8], 0, 0).tensor("t", &[8], 0, 32), "tensor `t` appears twice");
    check(base().tensor("a", &[9], 0, 0).tensor("b", &[8], 0, 32), "`a` and `b` overlap");
    check(base().tensor("t", &[8], 0, 4), "the offset of tensor `t` is 4");
    check(base().tensor("t", &[8], 0, 256), "the place of tensor `t`");
    check(base().tensor("t", &[8], 0, u64::MAX - 31), "the place of tensor `t`");
    check(base().tensor("t", &[33], 8, 0), "the row length of tensor `t` is 33");
    check(base().tensor("t", &[8, 0], 0, 0), "the dimension of tensor `t` is 0");
    check(base().tensor("t", &[], 0, 0), "the number of dimensions of tensor `t` is 0");
    check(base().tensor("t", &[1; 5], 0, 0), "the number of dimensions of tensor `t` is 5");
    check(base().tensor("t", &[256], 24, 0), "ggml type 24");
}

/// Numbers and names of `enum ggml_type`.
#[test]
fn ggml_types_are_known_by_their_numbers() {
    let known = "0 F32, 1 F16, 2 Q4_0, 3 Q4_1, 6 Q5_0, 7 Q5_1, 8 Q8_0, 10 Q2_K, 11 Q3_K, 12 Q4_K, \
                 13 Q5_K, 14 Q6_K, 16 IQ2_XXS, 17 IQ2_XS, 18 IQ3_XXS, 19 IQ1_S, 20 IQ4_NL, \
                 21 IQ3_S, 22 IQ2_S, 23 IQ4_XS, 29 IQ1_M, 30 BF16, 34 TQ1_0, 35 TQ2_0, 39 MXFP4";
    let mut found = Vec::new();
    for code in 0..100 {
        let file = Builder::default().tensor("t", &[256], code, 0).data(1024).build();
        match GgufFile::parse(file.into()) {
            Ok(file) => found.push(format!("{code} {}", file.tensor("t").unwrap().weight_type)),
            Err(error) => {
                let message = error.to_string();
                assert!(message.contains(&format!("ggml type {code}")), "{message}");
                assert!(
                    message.contains("F32, F16, Q4_0, Q4_1") && message.ends_with("MXFP4"),
                    "{message}"
                );
            }
        }
    }
    assert_eq!(found.join(", "), known);
}

#[test]
fn other_formats_and_versions_are_named() {
    assert_eq!(refusal(b"PK\x03\x04".to_vec()), "not a GGUF file: starts with \"PK\\x03\\x04\"");
    assert_eq!(refusal(Vec::new()), "not a GGUF file: starts with \"\"");
    let mut file = sample().build();
    file[4] = 1;
    assert!(refusal(file).starts_with("GGUF version 1 is not supported"));
}
