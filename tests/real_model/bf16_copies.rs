//! The default model with its weights rounded to bf16, as a GGUF file and as a folder of safetensors.
//!
//! Both hold the same numbers, and are multiplied as floats: products on quantised weights quantise
//! activations too, and a last bit of difference in one can flip a rounding there, which grows over
//! the layers. Only the order of the dimensions that are rotated together differs.

use crate::model::checkpoint;
use mini_infer_model::Checkpoint;
use mini_infer_model::weights::TensorView;
use serde_json::{Map, Value, json};
use std::fs;
use std::path::{Path, PathBuf};

/// GGUF's numbers for types of values, and for bf16.
const U32: u32 = 4;
const F32: u32 = 6;
const TEXT: u32 = 8;
const BF16: u32 = 30;
/// Where the tensors of a file may begin.
const ALIGNMENT: usize = 32;

/// Returns the file, which stays in memory.
pub(crate) fn gguf() -> Checkpoint {
    let config = checkpoint().config();
    let mut file = GgufWriter::default();
    file.pair("general.architecture", TEXT, &text("llama"));
    for (key, size) in [
        ("vocab_size", config.vocab_size),
        ("context_length", config.context_length),
        ("embedding_length", config.hidden_size),
        ("block_count", config.num_layers),
        ("feed_forward_length", config.intermediate_size),
        ("attention.head_count", config.attention.num_heads),
        ("attention.head_count_kv", config.attention.num_kv_heads),
        ("rope.dimension_count", config.rope.rotary_dim),
    ] {
        file.pair(&format!("llama.{key}"), U32, &u32::try_from(size).unwrap().to_le_bytes());
    }
    let theta = config.rope.theta;
    for (key, value) in
        [("attention.layer_norm_rms_epsilon", config.rms_norm_epsilon), ("rope.freq_base", theta)]
    {
        file.pair(&format!("llama.{key}"), F32, &value.to_le_bytes());
    }
    for tensor in tensors() {
        file.tensor(&tensor, &bf16(tensor.to_f32()));
    }
    Checkpoint::from_bytes(file.finish().into()).unwrap()
}

/// Writes the folder that transformers would write of a model of this kind.
pub(crate) fn write_folder() -> PathBuf {
    let name = format!("bf16-folder-{}", std::process::id());
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    fs::create_dir_all(&folder).unwrap();
    let config = checkpoint().config();
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
    for tensor in tensors() {
        let (name, mut weights) = (tensor.name, tensor.to_f32());
        if name.ends_with("attn_q.weight") || name.ends_with("attn_k.weight") {
            weights = halves_apart(&weights, config.attention.head_dim, tensor.in_features());
        }
        let start = data.len();
        data.extend(bf16(weights));
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

fn tensors() -> impl Iterator<Item = TensorView<'static>> {
    checkpoint().tensor_names().map(|name| checkpoint().tensor(name).unwrap())
}

/// Returns the bytes of finite weights, rounded to the nearest, to even where two are as near.
fn bf16(weights: Vec<f32>) -> Vec<u8> {
    let bytes = |weight: f32| {
        let bits = weight.to_bits();
        let [_, _, low, high] = (bits + 0x7fff + ((bits >> 16) & 1)).to_le_bytes();
        [low, high]
    };
    weights.into_iter().flat_map(bytes).collect()
}

/// A GGUF file of version 3, put together in memory.
#[derive(Default)]
struct GgufWriter {
    num_pairs: u64,
    pairs: Vec<u8>,
    num_tensors: u64,
    tensors: Vec<u8>,
    data: Vec<u8>,
}

impl GgufWriter {
    fn pair(&mut self, key: &str, value_type: u32, value: &[u8]) {
        self.num_pairs += 1;
        self.pairs.extend([&text(key)[..], &value_type.to_le_bytes(), value].concat());
    }

    fn tensor(&mut self, tensor: &TensorView<'_>, bytes: &[u8]) {
        self.num_tensors += 1;
        self.tensors.extend(text(tensor.name));
        self.tensors.extend(u32::try_from(tensor.shape.len()).unwrap().to_le_bytes());
        // The innermost dimension comes first.
        let dimensions = tensor.shape.iter().rev();
        self.tensors.extend(dimensions.flat_map(|size| (*size as u64).to_le_bytes()));
        self.tensors.extend(BF16.to_le_bytes());
        self.tensors.extend((self.data.len() as u64).to_le_bytes());
        self.data.extend(bytes);
        self.data.resize(self.data.len().next_multiple_of(ALIGNMENT), 0);
    }

    fn finish(self) -> Vec<u8> {
        let counts = [self.num_tensors, self.num_pairs].map(u64::to_le_bytes).concat();
        let version = 3_u32.to_le_bytes();
        let mut file = [&b"GGUF"[..], &version, &counts, &self.pairs, &self.tensors].concat();
        file.resize(file.len().next_multiple_of(ALIGNMENT), 0);
        file.extend(self.data);
        file
    }
}

fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat()
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
