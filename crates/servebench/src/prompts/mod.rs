//! What is sent: prompts made up, from files, or from traces.
//!
//! Equal seeds give equal prompts. Lengths count words that are one token each in common
//! vocabularies, or exactly a tokenizer's tokens where one is given; what a server's chat template
//! adds comes on top.

mod dolly;
mod gguf_vocabulary;
mod lengths;
mod prompt_file;
mod sampling;
mod source;
mod synthetic;
mod token_counter;
mod trace_prompts;
mod words;

pub use lengths::{Lengths, Preset};
pub use source::PromptSource;
pub use token_counter::TokenCounter;

use std::time::Duration;

/// What one request, or one conversation, says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prompt {
    /// What the user says, one text for each turn; at least one.
    pub turns: Vec<String>,
    /// Where it comes from.
    pub source: String,
    /// Tokens of each output, where it is not the run's own length.
    pub output_len: Option<u32>,
    /// When it arrived in its trace, since the first one; the load may run faster than that.
    pub arrival: Option<Duration>,
}
