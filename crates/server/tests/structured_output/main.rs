//! Outputs of the real engine and sampler under real grammars, with a model that writes at random.
//!
//! What a model would rather write cannot be relied on, so this one has no preferences: whatever it
//! finishes must be what was asked for, checked by a validator that shares no code with the parser.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

#[path = "../byte_level/mod.rs"]
mod byte_level;
mod formats;
mod generated_schemas;
mod json_schemas;
mod random;
#[path = "../random_model/mod.rs"]
mod random_model;
mod random_writer;
mod refusals;
mod schema_list;
mod vocabulary;
mod white_space;
