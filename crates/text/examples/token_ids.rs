//! Writes the token ids of texts, for scripts that compare them with another tokenizer's.
//!
//! `token_ids FILE TEXTS [CONFIG]`: FILE is a `tokenizer.json`, or the metadata of a GGUF file as
//! JSON (an object with `tokens`); TEXTS is a JSON list of strings; CONFIG is a
//! `tokenizer_config.json`. Prints one JSON object per text: `text` holds the ids of a raw prompt,
//! `markup` those of a rendered chat, `back` the raw prompt's ids as text again.

use mini_infer_text::{
    GgufVocabulary, NamedInfillTokens, RenderedPrompt, Tokenizer, TokenizerConfig,
};
use serde_json::{Value, json};
use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [file, texts, config @ ..] = arguments.as_slice() else {
        return Err("usage: token_ids FILE TEXTS [CONFIG]".into());
    };
    let bytes = std::fs::read(file)?;
    let value: Value = serde_json::from_slice(&bytes)?;
    let tokenizer = if value.get("tokens").is_some() {
        Tokenizer::from_gguf(gguf_vocabulary(&value)?)?
    } else {
        let config = match config {
            [] => None,
            [path, ..] => Some(TokenizerConfig::from_json(&std::fs::read(path)?)?),
        };
        Tokenizer::from_tokenizer_json(&bytes, config.as_ref())?
    };
    let texts: Vec<String> = serde_json::from_slice(&std::fs::read(texts)?)?;
    let mut out = String::new();
    for text in texts {
        let ids = tokenizer.encode_text(&text)?;
        let markup = tokenizer.encode_chat(&RenderedPrompt::from_markup(text))?;
        let back = tokenizer.detokenize(&ids);
        out.push_str(&json!({"text": ids, "markup": markup, "back": back}).to_string());
        out.push('\n');
    }
    std::io::Write::write_all(&mut std::io::stdout(), out.as_bytes())?;
    Ok(())
}

fn gguf_vocabulary(value: &Value) -> Result<GgufVocabulary, Box<dyn Error>> {
    let id = |name: &str| value[name].as_u64().and_then(|id| u32::try_from(id).ok());
    Ok(GgufVocabulary {
        model: value["model"].as_str().unwrap_or_default().to_owned(),
        pre: value["pre"].as_str().map(str::to_owned),
        tokens: serde_json::from_value(value["tokens"].clone())?,
        scores: serde_json::from_value(value["scores"].clone())?,
        token_types: serde_json::from_value(value["token_type"].clone())?,
        merges: serde_json::from_value(value["merges"].clone())?,
        bos: id("bos_token_id"),
        eos: id("eos_token_id"),
        eot: id("eot_token_id"),
        unk: id("unknown_token_id"),
        pad: id("padding_token_id"),
        add_bos: value["add_bos_token"].as_bool(),
        add_space_prefix: value["add_space_prefix"].as_bool(),
        infill: NamedInfillTokens::default(),
    })
}
