//! A conversation of Anthropic's form as OpenAI's messages.
//!
//! The blocks of a message are joined without anything between them. A tool's result becomes a
//! message of its own, in its place among the texts; thinking becomes the reasoning of the
//! assistant's message.

use super::members::Members;
use crate::wire::chat::{ChatContent, ChatMessage};
use crate::wire::error::ApiError;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// Whose turn a conversation ends with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LastTurn {
    /// The model answers it.
    User,
    /// The model goes on with it.
    Assistant,
}

/// A whole conversation.
#[derive(Debug)]
pub(crate) struct Conversation {
    /// Its messages, the system's first.
    pub(crate) messages: Vec<ChatMessage>,
    /// Whose turn is the last.
    pub(crate) last: LastTurn,
}

impl Conversation {
    /// Reads `system` and `messages`.
    ///
    /// # Errors
    /// Refuses empty conversations, other roles and blocks, and members that would not reach the
    /// model.
    pub(crate) fn read(system: Option<Value>, messages: Option<Value>) -> Result<Self, ApiError> {
        let items = match messages {
            Some(Value::Array(items)) if !items.is_empty() => items,
            _ => return Err(ApiError::invalid("messages", "must be a list of messages")),
        };
        let mut conversation = Self { messages: Vec::new(), last: LastTurn::User };
        let is_none = |system: &Value| system.is_null() || system == &json!([]);
        if let Some(system) = system.filter(|system| !is_none(system)) {
            let text = text_of(system, "system")?;
            conversation.push("system", text, BTreeMap::new());
        }
        for (i, item) in items.into_iter().enumerate() {
            conversation.add(item, &format!("messages[{i}]"))?;
        }
        Ok(conversation)
    }

    fn add(&mut self, item: Value, path: &str) -> Result<(), ApiError> {
        let mut message = Members::new(path, item)?;
        let role = message.text("role")?;
        let content = message.take("content").unwrap_or_default();
        let content_path = message.path_to("content");
        match role.as_str() {
            "user" => self.add_user(content, &content_path)?,
            "assistant" => self.add_assistant(content, &content_path)?,
            _ => return Err(message.invalid("role", "must be \"user\" or \"assistant\"")),
        }
        message.finish()
    }

    fn add_user(&mut self, content: Value, path: &str) -> Result<(), ApiError> {
        self.last = LastTurn::User;
        let blocks = blocks(content, path)?;
        if blocks.is_empty() {
            return Err(ApiError::invalid(path, "must not be empty"));
        }
        let mut text = None;
        for (kind, mut block) in blocks {
            match kind.as_str() {
                "text" => text.get_or_insert_with(String::new).push_str(&block.text("text")?),
                "tool_result" => {
                    if let Some(text) = text.take() {
                        self.push("user", text, BTreeMap::new());
                    }
                    let id = block.text("tool_use_id")?;
                    let result = match block.take("content") {
                        Some(content) => text_of(content, &block.path_to("content"))?,
                        None => String::new(),
                    };
                    // What went wrong stands in the text; templates have no place for the flag.
                    block.flag("is_error")?;
                    let extra = BTreeMap::from([("tool_call_id".to_owned(), Value::from(id))]);
                    self.push("tool", result, extra);
                }
                _ => return Err(other_block(&block, &kind, "`text` and `tool_result`")),
            }
            block.finish()?;
        }
        if let Some(text) = text {
            self.push("user", text, BTreeMap::new());
        }
        Ok(())
    }

    fn add_assistant(&mut self, content: Value, path: &str) -> Result<(), ApiError> {
        self.last = LastTurn::Assistant;
        let (mut text, mut thinking, mut calls) = (String::new(), String::new(), Vec::new());
        for (kind, mut block) in blocks(content, path)? {
            match kind.as_str() {
                "text" => text.push_str(&block.text("text")?),
                "thinking" => {
                    thinking.push_str(&block.text("thinking")?);
                    block.ignore(&["signature"]);
                }
                "tool_use" => calls.push(call(&mut block)?),
                _ => return Err(other_block(&block, &kind, "`text`, `thinking` and `tool_use`")),
            }
            block.finish()?;
        }
        let mut extra = BTreeMap::new();
        if !thinking.is_empty() {
            extra.insert("reasoning_content".to_owned(), Value::from(thinking));
        }
        if !calls.is_empty() {
            extra.insert("tool_calls".to_owned(), Value::from(calls));
        }
        self.push("assistant", text, extra);
        Ok(())
    }

    fn push(&mut self, role: &str, text: String, extra: BTreeMap<String, Value>) {
        let content = Some(ChatContent::Text(text));
        self.messages.push(ChatMessage { role: role.to_owned(), content, extra });
    }
}

/// Reads a call that an earlier answer made.
fn call(block: &mut Members) -> Result<Value, ApiError> {
    let (id, name) = (block.text("id")?, block.text("name")?);
    let input = match block.take("input") {
        None => Map::new(),
        Some(Value::Object(input)) => input,
        Some(_) => return Err(block.invalid("input", "must be an object")),
    };
    let function = json!({"name": name, "arguments": input});
    Ok(json!({"id": id, "type": "function", "function": function}))
}

/// Reads a content that is text only: a string, or blocks of it.
fn text_of(content: Value, path: &str) -> Result<String, ApiError> {
    let mut text = String::new();
    for (kind, mut block) in blocks(content, path)? {
        if kind != "text" {
            return Err(other_block(&block, &kind, "`text`"));
        }
        text.push_str(&block.text("text")?);
        block.finish()?;
    }
    Ok(text)
}

/// Returns the blocks of a content with their types; a string is one block of text. What says how
/// to cache and where a text is from is taken out: prefixes are cached without hints.
fn blocks(content: Value, path: &str) -> Result<Vec<(String, Members)>, ApiError> {
    let items = match content {
        Value::String(text) => vec![json!({"type": "text", "text": text})],
        Value::Array(items) => items,
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => {
            return Err(ApiError::invalid(path, "must be a string or a list of blocks"));
        }
    };
    let numbered = items.into_iter().enumerate();
    let read = numbered.map(|(k, item)| {
        let mut block = Members::new(format!("{path}[{k}]"), item)?;
        block.ignore(&["cache_control", "citations"]);
        Ok((block.text("type")?, block))
    });
    read.collect()
}

fn other_block(block: &Members, kind: &str, known: &str) -> ApiError {
    block
        .invalid("type", &format!("only blocks of the types {known} are served here, got `{kind}`"))
}
