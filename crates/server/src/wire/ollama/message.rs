//! A message of a conversation, as OpenAI's.

use crate::validation::ROLES;
use crate::wire::chat::{ChatContent, ChatMessage};
use crate::wire::described::described;
use crate::wire::error::ApiError;
use crate::wire::field_rules;
use crate::wire::tool_schemas::EarlierCall;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// One message of the conversation.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "OllamaMessage", deny_unknown_fields)]
pub(crate) struct Message {
    /// Who says it.
    #[schemars(with = "OllamaRole")]
    role: String,
    /// What is said.
    content: Option<String>,
    /// What the assistant thought before its answer.
    thinking: Option<String>,
    /// Accepted empty: the model sees none.
    #[schemars(length(max = 0))]
    images: Option<Vec<Value>>,
    /// Calls that the assistant made.
    #[schemars(with = "Option<Vec<EarlierCall>>")]
    tool_calls: Option<Vec<Value>>,
    /// The tool whose output this is.
    tool_name: Option<String>,
    /// The call that this message answers.
    tool_call_id: Option<String>,
    #[serde(flatten)]
    #[schemars(skip)]
    extra: BTreeMap<String, Value>,
}

described! {
    /// Who says something; capitals are as good as small letters.
    OllamaRole: json!({"anyOf": [{"enum": ROLES}, {"type": "string", "pattern": "^[A-Za-z]+$"}]});
}

impl Message {
    /// Tells whether the answer goes on with this message, if it is the last.
    pub(super) fn is_beginning(&self) -> bool {
        let is_call = self.tool_calls.as_ref().is_some_and(|calls| !calls.is_empty());
        self.role.eq_ignore_ascii_case("assistant") && !is_call
    }

    /// Returns the message of OpenAI's API that says the same; this one stands at `param`.
    ///
    /// # Errors
    /// Refuses images and fields that would not reach the model.
    pub(super) fn into_chat(self, param: &str) -> Result<ChatMessage, ApiError> {
        field_rules::check(&format!("{param}."), &self.extra, &[])?;
        if self.images.is_some_and(|images| !images.is_empty()) {
            return Err(ApiError::UnsupportedField { param: format!("{param}.images") });
        }
        let calls = self.tool_calls.filter(|calls| !calls.is_empty());
        let texts = [
            ("reasoning_content", self.thinking),
            ("name", self.tool_name),
            ("tool_call_id", self.tool_call_id),
        ];
        let texts = texts.into_iter().filter_map(|(name, text)| {
            let text = text.filter(|text| !text.is_empty())?;
            Some((name.to_owned(), Value::from(text)))
        });
        let calls = calls.map(|calls| {
            let calls: Vec<Value> = calls.into_iter().map(without_index).collect();
            ("tool_calls".to_owned(), Value::from(calls))
        });
        Ok(ChatMessage {
            role: self.role.to_ascii_lowercase(),
            content: Some(ChatContent::Text(self.content.unwrap_or_default())),
            extra: texts.chain(calls).collect(),
        })
    }
}

/// Drops the number that calls of earlier answers carry: their order says the same.
fn without_index(mut call: Value) -> Value {
    if let Some(function) = call.get_mut("function").and_then(Value::as_object_mut) {
        function.remove("index");
    }
    call
}
