//! `POST /v1/completions` on the wire.

use super::described::described;
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
use crate::validation::MAX_PROMPTS;
use mini_infer_core::SamplingParams;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Asks for the continuation of prompts. `prompt` has four forms and is read by `validation`.
#[derive(Debug, Deserialize, JsonSchema)]
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
    /// Most output tokens; 16 by default.
    #[schemars(range(min = 1))]
    pub(crate) max_tokens: Option<u32>,
    /// Another name of `max_tokens`; the smaller one counts where both are given.
    #[schemars(range(min = 1))]
    pub(crate) max_completion_tokens: Option<u32>,
    /// Tells the log probability of each token, and of so many of the likeliest in its place.
    #[schemars(range(max = SamplingParams::MAX_LOGPROBS))]
    pub(crate) logprobs: Option<u32>,
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
    n: Option<u32>,
    /// Evens out the probabilities of tokens above 1, sharpens them below; 0 takes the likeliest.
    #[schemars(range(min = 0, max = 2))]
    temperature: Option<f64>,
    /// Keeps the likeliest tokens that have this probability together.
    #[schemars(range(max = 1), extend("exclusiveMinimum" = 0))]
    top_p: Option<f64>,
    /// Keeps so many of the likeliest tokens; 0 and -1 keep all.
    #[schemars(range(min = -1, max = u32::MAX))]
    top_k: Option<i64>,
    /// Drops tokens that are less likely than this share of the likeliest one.
    #[schemars(range(min = 0, max = 1))]
    min_p: Option<f64>,
    /// Equal seeds give equal tokens.
    seed: Option<i64>,
    /// Strings that end the output and are not part of it.
    stop: Option<StopField>,
    /// Goes on past the model's own end tokens.
    ignore_eos: Option<bool>,
    /// Searches for the likeliest sequences instead of sampling.
    use_beam_search: Option<bool>,
    /// Sequences to make for each prompt, of which the `n` likeliest are given.
    #[schemars(range(min = 1, max = SamplingParams::MAX_N))]
    best_of: Option<u32>,
    /// Favours long sequences above 0 and short ones below; needs `use_beam_search` but for 1.
    length_penalty: Option<f64>,
    /// What the output must be.
    #[schemars(with = "Option<ResponseFormat>")]
    response_format: Option<Value>,
    /// The output is JSON that this schema allows, given as an object or as text.
    #[schemars(with = "Option<JsonSchemaField>")]
    guided_json: Option<Value>,
    /// The output is text that this regular expression matches.
    #[schemars(with = "Option<NonEmptyText>")]
    guided_regex: Option<Value>,
    /// The output is one of these strings.
    #[schemars(with = "Option<ChoiceList>")]
    guided_choice: Option<Value>,
    /// The output is text of this grammar, in GBNF or Lark.
    #[schemars(with = "Option<NonEmptyText>")]
    guided_grammar: Option<Value>,
    /// What the output must be, in one of five ways.
    #[schemars(with = "Option<StructuredOutputs>")]
    structured_outputs: Option<Value>,
    /// Another name of `guided_grammar`.
    #[schemars(with = "Option<NonEmptyText>")]
    grammar: Option<Value>,
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
    PromptField: {
        let text = json!({"type": "string", "minLength": 1});
        let tokens = json!({
            "type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1,
        });
        let prompts = json!({
            "type": "array", "items": {"anyOf": [&text, &tokens]},
            "minItems": 1, "maxItems": MAX_PROMPTS,
        });
        json!({"anyOf": [text, tokens, prompts]})
    };
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
}

/// Log probabilities of a choice's tokens, in parallel lists.
#[derive(Debug, Default, Serialize, JsonSchema)]
pub(crate) struct CompletionLogprobs {
    pub(crate) tokens: Vec<String>,
    pub(crate) token_logprobs: Vec<f32>,
    pub(crate) top_logprobs: Vec<BTreeMap<String, f32>>,
    /// Where each token starts in the choice's text, in characters.
    pub(crate) text_offset: Vec<usize>,
}
