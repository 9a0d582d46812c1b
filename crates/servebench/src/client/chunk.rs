//! One chunk of a streamed answer, as the engines write it.
//!
//! Strings borrow from the bytes that arrived unless they hold escapes. Fields that are not needed
//! are skipped, and `null` stands for an absent one everywhere.

use serde::Deserialize;
use serde_json::Value;
use std::borrow::Cow;

/// A chunk.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Chunk<'a> {
    #[serde(borrow)]
    choices: Option<Vec<Choice<'a>>>,
    /// Numbers of tokens, in the last chunk or in all.
    pub(super) usage: Option<Usage>,
    /// Why the server gave up.
    pub(super) error: Option<Value>,
    /// llama.cpp's durations.
    timings: Option<Timings>,
    /// Ollama's, in nanoseconds.
    prompt_eval_duration: Option<f64>,
    eval_duration: Option<f64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Choice<'a> {
    #[serde(borrow)]
    delta: Option<Delta<'a>>,
    #[serde(borrow)]
    text: Option<Text<'a>>,
    #[serde(borrow)]
    finish_reason: Option<Text<'a>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Delta<'a> {
    #[serde(borrow)]
    content: Option<Text<'a>>,
    /// vLLM, SGLang, DeepSeek, llama.cpp.
    #[serde(borrow)]
    reasoning_content: Option<Text<'a>>,
    /// Later vLLM, Ollama, OpenRouter.
    #[serde(borrow)]
    reasoning: Option<Text<'a>>,
}

/// A string that borrows where it can; serde only borrows a `Cow` that is a field itself.
#[derive(Debug, Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

/// Numbers of tokens.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Usage {
    prompt_tokens: Option<f64>,
    completion_tokens: Option<f64>,
    prompt_tokens_details: Option<PromptTokensDetails>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
struct PromptTokensDetails {
    cached_tokens: Option<f64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Timings {
    prompt_ms: Option<f64>,
    predicted_ms: Option<f64>,
}

/// What a piece of text is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PieceKind {
    /// What the user reads.
    Answer,
    /// What the model thinks before.
    Reasoning,
}

const NANOSECONDS_PER_MS: f64 = 1e6;

impl Chunk<'_> {
    /// Returns the text of the chunk, if it has any.
    pub(super) fn piece(&self) -> Option<(&str, PieceKind)> {
        self.choices.iter().flatten().find_map(|choice| {
            let delta = choice.delta.as_ref();
            let candidates = [
                (choice.text.as_ref(), PieceKind::Answer),
                (delta.and_then(|delta| delta.content.as_ref()), PieceKind::Answer),
                (delta.and_then(|delta| delta.reasoning_content.as_ref()), PieceKind::Reasoning),
                (delta.and_then(|delta| delta.reasoning.as_ref()), PieceKind::Reasoning),
            ];
            candidates.into_iter().find_map(|(text, kind)| {
                text.map(|text| text.0.as_ref())
                    .filter(|text| !text.is_empty())
                    .map(|text| (text, kind))
            })
        })
    }

    /// Returns why the output ended, if it has.
    pub(super) fn finish_reason(&self) -> Option<&str> {
        let reasons = self.choices.iter().flatten().filter_map(|c| c.finish_reason.as_ref());
        reasons.map(|reason| reason.0.as_ref()).find(|reason| !reason.is_empty())
    }

    /// Returns what the server says it took for the prompt, in milliseconds.
    pub(super) fn server_prefill_ms(&self) -> Option<f64> {
        let timings = self.timings.as_ref().and_then(|timings| timings.prompt_ms);
        timings.or(self.prompt_eval_duration.map(|nanoseconds| nanoseconds / NANOSECONDS_PER_MS))
    }

    /// Returns what the server says it took for the output, in milliseconds.
    pub(super) fn server_decode_ms(&self) -> Option<f64> {
        let timings = self.timings.as_ref().and_then(|timings| timings.predicted_ms);
        timings.or(self.eval_duration.map(|nanoseconds| nanoseconds / NANOSECONDS_PER_MS))
    }
}

impl Usage {
    /// Returns the number of tokens of the prompt.
    pub(super) fn prompt_tokens(&self) -> Option<u64> {
        self.prompt_tokens.and_then(to_count)
    }

    /// Returns the number of tokens of the output; a server that tells none does not know it.
    pub(super) fn output_tokens(&self) -> Option<u64> {
        self.completion_tokens.and_then(to_count).filter(|count| *count > 0)
    }

    /// Returns the number of prompt tokens that came from the server's cache.
    pub(super) fn cached_tokens(&self) -> Option<u64> {
        self.prompt_tokens_details?.cached_tokens.and_then(to_count)
    }
}

/// Returns a number of tokens, unless it is none.
fn to_count(number: f64) -> Option<u64> {
    const MAX: f64 = 1e15;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the range is checked before"
    )]
    (0.0..=MAX).contains(&number).then_some(number as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(json: &str) -> Chunk<'_> {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn text_is_found_where_each_api_puts_it() {
        for (json, expected) in [
            (
                r#"{"choices":[{"delta":{"content":"a\n\u00e9"}}]}"#,
                Some(("a\né", PieceKind::Answer)),
            ),
            (r#"{"choices":[{"text":"b"}]}"#, Some(("b", PieceKind::Answer))),
            (
                r#"{"choices":[{"delta":{"content":"","reasoning_content":"c"}}]}"#,
                Some(("c", PieceKind::Reasoning)),
            ),
            (r#"{"choices":[{"delta":{"reasoning":"d"}}]}"#, Some(("d", PieceKind::Reasoning))),
            (r#"{"choices":[{"delta":{"role":"assistant","content":null}}]}"#, None),
            (r#"{"choices":[{"delta":null,"finish_reason":null}],"usage":null}"#, None),
            (r#"{"choices":[]}"#, None),
            (r#"{"choices":null}"#, None),
        ] {
            assert_eq!(parse(json).piece(), expected, "{json}");
        }
    }

    #[test]
    fn plain_strings_are_not_copied() {
        let chunk = parse(r#"{"choices":[{"delta":{"content":"word"}}]}"#);
        let text = &chunk.choices.as_ref().unwrap()[0].delta.as_ref().unwrap().content;
        assert!(matches!(text, Some(Text(Cow::Borrowed("word")))));
    }

    #[test]
    fn usage_counts_tokens_and_ignores_what_cannot_be_a_count() {
        let usage = parse(
            r#"{"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":3,"total_tokens":10,
                "prompt_tokens_details":{"cached_tokens":4}}}"#,
        );
        let usage = usage.usage.unwrap();
        assert_eq!(usage.prompt_tokens(), Some(7));
        assert_eq!(usage.output_tokens(), Some(3));
        assert_eq!(usage.cached_tokens(), Some(4));
        let odd = parse(r#"{"usage":{"prompt_tokens":-1,"completion_tokens":0}}"#).usage.unwrap();
        assert_eq!((odd.prompt_tokens(), odd.output_tokens()), (None, None));
    }

    #[test]
    fn durations_of_llama_cpp_and_ollama_are_in_milliseconds() {
        let llama_cpp = parse(r#"{"timings":{"prompt_ms":12.5,"predicted_ms":90}}"#);
        assert_eq!(llama_cpp.server_prefill_ms(), Some(12.5));
        assert_eq!(llama_cpp.server_decode_ms(), Some(90.0));
        let ollama = parse(r#"{"prompt_eval_duration":2500000,"eval_duration":7000000}"#);
        assert_eq!(ollama.server_prefill_ms(), Some(2.5));
        assert_eq!(ollama.server_decode_ms(), Some(7.0));
    }
}
