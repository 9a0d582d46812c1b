//! Answers that must be calls: what the model has to write, in the syntax of its family.
//!
//! White space, keys and their order are those of the families' own templates, as far as there is a
//! choice; arguments follow their tool's schema. What is written here is read by the parser of the
//! same format. Gemma, Qwen3-Coder and models that write Python get JSON, which their parsers read
//! too, since no schema describes Python or values without quotes.

use crate::output_rule::OutputRule;
use crate::wire::tools::{CallLimit, CallSignature, Tools};
use mini_infer_grammar::OutputShape;
use mini_infer_text::{OutputFormat, ReasoningStart, ToolFormat};

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
        Some(end) => sequence([text("\n"), marker(end), text("\n\n"), calls]),
        None => calls,
    };
    Some(OutputRule::calls(shape, &tools.required))
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
