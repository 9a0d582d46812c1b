//! A folder of bf16 safetensors that is made of the default model's file gives the file's logits.
//!
//! The file's weights are rounded to bf16 on the way into memory, so that both hold the same numbers.
//! Only the order of the dimensions that are rotated together differs, and with it the order in
//! which a head's products are added.

use crate::float_weights::{FloatWeights, stored_bytes};
use crate::model::{all_cores, checkpoint, fixed_tokens, kv_storage};
use mini_infer_core::{Batch, BlockId, BlockSize};
use mini_infer_kernels::{Isa, KvDtype, WeightType};
use mini_infer_model::ops::cpu::CpuOps;
use mini_infer_model::{Checkpoint, Transformer};
use serde_json::{Map, Value, json};
use std::fs;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

const PROMPT_TOKENS: usize = 200;
const NUM_BLOCKS: u32 = 16;

#[test]
fn a_bf16_folder_agrees_with_the_file_that_it_was_made_of() {
    let _cores = all_cores();
    let folder = write_folder(checkpoint());
    let opened = Checkpoint::open(&folder).unwrap();
    assert_eq!(opened.config().hidden_size, checkpoint().config().hidden_size);
    assert_ne!(opened.config().rope.style, checkpoint().config().rope.style);
    let (found, expected) = (logits(&opened), logits(checkpoint()));
    drop(opened);
    fs::remove_dir_all(&folder).unwrap();
    let vocab_size = checkpoint().config().vocab_size;
    assert_eq!(found.len(), 4 * vocab_size);
    let mut largest = 0_f32;
    for (found, expected) in found.chunks_exact(vocab_size).zip(expected.chunks_exact(vocab_size)) {
        let best = |row: &[f32]| (0..row.len()).max_by(|a, b| row[*a].total_cmp(&row[*b]));
        assert_eq!(best(found), best(expected));
        let differences = found.iter().zip(expected).map(|(a, b)| (a - b).abs());
        largest = differences.fold(largest, f32::max);
    }
    println!("largest difference of a logit: {largest:e}");
    // 5e-5 in log probabilities was seen between a file and a folder of bf16.
    assert!(largest < 1e-3, "{largest}");
}

/// Returns the logits of four rows of the fixed text, by bf16 weights on f32 KV.
fn logits(checkpoint: &Checkpoint) -> Vec<f32> {
    let inner = CpuOps::new(Isa::from_env().unwrap(), NonZeroUsize::new(2).unwrap());
    let ops = FloatWeights { inner, weight_type: WeightType::Bf16 };
    let mut model = Transformer::load(checkpoint, ops, 256).unwrap();
    let mut kv = kv_storage(KvDtype::F32, BlockSize::DEFAULT, NUM_BLOCKS);
    let table: Vec<_> = (0..NUM_BLOCKS).map(BlockId).collect();
    let mut batch = Batch::default();
    batch.push_sequence(&fixed_tokens()[..PROMPT_TOKENS], 0, &table, BlockSize::DEFAULT, false);
    batch.logits_rows = vec![0, 15, 16, 199];
    let mut logits = Vec::new();
    model.forward(&batch, &mut kv, &mut logits);
    logits
}

/// Writes the folder that transformers would write of a model of this kind.
fn write_folder(checkpoint: &Checkpoint) -> PathBuf {
    let name = format!("bf16-folder-{}", std::process::id());
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    fs::create_dir_all(&folder).unwrap();
    let config = checkpoint.config();
    let json = json!({
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "max_position_embeddings": config.context_length,
        "num_attention_heads": config.attention.num_heads,
        "num_hidden_layers": config.num_layers,
        "num_key_value_heads": config.attention.num_kv_heads,
        "head_dim": config.attention.head_dim,
        "rms_norm_eps": config.rms_norm_epsilon,
        "rope_theta": config.rope.theta,
        "tie_word_embeddings": true,
        "vocab_size": config.vocab_size,
    });
    fs::write(folder.join("config.json"), json.to_string()).unwrap();
    let (mut header, mut data) = (Map::new(), Vec::new());
    for name in checkpoint.tensor_names() {
        let tensor = checkpoint.tensor(name).unwrap();
        let mut weights = tensor.to_f32();
        if name.ends_with("attn_q.weight") || name.ends_with("attn_k.weight") {
            weights = halves_apart(&weights, config.attention.head_dim, tensor.in_features());
        }
        let start = data.len();
        let bytes = |weight| stored_bytes(weight, WeightType::Bf16);
        data.extend(weights.into_iter().flat_map(bytes));
        let offsets = [start, data.len()];
        let entry = json!({"dtype": "BF16", "shape": tensor.shape, "data_offsets": offsets});
        header.insert(name_in_folder(name), entry);
    }
    let header = Value::Object(header).to_string();
    let length = (header.len() as u64).to_le_bytes();
    let file = [&length[..], header.as_bytes(), &data].concat();
    fs::write(folder.join("model.safetensors"), file).unwrap();
    folder
}

/// Moves rows `2i` and `2i + 1` of every head to `i` and `i + head_dim / 2`.
fn halves_apart(rows: &[f32], head_dim: usize, in_features: usize) -> Vec<f32> {
    let heads = rows.chunks_exact(head_dim * in_features);
    let places = (0..2).flat_map(|half| (0..head_dim / 2).map(move |i| 2 * i + half));
    let places: Vec<_> = places.collect();
    let moved = heads.flat_map(|head| {
        places.iter().flat_map(|place| &head[place * in_features..][..in_features])
    });
    moved.copied().collect()
}

fn name_in_folder(canonical: &str) -> String {
    match canonical {
        "token_embd.weight" => return "model.embed_tokens.weight".to_owned(),
        "output_norm.weight" => return "model.norm.weight".to_owned(),
        _ => {}
    }
    let part = canonical.strip_prefix("blk.").and_then(|name| name.strip_suffix(".weight"));
    let (layer, part) = part.and_then(|name| name.split_once('.')).unwrap();
    let part = match part {
        "attn_norm" => "input_layernorm",
        "attn_q" => "self_attn.q_proj",
        "attn_k" => "self_attn.k_proj",
        "attn_v" => "self_attn.v_proj",
        "attn_output" => "self_attn.o_proj",
        "ffn_norm" => "post_attention_layernorm",
        "ffn_gate" => "mlp.gate_proj",
        "ffn_up" => "mlp.up_proj",
        "ffn_down" => "mlp.down_proj",
        _ => panic!("{canonical} is no tensor of a Llama model"),
    };
    format!("model.layers.{layer}.{part}.weight")
}
