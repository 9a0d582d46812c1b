//! Items as the messages of a chat.
//!
//! Reasoning, texts and calls of one answer are one message, as chat has them: what follows calls
//! of the same answer joins it, and only another text or reasoning of its own begins the next.

use super::item::{Item, ItemRole, Part};
use crate::wire::chat::{ChatContent, ChatMessage};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Returns the messages that say the same as `instructions` and `items`.
pub(crate) fn messages<'a>(
    instructions: Option<&str>,
    items: impl IntoIterator<Item = &'a Item>,
) -> Vec<ChatMessage> {
    let mut messages = Vec::new();
    if let Some(instructions) = instructions {
        messages.push(said("system", instructions.to_owned()));
    }
    let mut turn = Turn::default();
    for item in items {
        match item {
            Item::Message(message) if message.role == ItemRole::Assistant => {
                if turn.text.is_some() && turn.calls.is_empty() {
                    turn.end(&mut messages);
                }
                turn.say(&message.content);
            }
            Item::Reasoning(reasoning) => {
                if turn.text.is_some() || !turn.calls.is_empty() {
                    turn.end(&mut messages);
                }
                turn.reasoning.extend(reasoning.content.iter().map(Part::text));
            }
            Item::FunctionCall(call) => {
                let function = json!({"name": call.name, "arguments": call.arguments});
                let call = json!({"id": call.call_id, "type": "function", "function": function});
                turn.calls.push(call);
            }
            Item::Message(message) => {
                turn.end(&mut messages);
                let text = message.content.iter().map(Part::text).collect();
                messages.push(said(message.role.name(), text));
            }
            Item::FunctionCallOutput(output) => {
                turn.end(&mut messages);
                let mut message = said("tool", output.output.clone());
                let call_id = Value::from(output.call_id.as_str());
                message.extra.insert("tool_call_id".to_owned(), call_id);
                if let Some(name) = &output.name {
                    message.extra.insert("name".to_owned(), Value::from(name.as_str()));
                }
                messages.push(message);
            }
        }
    }
    turn.end(&mut messages);
    messages
}

fn said(role: &str, text: String) -> ChatMessage {
    let content = Some(ChatContent::Text(text));
    ChatMessage { role: role.to_owned(), content, extra: BTreeMap::new() }
}

/// What an answer holds so far.
#[derive(Default)]
struct Turn {
    text: Option<String>,
    refusal: String,
    reasoning: String,
    calls: Vec<Value>,
}

impl Turn {
    fn say(&mut self, parts: &[Part]) {
        let text = self.text.get_or_insert_default();
        for part in parts {
            match part {
                Part::Refusal { refusal } => self.refusal.push_str(refusal),
                Part::InputText { .. } | Part::OutputText { .. } | Part::ReasoningText { .. } => {
                    text.push_str(part.text());
                }
            }
        }
    }

    /// Adds the answer to `messages`, if there is any, and begins the next.
    fn end(&mut self, messages: &mut Vec<ChatMessage>) {
        let Self { text, refusal, reasoning, calls } = std::mem::take(self);
        let mut extra = BTreeMap::new();
        for (name, text) in [("refusal", refusal), ("reasoning_content", reasoning)] {
            if !text.is_empty() {
                extra.insert(name.to_owned(), Value::from(text));
            }
        }
        if !calls.is_empty() {
            extra.insert("tool_calls".to_owned(), Value::from(calls));
        }
        if text.is_some() || !extra.is_empty() {
            let content = text.map(ChatContent::Text);
            messages.push(ChatMessage { role: "assistant".to_owned(), content, extra });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::responses::item::ItemIds;
    use crate::wire::responses::item_reading::read_input;

    /// Checks which messages say the same as the items.
    fn check(input: Value, expected: Value) {
        let items = read_input(Some(input), &mut ItemIds::new("x")).unwrap();
        let messages = messages(None, items.iter().map(AsRef::as_ref));
        let text = |content: ChatContent| match content {
            ChatContent::Text(text) => text,
            ChatContent::Parts(_) => panic!("not a text"),
        };
        let seen = messages.into_iter().map(|message| {
            let mut seen = json!(message.extra);
            seen["role"] = json!(message.role);
            seen["content"] = json!(message.content.map(text));
            seen
        });
        assert_eq!(Value::from_iter(seen), expected);
    }

    fn call(id: &str) -> Value {
        json!({"type": "function_call", "call_id": id, "name": "f", "arguments": "{}"})
    }

    fn chat_call(id: &str) -> Value {
        json!({"id": id, "type": "function", "function": {"name": "f", "arguments": "{}"}})
    }

    fn by_assistant(text: &str) -> Value {
        json!({"role": "assistant", "content": text})
    }

    fn reasoning(text: &str) -> Value {
        json!({"type": "reasoning", "id": "r", "summary": [],
               "content": [{"type": "reasoning_text", "text": text}]})
    }

    #[test]
    fn one_answer_is_one_message() {
        let output = json!({"type": "function_call_output", "call_id": "1", "output": "5"});
        check(
            json!([reasoning("hm"), by_assistant("so"), call("1"), call("2"), output.clone()]),
            json!([
                {"role": "assistant", "content": "so", "reasoning_content": "hm",
                 "tool_calls": [chat_call("1"), chat_call("2")]},
                {"role": "tool", "content": "5", "tool_call_id": "1"},
            ]),
        );
        check(
            json!([call("1"), by_assistant("so"), output]),
            json!([
                {"role": "assistant", "content": "so", "tool_calls": [chat_call("1")]},
                {"role": "tool", "content": "5", "tool_call_id": "1"},
            ]),
        );
    }

    #[test]
    fn two_answers_are_two_messages() {
        check(
            json!([by_assistant("a"), by_assistant("b"), reasoning("hm"), by_assistant("c")]),
            json!([
                {"role": "assistant", "content": "a"},
                {"role": "assistant", "content": "b"},
                {"role": "assistant", "content": "c", "reasoning_content": "hm"},
            ]),
        );
        let empty =
            json!({"type": "reasoning", "id": "r", "summary": [], "encrypted_content": "x"});
        check(json!([empty]), json!([]));
    }

    #[test]
    fn parts_are_joined_as_they_are() {
        let parts =
            json!([{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]);
        let no = json!([{"type": "refusal", "refusal": "no"}]);
        check(
            json!([{"role": "developer", "content": parts}, {"role": "assistant", "content": no}]),
            json!([
                {"role": "developer", "content": "ab"},
                {"role": "assistant", "content": "", "refusal": "no"},
            ]),
        );
    }
}
