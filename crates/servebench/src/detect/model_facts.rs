//! What an engine says about a model that it serves.
//!
//! Names that several engines share: `parameters` and `quantization` as text, `context_length` in
//! tokens, `num_parameters`, `size_bytes` of the weights. The rest has the engine's own names.

use super::{MINI_INFER, Probe, Server, api_root};
use serde_json::{Map, Value, json};

/// Facts in order of their names.
type Facts = Map<String, Value>;

/// Asks the server about a model; empty when it tells nothing.
pub(super) async fn ask(probe: &Probe, server: &Server, model: &str) -> Facts {
    let root = api_root(&server.url);
    let get = async |url: String| probe.json(&url).await.unwrap_or_default();
    let mut facts = server.details.clone();
    let listing = get(format!("{}/models", server.url)).await;
    let card = entry(&listing["data"], "id", model);
    match server.engine.as_str() {
        "Ollama" => {
            let loaded = get(format!("{root}/api/ps")).await;
            let stored = get(format!("{root}/api/tags")).await;
            facts.extend(of_ollama(&loaded, &stored, model));
        }
        MINI_INFER => {
            let kv = get(format!("{root}/v1/kv")).await;
            facts.extend(of_mini_infer(card, &kv));
        }
        "LM Studio" => {
            let models = get(format!("{root}/api/v0/models")).await;
            facts.extend(of_lm_studio(entry(&models["data"], "id", model)));
        }
        "llama.cpp" => facts.extend(of_llama_cpp(&card["meta"])),
        _ => facts.extend(present([("context_length", card["max_model_len"].clone())])),
    }
    facts
}

/// Returns the entry of a list whose `field` is `name`; null when there is none.
fn entry<'a>(list: &'a Value, field: &str, name: &str) -> &'a Value {
    let entries = list.as_array().map(Vec::as_slice).unwrap_or_default();
    entries.iter().find(|entry| entry[field] == name).unwrap_or(&Value::Null)
}

/// Keeps the facts that are known.
fn present<const N: usize>(facts: [(&str, Value); N]) -> Facts {
    let known = facts.into_iter().filter(|(_, value)| !value.is_null() && *value != "");
    known.map(|(key, value)| (key.to_owned(), value)).collect()
}

/// From `/api/ps`, which lists what is in memory, and `/api/tags`, which lists what is stored.
fn of_ollama(loaded: &Value, stored: &Value, model: &str) -> Facts {
    // Ollama serves `name` under `name:latest` too.
    let latest = format!("{model}:latest");
    let find = |list: &Value| {
        let named = |name: &str| {
            let by_name = entry(&list["models"], "name", name);
            if by_name.is_null() { entry(&list["models"], "model", name) } else { by_name }.clone()
        };
        let found = named(model);
        if found.is_null() { named(&latest) } else { found }
    };
    let (loaded, stored) = (find(loaded), find(stored));
    let any = if loaded.is_null() { &stored } else { &loaded };
    let mut facts = present([
        ("parameters", any["details"]["parameter_size"].clone()),
        ("quantization", any["details"]["quantization_level"].clone()),
        ("context_length", loaded["context_length"].clone()),
        ("size_bytes", stored["size"].clone()),
    ]);
    if let Some(size) = loaded["size"].as_f64().filter(|size| *size > 0.0) {
        let hundredths = (size / f64::from(1 << 30) * 100.0).round();
        facts.insert("size_gb".to_owned(), json!(hundredths / 100.0));
        if let Some(on_gpu) = loaded["size_vram"].as_f64() {
            let share = format!("{:.0}%", on_gpu / size * 100.0);
            facts.insert("on_gpu".to_owned(), json!(share));
        }
    }
    facts
}

fn of_mini_infer(card: &Value, kv: &Value) -> Facts {
    let (block_size, blocks) = (&kv["block_size"], &kv["blocks"]["total"]);
    let slots = block_size.as_u64().zip(blocks.as_u64()).map(|(size, total)| size * total);
    present([
        ("context_length", card["max_model_len"].clone()),
        ("kv_block_size", block_size.clone()),
        ("kv_blocks", blocks.clone()),
        ("kv_capacity_tokens", json!(slots)),
        ("kv_capacity_bytes", kv["capacity_bytes"].clone()),
    ])
}

fn of_lm_studio(model: &Value) -> Facts {
    let loaded = &model["loaded_context_length"];
    let context = if loaded.is_null() { &model["max_context_length"] } else { loaded };
    present([
        ("quantization", model["quantization"].clone()),
        ("context_length", context.clone()),
        ("arch", model["arch"].clone()),
    ])
}

fn of_llama_cpp(meta: &Value) -> Facts {
    present([
        ("num_parameters", meta["n_params"].clone()),
        ("size_bytes", meta["size"].clone()),
        ("quantization", meta["ftype"].clone()),
        ("n_ctx_train", meta["n_ctx_train"].clone()),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(facts: Facts, expected: Value) {
        assert_eq!(Value::Object(facts), expected);
    }

    #[test]
    fn ollama_tells_the_loaded_model_and_the_bytes_of_its_file() {
        let details = json!({"parameter_size": "494.03M", "quantization_level": "Q4_K_M"});
        let loaded = json!({"models": [{
            "name": "qwen2.5:0.5b", "size": 2_147_483_648_u64, "size_vram": 1_073_741_824_u64,
            "context_length": 4096, "details": details,
        }]});
        let stored = json!({"models": [{"name": "qwen2.5:0.5b", "size": 397_821_319}]});
        let expected = json!({
            "parameters": "494.03M", "quantization": "Q4_K_M", "context_length": 4096,
            "size_bytes": 397_821_319, "size_gb": 2.0, "on_gpu": "50%",
        });
        check(of_ollama(&loaded, &stored, "qwen2.5:0.5b"), expected);
        check(of_ollama(&loaded, &stored, "llama3"), json!({}));
    }

    #[test]
    fn ollama_s_latest_tag_may_be_left_out() {
        let stored = json!({"models": [{"name": "llama3:latest", "size": 7}]});
        check(of_ollama(&Value::Null, &stored, "llama3"), json!({"size_bytes": 7}));
    }

    #[test]
    fn the_kv_pool_of_mini_infer_is_told_in_tokens_too() {
        let card = json!({"id": "m", "max_model_len": 8192});
        let kv = json!({"block_size": 16, "capacity_bytes": 4096, "blocks": {"total": 100}});
        let expected = json!({
            "context_length": 8192, "kv_block_size": 16, "kv_blocks": 100,
            "kv_capacity_tokens": 1600, "kv_capacity_bytes": 4096,
        });
        check(of_mini_infer(&card, &kv), expected);
        check(of_mini_infer(&Value::Null, &Value::Null), json!({}));
    }

    #[test]
    fn lm_studio_tells_the_context_that_is_loaded_before_the_longest_one() {
        let model = json!({
            "id": "m", "quantization": "Q4_K_M", "max_context_length": 131_072,
            "loaded_context_length": 4096, "arch": "llama",
        });
        let expected = json!({"quantization": "Q4_K_M", "context_length": 4096, "arch": "llama"});
        check(of_lm_studio(&model), expected);
    }

    #[test]
    fn llama_cpp_tells_parameters_and_bytes() {
        let meta = json!({"n_params": 134_515_008, "size": 98_000_000, "ftype": "Q4_1"});
        let expected = json!({
            "num_parameters": 134_515_008, "size_bytes": 98_000_000, "quantization": "Q4_1",
        });
        check(of_llama_cpp(&meta), expected);
    }
}
