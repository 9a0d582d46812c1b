//! Turns wire fields into validated values; every refusal names its field.
//!
//! Ranges of sampling parameters live in [`SamplingParams::validate`]; here are the rules that
//! only the API has: defaults, synonyms, limits of lists, and the context length.

use crate::wire::chat::{ChatContent, ChatMessage};
use crate::wire::error::ApiError;
use crate::wire::field_rules;
use crate::wire::shared::{SamplingFields, StopField, StreamOptions};
use crate::wire::tools;
use mini_infer_core::{ParamError, SamplingParams, TokenId};
use serde_json::{Map, Value};
use std::cmp::Ordering;

/// Most stop strings of one request; OpenAI takes 4, other servers more.
pub(crate) const MAX_STOP_STRINGS: usize = 16;
/// Most prompts in one text completion request.
pub(crate) const MAX_PROMPTS: usize = 128;
/// Most inputs in one embedding request, OpenAI's limit.
pub(crate) const MAX_INPUTS: usize = 2048;
/// OpenAI's default output length of text completions, in tokens.
pub(crate) const DEFAULT_COMPLETION_TOKENS: u32 = 16;

/// Roles that are handed to the chat template.
pub(crate) const ROLES: [&str; 5] = ["system", "developer", "user", "assistant", "tool"];

/// What a request's stream shall carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Delivery {
    /// One response when all is done.
    Whole,
    /// Chunks as they come, `usage` only if asked for.
    Stream(StreamUsage),
}

/// Whether a stream ends with a usage chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamUsage {
    /// One more chunk with the usage comes before the end.
    Included,
    /// No chunk has a usage.
    Absent,
}

/// Reads `stream` and `stream_options`.
///
/// # Errors
/// Refuses options without a stream and unknown options.
pub(crate) fn delivery(
    stream: Option<bool>,
    options: Option<StreamOptions>,
) -> Result<Delivery, ApiError> {
    let is_stream = stream.unwrap_or(false);
    let Some(options) = options else {
        let stream = Delivery::Stream(StreamUsage::Absent);
        return Ok(if is_stream { stream } else { Delivery::Whole });
    };
    if !is_stream {
        return Err(ApiError::invalid("stream_options", "needs `stream` to be true"));
    }
    field_rules::check("stream_options.", &options.extra, field_rules::STREAM_OPTIONS)?;
    Ok(Delivery::Stream(if options.include_usage.unwrap_or(false) {
        StreamUsage::Included
    } else {
        StreamUsage::Absent
    }))
}

/// Returns the output limit that the client set: the smaller one where both names are given.
///
/// # Errors
/// Refuses a limit of 0, naming the field that holds it.
pub(crate) fn max_tokens(
    max_tokens: Option<u32>,
    max_completion_tokens: Option<u32>,
) -> Result<Option<u32>, ApiError> {
    let fields = [("max_tokens", max_tokens), ("max_completion_tokens", max_completion_tokens)];
    if let Some((field, _)) = fields.iter().find(|(_, limit)| *limit == Some(0)) {
        return Err(ApiError::invalid(*field, "must be at least 1"));
    }
    Ok(fields.iter().filter_map(|(_, limit)| *limit).min())
}

/// Returns the output limit of a request whose longest prompt has `num_prompt_tokens`: what the
/// client asked for, else the smaller of `default` and the rest of the context.
///
/// # Errors
/// Refuses what does not fit into `max_model_len` tokens; nothing is ever cut.
pub(crate) fn fit_context(
    param: &'static str,
    num_prompt_tokens: usize,
    requested: Option<u32>,
    default: Option<u32>,
    max_model_len: u32,
) -> Result<u32, ApiError> {
    let rest = u32::try_from(num_prompt_tokens)
        .ok()
        .and_then(|num_prompt_tokens| max_model_len.checked_sub(num_prompt_tokens));
    match (rest, requested) {
        (Some(rest), Some(requested)) if requested <= rest => Ok(requested),
        (Some(rest), None) if rest > 0 => Ok(default.unwrap_or(rest).min(rest)),
        (Some(_) | None, _) => Err(ApiError::ContextLengthExceeded {
            param,
            limit: max_model_len,
            num_prompt_tokens,
            max_tokens: requested,
        }),
    }
}

/// What a request needs besides its sampling fields.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SamplingContext<'a> {
    /// Output limit.
    pub(crate) max_tokens: u32,
    /// Number of alternatives to report, `None` for no log probabilities.
    pub(crate) logprobs: Option<u32>,
    /// The field that `logprobs` came from.
    pub(crate) logprobs_field: &'static str,
    /// Seed to use when the request has none.
    pub(crate) fallback_seed: u64,
    /// Tokens that end the output, unless the request ignores them.
    pub(crate) stop_token_ids: &'a [TokenId],
}

/// Builds sampling parameters; OpenAI's defaults where a field is absent.
///
/// # Errors
/// Refuses the first field that is out of its range.
pub(crate) fn sampling_params(
    fields: &SamplingFields,
    context: SamplingContext<'_>,
) -> Result<SamplingParams, ApiError> {
    let ignores_eos = fields.ignore_eos.unwrap_or(false);
    let params = SamplingParams {
        n: fields.n.unwrap_or(1),
        temperature: narrow(fields.temperature.unwrap_or(1.0)),
        top_p: narrow(fields.top_p.unwrap_or(1.0)),
        top_k: top_k(fields.top_k)?,
        min_p: narrow(fields.min_p.unwrap_or(0.0)),
        seed: fields.seed.map_or(context.fallback_seed, i64::cast_unsigned),
        max_tokens: context.max_tokens,
        stop_token_ids: if ignores_eos { Vec::new() } else { context.stop_token_ids.to_vec() },
        logprobs: context.logprobs,
        ..SamplingParams::greedy(context.max_tokens)
    };
    params.validate().map_err(|error| param_error(&error, context.logprobs_field))?;
    Ok(params)
}

/// Checks sampling parameters that have changed.
///
/// # Errors
/// Refuses the first field that is out of its range.
pub(crate) fn check_again(params: &SamplingParams) -> Result<(), ApiError> {
    params.validate().map_err(|error| param_error(&error, "logprobs"))
}

/// Names the field of a sampling parameter as the request spelled it.
pub(crate) fn param_error(error: &ParamError, logprobs_field: &'static str) -> ApiError {
    let param = if error.field == "logprobs" { logprobs_field } else { error.field };
    ApiError::invalid(param, format!("must be {}, got {}", error.expected, error.got))
}

/// Reads `top_k`: 0 and -1 keep all tokens, as an absent field does.
fn top_k(field: Option<i64>) -> Result<Option<u32>, ApiError> {
    match field {
        None | Some(-1 | 0) => Ok(None),
        Some(k) => u32::try_from(k).map(Some).map_err(|_| {
            ApiError::invalid("top_k", format!("must be -1, 0 or a number of tokens, got {k}"))
        }),
    }
}

/// Returns the nearest `f32`, infinite where there is none. Ranges end at whole numbers, and what lies
/// beside one stays on its side, so that no number out of range is rounded into it.
#[expect(
    clippy::cast_possible_truncation,
    reason = "rounds to the nearest f32; what overflows becomes infinite and fails validation"
)]
pub(crate) fn narrow(value: f64) -> f32 {
    let nearest = value as f32;
    match f64::from(nearest).total_cmp(&value) {
        Ordering::Less if nearest.fract() == 0.0 => nearest.next_up(),
        Ordering::Greater if nearest.fract() == 0.0 => nearest.next_down(),
        Ordering::Less | Ordering::Equal | Ordering::Greater => nearest,
    }
}

/// Reads `logprobs` and `top_logprobs` of a chat request.
///
/// # Errors
/// Refuses `top_logprobs` without `logprobs`, as OpenAI does.
pub(crate) fn chat_logprobs(
    logprobs: Option<bool>,
    top_logprobs: Option<u32>,
) -> Result<Option<u32>, ApiError> {
    match (logprobs.unwrap_or(false), top_logprobs) {
        (true, count) => Ok(Some(count.unwrap_or(0))),
        (false, None | Some(0)) => Ok(None),
        (false, Some(_)) => Err(ApiError::invalid("top_logprobs", "needs `logprobs` to be true")),
    }
}

/// Reads `stop`.
///
/// # Errors
/// Refuses empty strings and too many of them.
pub(crate) fn stop_strings(field: Option<StopField>) -> Result<Vec<String>, ApiError> {
    let strings = match field {
        None => Vec::new(),
        Some(StopField::One(string)) => vec![string],
        Some(StopField::Many(strings)) => strings,
    };
    if strings.len() > MAX_STOP_STRINGS {
        let message = format!("takes at most {MAX_STOP_STRINGS} strings, got {}", strings.len());
        return Err(ApiError::invalid("stop", message));
    }
    if strings.iter().any(String::is_empty) {
        return Err(ApiError::invalid("stop", "must not hold an empty string"));
    }
    Ok(strings)
}

/// One prompt of a text completion.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Prompt {
    /// Text to tokenize.
    Text(String),
    /// Tokens to use as they are.
    Tokens(Vec<TokenId>),
}

/// Reads `prompt`: a string, a list of strings, a list of token ids, or a list of such lists.
///
/// # Errors
/// Refuses empty prompts, ids outside the vocabulary, mixed lists and other types.
pub(crate) fn prompts(field: Option<Value>, vocab_size: usize) -> Result<Vec<Prompt>, ApiError> {
    read_prompts(field, PromptField { param: "prompt", most: MAX_PROMPTS, vocab_size })
}

/// Reads `input`, which has the forms of `prompt`.
///
/// # Errors
/// Refuses what [`prompts`] does.
pub(crate) fn inputs(field: Option<Value>, vocab_size: usize) -> Result<Vec<Prompt>, ApiError> {
    read_prompts(field, PromptField { param: "input", most: MAX_INPUTS, vocab_size })
}

/// A field that holds prompts.
#[derive(Clone, Copy)]
struct PromptField {
    /// Its name.
    param: &'static str,
    /// Most prompts that it may hold.
    most: usize,
    vocab_size: usize,
}

fn read_prompts(value: Option<Value>, field: PromptField) -> Result<Vec<Prompt>, ApiError> {
    let PromptField { param, most, vocab_size } = field;
    let items = match value {
        None | Some(Value::Null) => return Err(ApiError::invalid(param, "is required")),
        Some(Value::Array(items)) => items,
        Some(single) => return Ok(vec![prompt(single, param, vocab_size)?]),
    };
    if items.first().is_some_and(Value::is_number) {
        return Ok(vec![prompt(Value::Array(items), param, vocab_size)?]);
    }
    if items.is_empty() || items.len() > most {
        let message = format!("must hold 1 to {most} of them, got {}", items.len());
        return Err(ApiError::invalid(param, message));
    }
    let numbered = items.into_iter().enumerate();
    numbered.map(|(i, item)| prompt(item, &format!("{param}[{i}]"), vocab_size)).collect()
}

fn prompt(item: Value, param: &str, vocab_size: usize) -> Result<Prompt, ApiError> {
    match item {
        Value::String(text) if text.is_empty() => {
            Err(ApiError::invalid(param, "must not be empty"))
        }
        Value::String(text) => Ok(Prompt::Text(text)),
        Value::Array(ids) if ids.is_empty() => Err(ApiError::invalid(param, "must not be empty")),
        Value::Array(ids) => {
            let ids = ids.iter().map(|id| token_id(id, param, vocab_size));
            Ok(Prompt::Tokens(ids.collect::<Result<_, _>>()?))
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => {
            Err(ApiError::invalid(param, "must be a string or a list of token ids"))
        }
    }
}

/// Reads one token id of a model with `vocab_size` logits.
///
/// # Errors
/// Refuses what is none, naming `param`.
pub(crate) fn token_id(value: &Value, param: &str, vocab_size: usize) -> Result<TokenId, ApiError> {
    let id = value.as_u64().and_then(|id| TokenId::try_from(id).ok());
    id.filter(|&id| (id as usize) < vocab_size).ok_or_else(|| {
        let message = format!("token ids are whole numbers below {vocab_size}, got {value}");
        ApiError::invalid(param, message)
    })
}

/// Fields of a message that reach the chat template as they are.
const TEMPLATE_FIELDS: [&str; 5] =
    ["name", "tool_call_id", "tool_calls", "reasoning_content", "refusal"];

/// Reads `messages` as what chat templates expect: objects with `role`, `content` as one text,
/// and what else templates look at.
///
/// # Errors
/// Refuses an empty conversation, unknown roles, parts that are not text, and fields that would
/// not reach the model.
pub(crate) fn messages(field: Option<Vec<ChatMessage>>) -> Result<Vec<Value>, ApiError> {
    let messages = field.unwrap_or_default();
    if messages.is_empty() {
        return Err(ApiError::invalid("messages", "must hold at least one message"));
    }
    let numbered = messages.into_iter().enumerate();
    numbered.map(|(i, message)| text_message(message, &format!("messages[{i}]"))).collect()
}

fn text_message(mut message: ChatMessage, param: &str) -> Result<Value, ApiError> {
    if !ROLES.contains(&message.role.as_str()) {
        let text = format!("role `{}` is not supported; use one of {ROLES:?}", message.role);
        return Err(ApiError::invalid(format!("{param}.role"), text));
    }
    field_rules::check(&format!("{param}."), &message.extra, field_rules::MESSAGE)?;
    tools::prepare_message(&message.role, &mut message.extra, param)?;
    let content = match message.content.take() {
        None if message.role == "assistant" => String::new(),
        None => return Err(ApiError::invalid(format!("{param}.content"), "is required")),
        Some(ChatContent::Text(text)) => text,
        Some(ChatContent::Parts(parts)) => {
            let mut text = String::new();
            for (k, part) in parts.into_iter().enumerate() {
                match (part.kind.as_str(), part.text) {
                    ("text", Some(part)) => text.push_str(&part),
                    (kind, _) => {
                        let message = format!("only parts of type `text` are served, got `{kind}`");
                        return Err(ApiError::invalid(format!("{param}.content[{k}]"), message));
                    }
                }
            }
            text
        }
    };
    let mut object = Map::new();
    object.insert("role".to_owned(), Value::String(message.role));
    object.insert("content".to_owned(), Value::String(content));
    for field in TEMPLATE_FIELDS {
        if let Some(value) = message.extra.remove(field) {
            object.insert(field.to_owned(), value);
        }
    }
    Ok(Value::Object(object))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn param<T: std::fmt::Debug>(result: Result<T, ApiError>) -> String {
        match result {
            Err(
                ApiError::InvalidField { param, .. }
                | ApiError::UnknownField { param }
                | ApiError::UnsupportedField { param },
            ) => param,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_lies_just_outside_a_range_is_not_rounded_into_it() {
        for (value, expected) in [(0.7, 0.7), (2.0, 2.0), (-0.0, 0.0)] {
            assert_eq!(narrow(value), expected);
        }
        assert!(narrow(2.0f64.next_up()) > 2.0 && narrow(2.0f64.next_down()) < 2.0);
        assert!(narrow(-1e-60) < 0.0 && narrow(1e-60) > 0.0);
        assert_eq!(narrow(-1e39), f32::NEG_INFINITY);
    }

    #[test]
    fn prompts_come_in_four_forms() {
        let read = |value| prompts(Some(value), 100).unwrap();
        assert_eq!(read(json!("hi")), [Prompt::Text("hi".to_owned())]);
        assert_eq!(read(json!(["a", "b"])).len(), 2);
        assert_eq!(read(json!([1, 99])), [Prompt::Tokens(vec![1, 99])]);
        assert_eq!(read(json!([[1], [2, 3]])).len(), 2);
    }

    #[test]
    fn prompts_that_no_model_can_read_are_refused() {
        let refused = |value| param(prompts(Some(value), 100));
        let whole =
            [json!(""), json!([]), json!(5), json!({}), json!([100]), json!([-1]), json!([0.5])];
        for value in whole {
            assert_eq!(refused(value), "prompt");
        }
        assert_eq!(refused(json!([u64::MAX])), "prompt");
        assert_eq!(refused(json!(["a", ""])), "prompt[1]");
        assert_eq!(refused(json!(["a", 5])), "prompt[1]");
        assert_eq!(refused(json!([[]])), "prompt[0]");
        assert_eq!(param(prompts(None, 100)), "prompt");
    }

    #[test]
    fn what_does_not_fit_the_context_is_refused_and_never_cut() {
        let fit =
            |prompt, requested, default| fit_context("prompt", prompt, requested, default, 32);
        assert_eq!(fit(30, Some(2), None), Ok(2));
        assert_eq!(fit(30, None, None), Ok(2));
        assert_eq!(fit(30, None, Some(16)), Ok(2));
        assert_eq!(fit(3, None, Some(16)), Ok(16));
        assert_eq!(fit(32, Some(0), None), Ok(0), "no output needs no room");
        assert!(fit(33, Some(0), None).is_err());
        for (prompt, requested) in [(30, Some(3)), (32, None), (33, None), (1, Some(u32::MAX))] {
            assert!(fit(prompt, requested, None).is_err(), "{prompt} {requested:?}");
        }
    }

    #[test]
    fn the_smaller_of_both_output_limits_counts() {
        assert_eq!(max_tokens(Some(5), Some(3)), Ok(Some(3)));
        assert_eq!(max_tokens(None, Some(3)), Ok(Some(3)));
        assert_eq!(max_tokens(None, None), Ok(None));
        assert_eq!(param(max_tokens(Some(0), None)), "max_tokens");
        assert_eq!(param(max_tokens(Some(1), Some(0))), "max_completion_tokens");
    }

    #[test]
    fn messages_keep_their_text_and_name_what_is_wrong() {
        let read = |value| messages(Some(serde_json::from_value(value).unwrap()));
        let parts = json!([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]);
        let ok = read(json!([{"role": "user", "content": parts, "name": "me"}])).unwrap();
        assert_eq!(ok, [json!({"role": "user", "content": "ab", "name": "me"})]);
        assert_eq!(param(read(json!([]))), "messages");
        assert_eq!(param(read(json!([{"role": "robot", "content": ""}]))), "messages[0].role");
        assert_eq!(param(read(json!([{"role": "user"}]))), "messages[0].content");
        let image = json!([{"type": "image_url", "image_url": {"url": "x"}}]);
        assert_eq!(
            param(read(json!([{"role": "user", "content": image}]))),
            "messages[0].content[0]"
        );
        let call = json!([{"id": "1"}]);
        assert_eq!(
            param(read(json!([{"role": "assistant", "content": null, "tool_calls": call}]))),
            "messages[0].tool_calls[0].function"
        );
    }

    #[test]
    fn options_without_a_stream_are_refused() {
        let options = || Some(serde_json::from_value(json!({"include_usage": true})).unwrap());
        assert_eq!(param(delivery(None, options())), "stream_options");
        assert_eq!(delivery(Some(true), options()), Ok(Delivery::Stream(StreamUsage::Included)));
        assert_eq!(delivery(Some(true), None), Ok(Delivery::Stream(StreamUsage::Absent)));
        assert_eq!(delivery(Some(false), None), Ok(Delivery::Whole));
    }
}
