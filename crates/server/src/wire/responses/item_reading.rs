//! Reads items out of a body.
//!
//! What an item leaves out is filled in: a message may be a role and a text. Members that no
//! template reads are dropped: `status`, `phase`, annotations and log probabilities of texts,
//! summaries and encrypted forms of reasoning. Other members are refused.

use super::item::{
    CallItem, CallOutputItem, Item, ItemIds, ItemRole, ItemStatus, MessageItem, Part, ReasoningItem,
};
use crate::wire::anthropic::members::Members;
use crate::wire::error::ApiError;
use serde_json::{Value, json};
use std::sync::Arc;

/// Reads `input`: a text of the user, or a list of items.
///
/// # Errors
/// Refuses its absence, other forms, and what would not reach the model, naming its place.
pub(crate) fn read_input(
    input: Option<Value>,
    ids: &mut ItemIds,
) -> Result<Vec<Arc<Item>>, ApiError> {
    let items = match input {
        Some(text @ Value::String(_)) => {
            return Ok(vec![Arc::new(read_item(
                json!({"role": "user", "content": text}),
                "input",
                ids,
            )?)]);
        }
        Some(Value::Array(items)) => items,
        None | Some(Value::Null) => return Err(ApiError::invalid("input", "is required")),
        Some(Value::Bool(_) | Value::Number(_) | Value::Object(_)) => {
            return Err(ApiError::invalid("input", "must be a string or a list of items"));
        }
    };
    let numbered = items.into_iter().enumerate();
    numbered.map(|(i, item)| read_item(item, &format!("input[{i}]"), ids).map(Arc::new)).collect()
}

fn read_item(value: Value, path: &str, ids: &mut ItemIds) -> Result<Item, ApiError> {
    let mut members = Members::new(path, value)?;
    let kind = match members.take("type") {
        None => "message".to_owned(),
        Some(Value::String(kind)) => kind,
        Some(_) => return Err(members.invalid("type", "must be a string")),
    };
    members.ignore(&["status"]);
    let item = match kind.as_str() {
        "message" => Item::Message(message(&mut members, ids)?),
        "reasoning" => Item::Reasoning(reasoning(&mut members, ids)?),
        "function_call" => Item::FunctionCall(call(&mut members, ids)?),
        "function_call_output" => Item::FunctionCallOutput(call_output(&mut members, ids)?),
        _ => {
            let message = format!(
                "only items of the types `message`, `function_call`, `function_call_output` and \
                 `reasoning` are served here, got `{kind}`"
            );
            return Err(members.invalid("type", &message));
        }
    };
    members.finish()?;
    Ok(item)
}

fn message(members: &mut Members, ids: &mut ItemIds) -> Result<MessageItem, ApiError> {
    let role = match members.text("role")?.as_str() {
        "user" => ItemRole::User,
        "system" => ItemRole::System,
        "developer" => ItemRole::Developer,
        "assistant" => ItemRole::Assistant,
        _ => {
            let message = "must be \"user\", \"system\", \"developer\" or \"assistant\"";
            return Err(members.invalid("role", message));
        }
    };
    members.ignore(&["phase"]);
    let id = id(members, ids, "msg")?;
    let content = members.take("content").unwrap_or_default();
    let content = parts(content, role, &members.path_to("content"))?;
    Ok(MessageItem { id, status: ItemStatus::Completed, role, content })
}

/// Reads what was said: texts of both kinds are as good from everybody.
fn parts(content: Value, role: ItemRole, path: &str) -> Result<Vec<Part>, ApiError> {
    let text_part = |text| match role {
        ItemRole::Assistant => Part::output(text),
        ItemRole::User | ItemRole::System | ItemRole::Developer => Part::InputText { text },
    };
    let read = |mut part: Members| {
        let kind = part.text("type")?;
        let read = match kind.as_str() {
            "input_text" | "output_text" => {
                part.ignore(&["annotations", "logprobs", "prompt_cache_breakpoint"]);
                text_part(part.text("text")?)
            }
            "refusal" if role == ItemRole::Assistant => {
                Part::Refusal { refusal: part.text("refusal")? }
            }
            _ => return Err(other_part(&part, &kind, "`input_text` and `output_text`")),
        };
        part.finish()?;
        Ok(read)
    };
    if let Value::String(text) = content {
        return Ok(vec![text_part(text)]);
    }
    members_of(content, path)?.into_iter().map(read).collect()
}

fn reasoning(members: &mut Members, ids: &mut ItemIds) -> Result<ReasoningItem, ApiError> {
    let id = id(members, ids, "rs")?;
    members.ignore(&["summary", "encrypted_content"]);
    let read = |mut part: Members| {
        let kind = part.text("type")?;
        if kind != "reasoning_text" {
            return Err(other_part(&part, &kind, "`reasoning_text`"));
        }
        let text = part.text("text")?;
        part.finish()?;
        Ok(Part::ReasoningText { text })
    };
    let content = match members.take("content") {
        None => Vec::new(),
        Some(content) => {
            let parts = members_of(content, &members.path_to("content"))?;
            parts.into_iter().map(read).collect::<Result<_, _>>()?
        }
    };
    Ok(ReasoningItem { id, status: ItemStatus::Completed, summary: [], content })
}

fn call(members: &mut Members, ids: &mut ItemIds) -> Result<CallItem, ApiError> {
    let id = id(members, ids, "fc")?;
    let (call_id, name) = (members.text("call_id")?, members.text("name")?);
    let arguments = members.text("arguments")?;
    Ok(CallItem { id, status: ItemStatus::Completed, call_id, name, arguments })
}

fn call_output(members: &mut Members, ids: &mut ItemIds) -> Result<CallOutputItem, ApiError> {
    let id = id(members, ids, "fco")?;
    let call_id = members.text("call_id")?;
    let name = optional_text(members, "name")?;
    let output = members.take("output").unwrap_or_default();
    let output = parts(output, ItemRole::User, &members.path_to("output"))?;
    let output = output.iter().map(Part::text).collect();
    Ok(CallOutputItem { id, status: ItemStatus::Completed, call_id, name, output })
}

/// Takes an item's id, or gives it one that begins with `kind`.
fn id(members: &mut Members, ids: &mut ItemIds, kind: &str) -> Result<String, ApiError> {
    Ok(optional_text(members, "id")?.unwrap_or_else(|| ids.next(kind)))
}

fn optional_text(members: &mut Members, name: &str) -> Result<Option<String>, ApiError> {
    match members.take(name) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(_) => Err(members.invalid(name, "must be a string")),
    }
}

/// Returns the parts of a content that is a list.
fn members_of(content: Value, path: &str) -> Result<Vec<Members>, ApiError> {
    let Value::Array(items) = content else {
        return Err(ApiError::invalid(path, "must be a string or a list of parts"));
    };
    let numbered = items.into_iter().enumerate();
    numbered.map(|(k, item)| Members::new(format!("{path}[{k}]"), item)).collect()
}

fn other_part(part: &Members, kind: &str, known: &str) -> ApiError {
    let message = format!("only parts of the types {known} are served here, got `{kind}`");
    part.invalid("type", &message)
}
