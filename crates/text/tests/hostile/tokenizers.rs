//! Vocabularies with steps that grow text, patterns that backtrack, and deep nesting.

use crate::{check_ends, load, tiny_tokenizer};
use mini_infer_text::{ChatTemplate, GenerationPrompt, RenderOptions, Tokenizer, TokenizerConfig};
use serde_json::{Map, Value, json};
use std::time::SystemTime;

#[test]
fn a_tokenizer_json_that_would_take_memory_or_break_the_model_is_refused() {
    let check = |key: &str, value: Value, expected: &str| {
        let mut file = tiny_tokenizer();
        file[key] = value;
        let error = check_ends(|| load(&file)).unwrap_err();
        assert!(error.contains(expected), "{error}");
    };
    let replace = |pattern: &str, content: &str| json!({"type": "Replace", "pattern": {"String": pattern}, "content": content});
    check("normalizer", replace(" ", &"x".repeat(1 << 20)), "64 times as long");
    let doubling = vec![replace("x", "xx"); 20];
    let doubling = json!({"type": "Sequence", "normalizers": doubling});
    check("normalizer", doubling, "64 times as long");
    let processor = |ids: Vec<u32>| {
        json!({"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}},
                       {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": ids, "tokens": vec!["<s>"; ids.len()]}}})
    };
    check("post_processor", processor(vec![3]), "token id 3");
    check("post_processor", processor(vec![2; 1000]), "puts 1000 tokens before a text");
    let added = |num_tokens: u32, len: usize| -> Value {
        let token = |id: u32| json!({"id": id + 2, "content": format!("{id:0len$}")});
        (0..num_tokens).map(token).collect()
    };
    check("added_tokens", added(1, 2000), "of 2000 bytes, more than 1024");
    check("added_tokens", added(2000, 1000), "of 2000000 bytes, more than 1048576");
    check("model", serde_json::from_str(&nested(100)).unwrap(), "tokenizer.json cannot be read");
    let too_deep = format!(
        "{{\"model\": {{\"vocab\": {{}}, \"merges\": []}}, \"decoder\": {}}}",
        nested(100_000)
    );
    let error = Tokenizer::from_tokenizer_json(too_deep.as_bytes(), None).unwrap_err();
    assert!(error.to_string().contains("recursion limit"), "{error}");
    let error = TokenizerConfig::from_json(nested(100_000).as_bytes()).unwrap_err();
    assert!(error.to_string().contains("tokenizer_config.json cannot be read"), "{error}");
}

fn nested(depth: usize) -> String {
    format!("{}{}", "[".repeat(depth), "]".repeat(depth))
}

#[test]
fn patterns_that_backtrack_or_grow_end_with_an_error() {
    let text = format!("{}!", "a".repeat(2_000));
    for pattern in
        [r"(?=(a+)+$)b", r"(a|aa)+(?!a)$b", r"(?:(?=a)a{1000}){1000}", r"(\p{L}{999}){999}"]
    {
        let mut file = tiny_tokenizer();
        file["pre_tokenizer"] = json!({"type": "Split", "pattern": {"Regex": pattern},
            "behavior": "Isolated", "invert": false});
        check_ends(|| match load(&file) {
            Ok(tokenizer) => drop(tokenizer.encode_text(&text)),
            Err(error) => assert!(error.contains("tokenizer"), "{error}"),
        });
    }
}

#[test]
fn tokens_that_begin_one_another_do_not_make_long_lists_of_occurrences() {
    let mut file = tiny_tokenizer();
    let token = |len: usize| json!({"id": len + 1, "content": "a".repeat(len), "special": true});
    file["added_tokens"] = (2..400).map(token).collect();
    let tokenizer = load(&file).unwrap();
    let template = ChatTemplate::new("{{ messages[0].content }}", &tokenizer).unwrap();
    let options = RenderOptions {
        generation_prompt: GenerationPrompt::Omit,
        variables: Map::new(),
        now: SystemTime::UNIX_EPOCH,
    };
    let messages = [json!({"role": "user", "content": "a".repeat(20_000)})];
    let prompt = check_ends(|| template.render(&messages, &options)).unwrap();
    assert_eq!(prompt.text().len(), 20_000);
    let ids = check_ends(|| tokenizer.encode_chat(&prompt)).unwrap();
    assert_eq!(ids, [0; 20_000]);
}
