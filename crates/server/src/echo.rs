//! Prompts that come before the outputs of their choices: as text, and with their tokens' log
//! probabilities where those are asked for.

use crate::token_text::TokenText;
use crate::validation::Prompt;
use crate::wire::completions::CompletionLogprobs;
use mini_infer_core::{RankedLogprobs, TokenId, TokenLogprobs};
use mini_infer_text::{Detokenizer, OutputStart, Tokenizer};
use std::ops::Range;
use std::sync::Arc;

/// What comes before the outputs; by default nothing.
#[derive(Debug, Default)]
pub(crate) struct Echo {
    /// Of each prompt.
    texts: Vec<String>,
    num_choices_per_prompt: usize,
    /// The prompts' tokens, where their log probabilities come with them.
    scored: Option<ScoredPrompts>,
}

#[derive(Debug)]
struct ScoredPrompts {
    tokenizer: Arc<Tokenizer>,
    prompts: Vec<Vec<TokenId>>,
    /// How many of the likeliest tokens are told in each place.
    num_top: u32,
}

impl Echo {
    /// Returns that of `prompts`, each of which has as many choices.
    pub(crate) fn new(
        prompts: &[Prompt],
        tokenizer: &Tokenizer,
        num_choices_per_prompt: u32,
    ) -> Self {
        let text = |prompt: &Prompt| match prompt {
            Prompt::Text(text) => text.clone(),
            Prompt::Tokens(tokens) => tokenizer.detokenize(tokens),
        };
        Self {
            texts: prompts.iter().map(text).collect(),
            num_choices_per_prompt: num_choices_per_prompt.max(1) as usize,
            scored: None,
        }
    }

    /// Has log probabilities told with it, of each token and of `num_top` likely ones in its place;
    /// `prompts` are the tokens of each.
    pub(crate) fn with_scores(
        self,
        tokenizer: &Arc<Tokenizer>,
        prompts: &[Vec<TokenId>],
        num_top: u32,
    ) -> Self {
        let (tokenizer, prompts) = (Arc::clone(tokenizer), prompts.to_vec());
        Self { scored: Some(ScoredPrompts { tokenizer, prompts, num_top }), ..self }
    }

    /// Tells whether log probabilities come with it, and so not before they are known.
    pub(crate) fn is_scored(&self) -> bool {
        self.scored.is_some()
    }

    /// Returns what comes before the output of a choice, numbered as the client sees it.
    pub(crate) fn before(&self, choice: usize) -> &str {
        self.texts.get(self.prompt_of(choice)).map_or("", String::as_str)
    }

    /// Returns the number of the prompt that a choice continues.
    pub(crate) fn prompt_of(&self, choice: usize) -> usize {
        choice / self.num_choices_per_prompt.max(1)
    }

    /// Returns the choices of a prompt.
    pub(crate) fn choices_of(&self, prompt: usize) -> Range<usize> {
        let first = prompt * self.num_choices_per_prompt;
        first..first + self.num_choices_per_prompt
    }

    /// Returns where the output of a choice begins in the text that its log probabilities are about,
    /// in characters.
    pub(crate) fn output_offset(&self, choice: usize) -> usize {
        if self.is_scored() { self.before(choice).chars().count() } else { 0 }
    }

    /// Returns the log probabilities of a prompt's tokens, of which `found` are those from the second
    /// on.
    pub(crate) fn logprobs(&self, prompt: usize, found: &[RankedLogprobs]) -> CompletionLogprobs {
        let mut logprobs = CompletionLogprobs::default();
        let Some(ScoredPrompts { tokenizer, prompts, num_top }) = &self.scored else {
            return logprobs;
        };
        let mut detokenizer = Detokenizer::new(Arc::clone(tokenizer), OutputStart::NewText);
        let (mut text, mut num_chars) = (String::new(), 0);
        let found = std::iter::once(None).chain(found.iter().map(Some));
        for (&token, found) in prompts[prompt].iter().zip(found) {
            match found {
                None => logprobs.push_first(tokenizer.token_bytes(token).unwrap_or_default()),
                Some(found) => {
                    let top = found.top.iter().take(*num_top as usize).copied().collect();
                    let found = TokenLogprobs { chosen: found.chosen, top };
                    let token = TokenText::new(tokenizer, token, &found, num_chars);
                    logprobs.extend(vec![token], 0);
                }
            }
            text.clear();
            detokenizer.push(token, &mut text);
            num_chars += text.chars().count();
        }
        logprobs
    }
}
