//! Files that are wrong in every way that there is, and folders that do not fit together.

use super::builder::{Builder, file};
use super::*;
use crate::Checkpoint;
use crate::weights::ModelTensors;
use serde_json::{Value, json};
use std::fs;
use std::path::PathBuf;

fn parse(bytes: Vec<u8>) -> Result<SafetensorsFile, ModelError> {
    SafetensorsFile::parse(bytes.into())
}

fn check(bytes: Vec<u8>, expected: &str) {
    let error = parse(bytes).expect_err(expected).to_string();
    assert!(error.contains(expected), "`{error}` does not say `{expected}`");
}

fn two() -> Builder {
    Builder::default().zeros("a", "BF16", &[2, 3]).zeros("b", "F32", &[5])
}

#[test]
fn tensors_lie_where_the_header_says() {
    let header = json!({
        "__metadata__": {"format": "pt"},
        "b": {"dtype": "F16", "shape": [1, 2], "data_offsets": [4, 8]},
        "a": {"dtype": "F32", "shape": [], "data_offsets": [0, 4]},
    });
    // Writers pad the header with spaces.
    let header = format!("{header}   ");
    let parsed = parse(file(&header, &[1, 2, 3, 4, 5, 6, 7, 8])).unwrap();
    let bytes = |name: &str| parsed.bytes[parsed.tensors[name].range.clone()].to_vec();
    assert_eq!((bytes("a"), bytes("b")), (vec![1, 2, 3, 4], vec![5, 6, 7, 8]));
    assert_eq!(parsed.tensors["b"].shape, [1, 2]);
    assert!(parse(file("{}", &[])).unwrap().tensors.is_empty());
}

#[test]
fn headers_that_are_none_are_refused() {
    check(vec![], "the length of the header at byte 0 takes 8 bytes, but only 0 are left");
    check(vec![0; 7], "only 7 are left");
    check(vec![0xff; 64], "bytes of header are more than the 100000000");
    check(100_u64.to_le_bytes().to_vec(), "the header at byte 8 takes 100 bytes, but only 0");
    check(file("", &[]), "the start of the header");
    check(file("<!DOCTYPE html>", &[]), "\"<!DOCTYP\", expected an opening brace");
    check(file("{\"a\":", &[]), "the header cannot be read");
    check(file("{} {}", &[]), "trailing characters");
    check(file(&"{\"a\":".repeat(1 << 16), &[]), "the header cannot be read");
    let deep = format!("{{\"a\":{{\"dtype\":{}", "[".repeat(1 << 20));
    check(file(&deep, &[]), "the header cannot be read");
    let entry = r#"{"dtype":"F32","shape":[1],"data_offsets":[0,4]}"#;
    let twice = format!("{{\"a\":{entry},\"a\":{entry}}}");
    check(file(&twice, &[0; 4]), "the name `a` appears twice");
    check(file(r#"{"__metadata__":{},"__metadata__":{}}"#, &[]), "`__metadata__` appears twice");
    check(file(r#"{"__metadata__":{"a":1}}"#, &[]), "expected a string");
    let extra = r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"stride":[1]}}"#;
    check(file(extra, &[0; 4]), "unknown field `stride`");
    for wrong in ["-1", "1.5", "1e3", "18446744073709551616", "\"1\"", "null"] {
        let header = format!(r#"{{"a":{{"dtype":"F32","shape":[{wrong}],"data_offsets":[0,4]}}}}"#);
        check(file(&header, &[0; 4]), "the header cannot be read");
    }
}

#[test]
fn places_that_do_not_fit_are_refused_by_tensor() {
    let entry = |shape: &[usize], offsets| Builder::default().entry("a", "F32", shape, offsets);
    let fits = "the place of tensor `a` is bytes";
    check(entry(&[2], [0, 4]).data(8).build(), fits);
    check(entry(&[1], [8, 4]).data(8).build(), fits);
    check(entry(&[1 << 40, 1 << 40], [0, 4]).data(4).build(), fits);
    check(entry(&[usize::MAX], [0, usize::MAX]).data(4).build(), fits);
    check(entry(&[2], [0, 8]).data(4).build(), "inside the file: it is incomplete or damaged");
    let last = usize::MAX - 3;
    check(entry(&[1], [last - 4, last]).data(4).build(), "inside the file");
    check(entry(&[0], [0, 0]).build(), "the shape of tensor `a` is [0]");
    check(entry(&[1; 9], [0, 4]).data(4).build(), "the number of dimensions of tensor `a` is 9");
    check(Builder::default().entry("a", "F5", &[1], [0, 4]).build(), "type of tensor `a` is F5");
    let odd = Builder::default().entry("a", "F4", &[3], [0, 1]).data(1);
    check(odd.build(), fits);
}

#[test]
fn bytes_belong_to_exactly_one_tensor() {
    assert!(parse(two().build()).is_ok());
    check(two().data(1).build(), "no bytes behind the last tensor");
    check(two().entry("c", "F16", &[4], [14, 22]).build(), "tensors `b` and `c` overlap");
    check(two().entry("c", "BF16", &[2, 3], [0, 12]).build(), "tensors `a` and `c` overlap");
    let hole = two().data(4).entry("c", "F32", &[1], [36, 40]).data(4);
    check(hole.build(), "the start of tensor `c` is byte");
    let late = Builder::default().entry("a", "F32", &[1], [4, 8]).data(8);
    check(late.build(), "no hole between tensors");
}

#[test]
fn no_cut_and_no_changed_byte_makes_the_reader_panic() {
    let whole = two().build();
    for cut in 0..whole.len() {
        assert!(parse(whole[..cut].to_vec()).is_err(), "cut at {cut}");
    }
    for i in 0..whole.len() {
        for bit in 0..8 {
            let mut changed = whole.clone();
            changed[i] ^= 1 << bit;
            let _any_result = parse(changed);
        }
    }
}

/// A folder of its own that goes away with the test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let name = format!("mini-infer-safetensors-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).unwrap();
        let folder = Self(path);
        folder.write("config.json", config().to_string().as_bytes());
        folder
    }

    fn write(&self, name: &str, bytes: &[u8]) {
        fs::write(self.0.join(name), bytes).unwrap();
    }

    /// Opens the folder and finds its tensors; returns what is wrong, or nothing.
    fn problem(&self) -> String {
        let found = Checkpoint::open(&self.0);
        let found = found.and_then(|checkpoint| ModelTensors::find(&checkpoint).map(|_| ()));
        found.err().map(|error| error.to_string()).unwrap_or_default()
    }

    fn check(&self, expected: &str) {
        let problem = self.problem();
        assert!(problem.contains(expected), "`{problem}` does not say `{expected}`");
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _best_effort = fs::remove_dir_all(&self.0);
    }
}

fn config() -> Value {
    json!({
        "model_type": "llama", "vocab_size": 3, "hidden_size": 2, "num_hidden_layers": 1,
        "intermediate_size": 4, "num_attention_heads": 1, "tie_word_embeddings": false
    })
}

const LAYER: [(&str, &[usize]); 9] = [
    ("model.layers.0.input_layernorm.weight", &[2]),
    ("model.layers.0.self_attn.q_proj.weight", &[2, 2]),
    ("model.layers.0.self_attn.k_proj.weight", &[2, 2]),
    ("model.layers.0.self_attn.v_proj.weight", &[2, 2]),
    ("model.layers.0.self_attn.o_proj.weight", &[2, 2]),
    ("model.layers.0.post_attention_layernorm.weight", &[2]),
    ("model.layers.0.mlp.gate_proj.weight", &[4, 2]),
    ("model.layers.0.mlp.up_proj.weight", &[4, 2]),
    ("model.layers.0.mlp.down_proj.weight", &[2, 4]),
];
const OTHERS: [(&str, &[usize]); 3] = [
    ("model.embed_tokens.weight", &[3, 2]),
    ("model.norm.weight", &[2]),
    ("lm_head.weight", &[3, 2]),
];

fn shard(tensors: &[(&str, &[usize])]) -> Builder {
    let with_tensor =
        |builder: Builder, (name, shape): &(&str, &[usize])| builder.zeros(name, "BF16", shape);
    tensors.iter().fold(Builder::default(), with_tensor)
}

fn all() -> Vec<(&'static str, &'static [usize])> {
    [&LAYER[..], &OTHERS].concat()
}

#[test]
fn every_tensor_is_missed_and_every_other_one_refused_by_its_own_name() {
    let folder = Folder::new("inventory");
    for i in 0..all().len() {
        let mut tensors = all();
        let (removed, _) = tensors.remove(i);
        folder.write("model.safetensors", &shard(&tensors).build());
        assert_eq!(folder.problem(), format!("missing tensors (1): {removed}"));
    }
    let with = |name: &str| shard(&all()).zeros(name, "F32", &[2]).build();
    folder.write("model.safetensors", &with("model.layers.0.self_attn.rotary_emb.inv_freq"));
    assert_eq!(folder.problem(), "");
    for name in [
        "model.layers.1.mlp.up_proj.weight",
        "model.layers.0.self_attn.q_proj.bias",
        "model.layers.0.self_attn.sinks",
        "vision_tower.encoder.weight",
        "score.weight",
    ] {
        folder.write("model.safetensors", &with(name));
        folder.check(&format!("tensors without a use in this architecture (1): {name}"));
    }
    // Two names of one tensor.
    folder.write("model.safetensors", &with("embed_tokens.weight"));
    folder.check("`embed_tokens.weight` and `model.embed_tokens.weight` appears twice");
}

#[test]
fn types_and_shapes_that_do_not_fit_are_named() {
    let folder = Folder::new("types");
    let with_norm = |builder: Builder| {
        let others: Vec<_> = all().into_iter().filter(|(name, _)| *name != OTHERS[1].0).collect();
        folder.write(
            "model.safetensors",
            &others
                .iter()
                .fold(builder, |builder, (name, shape)| builder.zeros(name, "F16", shape))
                .build(),
        );
    };
    with_norm(Builder::default().zeros("model.norm.weight", "I16", &[2]));
    folder.check(
        "the type of tensor `model.norm.weight` `I16` is not supported; supported: BF16, F16, F32",
    );
    with_norm(Builder::default().zeros("model.norm.weight", "F32", &[3]));
    folder.check("tensor `model.norm.weight` has shape [3], expected [2]");
    with_norm(Builder::default().zeros("model.norm.weight", "F32", &[2]));
    assert_eq!(folder.problem(), "");
}

#[test]
fn a_head_beside_tied_embeddings_must_be_their_copy() {
    let folder = Folder::new("tied");
    let mut tied = config();
    tied["tie_word_embeddings"] = json!(true);
    folder.write("config.json", tied.to_string().as_bytes());
    folder.write("model.safetensors", &shard(&all()).build());
    assert_eq!(folder.problem(), "");
    let without_head = shard(&all()[..11]);
    folder.write("model.safetensors", &without_head.build());
    assert_eq!(folder.problem(), "");
    let other = without_head.tensor("lm_head.weight", "BF16", &[3, 2], &[1; 12]);
    folder.write("model.safetensors", &other.build());
    folder.check("`tie_word_embeddings` is true, expected false, as lm_head.weight differs");
}

#[test]
fn an_index_names_exactly_the_tensors_of_its_files() {
    let folder = Folder::new("index");
    let index = |file_of: &dyn Fn(&str) -> Option<&'static str>| {
        let map: serde_json::Map<_, _> = all()
            .iter()
            .filter_map(|(name, _)| Some(((*name).to_owned(), file_of(name)?.into())))
            .collect();
        let index = json!({"metadata": {"total_size": 1}, "weight_map": map});
        folder.write("model.safetensors.index.json", index.to_string().as_bytes());
    };
    let right =
        |name: &str| Some(if name.contains("layers") { "1.safetensors" } else { "2.safetensors" });
    folder.write("1.safetensors", &shard(&LAYER).build());
    folder.check("model.safetensors.index.json: No such file");
    index(&right);
    folder.check("2.safetensors: No such file");
    folder.write("2.safetensors", &shard(&OTHERS).build());
    assert_eq!(folder.problem(), "");
    index(&|name| right(name).filter(|_| name != "lm_head.weight"));
    folder.check("2.safetensors: tensors that the index does not list for this file (1): lm_head");
    index(&|name| if name == "lm_head.weight" { Some("1.safetensors") } else { right(name) });
    folder.check("1.safetensors: missing tensors (1): lm_head.weight");
    for name in [
        "../1.safetensors",
        "/etc/1.safetensors",
        "sub/1.safetensors",
        "..\\1.safetensors",
        "c:1.safetensors",
        ".safetensors",
        "..",
        "",
        "1.bin",
    ] {
        index(&|_| Some(name));
        folder.check("expected the plain name of a .safetensors file in the same folder");
    }
    // Where there is a single file too, it counts.
    folder.write("model.safetensors", &shard(&all()).build());
    assert_eq!(folder.problem(), "");
}

#[test]
fn an_index_that_is_none_is_refused() {
    let folder = Folder::new("broken-index");
    for (text, expected) in [
        ("", "the index cannot be read"),
        ("[]", "the index cannot be read"),
        ("{}", "missing field `weight_map`"),
        (r#"{"weight_map":{"a":1}}"#, "expected a string"),
        (r#"{"weight_map":{"a":"x","a":"y"}}"#, "the name `a` appears twice"),
    ] {
        folder.write("model.safetensors.index.json", text.as_bytes());
        folder.check(expected);
    }
}
