//! Calls as a grammar: what the model has to write, in the syntax of its family.
//!
//! White space, keys and their order are those of the families' own templates, as far as there is a
//! choice; arguments follow their tool's schema where the answer must be calls. What is written here
//! is read by the parser of the same format. Gemma, Qwen3-Coder and models that write Python get JSON,
//! which their parsers read too, since no schema describes Python or values without quotes.

use crate::output_rule::OutputRule;
use crate::wire::tools::{CallLimit, CallSignature, Tools};
use mini_infer_grammar::OutputShape;
use mini_infer_text::{OutputFormat, OutputHead, OutputParser, ReasoningStart, ToolFormat};
use serde_json::json;

/// Returns the rule that an answer must be calls, `None` where it need not be or cannot.
///
/// The rule holds from the first token on, so nothing is reasoned; reasoning that the prompt has
/// begun is ended first.
pub(crate) fn rule(
    tools: &Tools,
    format: &OutputFormat,
    reasoning: ReasoningStart,
) -> Option<OutputRule> {
    if tools.required.is_empty() {
        return None;
    }
    let calls = calls(&tools.required, tools.call_limit, format)?;
    let shape = match format.pending_end(reasoning) {
        Some(end) => sequence([text("\n"), marker(end), text(OutputParser::GAP), calls]),
        None => calls,
    };
    Some(OutputRule::shape(shape, &tools.required))
}

/// Returns calls of any of the tools with any object as arguments, `None` for a model of which it is
/// not known how it writes calls.
pub(crate) fn free_calls(tools: &Tools, format: &OutputFormat) -> Option<OutputShape> {
    let signature = |name: &String| CallSignature {
        name: name.clone(),
        schema: json!({"type": "object"}),
        param: "tools".to_owned(),
    };
    let signatures: Vec<CallSignature> = tools.names.iter().map(signature).collect();
    calls(&signatures, tools.call_limit, format)
}

/// Returns what outputs of a shape begin with: a marker that is a control token, or all text up to
/// one or to JSON.
pub(crate) fn heads(shape: &OutputShape, format: &OutputFormat) -> Vec<OutputHead> {
    let mut heads = Vec::new();
    let whole = extend(shape, format, vec![String::new()], &mut heads);
    heads.extend(whole.into_iter().map(OutputHead::Text));
    let mut seen = Vec::with_capacity(heads.len());
    heads.retain(|head| {
        !seen.contains(head) && {
            seen.push(head.clone());
            true
        }
    });
    heads
}

/// Adds what a shape begins with to each of `texts`, and returns those to which more may be added; the
/// others are `heads`.
fn extend(
    shape: &OutputShape,
    format: &OutputFormat,
    texts: Vec<String>,
    heads: &mut Vec<OutputHead>,
) -> Vec<String> {
    match shape {
        OutputShape::Marker(marker) if format.marker_token(marker).is_some() => {
            let token = format.marker_token(marker).map(OutputHead::Token);
            heads.extend(texts.into_iter().filter_map(|text| match text.as_str() {
                "" => token.clone(),
                _ => Some(OutputHead::Text(text)),
            }));
            Vec::new()
        }
        OutputShape::Text(end) | OutputShape::Marker(end) => {
            texts.into_iter().map(|text| text + end).collect()
        }
        OutputShape::Json(_) | OutputShape::TextThrough(_) => {
            heads.extend(texts.into_iter().map(OutputHead::Text));
            Vec::new()
        }
        OutputShape::Sequence(parts) => {
            parts.iter().fold(texts, |texts, part| extend(part, format, texts, heads))
        }
        OutputShape::OneOf(parts) => {
            let each = |part| extend(part, format, texts.clone(), heads);
            parts.iter().flat_map(each).collect()
        }
        OutputShape::List { item, .. } => {
            let whole = extend(item, format, texts, heads);
            heads.extend(whole.into_iter().map(OutputHead::Text));
            Vec::new()
        }
    }
}

fn calls(
    signatures: &[CallSignature],
    limit: CallLimit,
    format: &OutputFormat,
) -> Option<OutputShape> {
    let object = |key| one_of(signatures, |signature| object(signature, key));
    let repeated = |item: OutputShape, separator: &str| match limit {
        CallLimit::One => item,
        CallLimit::None => {
            OutputShape::List { item: Box::new(item), separator: Box::new(text(separator)) }
        }
    };
    let shape = match format.tools()? {
        ToolFormat::Hermes | ToolFormat::Qwen3Coder => {
            let (start, end) = (marker("<tool_call>"), marker("</tool_call>"));
            let call = [start, text("\n"), object("arguments"), text("\n"), end];
            repeated(sequence(call), "\n")
        }
        ToolFormat::Llama3Json => repeated(object("parameters"), "; "),
        ToolFormat::Mistral if format.has_arguments_token() => {
            let call = one_of(signatures, |signature| {
                let CallSignature { name, schema, .. } = signature;
                let arguments = OutputShape::Json(schema.clone());
                sequence([marker("[TOOL_CALLS]"), text(name), marker("[ARGS]"), arguments])
            });
            repeated(call, "")
        }
        ToolFormat::Mistral => {
            let bracket = OutputShape::OneOf(vec![text("["), text(" [")]);
            let items = repeated(object("arguments"), ", ");
            sequence([marker("[TOOL_CALLS]"), bracket, items, text("]")])
        }
        ToolFormat::Gemma => {
            let call = [text("```json\n"), object("arguments"), text("\n```")];
            repeated(sequence(call), "\n")
        }
        ToolFormat::Json | ToolFormat::Pythonic => repeated(object("arguments"), "\n"),
    };
    Some(shape)
}

/// Returns a call as an object whose arguments are under `key`. Names need no escapes.
fn object(signature: &CallSignature, key: &str) -> OutputShape {
    let CallSignature { name, schema, .. } = signature;
    let head = format!("{{\"name\": \"{name}\", \"{key}\": ");
    sequence([text(&head), OutputShape::Json(schema.clone()), text("}")])
}

fn one_of(
    signatures: &[CallSignature],
    call: impl Fn(&CallSignature) -> OutputShape,
) -> OutputShape {
    OutputShape::OneOf(signatures.iter().map(call).collect())
}

fn sequence<const N: usize>(parts: [OutputShape; N]) -> OutputShape {
    OutputShape::Sequence(parts.into())
}

fn text(text: &str) -> OutputShape {
    OutputShape::Text(text.to_owned())
}

fn marker(text: &str) -> OutputShape {
    OutputShape::Marker(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use mini_infer_text::{GgufVocabulary, Tokenizer};

    /// Returns the heads of calls of `f` and `g`, with these control tokens.
    fn call_heads(tools: ToolFormat, control: &[&str]) -> Vec<OutputHead> {
        let mut tokens = vec!["a".to_owned()];
        tokens.extend(control.iter().map(|token| (*token).to_owned()));
        let token_types = tokens.iter().map(|token| if token == "a" { 1 } else { 3 }).collect();
        let (model, pre) = ("gpt2".to_owned(), Some("gpt-2".to_owned()));
        let vocabulary = GgufVocabulary { model, pre, tokens, token_types, ..Default::default() };
        let tokenizer = Tokenizer::from_gguf(vocabulary).unwrap();
        let format = OutputFormat::new(Some(tools), None, &tokenizer);
        let names = vec!["f".to_owned(), "g".to_owned()];
        let tools = Tools { names, ..Tools::default() };
        heads(&free_calls(&tools, &format).unwrap(), &format)
    }

    #[test]
    fn calls_begin_with_a_control_token_or_with_all_that_is_fixed() {
        let texts = |start: &str, key: &str| {
            let text = |name| format!("{start}{{\"name\": \"{name}\", \"{key}\": ");
            ["f", "g"].map(|name| OutputHead::Text(text(name)))
        };
        assert_eq!(call_heads(ToolFormat::Hermes, &["<tool_call>"]), [OutputHead::Token(1)]);
        assert_eq!(call_heads(ToolFormat::Hermes, &[]), texts("<tool_call>\n", "arguments"));
        assert_eq!(call_heads(ToolFormat::Llama3Json, &[]), texts("", "parameters"));
        assert_eq!(call_heads(ToolFormat::Gemma, &[]), texts("```json\n", "arguments"));
        let named = call_heads(ToolFormat::Mistral, &["[ARGS]"]);
        assert_eq!(named, ["f", "g"].map(|name| OutputHead::Text(format!("[TOOL_CALLS]{name}"))));
        assert_eq!(call_heads(ToolFormat::Mistral, &[]).len(), 4, "with a space and without");
    }
}
