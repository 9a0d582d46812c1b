//! Tools of the Responses API's flat form as chat's.

use crate::wire::anthropic::members::Members;
use crate::wire::error::ApiError;
use serde_json::{Map, Value, json};

/// Reads `tools`.
///
/// # Errors
/// Refuses tools that the server would have to run itself, and unknown members.
pub(crate) fn read_tools(items: &[Value]) -> Result<Vec<Value>, ApiError> {
    let numbered = items.iter().enumerate();
    numbered.map(|(i, item)| tool(item.clone(), &format!("tools[{i}]"))).collect()
}

fn tool(item: Value, path: &str) -> Result<Value, ApiError> {
    let mut tool = Members::new(path, item)?;
    if tool.take("type").is_none_or(|kind| kind != "function") {
        let message = "must be \"function\": the server runs no tools of its own";
        return Err(tool.invalid("type", message));
    }
    let mut function = Map::new();
    for name in ["name", "description", "parameters", "strict"] {
        if let Some(value) = tool.take(name) {
            function.insert(name.to_owned(), value);
        }
    }
    tool.finish()?;
    Ok(json!({"type": "function", "function": function}))
}

/// Reads `tool_choice`.
///
/// # Errors
/// Refuses choices of tools that are no functions, and other forms.
pub(crate) fn read_choice(choice: Value) -> Result<Value, ApiError> {
    const PARAM: &str = "tool_choice";
    if choice.is_string() {
        return Ok(choice);
    }
    let mut members = Members::new(PARAM, choice)?;
    let choice = match members.text("type")?.as_str() {
        "function" => named(&mut members)?,
        "allowed_tools" => {
            let mode = members.take("mode").unwrap_or_default();
            let Some(Value::Array(items)) = members.take("tools") else {
                return Err(members.invalid("tools", "must be a list of tools"));
            };
            let numbered = items.into_iter().enumerate();
            let tools = numbered.map(|(k, item)| {
                let mut tool = Members::new(format!("{PARAM}.tools[{k}]"), item)?;
                if tool.text("type")? != "function" {
                    return Err(tool.invalid("type", "must be \"function\""));
                }
                let named = named(&mut tool)?;
                tool.finish()?;
                Ok(named)
            });
            let tools: Vec<Value> = tools.collect::<Result<_, ApiError>>()?;
            json!({"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}})
        }
        _ => {
            let message = "must be \"function\" or \"allowed_tools\"";
            return Err(members.invalid("type", message));
        }
    };
    members.finish()?;
    Ok(choice)
}

fn named(members: &mut Members) -> Result<Value, ApiError> {
    Ok(json!({"type": "function", "function": {"name": members.text("name")?}}))
}
