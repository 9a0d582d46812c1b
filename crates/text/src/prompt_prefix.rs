//! The tokens that a `tokenizer.json`'s post-processor puts before a text: BOS, mostly.
//!
//! Read from the description itself: the `tokenizers` crate takes for granted that a template's
//! tokens are described, and does not check their ids. What comes behind a text is left out, for the
//! model is to go on there.

use crate::TokenizerError;
use mini_infer_core::TokenId;
use serde_json::Value;

/// Most tokens before a prompt; published tokenizers put one there.
const MAX_LEN: usize = 16;

/// Reads the tokens before a text, each one of the vocabulary's `vocab_size`.
pub(crate) fn read(
    processor: Option<&Value>,
    vocab_size: usize,
) -> Result<Vec<TokenId>, TokenizerError> {
    let unsupported =
        |got| Err(TokenizerError::UnsupportedSetting { setting: "post_processor", got });
    let Some(processor) = processor.filter(|processor| !processor.is_null()) else {
        return Ok(Vec::new());
    };
    let Some(wide_ids) = wide_ids(processor) else {
        return unsupported(processor.to_string().chars().take(200).collect());
    };
    if wide_ids.len() > MAX_LEN {
        return unsupported(format!("one that puts {} tokens before a text", wide_ids.len()));
    }
    let known = |id: u64| {
        let found = TokenId::try_from(id).ok().filter(|id| (*id as usize) < vocab_size);
        let role = "post_processor".to_owned();
        found.ok_or(TokenizerError::IdOutOfRange { role, id, vocab_size })
    };
    wide_ids.into_iter().map(known).collect()
}

/// Returns the ids as written, or `None` if the description is none that is known.
fn wide_ids(processor: &Value) -> Option<Vec<u64>> {
    match processor["type"].as_str()? {
        "ByteLevel" => Some(Vec::new()),
        "BertProcessing" | "RobertaProcessing" => Some(vec![processor["cls"][1].as_u64()?]),
        "TemplateProcessing" => template_ids(processor),
        "Sequence" => {
            let mut ids = Vec::new();
            for part in processor["processors"].as_array()? {
                // Each puts its own before what is there.
                ids.splice(0..0, wide_ids(part)?);
            }
            Some(ids)
        }
        _ => None,
    }
}

fn template_ids(processor: &Value) -> Option<Vec<u64>> {
    let mut ids = Vec::new();
    for piece in processor["single"].as_array()? {
        if piece.get("Sequence").is_some() {
            return Some(ids);
        }
        let name = piece["SpecialToken"]["id"].as_str()?;
        for id in processor["special_tokens"][name]["ids"].as_array()? {
            ids.push(id.as_u64()?);
        }
    }
    // A template without the text would drop it.
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn check(processor: &Value, expected: &[TokenId]) {
        assert_eq!(read(Some(processor), 10).unwrap(), expected, "{processor}");
    }

    fn template(single: &Value) -> Value {
        json!({"type": "TemplateProcessing", "single": single,
            "special_tokens": {"<s>": {"ids": [1]}, "[X]": {"ids": [2, 3]}, "</s>": {"ids": [4]},
                "<out>": {"ids": [10]}}})
    }

    fn special(name: &str) -> Value {
        json!({"SpecialToken": {"id": name, "type_id": 0}})
    }

    fn text() -> Value {
        json!({"Sequence": {"id": "A", "type_id": 0}})
    }

    #[test]
    fn tokens_before_the_text_count_and_those_behind_do_not() {
        check(&Value::Null, &[]);
        check(&json!({"type": "ByteLevel", "trim_offsets": true}), &[]);
        check(&template(&json!([text()])), &[]);
        let bos = template(&json!([special("<s>"), special("[X]"), text(), special("</s>")]));
        check(&bos, &[1, 2, 3]);
        let roberta = json!({"type": "RobertaProcessing", "cls": ["<s>", 1], "sep": ["</s>", 4]});
        check(&roberta, &[1]);
        check(&json!({"type": "Sequence", "processors": [bos, roberta]}), &[1, 1, 2, 3]);
    }

    #[test]
    fn what_is_not_described_or_not_in_the_vocabulary_is_refused() {
        let refused = |processor: &Value, expected: &str| {
            let error = read(Some(processor), 10).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        };
        refused(&template(&json!([special("<none>"), text()])), "sets post_processor to");
        refused(&template(&json!([special("<s>")])), "sets post_processor to");
        refused(&template(&json!([special("<out>"), text()])), "token id 10");
        refused(&json!({"type": "Nonesuch"}), "Nonesuch");
        refused(&json!({"type": "RobertaProcessing", "cls": "<s>"}), "sets post_processor to");
        let many: Vec<Value> = std::iter::repeat_n(special("[X]"), 9).chain([text()]).collect();
        let many = template(&json!(many));
        refused(&many, "puts 18 tokens");
    }
}
