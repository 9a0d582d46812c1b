//! A byte-level vocabulary with what texts and JSON often hold.

use crate::byte_level;
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
    let vocabulary = byte_level::vocabulary(&["<|im_end|>"], WORDS);
    let vocabulary = GgufVocabulary { eos: Some(END), ..vocabulary };
    Arc::new(Tokenizer::from_gguf(vocabulary).unwrap())
}
