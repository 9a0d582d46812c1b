//! The default model through the real forward pass: numbers, exactness, token ids.
//!
//! The model is found in the user's cache or fetched as `mini-infer pull` fetches it.

#![allow(clippy::unwrap_used, reason = "a step that fails fails the test")]

#[allow(dead_code, reason = "the chat template is not needed here")]
#[path = "../../src/gguf_text.rs"]
mod gguf_text;

mod bf16_copies;
mod exactness;
mod folders;
mod model;
mod numbers;
mod perplexity;
mod token_ids;
