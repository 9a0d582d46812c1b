//! Token ids equal those of Hugging Face's `tokenizers` and Google's `sentencepiece`.
//!
//! The fixtures hold small vocabularies, texts chosen to be hard, and the reference's ids; see
//! `testdata/make_fixtures.py`.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use mini_infer_text::{GgufVocabulary, RenderedPrompt, Tokenizer, TokenizerConfig};
use serde_json::Value;

fn fixture(name: &str) -> Value {
    let path = format!("{}/testdata/{name}", env!("CARGO_MANIFEST_DIR"));
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn strings(value: &Value) -> Vec<String> {
    value.as_array().unwrap().iter().map(|item| item.as_str().unwrap().to_owned()).collect()
}

fn numbers<T: TryFrom<i64>>(value: &Value) -> Vec<T> {
    let number = |item: &Value| T::try_from(item.as_i64().unwrap()).ok().unwrap();
    value.as_array().unwrap().iter().map(number).collect()
}

/// Compares ids text by text, and the detokenised ids with the text where nothing normalises it.
fn check(name: &str, fixture: &Value, ids: &Value, encode: impl Fn(&str) -> Vec<u32>) {
    let texts = strings(&fixture["texts"]);
    assert_eq!(texts.len(), ids.as_array().unwrap().len());
    for (text, expected) in texts.iter().zip(ids.as_array().unwrap()) {
        assert_eq!(encode(text), numbers::<u32>(expected), "{name}: {text:?}");
    }
}

#[test]
fn byte_level_ids_equal_the_reference_for_each_pre_tokenizer() {
    let fixture = fixture("byte_level.json");
    let rules = fixture["rules"].as_object().unwrap();
    assert!(rules.len() >= 17);
    for (pre, ids) in rules {
        let tokenizer = Tokenizer::from_gguf(GgufVocabulary {
            model: "gpt2".to_owned(),
            pre: Some(pre.clone()),
            tokens: strings(&fixture["tokens"]),
            merges: strings(&fixture["merges"]),
            ..GgufVocabulary::default()
        })
        .unwrap();
        check(pre, &fixture, ids, |text| tokenizer.encode_text(text).unwrap());
        let changes_text = pre.starts_with("qwen") || pre == "mpt" || pre == "command-r";
        if !changes_text {
            for text in strings(&fixture["texts"]) {
                assert_eq!(tokenizer.detokenize(&tokenizer.encode_text(&text).unwrap()), text);
            }
        }
    }
}

#[test]
fn sentence_piece_ids_equal_the_reference() {
    let fixture = fixture("sentence_piece.json");
    for model in fixture["models"].as_array().unwrap() {
        let number = |score: &Value| score.to_string().parse().unwrap();
        let tokenizer = Tokenizer::from_gguf(GgufVocabulary {
            model: "llama".to_owned(),
            tokens: strings(&model["tokens"]),
            scores: model["scores"].as_array().unwrap().iter().map(number).collect(),
            token_types: numbers(&model["token_types"]),
            unk: model["unk"].as_u64().map(|id| u32::try_from(id).unwrap()),
            add_bos: Some(false),
            add_space_prefix: model["add_space_prefix"].as_bool(),
            ..GgufVocabulary::default()
        })
        .unwrap();
        check("llama", &fixture, &model["ids"], |text| tokenizer.encode_text(text).unwrap());
        for text in strings(&fixture["texts"]) {
            let ids = tokenizer.encode_text(&text).unwrap();
            // SentencePiece cannot tell its stand-in for a space from the character itself.
            assert_eq!(tokenizer.detokenize(&ids), text.replace('▁', " "));
        }
    }
}

#[test]
fn tokenizer_json_ids_equal_the_reference_with_markup_recognised() {
    let fixture = fixture("tokenizer_json.json");
    for (name, case) in fixture["tokenizers"].as_object().unwrap() {
        let json = serde_json::to_vec(&case["json"]).unwrap();
        let tokenizer = Tokenizer::from_tokenizer_json(&json, None).unwrap();
        check(name, &fixture, &case["ids"], |text| {
            let prompt = RenderedPrompt::from_markup(text.to_owned());
            let mut ids = tokenizer.encode_chat(&prompt).unwrap();
            // The reference adds BOS also to a text that begins with it; we never do.
            if name == "byte_level" && text.starts_with("<s>") {
                ids.insert(0, ids[0]);
            }
            ids
        });
    }
}

/// Vocabularies cut down from published ones, whose rules are as published.
const PUBLISHED: [&str; 6] = ["deepseek_v3", "gemma3", "gptoss", "llama2", "llama3_1", "qwen3"];

#[test]
fn published_tokenizers_ids_equal_the_reference_and_detokenise_to_the_text() {
    for name in PUBLISHED {
        let fixture = fixture(&format!("tokenizers/{name}.json"));
        let json = serde_json::to_vec(&fixture["json"]).unwrap();
        let tokenizer = Tokenizer::from_tokenizer_json(&json, None).unwrap();
        assert!(strings(&fixture["texts"]).len() >= 55);
        for (text, ids) in strings(&fixture["texts"]).iter().zip(fixture["ids"].as_array().unwrap())
        {
            let ids = numbers::<u32>(ids);
            // The reference takes the unknown token's text for the token; a text never means it.
            if !text.contains("<unk>") {
                let prompt = RenderedPrompt::from_markup(text.clone());
                assert_eq!(tokenizer.encode_chat(&prompt).unwrap(), ids, "{name}: {text:?}");
            }
            let own = tokenizer.detokenize(&tokenizer.encode_text(text).unwrap());
            let spaced = name == "gemma3" || name == "llama2";
            let expected = if spaced { text.replace('▁', " ") } else { text.clone() };
            if name != "qwen3" {
                assert_eq!(own, expected, "{name}");
            }
        }
    }
}

#[test]
fn bos_comes_exactly_once_whether_or_not_the_template_writes_it() {
    let cases =
        [("llama3_1", "<|begin_of_text|>"), ("llama2", "<s>"), ("gemma3", "<bos>"), ("qwen3", "")];
    for (name, bos) in cases {
        let fixture = fixture(&format!("tokenizers/{name}.json"));
        let json = serde_json::to_vec(&fixture["json"]).unwrap();
        let tokenizer = Tokenizer::from_tokenizer_json(&json, None).unwrap();
        let rendered =
            |text: String| tokenizer.encode_chat(&RenderedPrompt::from_markup(text)).unwrap();
        let (with, without) = (rendered(format!("{bos}word")), rendered("word".to_owned()));
        let text = tokenizer.encode_text("word").unwrap();
        let num_bos = |ids: &[u32]| {
            ids.iter().filter(|id| tokenizer.token_bytes(**id) == Some(bos.as_bytes())).count()
        };
        let expected = usize::from(!bos.is_empty());
        assert_eq!([&with, &without, &text].map(|ids| num_bos(ids)), [expected; 3], "{name}");
        assert_eq!(without, text, "{name}");
    }
}

/// Phi-3's GGUF files do not say that its tokens take the white space behind them along, and its
/// `tokenizer.json` does.
#[test]
fn phi3s_markup_takes_the_line_break_behind_it_along() {
    let named =
        ["<unk>", "<s>", "</s>", "<|placeholder1|>", "<|assistant|>", "<|end|>", "<|user|>"];
    let ids = |tokens: &[&str]| {
        let mut texts: Vec<String> = tokens.iter().map(ToString::to_string).collect();
        let mut token_types = vec![2, 3, 4, 3, 3, 3, 3];
        token_types.truncate(texts.len());
        texts.extend(["▁a", "a", "▁"].map(str::to_owned));
        token_types.extend([1; 3]);
        texts.extend((0..=255).map(|byte| format!("<0x{byte:02X}>")));
        token_types.extend([6; 256]);
        let tokenizer = Tokenizer::from_gguf(GgufVocabulary {
            model: "llama".to_owned(),
            scores: vec![-1.0; texts.len()],
            tokens: texts,
            token_types,
            bos: Some(1),
            unk: Some(0),
            ..GgufVocabulary::default()
        })
        .unwrap();
        let prompt = "<s><|user|>\na<|end|>\n<|assistant|>\n".to_owned();
        let chat = tokenizer.encode_chat(&RenderedPrompt::from_markup(prompt)).unwrap();
        (chat, tokenizer.encode_text("</s>").unwrap())
    };
    let (chat, text) = ids(&named);
    assert_eq!(chat, [1, 6, 7, 5, 4]);
    // A client's text ends no turn.
    assert!(!text.contains(&2));
    let without_placeholder =
        named.map(|text| if text == "<|placeholder1|>" { "<x>" } else { text });
    assert!(ids(&without_placeholder).0.len() > 5);
}

#[test]
fn tokenizer_json_and_its_config_name_the_special_tokens() {
    let fixture = fixture("tokenizer_json.json");
    let json = serde_json::to_vec(&fixture["tokenizers"]["byte_level"]["json"]).unwrap();
    let config = TokenizerConfig {
        bos_token: Some("<s>".to_owned()),
        eos_token: Some("<|end|>".to_owned()),
        add_bos_token: Some(false),
        ..TokenizerConfig::default()
    };
    let tokenizer = Tokenizer::from_tokenizer_json(&json, Some(&config)).unwrap();
    let (bos, eos) = (tokenizer.bos().unwrap(), tokenizer.eos().unwrap());
    assert_eq!(tokenizer.token_bytes(bos), Some(&b"<s>"[..]));
    assert!(tokenizer.is_control(eos));
    assert!(tokenizer.stop_token_ids().contains(&eos));
    assert!(!tokenizer.encode_text("<s>a</s>").unwrap().iter().any(|id| tokenizer.is_control(*id)));
}
