//! How a conversation becomes a prompt: the fields that the chat template is rendered with.
//!
//! Names and meaning are those of vLLM, which has them from Hugging Face's transformers.

use crate::wire::error::ApiError;
use crate::wire::extra_fields;
use mini_infer_text::{GenerationPrompt, OutputStart};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// Variables of templates that the server sets itself, besides all that end with `_token`.
const RESERVED: [&str; 6] = [
    "messages",
    "tools",
    "add_generation_prompt",
    "continue_final_message",
    "strftime_now",
    "raise_exception",
];

/// Most variables of one request.
const MAX_VARIABLES: usize = 64;

/// Fields of a chat request; absent and `null` mean the same.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RenderingFields {
    /// `false`: the prompt ends without the beginning of the assistant's turn.
    add_generation_prompt: Option<bool>,
    /// The last message, the assistant's, is the beginning of the answer.
    continue_final_message: Option<bool>,
    /// Variables of the chat template; those that the server sets are refused.
    #[schemars(extend("maxProperties" = MAX_VARIABLES))]
    chat_template_kwargs: Option<Map<String, Value>>,
}

/// How a conversation is rendered.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ChatRendering {
    /// What follows the messages.
    pub(crate) generation_prompt: GenerationPrompt,
    /// Variables of the template.
    pub(crate) variables: Map<String, Value>,
}

impl RenderingFields {
    /// Takes the fields out of those that no request type names.
    ///
    /// # Errors
    /// Refuses a field of a wrong type, naming it.
    pub(crate) fn take(extra: &mut BTreeMap<String, Value>) -> Result<Self, ApiError> {
        let names = ["add_generation_prompt", "continue_final_message", "chat_template_kwargs"];
        extra_fields::take(extra, &names)
    }

    /// Returns how `messages` are to be rendered.
    ///
    /// # Errors
    /// Refuses what contradicts itself or does not go with the messages, naming the field.
    pub(crate) fn rendering(self, messages: &[Value]) -> Result<ChatRendering, ApiError> {
        let refuse = |field: &str, message: &str| Err(ApiError::invalid(field, message));
        let continues = self.continue_final_message.unwrap_or(false);
        let by_assistant =
            messages.last().is_some_and(|last| last.get("role") == Some(&"assistant".into()));
        if continues && !by_assistant {
            return refuse("continue_final_message", "needs a last message of the assistant");
        }
        let generation_prompt = match (continues, self.add_generation_prompt) {
            (true, Some(true)) => {
                let message = "must be false or absent with `continue_final_message`";
                return refuse("add_generation_prompt", message);
            }
            (true, None | Some(false)) => GenerationPrompt::ContinueLast,
            (false, None | Some(true)) => GenerationPrompt::Add,
            (false, Some(false)) => GenerationPrompt::Omit,
        };
        let variables = self.chat_template_kwargs.unwrap_or_default();
        if variables.len() > MAX_VARIABLES {
            let message = format!("takes at most {MAX_VARIABLES} variables");
            return refuse("chat_template_kwargs", &message);
        }
        let is_reserved =
            |name: &&String| RESERVED.contains(&name.as_str()) || name.ends_with("_token");
        if let Some(name) = variables.keys().find(is_reserved) {
            let field = format!("chat_template_kwargs.{name}");
            return refuse(&field, "is set by the server and cannot be a variable");
        }
        Ok(ChatRendering { generation_prompt, variables })
    }
}

impl ChatRendering {
    /// Returns what the output follows.
    pub(crate) fn output_start(&self) -> OutputStart {
        match self.generation_prompt {
            GenerationPrompt::ContinueLast => OutputStart::Continuation,
            GenerationPrompt::Add | GenerationPrompt::Omit => OutputStart::NewText,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn rendering(fields: Value, last_role: &str) -> Result<ChatRendering, String> {
        let mut extra = serde_json::from_value(fields).unwrap();
        let messages = [json!({"role": last_role, "content": "x"})];
        let fields = RenderingFields::take(&mut extra);
        match fields.and_then(|fields| fields.rendering(&messages)) {
            Ok(rendering) => Ok(rendering),
            Err(ApiError::InvalidField { param, .. }) => Err(param),
            Err(other) => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_follows_the_messages_is_one_of_three() {
        let prompt = |fields| rendering(fields, "assistant").unwrap().generation_prompt;
        let fields = |add: Value, continues: Value| json!({"add_generation_prompt": add, "continue_final_message": continues});
        assert_eq!(prompt(json!({})), GenerationPrompt::Add);
        assert_eq!(prompt(fields(json!(null), json!(null))), GenerationPrompt::Add);
        assert_eq!(prompt(fields(json!(false), json!(false))), GenerationPrompt::Omit);
        assert_eq!(prompt(fields(json!(false), json!(true))), GenerationPrompt::ContinueLast);
        assert_eq!(prompt(fields(json!(null), json!(true))), GenerationPrompt::ContinueLast);
        let both = fields(json!(true), json!(true));
        assert_eq!(rendering(both, "assistant").unwrap_err(), "add_generation_prompt");
        let by_user = json!({"continue_final_message": true});
        assert_eq!(rendering(by_user, "user").unwrap_err(), "continue_final_message");
    }

    #[test]
    fn variables_of_the_server_are_its_own() {
        let variables = |value| rendering(json!({"chat_template_kwargs": value}), "user");
        let free = json!({"enable_thinking": false, "documents": []});
        assert_eq!(Value::Object(variables(free.clone()).unwrap().variables), free);
        for name in RESERVED.iter().chain(&["bos_token", "eos_token"]) {
            let refused = variables(json!({*name: 1})).unwrap_err();
            assert_eq!(refused, format!("chat_template_kwargs.{name}"));
        }
        assert_eq!(variables(json!([1])).unwrap_err(), "chat_template_kwargs");
        let many: Map<String, Value> = (0..65).map(|i| (i.to_string(), json!(i))).collect();
        assert_eq!(variables(json!(many)).unwrap_err(), "chat_template_kwargs");
    }
}
