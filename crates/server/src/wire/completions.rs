//! `POST /v1/completions` on the wire.

use super::described::described;
use super::error::ApiError;
use super::extra_fields;
use super::field_rules;
use super::sampler_fields::SamplerFields;
use super::shared::{SamplingFields, StopField, StreamOptions, WireFinishReason};
use super::structured_output::{
    ChoiceList, JsonSchemaField, NonEmptyText, OutputFields, ResponseFormat, StructuredOutputs,
};
use super::usage::Usage;
use crate::choice_search::SearchFields;
use crate::prefix_sharing::MAX_SALT_BYTES;
use crate::prompt_logprobs::PromptLogprobs;
use crate::token_text::TokenText;
use crate::validation::{self, MAX_PROMPTS};
use mini_infer_core::SamplingParams;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Asks for the continuation of prompts. `prompt` has four forms and is read by `validation`.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields, description = "Asks for the continuation of prompts.")]
pub(crate) struct CompletionRequest {
    /// The model, or an adapter of it; absent, the served model.
    pub(crate) model: Option<String>,
    /// A text, texts, the tokens of a prompt, or of prompts.
    #[schemars(with = "PromptField")]
    pub(crate) prompt: Option<Value>,
    /// Sends chunks as server-sent events.
    pub(crate) stream: Option<bool>,
    /// How to stream; needs `stream`.
    pub(crate) stream_options: Option<StreamOptions>,
    /// Most output tokens; 16 by default, 0 only with `echo` and `logprobs`.
    pub(crate) max_tokens: Option<u32>,
    /// Another name of `max_tokens`; the smaller one counts where both are given.
    pub(crate) max_completion_tokens: Option<u32>,
    /// Tells the log probability of each token, and of so many of the likeliest in its place.
    #[schemars(range(max = SamplingParams::MAX_LOGPROBS))]
    pub(crate) logprobs: Option<u32>,
    /// Tells the log probability of each token of the prompt, and of so many of the likeliest in its
    /// place; not with `stream`.
    #[schemars(range(min = 0, max = SamplingParams::MAX_LOGPROBS))]
    pub(crate) prompt_logprobs: Option<i64>,
    /// Writes the prompt's text before each output.
    pub(crate) echo: Option<bool>,
    /// The text after the gap that the output is to fill.
    pub(crate) suffix: Option<String>,
    /// KV is shared only among requests with the same salt.
    #[schemars(length(min = 1, max = MAX_SALT_BYTES))]
    pub(crate) cache_salt: Option<String>,
    /// `false`: nothing is looked up in the prefix cache nor left in it.
    pub(crate) cache_prompt: Option<bool>,
    /// Choices to make for each prompt.
    #[schemars(range(min = 1, max = SamplingParams::MAX_N))]
    pub(super) n: Option<u32>,
    /// Evens out the probabilities of tokens above 1, sharpens them below; 0 takes the likeliest.
    #[schemars(range(min = 0, max = 2))]
    pub(super) temperature: Option<f64>,
    /// Keeps the likeliest tokens that have this probability together.
    #[schemars(range(max = 1), extend("exclusiveMinimum" = 0))]
    pub(super) top_p: Option<f64>,
    /// Keeps so many of the likeliest tokens; 0 and -1 keep all.
    #[schemars(range(min = -1, max = u32::MAX))]
    pub(super) top_k: Option<i64>,
    /// Drops tokens that are less likely than this share of the likeliest one.
    #[schemars(range(min = 0, max = 1))]
    pub(super) min_p: Option<f64>,
    /// Equal seeds give equal tokens.
    pub(super) seed: Option<i64>,
    /// Strings that end the output and are not part of it.
    pub(super) stop: Option<StopField>,
    /// Goes on past the model's own end tokens.
    pub(super) ignore_eos: Option<bool>,
    /// Searches for the likeliest sequences instead of sampling.
    pub(super) use_beam_search: Option<bool>,
    /// Sequences to make for each prompt, of which the `n` likeliest are given.
    #[schemars(range(min = 1, max = SamplingParams::MAX_N))]
    pub(super) best_of: Option<u32>,
    /// Favours long sequences above 0 and short ones below; needs `use_beam_search` but for 1.
    pub(super) length_penalty: Option<f64>,
    /// What the output must be.
    #[schemars(with = "Option<ResponseFormat>")]
    pub(super) response_format: Option<Value>,
    /// The output is JSON that this schema allows, given as an object or as text.
    #[schemars(with = "Option<JsonSchemaField>")]
    pub(super) guided_json: Option<Value>,
    /// The output is text that this regular expression matches.
    #[schemars(with = "Option<NonEmptyText>")]
    pub(super) guided_regex: Option<Value>,
    /// The output is one of these strings.
    #[schemars(with = "Option<ChoiceList>")]
    pub(super) guided_choice: Option<Value>,
    /// The output is text of this grammar, in GBNF or Lark.
    #[schemars(with = "Option<NonEmptyText>")]
    pub(super) guided_grammar: Option<Value>,
    /// What the output must be, in one of five ways.
    #[schemars(with = "Option<StructuredOutputs>")]
    pub(super) structured_outputs: Option<Value>,
    /// Another name of `guided_grammar`.
    #[schemars(with = "Option<NonEmptyText>")]
    pub(super) grammar: Option<Value>,
    #[serde(flatten)]
    #[schemars(schema_with = "extra_schema")]
    pub(crate) extra: BTreeMap<String, Value>,
}

/// Describes the fields that are read out of `extra`.
fn extra_schema(generator: &mut SchemaGenerator) -> Schema {
    let rules = field_rules::schema(field_rules::COMPLETIONS);
    extra_fields::merged([SamplerFields::json_schema(generator), rules])
}

described! {
    /// A text, texts, the tokens of a prompt, or of prompts.
    PromptField: schema_of_prompts(MAX_PROMPTS);
}

/// Returns the schema of a prompt as text or tokens, or of up to `most` of them.
pub(super) fn schema_of_prompts(most: usize) -> Value {
    let text = json!({"type": "string", "minLength": 1});
    let tokens = json!({
        "type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1,
    });
    let prompts = json!({
        "type": "array", "items": {"anyOf": [&text, &tokens]}, "minItems": 1, "maxItems": most,
    });
    json!({"anyOf": [text, tokens, prompts]})
}

impl CompletionRequest {
    /// Takes the sampling fields out of the body.
    pub(crate) fn take_sampling(&mut self) -> SamplingFields {
        SamplingFields {
            n: self.n,
            temperature: self.temperature,
            top_p: self.top_p,
            top_k: self.top_k,
            min_p: self.min_p,
            seed: self.seed,
            stop: self.stop.take(),
            ignore_eos: self.ignore_eos,
        }
    }

    /// Returns how many of the most likely tokens are told for each token of an echoed prompt; `None`
    /// where no log probabilities of prompts are wanted.
    pub(crate) fn echoed_logprobs(&self) -> Option<u32> {
        self.logprobs.filter(|_| self.echo.unwrap_or(false))
    }

    /// Returns the output limit that the client set: 0 where a prompt's log probabilities are all
    /// that is wanted.
    ///
    /// # Errors
    /// Refuses a limit of 0 where there would be nothing to answer with.
    pub(crate) fn output_limit(&self) -> Result<Option<u32>, ApiError> {
        let limits = [self.max_tokens, self.max_completion_tokens];
        if self.echoed_logprobs().is_some() && limits.contains(&Some(0)) {
            return Ok(Some(0));
        }
        validation::max_tokens(self.max_tokens, self.max_completion_tokens)
    }

    /// Tells whether the model's own end tokens end nothing.
    pub(crate) fn ignores_eos(&self) -> bool {
        self.ignore_eos.unwrap_or(false)
    }

    /// Takes the fields that constrain the output out of the body.
    pub(crate) fn take_output_fields(&mut self) -> OutputFields {
        OutputFields {
            response_format: self.response_format.take(),
            guided_json: self.guided_json.take(),
            guided_regex: self.guided_regex.take(),
            guided_choice: self.guided_choice.take(),
            guided_grammar: self.guided_grammar.take(),
            structured_outputs: self.structured_outputs.take(),
            grammar: self.grammar.take(),
        }
    }

    /// Returns how many sequences the choices are chosen from, where that is said.
    pub(crate) fn best_of(&self) -> Option<u32> {
        self.best_of
    }

    /// Returns how the choices are to be found.
    pub(crate) fn search(&self) -> SearchFields {
        SearchFields {
            use_beam_search: self.use_beam_search,
            best_of: self.best_of,
            length_penalty: self.length_penalty,
        }
    }
}

/// A whole response, or one chunk of a stream: the API uses one shape for both.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct CompletionResponse<'a> {
    pub(crate) id: &'a str,
    #[schemars(extend("const" = "text_completion"))]
    pub(crate) object: &'static str,
    pub(crate) created: u64,
    pub(crate) model: &'a str,
    pub(crate) choices: Vec<CompletionChoice>,
    /// Always present in a whole response. In a stream, absent without `include_usage`; else
    /// `null` in all chunks but the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) usage: Option<Option<Usage>>,
}

/// One choice, or what one chunk adds to it.
#[derive(Debug, Default, Serialize, JsonSchema)]
pub(crate) struct CompletionChoice {
    pub(crate) index: usize,
    pub(crate) text: String,
    pub(crate) logprobs: Option<CompletionLogprobs>,
    pub(crate) finish_reason: Option<WireFinishReason>,
    /// Present where it was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) prompt_logprobs: Option<PromptLogprobs>,
}

/// Log probabilities of a choice's tokens, in parallel lists.
#[derive(Debug, Default, Serialize, JsonSchema)]
pub(crate) struct CompletionLogprobs {
    pub(crate) tokens: Vec<String>,
    /// `null` for the first token of a prompt, before which nothing is.
    pub(crate) token_logprobs: Vec<Option<f32>>,
    pub(crate) top_logprobs: Vec<Option<BTreeMap<String, f32>>>,
    /// Where each token starts in the choice's text, in characters.
    pub(crate) text_offset: Vec<usize>,
}

impl CompletionLogprobs {
    /// Appends the first token of a prompt.
    pub(crate) fn push_first(&mut self, bytes: &[u8]) {
        self.tokens.push(text(bytes));
        self.token_logprobs.push(None);
        self.top_logprobs.push(None);
        self.text_offset.push(0);
    }

    /// Appends tokens, whose offsets do not count `num_chars` characters of the text before them.
    pub(crate) fn extend(&mut self, tokens: Vec<TokenText>, num_chars: usize) {
        for token in tokens {
            self.tokens.push(text(&token.bytes));
            self.token_logprobs.push(Some(token.logprob));
            let top = token.top.iter().map(|(bytes, logprob)| (text(bytes), *logprob));
            self.top_logprobs.push(Some(top.collect()));
            self.text_offset.push(num_chars + token.text_offset);
        }
    }

    /// Counts `num_chars` characters of text that come before all tokens.
    pub(crate) fn move_by(&mut self, num_chars: usize) {
        self.text_offset.iter_mut().for_each(|offset| *offset += num_chars);
    }

    /// Appends those of the tokens that follow.
    pub(crate) fn append(&mut self, mut next: Self) {
        self.tokens.append(&mut next.tokens);
        self.token_logprobs.append(&mut next.token_logprobs);
        self.top_logprobs.append(&mut next.top_logprobs);
        self.text_offset.append(&mut next.text_offset);
    }
}

/// Returns the text of a token, U+FFFD for what is no whole character.
fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
