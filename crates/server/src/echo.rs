//! Texts of prompts that come before the outputs of their choices.

use crate::validation::Prompt;
use crate::wire::error::ApiError;
use mini_infer_text::Tokenizer;

/// What comes before the outputs; by default nothing.
#[derive(Debug, Default)]
pub(crate) struct Echo {
    /// Of each prompt.
    texts: Vec<String>,
    num_choices_per_prompt: u32,
}

impl Echo {
    /// Returns that of `prompts`, each of which has as many choices.
    ///
    /// # Errors
    /// Refuses `logprobs`: those of prompts are not computed.
    pub(crate) fn new(
        prompts: &[Prompt],
        tokenizer: &Tokenizer,
        logprobs: Option<u32>,
        num_choices_per_prompt: u32,
    ) -> Result<Self, ApiError> {
        if logprobs.is_some() {
            let message = "must be false with `logprobs`: those of prompts are not served";
            return Err(ApiError::invalid("echo", message));
        }
        let text = |prompt: &Prompt| match prompt {
            Prompt::Text(text) => text.clone(),
            Prompt::Tokens(tokens) => tokenizer.detokenize(tokens),
        };
        Ok(Self { texts: prompts.iter().map(text).collect(), num_choices_per_prompt })
    }

    /// Returns what comes before the output of a choice, numbered as the client sees it.
    pub(crate) fn before(&self, choice: usize) -> &str {
        let prompt = choice / self.num_choices_per_prompt.max(1) as usize;
        self.texts.get(prompt).map_or("", String::as_str)
    }
}
