//! A chat template, rendered with two messages.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mini_infer_text::{ChatTemplate, GenerationPrompt, RenderOptions, Tokenizer};
use serde_json::{Map, json};
use std::sync::LazyLock;
use std::time::SystemTime;

static TOKENIZER: LazyLock<Tokenizer> = LazyLock::new(|| {
    let json = br#"{"model": {"vocab": {"a": 0}, "merges": []}, "decoder": {"type": "ByteLevel"},
        "added_tokens": [{"id": 1, "content": "<s>", "special": true}]}"#;
    Tokenizer::from_tokenizer_json(json, None).expect("a valid tokenizer")
});

fuzz_target!(|bytes: &[u8]| {
    let Ok(source) = std::str::from_utf8(bytes) else { return };
    let Ok(template) = ChatTemplate::new(source, &TOKENIZER) else { return };
    let messages =
        [json!({"role": "system", "content": "<s>"}), json!({"role": "user", "content": null})];
    let options = RenderOptions {
        generation_prompt: GenerationPrompt::Add,
        variables: Map::new(),
        now: SystemTime::UNIX_EPOCH,
    };
    if let Ok(prompt) = template.render(&messages, &options) {
        let _ = TOKENIZER.encode_chat(&prompt);
    }
});
