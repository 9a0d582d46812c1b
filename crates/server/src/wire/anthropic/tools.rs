//! Tools of Anthropic's form as OpenAI's.

use super::members::Members;
use crate::wire::error::ApiError;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// Reads `tools` and `tool_choice` into the fields of OpenAI's API that say the same.
///
/// # Errors
/// Refuses tools that the server would have to run itself, and choices that are not served.
pub(crate) fn read(
    tools: Option<Value>,
    choice: Option<Value>,
) -> Result<BTreeMap<String, Value>, ApiError> {
    let mut fields = BTreeMap::new();
    match tools {
        None | Some(Value::Null) => {}
        Some(Value::Array(items)) => {
            let numbered = items.into_iter().enumerate();
            let items = numbered.map(|(i, item)| tool(item, &format!("tools[{i}]")));
            let items = items.collect::<Result<Vec<_>, _>>()?;
            fields.insert("tools".to_owned(), Value::from(items));
        }
        Some(_) => return Err(ApiError::invalid("tools", "must be a list of tools")),
    }
    if let Some(choice) = choice.filter(|choice| !choice.is_null()) {
        read_choice(choice, &mut fields)?;
    }
    Ok(fields)
}

fn tool(item: Value, path: &str) -> Result<Value, ApiError> {
    let mut tool = Members::new(path, item)?;
    if tool.take("type").is_some_and(|kind| kind != "custom") {
        let message = "must be \"custom\": the server runs no tools of its own";
        return Err(tool.invalid("type", message));
    }
    let mut function = Map::new();
    function.insert("name".to_owned(), Value::from(tool.text("name")?));
    if let Some(description) = tool.take("description") {
        function.insert("description".to_owned(), description);
    }
    match tool.take("input_schema") {
        Some(schema @ Value::Object(_)) => function.insert("parameters".to_owned(), schema),
        _ => return Err(tool.invalid("input_schema", "must be a JSON schema of an object")),
    };
    for member in ["strict", "input_examples"] {
        if let Some(value) = tool.take(member) {
            function.insert(member.to_owned(), value);
        }
    }
    // Its tokens are not held back in any case.
    tool.flag("eager_input_streaming")?;
    if tool.flag("defer_loading")? {
        return Err(tool.invalid("defer_loading", "must be false: all tools are shown at once"));
    }
    if tool.take("allowed_callers").is_some_and(|callers| callers != json!(["direct"])) {
        return Err(tool.invalid("allowed_callers", "must be [\"direct\"]: only the model calls"));
    }
    tool.ignore(&["cache_control"]);
    tool.finish()?;
    Ok(json!({"type": "function", "function": function}))
}

fn read_choice(choice: Value, fields: &mut BTreeMap<String, Value>) -> Result<(), ApiError> {
    let mut choice = Members::new("tool_choice", choice)?;
    match choice.text("type")?.as_str() {
        kind @ ("auto" | "none") => {
            fields.insert("tool_choice".to_owned(), Value::from(kind));
        }
        "any" => {
            fields.insert("tool_choice".to_owned(), Value::from("required"));
        }
        "tool" => {
            let function = json!({"name": choice.text("name")?});
            let named = json!({"type": "function", "function": function});
            fields.insert("tool_choice".to_owned(), named);
        }
        _ => {
            let message = "must be \"auto\", \"any\", \"tool\" or \"none\"";
            return Err(choice.invalid("type", message));
        }
    }
    if choice.flag("disable_parallel_tool_use")? {
        fields.insert("parallel_tool_calls".to_owned(), Value::from(false));
    }
    choice.finish()
}
