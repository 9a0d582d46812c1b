//! Folders as Hugging Face has them: safetensors, with tokenizer, template and stop tokens beside.
//!
//! The model is a seeded tiny Llama of the forward pass's tests, with a vocabulary of single
//! characters. Its answers are noise, but exact noise.

use crate::binary;
use crate::server_process::ServerProcess;
use crate::sliding_windows;
use libtest_mimic::Trial;
use serde_json::{Map, Value, json};
use std::fs;
use std::path::{Path, PathBuf};

pub(crate) fn trials() -> Vec<Trial> {
    trials![
        a_folder_is_served_with_its_own_template_and_stop_tokens,
        quantised_weights_take_less_and_still_answer,
        a_model_without_float_matrices_is_not_quantised_again,
    ]
}

const WEIGHTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/tiny-safetensors/llama3");
const PROMPT: &str = "a fixed prompt of some tokens, more than one block of them";

fn folder(name: &str) -> PathBuf {
    folder_of(WEIGHTS, name)
}

/// Makes a folder of the weights in another and a tokenizer of single characters.
pub(crate) fn folder_of(weights: &str, name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    fs::create_dir_all(&path).unwrap();
    for file in ["config.json", "model.safetensors"] {
        fs::copy(Path::new(weights).join(file), path.join(file)).unwrap();
    }
    let texts = ["</s>".to_owned(), "Ġ".to_owned()];
    let texts = texts.into_iter().chain(('!'..='~').map(String::from));
    let vocab: Map<_, _> = texts.zip((0..).map(Value::from)).collect();
    let tokenizer = json!({
        "model": {"type": "BPE", "vocab": vocab, "merges": []},
        "added_tokens": [{"id": 0, "content": "</s>", "special": true}],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "use_regex": true,
            "trim_offsets": true},
        "decoder": {"type": "ByteLevel", "add_prefix_space": false, "use_regex": true,
            "trim_offsets": true},
    });
    let write = |name: &str, text: &str| fs::write(path.join(name), text).unwrap();
    write("tokenizer.json", &tokenizer.to_string());
    write("tokenizer_config.json", r#"{"eos_token": "</s>", "chat_template": "unused"}"#);
    write("chat_template.jinja", "{% for message in messages %}{{ message.content }}{% endfor %}");
    path
}

fn complete(server: &ServerProcess) -> Value {
    server.complete(&json!({"prompt": PROMPT, "temperature": 0, "max_tokens": 8}))
}

fn a_folder_is_served_with_its_own_template_and_stop_tokens() {
    let folder = folder("folder-of-llama");
    let model = folder.to_str().unwrap();
    let _left_by_an_earlier_run = fs::remove_file(folder.join("generation_config.json"));
    let answer = {
        let server = ServerProcess::start_with_model(model, &[]);
        let answer = complete(&server)["choices"][0]["text"].as_str().unwrap().to_owned();
        let messages = json!([{"role": "user", "content": PROMPT}]);
        let request = json!({"messages": messages, "temperature": 0, "max_tokens": 8});
        let response = server.post("/v1/chat/completions", &request).ok();
        assert_eq!(response["choices"][0]["message"]["content"], answer);
        assert_eq!(response["model"], "folder-of-llama");
        answer
    };
    // Id 2 is the first character after the space.
    let character = answer.bytes().next().expect("the greedy answer is not empty");
    let stop = if character == b' ' { 1 } else { character - b'!' + 2 };
    let config = json!({"eos_token_id": [0, stop]}).to_string();
    fs::write(folder.join("generation_config.json"), config).unwrap();
    let response = complete(&ServerProcess::start_with_model(model, &[]));
    assert_eq!(response["choices"][0]["text"], "");
    assert_eq!(response["choices"][0]["finish_reason"], "stop");
}

fn quantised_weights_take_less_and_still_answer() {
    let folder = folder("folder-to-quantise");
    let model = folder.to_str().unwrap();
    let weights = |flags: &[&str]| {
        let output = binary::stdout_of(&[&["info", "--model", model], flags].concat());
        let line = output.lines().find(|line| line.starts_with("weights")).expect("a plan");
        let number = line.split_whitespace().nth(1).expect("a size");
        number.parse::<f64>().expect("a number")
    };
    let sizes = [weights(&[]), weights(&["--quantize", "q8_0"]), weights(&["--quantize", "q4_0"])];
    assert!(sizes.is_sorted_by(|a, b| a > b), "{sizes:?}");
    let server = ServerProcess::start_with_model(model, &["--quantize", "q8_0"]);
    assert!(complete(&server)["usage"]["completion_tokens"].as_u64() > Some(0));
}

fn a_model_without_float_matrices_is_not_quantised_again() {
    let arguments = ["serve", "--port", "0", "--quantize", "q4_0", "--model"];
    let output = binary::run(&[&arguments[..], &[sliding_windows::MODEL]].concat());
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success(), "{stderr}");
    assert!(stderr.contains("there is nothing to quantise to Q4_0"), "{stderr}");
}
