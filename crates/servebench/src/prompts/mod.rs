//! What is sent: prompts made up, from files, or from traces.

use crate::error::ServebenchError;
use crate::results::RunConfig;
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
    /// When it arrives, since the start of the level, where a trace says so.
    pub arrival: Option<Duration>,
}

/// Counts and cuts text in a model's own tokens.
#[derive(Debug)]
pub struct TokenCounter {}

impl TokenCounter {
    /// Reads a tokenizer: a `tokenizer.json`, a folder with one, or a GGUF file.
    ///
    /// # Errors
    /// When it cannot be read or is none.
    pub fn load(_name: &str) -> Result<Self, ServebenchError> {
        Ok(Self {})
    }

    /// Returns the number of tokens of a text, without any that a model puts in front.
    #[must_use]
    pub fn count(&self, _text: &str) -> usize {
        0
    }
}

/// Makes the prompts of a run.
#[derive(Debug)]
pub struct PromptSource {}

impl PromptSource {
    /// Looks at what the run asks for, and reads its files.
    ///
    /// # Errors
    /// When a file cannot be read or holds no prompts, or when flags contradict each other.
    pub fn new(
        _config: &RunConfig,
        _tokens: Option<&TokenCounter>,
    ) -> Result<Self, ServebenchError> {
        Ok(Self {})
    }

    /// Returns `num_prompts` prompts; equal seeds give equal prompts. A trace gives its first ones,
    /// with their arrivals.
    #[must_use]
    pub fn prompts(&self, _num_prompts: usize, _seed: u64) -> Vec<Prompt> {
        Vec::new()
    }

    /// Returns how many prompts there are, where that is not up to the caller: in a trace.
    #[must_use]
    pub fn num_recorded(&self) -> Option<usize> {
        None
    }
}
