//! A vocabulary that contradicts itself is an error that says how, never a panic.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use mini_infer_text::{GgufVocabulary, Tokenizer, TokenizerConfig};
use serde_json::{Value, json};

fn strings(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}

fn byte_level() -> GgufVocabulary {
    GgufVocabulary {
        model: "gpt2".to_owned(),
        pre: Some("gpt-2".to_owned()),
        tokens: strings(&["a", "b", "ab", "<s>"]),
        token_types: vec![1, 1, 1, 3],
        merges: strings(&["a b"]),
        bos: Some(3),
        ..GgufVocabulary::default()
    }
}

fn sentence_piece() -> GgufVocabulary {
    GgufVocabulary {
        model: "llama".to_owned(),
        tokens: strings(&["<unk>", "a", "b", "ab"]),
        scores: vec![0.0, -1.0, -1.0, -1.0],
        token_types: vec![2, 1, 1, 1],
        unk: Some(0),
        ..GgufVocabulary::default()
    }
}

fn check(mut vocabulary: GgufVocabulary, change: impl FnOnce(&mut GgufVocabulary), expected: &str) {
    assert!(Tokenizer::from_gguf(vocabulary.clone()).is_ok());
    change(&mut vocabulary);
    let error = Tokenizer::from_gguf(vocabulary).unwrap_err().to_string();
    assert!(error.contains(expected), "{error}");
}

#[test]
fn a_gguf_vocabulary_that_contradicts_itself_is_refused() {
    check(byte_level(), |v| v.tokens.clear(), "vocabulary is empty");
    check(byte_level(), |v| v.token_types.truncate(1), "token_type has 1 entries for 4 tokens");
    check(byte_level(), |v| v.token_types[1] = 9, "token 1 has the type 9");
    check(byte_level(), |v| v.tokens[1] = "a".to_owned(), "tokens 0 and 1 have the same text");
    check(byte_level(), |v| v.eos = Some(4), "token id 4 (\"eos\") is outside the vocabulary of 4");
    check(byte_level(), |v| v.model = "bert".to_owned(), "\"bert\" is not supported");
    check(byte_level(), |v| v.pre = None, "no tokenizer.ggml.pre");
    check(byte_level(), |v| v.pre = Some("x".to_owned()), "\"x\" is not known");
    for malformed in ["ab", "a b ab", " b", "a ", ""] {
        check(byte_level(), |v| v.merges[0] = malformed.to_owned(), "merge 0 is not two tokens");
    }
    check(byte_level(), |v| v.merges[0] = "a c".to_owned(), "needs the token \"c\"");
    check(byte_level(), |v| v.merges[0] = "b a".to_owned(), "needs the token \"ba\"");
    check(sentence_piece(), |v| v.scores.clear(), "scores has 0 entries for 4 tokens");
    check(sentence_piece(), |v| v.scores[1] = f32::NAN, "token 1 has the score NaN");
    check(sentence_piece(), |v| v.tokens[1] = "b".to_owned(), "tokens 1 and 2");
    check(sentence_piece(), |v| v.unk = None, "no token for byte 0x00");
}

#[test]
fn a_merge_that_would_make_a_control_token_is_left_out() {
    let mut vocabulary = byte_level();
    vocabulary.token_types[2] = 3;
    let tokenizer = Tokenizer::from_gguf(vocabulary).unwrap();
    assert_eq!(tokenizer.encode_text("ab").unwrap(), [0, 1]);
}

#[test]
fn what_the_vocabulary_cannot_express_is_unknown() {
    let tokenizer = Tokenizer::from_gguf(sentence_piece()).unwrap();
    assert_eq!(tokenizer.bos(), None);
    assert_eq!(tokenizer.encode_text("ab").unwrap(), [0, 3]);
    assert_eq!(tokenizer.encode_text("aéb").unwrap(), [0, 1, 0, 2]);
}

#[test]
fn a_tokenizer_json_that_contradicts_itself_is_refused() {
    let model = |model: &str| {
        format!(
            r#"{{"model": {{{model}}}, "decoder": {{"type": "ByteLevel"}},
                "added_tokens": [{{"id": 3, "content": "<s>", "special": true}}]}}"#
        )
    };
    let vocab = r#""vocab": {"a": 0, "b": 1, "ab": 2}"#;
    let valid = model(&format!(r#""type": "BPE", {vocab}, "merges": ["a b"]"#));
    let tokenizer = Tokenizer::from_tokenizer_json(valid.as_bytes(), None).unwrap();
    assert_eq!(tokenizer.encode_text("ab<s>").unwrap(), [2]);
    let refused = |json: &str, expected: &str| {
        let error = Tokenizer::from_tokenizer_json(json.as_bytes(), None).unwrap_err().to_string();
        assert!(error.contains(expected), "{json}: {error}");
    };
    refused("", "tokenizer.json cannot be read");
    refused("[]", "tokenizer.json cannot be read");
    refused(r#"{"model": {"type": "Unigram", "vocab": []}}"#, "\"Unigram\" is not supported");
    refused(&valid.replace("\"decoder\"", "\"other\""), "sets decoder to nothing");
    refused(&valid.replace("a b", "a"), "tokenizer.json cannot be read");
    refused(&valid.replace("a b", "a c"), "needs the token \"c\"");
    refused(&valid.replace("a b", "ab ab"), "needs the token \"abab\"");
    refused(&valid.replace("\"id\": 3", "\"id\": 2"), "token id 2");
    refused(&valid.replace("\"id\": 3", "\"id\": 4294967295"), "token id 4294967295");
    refused(&valid.replace("\"id\": 3", "\"id\": 1e30"), "tokenizer.json cannot be read");
    refused(&valid.replace("<s>", "ab"), "tokens 2 and 3 have the same text");
    refused(&model(r#""vocab": {"a": 0}, "merges": [], "dropout": 0.5"#), "dropout to 0.5");
    let suffix = r#""vocab": {"a": 0}, "merges": [], "end_of_word_suffix": "</w>""#;
    refused(&model(suffix), "end_of_word_suffix to </w>");
}

#[test]
fn a_template_with_a_token_that_it_does_not_define_is_refused() {
    let template = |id: &str| {
        json!({"type": "TemplateProcessing", "pair": [],
            "single": [{"SpecialToken": {"id": id, "type_id": 0}},
                       {"Sequence": {"id": "A", "type_id": 0}}],
            "special_tokens": {"a": {"id": "a", "ids": [0], "tokens": ["a"]}}})
    };
    let with_processor = |processor: Value| {
        let json = json!({"model": {"vocab": {"a": 0}, "merges": []},
            "decoder": {"type": "ByteLevel"}, "post_processor": processor});
        Tokenizer::from_tokenizer_json(json.to_string().as_bytes(), None)
    };
    let nested = |id: &str| json!({"type": "Sequence", "processors": [template(id)]});
    assert_eq!(with_processor(template("a")).unwrap().encode_text("").unwrap(), [0]);
    for processor in
        [template("b"), nested("b"), json!({"type": "Sequence", "processors": [nested("b")]})]
    {
        if let Err(error) = with_processor(processor) {
            assert!(error.to_string().contains("post_processor"), "{error}");
        } else {
            panic!("a token without an id was accepted");
        }
    }
}

#[test]
fn a_config_that_names_unknown_tokens_names_none() {
    let json = br#"{"model": {"vocab": {"a": 0}, "merges": []}, "decoder": {"type": "ByteLevel"}}"#;
    let config = TokenizerConfig {
        bos_token: Some("<s>".to_owned()),
        add_bos_token: Some(true),
        ..TokenizerConfig::default()
    };
    let tokenizer = Tokenizer::from_tokenizer_json(json, Some(&config)).unwrap();
    assert_eq!(tokenizer.bos(), None);
    assert!(tokenizer.encode_text("").unwrap().is_empty());
}
