//! Published chat templates render as `transformers` renders them.
//!
//! The fixture holds templates of the supported families, chats that try what clients send, and
//! what `transformers` made of each pair; see `testdata/make_templates.py`.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use mini_infer_text::{ChatTemplate, GenerationPrompt, RenderOptions, Tokenizer, TokenizerConfig};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

fn fixture() -> Value {
    serde_json::from_str(include_str!("../testdata/published_templates.json")).unwrap()
}

/// A vocabulary of little more than BOS and EOS.
fn tokenizer(tokens: &Value) -> Tokenizer {
    let added: Vec<Value> = (1..)
        .zip(tokens.as_object().unwrap().values())
        .map(|(id, text)| json!({"id": id, "content": text, "special": true}))
        .collect();
    let file = json!({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []},
        "added_tokens": added, "decoder": {"type": "ByteLevel"}});
    let config = TokenizerConfig::from_json(&serde_json::to_vec(tokens).unwrap()).unwrap();
    Tokenizer::from_tokenizer_json(&serde_json::to_vec(&file).unwrap(), Some(&config)).unwrap()
}

fn options(chat: &Value, now: SystemTime) -> RenderOptions {
    let mut variables = chat["variables"].as_object().unwrap().clone();
    let mut asks = |name: &str| variables.remove(name) == Some(Value::Bool(true));
    let generation_prompt = if asks("add_generation_prompt") {
        GenerationPrompt::Add
    } else if asks("continue_final_message") {
        GenerationPrompt::ContinueLast
    } else {
        GenerationPrompt::Omit
    };
    RenderOptions { generation_prompt, variables, now }
}

#[test]
fn every_template_renders_every_chat_as_transformers_does() {
    let fixture = fixture();
    let tokenizer = tokenizer(&fixture["tokens"]);
    let now = SystemTime::UNIX_EPOCH + Duration::from_secs(fixture["now"].as_u64().unwrap());
    let compile = |source: &Value| ChatTemplate::new(source.as_str().unwrap(), &tokenizer).unwrap();
    let templates = fixture["templates"].as_object().unwrap();
    let templates: BTreeMap<&String, ChatTemplate> =
        templates.iter().map(|(name, source)| (name, compile(source))).collect();
    let renders = fixture["renders"].as_array().unwrap();
    assert!(templates.len() >= 12 && renders.len() >= 12 * 15);
    for case in renders {
        let [template, chat] = ["template", "chat"].map(|key| case[key].as_str().unwrap());
        let name = format!("{template}: {chat}");
        let chat = &fixture["chats"][chat];
        let messages = chat["messages"].as_array().unwrap();
        let got = templates[&template.to_owned()].render(messages, &options(chat, now));
        match case["raised"].as_str() {
            None => {
                let expected = case["text"].as_str().unwrap();
                assert_eq!(got.expect(&name).text(), expected, "{name}");
            }
            Some(said) => {
                let got = got.expect_err(&name).to_string();
                assert!(got.contains(said), "{name}: {got}, expected {said}");
            }
        }
    }
}
