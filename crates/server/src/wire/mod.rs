//! What goes over the wire, as serde types.
//!
//! Names here are the API's, not the glossary's: a wire "completion" is an output, a wire
//! "choice" is a sequence. Request types accept what OpenAI's API documents; every field that is
//! not one of theirs lands in `extra` and is judged by [`field_rules`], so that nothing is
//! dropped in silence; [`anthropic`], [`ollama`] and [`responses`] bring the requests of other APIs
//! into the same form.
//! Response types carry every field that strict clients require.

pub(crate) mod adapters;
pub(crate) mod anthropic;
pub(crate) mod chat;
pub(crate) mod completions;
pub(crate) mod described;
pub(crate) mod embeddings;
pub(crate) mod error;
pub(crate) mod extra_fields;
pub(crate) mod field_rules;
pub(crate) mod kv;
pub(crate) mod models;
pub(crate) mod ollama;
pub(crate) mod refusal;
pub(crate) mod responses;
pub(crate) mod sampler_fields;
pub(crate) mod shared;
pub(crate) mod structured_output;
pub(crate) mod tokenize;
pub(crate) mod tool_choice;
pub(crate) mod tool_schemas;
pub(crate) mod tools;
pub(crate) mod usage;
