//! Adapters on the real model: each changes the answers to its own requests, and no others.
//!
//! The adapters are seeded noise in PEFT's format, written by these tests. What they make of the
//! model makes no sense, but it is exact.

use crate::prefix_cache::cached_tokens;
use crate::server_process::ServerProcess;
use crate::shared_server::PLAIN;
use libtest_mimic::Trial;
use mini_infer_core::mix64;
use serde_json::{Map, Value, json};
use std::fs;
use std::path::Path;

pub(crate) fn trials() -> Vec<Trial> {
    trials![
        an_adapter_changes_its_own_answers_and_is_alone_in_a_batch,
        the_prefix_cache_tells_adapters_apart,
    ]
}

/// Layers of SmolLM2-135M.
const NUM_LAYERS: usize = 30;
/// The changed projections of a layer with their shapes, `[out, in]`.
const PROJECTIONS: [(&str, [usize; 2]); 3] = [
    ("self_attn.q_proj", [576, 576]),
    ("self_attn.v_proj", [192, 576]),
    ("mlp.down_proj", [576, 1536]),
];
/// Width of the small matrices.
const RANK: usize = 4;
/// Largest weight: it changes most answers and leaves the logits in their usual range.
const LARGEST_WEIGHT: f32 = 0.08;

const PROMPTS: [&str; 4] = [
    "The capital of France is",
    "Once upon a time, in a village by the sea, there lived an old fisherman who",
    "fn main() {\n    let numbers = vec![1, 2, 3];\n    for number in",
    "Water boils at a temperature of",
];

/// Writes an adapter of seeded noise and returns the flag's value that loads it.
fn adapter(name: &str, seed: u64) -> String {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("noise-adapters").join(name);
    fs::create_dir_all(&folder).unwrap();
    let config = json!({"peft_type": "LORA", "r": RANK, "lora_alpha": 2 * RANK, "bias": "none",
        "target_modules": ["q_proj", "v_proj", "down_proj"]});
    fs::write(folder.join("adapter_config.json"), config.to_string()).unwrap();
    let mut header = Map::new();
    let mut data: Vec<u8> = Vec::new();
    let mut state = seed;
    for layer in 0..NUM_LAYERS {
        for (projection, [num_out, num_in]) in PROJECTIONS {
            for (part, shape) in [("lora_A", [RANK, num_in]), ("lora_B", [num_out, RANK])] {
                let start = data.len();
                for _ in 0..shape[0] * shape[1] {
                    state = mix64(state);
                    // The upper 16 bits as a number from -1 to 1.
                    let unit = f32::from(u16::try_from(state >> 48).unwrap()) / 32_768.0 - 1.0;
                    data.extend((unit * LARGEST_WEIGHT).to_le_bytes());
                }
                let name = format!("base_model.model.model.layers.{layer}.{projection}.{part}");
                let place = json!({"dtype": "F32", "shape": shape,
                    "data_offsets": [start, data.len()]});
                header.insert(format!("{name}.weight"), place);
            }
        }
    }
    let header = Value::Object(header).to_string();
    let bytes = [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &data].concat();
    fs::write(folder.join("adapter_model.safetensors"), bytes).unwrap();
    format!("{name}={}", folder.display())
}

/// Returns a greedy request whose answer tells all that the model computed; `None` asks the model
/// without an adapter.
fn request(adapter: Option<&str>, prompt: &str) -> Value {
    let mut body = json!({"prompt": prompt, "temperature": 0, "max_tokens": 12, "logprobs": 5});
    if let Some(adapter) = adapter {
        body["model"] = json!(adapter);
    }
    body
}

fn an_adapter_changes_its_own_answers_and_is_alone_in_a_batch() {
    let flags = [adapter("noise-one", 1), adapter("noise-two", 2)];
    let both = ServerProcess::start(&["--lora", &flags[0], "--lora", &flags[1]]);
    let asked = [None, Some("noise-one"), Some("noise-two")];
    let requests: Vec<Value> =
        PROMPTS.iter().flat_map(|prompt| asked.map(|adapter| request(adapter, prompt))).collect();
    let together = both.complete_together(&requests);
    let plain = PLAIN.get();
    for (prompt, found) in PROMPTS.iter().zip(together.chunks(asked.len())) {
        let expected = plain.complete(&request(None, prompt));
        assert_eq!(found[0]["choices"], expected["choices"], "{prompt}: without an adapter");
        let texts: Vec<_> = found.iter().map(|answer| &answer["choices"][0]["logprobs"]).collect();
        assert!(texts[0] != texts[1] && texts[1] != texts[2] && texts[0] != texts[2], "{prompt}");
    }
    for (i, name) in (1..).zip(["noise-one", "noise-two"]) {
        let alone = ServerProcess::start(&["--lora", &flags[i - 1], "--threads", "1"]);
        for (prompt, found) in PROMPTS.iter().zip(together.chunks(asked.len())) {
            let expected = alone.complete(&request(Some(name), prompt));
            assert_eq!(found[i]["choices"], expected["choices"], "{prompt}: {name}");
        }
    }
}

fn the_prefix_cache_tells_adapters_apart() {
    let flags = [adapter("noise-one", 1), adapter("noise-two", 2)];
    let server = ServerProcess::start(&["--lora", &flags[0], "--lora", &flags[1]]);
    let prompt = PROMPTS[1].repeat(4);
    let mut first = Vec::new();
    for time in 0..2 {
        for (i, adapter) in [None, Some("noise-one"), Some("noise-two")].into_iter().enumerate() {
            let found = server.complete(&request(adapter, &prompt));
            let num_prompt_tokens = found["usage"]["prompt_tokens"].as_u64().unwrap();
            let expected = if time == 0 { 0 } else { num_prompt_tokens - 1 };
            assert_eq!(cached_tokens(&found), expected, "{adapter:?}, time {time}");
            first.push(found["choices"].clone());
            assert_eq!(first[i], found["choices"], "{adapter:?}, time {time}");
        }
    }
}
