//! Constraints on what a model may write: JSON schemas, regular expressions, choices and grammars.
//!
//! A client's [`GrammarSource`] is compiled by [`Grammars`] into the
//! [`OutputConstraint`](mini_infer_core::OutputConstraint) that a request carries to the engine. The
//! parser is `llguidance` 1.9; here are what it does not do: bounds on what a stranger may ask of it,
//! errors that say where in a schema the fault is, GBNF, and the threads on which masks are computed
//! while the forward pass runs. Whatever cannot be compiled is an error: no output is ever left
//! unconstrained, and none is constrained by less than what was asked for.
//!
//! Deliberately absent: HTTP, tokio, and any knowledge of how an engine schedules.
#![forbid(unsafe_code)]

mod alternatives;
mod compiled_grammar;
mod compiler;
mod gbnf;
mod grammar_cache;
mod grammar_error;
mod grammar_source;
mod grammars;
mod json_path;
mod json_schema;
mod lark_text;
mod mask_pool;
mod matcher_slot;
mod output_shape;
mod schema_fault;
mod token_vocabulary;

pub use alternatives::Alternative;
pub use grammar_error::GrammarError;
pub use grammar_source::GrammarSource;
pub use grammars::Grammars;
pub use output_shape::OutputShape;
