//! A byte-level vocabulary with what texts and JSON often hold.

use mini_infer_core::TokenId;
use mini_infer_text::{GgufVocabulary, Tokenizer};
use std::sync::Arc;

/// Tokens of several bytes: many cross the borders of JSON's own tokens.
const WORDS: &[&str] = &[
    "{\"",
    "\"}",
    "\":",
    "\": ",
    "\":\"",
    "\",\"",
    "\", \"",
    "},{",
    "[{",
    "}]",
    "}}",
    "[[",
    "]]",
    "],",
    ", ",
    ": ",
    "{\n",
    "\n  ",
    "\n    ",
    "  ",
    "    ",
    "\n\n",
    "\t\t",
    "true",
    "false",
    "null",
    "tru",
    "se",
    "name",
    "\"name\"",
    "age",
    "id",
    "type",
    "value",
    "the",
    " the",
    " a",
    "ing",
    "er",
    "12",
    "00",
    "0.",
    ".5",
    "-1",
    "e+",
    "E-",
    "2024",
    "-01-",
    "T00:",
    "://",
    "é",
    "ö",
    "日",
    "本",
    "日本",
    "\\n",
    "\\u",
    "\\\"",
    "\\\\",
    "example.com",
    "127.",
    "abc",
    "xyz",
    "ab",
    "AB",
    "kind",
    "next",
    "children",
    "left",
    "right",
];

/// The token that ends an answer.
pub(crate) const END: TokenId = 256;

/// Returns a tokenizer: all bytes, a token that ends an answer, then [`WORDS`].
pub(crate) fn tokenizer() -> Arc<Tokenizer> {
    let mut tokens: Vec<String> = (0..=255).map(|byte| byte_character(byte).to_string()).collect();
    tokens.push("<|im_end|>".to_owned());
    tokens.extend(WORDS.iter().map(|word| word.bytes().map(byte_character).collect()));
    let mut token_types = vec![1; tokens.len()];
    token_types[END as usize] = 3;
    let vocabulary = GgufVocabulary {
        model: "gpt2".to_owned(),
        pre: Some("gpt-2".to_owned()),
        tokens,
        token_types,
        eos: Some(END),
        ..GgufVocabulary::default()
    };
    Arc::new(Tokenizer::from_gguf(vocabulary).unwrap())
}

/// Returns the character that byte-level vocabularies write for a byte: itself where it is printable,
/// else one from U+0100 on, in the order of the bytes.
fn byte_character(byte: u8) -> char {
    let is_printable = |byte: u8| matches!(byte, 33..=126 | 161..=172 | 174..=255);
    if is_printable(byte) {
        return char::from(byte);
    }
    let num_before = (0..byte).filter(|&before| !is_printable(before)).count();
    char::from_u32(256 + u32::try_from(num_before).unwrap()).unwrap()
}
