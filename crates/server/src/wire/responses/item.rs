//! Items of a conversation: messages, reasoning, calls of tools and what they gave.
//!
//! One type for what clients send and what answers hold, so that an answer can be the beginning of
//! the next request. Every item has an id, a status and all fields that strict clients require.

use crate::wire::chat::ChatTokenLogprob;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

/// One item.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum Item {
    /// Something that was said.
    Message(MessageItem),
    /// What the model thought before it answered.
    Reasoning(ReasoningItem),
    /// A call of a tool.
    FunctionCall(CallItem),
    /// What a call gave.
    FunctionCallOutput(CallOutputItem),
}

/// Something that was said.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct MessageItem {
    pub(crate) id: String,
    pub(crate) status: ItemStatus,
    pub(crate) role: ItemRole,
    pub(crate) content: Vec<Part>,
}

/// What the model thought.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct ReasoningItem {
    pub(crate) id: String,
    pub(crate) status: ItemStatus,
    /// Always empty, for nothing is summed up; clients require the field.
    pub(crate) summary: [Value; 0],
    pub(crate) content: Vec<Part>,
}

/// A call of a tool.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct CallItem {
    pub(crate) id: String,
    pub(crate) status: ItemStatus,
    /// What its output refers to it by.
    pub(crate) call_id: String,
    pub(crate) name: String,
    /// JSON, as the model wrote it.
    pub(crate) arguments: String,
}

/// What a call gave.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct CallOutputItem {
    pub(crate) id: String,
    pub(crate) status: ItemStatus,
    pub(crate) call_id: String,
    /// The tool's name, for templates that show it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<String>,
    pub(crate) output: String,
}

/// How far an item has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ItemStatus {
    /// More of it may come.
    InProgress,
    /// It is whole.
    Completed,
    /// It broke off.
    Incomplete,
}

/// Who says something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ItemRole {
    User,
    System,
    Developer,
    Assistant,
}

impl ItemRole {
    /// Returns the role as chat templates know it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::System => "system",
            Self::Developer => "developer",
            Self::Assistant => "assistant",
        }
    }
}

/// A part of an item's content.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum Part {
    /// What somebody else than the model said.
    InputText { text: String },
    /// What the model said.
    OutputText {
        text: String,
        /// Always empty, for nothing is cited; clients require the field.
        annotations: [Value; 0],
        /// Empty where nobody asked for them.
        logprobs: Vec<ChatTokenLogprob>,
    },
    /// What the model said instead of an answer; only in conversations from elsewhere.
    Refusal { refusal: String },
    /// What the model thought.
    ReasoningText { text: String },
}

impl Part {
    /// Returns a part of an answer that holds `text`.
    pub(crate) fn output(text: String) -> Self {
        Self::OutputText { text, annotations: [], logprobs: Vec::new() }
    }

    /// Returns the part's text.
    pub(crate) fn text(&self) -> &str {
        match self {
            Self::InputText { text }
            | Self::OutputText { text, .. }
            | Self::Refusal { refusal: text }
            | Self::ReasoningText { text } => text,
        }
    }

    /// Returns the log probabilities of an answer's tokens.
    pub(crate) fn logprobs(&self) -> &[ChatTokenLogprob] {
        match self {
            Self::OutputText { logprobs, .. } => logprobs,
            Self::InputText { .. } | Self::Refusal { .. } | Self::ReasoningText { .. } => &[],
        }
    }

    /// Adds to the part; log probabilities are those of an answer only.
    fn grow(&mut self, more: &str, more_logprobs: &[ChatTokenLogprob]) {
        match self {
            Self::InputText { text }
            | Self::Refusal { refusal: text }
            | Self::ReasoningText { text } => text.push_str(more),
            Self::OutputText { text, logprobs, .. } => {
                text.push_str(more);
                logprobs.extend_from_slice(more_logprobs);
            }
        }
    }
}

impl Item {
    /// Returns the item's id.
    pub(crate) fn id(&self) -> &str {
        match self {
            Self::Message(MessageItem { id, .. })
            | Self::Reasoning(ReasoningItem { id, .. })
            | Self::FunctionCall(CallItem { id, .. })
            | Self::FunctionCallOutput(CallOutputItem { id, .. }) => id,
        }
    }

    /// Says how far the item has come.
    pub(crate) fn set_status(&mut self, now: ItemStatus) {
        match self {
            Self::Message(MessageItem { status, .. })
            | Self::Reasoning(ReasoningItem { status, .. })
            | Self::FunctionCall(CallItem { status, .. })
            | Self::FunctionCallOutput(CallOutputItem { status, .. }) => *status = now,
        }
    }

    /// Returns the item's parts; calls and their outputs have none.
    pub(crate) fn parts(&self) -> &[Part] {
        match self {
            Self::Message(MessageItem { content, .. })
            | Self::Reasoning(ReasoningItem { content, .. }) => content,
            Self::FunctionCall(_) | Self::FunctionCallOutput(_) => &[],
        }
    }

    /// Begins a part of a message or of reasoning.
    pub(crate) fn push_part(&mut self, part: Part) {
        match self {
            Self::Message(MessageItem { content, .. })
            | Self::Reasoning(ReasoningItem { content, .. }) => content.push(part),
            Self::FunctionCall(_) | Self::FunctionCallOutput(_) => {}
        }
    }

    /// Adds to the last part, or to a call's arguments.
    pub(crate) fn grow(&mut self, text: &str, logprobs: &[ChatTokenLogprob]) {
        match self {
            Self::Message(MessageItem { content, .. })
            | Self::Reasoning(ReasoningItem { content, .. }) => {
                if let Some(part) = content.last_mut() {
                    part.grow(text, logprobs);
                }
            }
            Self::FunctionCall(CallItem { arguments, .. }) => arguments.push_str(text),
            Self::FunctionCallOutput(CallOutputItem { output, .. }) => output.push_str(text),
        }
    }

    /// Drops log probabilities, which no later request reads.
    pub(crate) fn without_logprobs(mut self) -> Self {
        if let Self::Message(MessageItem { content, .. }) = &mut self {
            for part in content {
                if let Part::OutputText { logprobs, .. } = part {
                    *logprobs = Vec::new();
                }
            }
        }
        self
    }

    /// Returns the memory that the item takes, log probabilities aside.
    pub(crate) fn num_bytes(&self) -> usize {
        let parts = self.parts().iter().map(|part| size_of::<Part>() + part.text().len());
        let fields = match self {
            Self::Message(_) | Self::Reasoning(_) => 0,
            Self::FunctionCall(call) => call.call_id.len() + call.name.len() + call.arguments.len(),
            Self::FunctionCallOutput(output) => {
                let name = output.name.as_ref().map_or(0, String::len);
                output.call_id.len() + name + output.output.len()
            }
        };
        size_of::<Self>() + self.id().len() + parts.sum::<usize>() + fields
    }
}

/// Makes ids of items that no other response of this process has.
#[derive(Debug)]
pub(crate) struct ItemIds {
    /// What tells the response from others.
    response: String,
    num_given: u32,
}

impl ItemIds {
    /// Makes ids for the response with this id.
    pub(crate) fn new(response_id: &str) -> Self {
        let response = response_id.rsplit(['-', '_']).next().unwrap_or(response_id);
        Self { response: response.to_owned(), num_given: 0 }
    }

    /// Returns the next id, which begins with `kind`.
    pub(crate) fn next(&mut self, kind: &str) -> String {
        self.num_given += 1;
        format!("{kind}_{}{:04x}", self.response, self.num_given)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_of_an_item_holds_all_its_text() {
        let text = "x".repeat(1000);
        let id = String::new;
        let status = ItemStatus::Completed;
        let content = vec![Part::output(text.clone())];
        let items = [
            Item::Message(MessageItem {
                id: id(),
                status,
                role: ItemRole::User,
                content: content.clone(),
            }),
            Item::Reasoning(ReasoningItem { id: id(), status, summary: [], content }),
            Item::FunctionCall(CallItem {
                id: id(),
                status,
                call_id: id(),
                name: id(),
                arguments: text.clone(),
            }),
            Item::FunctionCallOutput(CallOutputItem {
                id: id(),
                status,
                call_id: id(),
                name: None,
                output: text,
            }),
        ];
        for item in items {
            assert!((1000..1500).contains(&item.num_bytes()), "{item:?}");
        }
    }

    #[test]
    fn ids_are_distinct() {
        let (mut one, mut other) = (ItemIds::new("resp-0a"), ItemIds::new("resp_0b"));
        let ids = [one.next("msg"), one.next("msg"), one.next("fc"), other.next("msg")];
        assert_eq!(ids, ["msg_0a0001", "msg_0a0002", "fc_0a0003", "msg_0b0001"]);
    }
}
