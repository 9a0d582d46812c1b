//! `tool_choice`: which tools the model is shown, and which of them its answer must call.

use super::error::ApiError;
use serde_json::Value;

/// What a model may do with the tools of a request; numbers are those of the tools.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ToolChoice {
    /// It is not shown any.
    None,
    /// It is shown these and decides.
    Auto(Vec<usize>),
    /// It is shown these and must call some of them.
    Required(Vec<usize>),
    /// It is shown all and must call this one, once.
    Function(usize),
}

impl ToolChoice {
    /// Reads the field; `names` are those of the request's tools.
    ///
    /// # Errors
    /// Refuses other forms, and names of no tool.
    pub(crate) fn read(field: Option<&Value>, names: &[String]) -> Result<Self, ApiError> {
        const PARAM: &str = "tool_choice";
        let all = || (0..names.len()).collect();
        let Some(field) = field else { return Ok(Self::Auto(all())) };
        match (field.as_str(), field.get("type").and_then(Value::as_str)) {
            (Some("auto"), _) => Ok(Self::Auto(all())),
            (Some("none"), _) => Ok(Self::None),
            (Some("required"), _) if names.is_empty() => {
                Err(ApiError::invalid(PARAM, "needs `tools`"))
            }
            (Some("required"), _) => Ok(Self::Required(all())),
            (_, Some("function")) => Ok(Self::Function(function(field, names, PARAM)?)),
            (_, Some("allowed_tools")) => {
                allowed_tools(&field["allowed_tools"], names, &format!("{PARAM}.allowed_tools"))
            }
            _ => {
                let message = "must be \"none\", \"auto\", \"required\", {\"type\": \"function\", \
                               \"function\": {\"name\": …}} or {\"type\": \"allowed_tools\", …}";
                Err(ApiError::invalid(PARAM, message))
            }
        }
    }
}

/// Reads a tool that is referred to by its name.
fn function(value: &Value, names: &[String], param: &str) -> Result<usize, ApiError> {
    let name = value.pointer("/function/name").and_then(Value::as_str);
    let (Some("function"), Some(name)) = (value["type"].as_str(), name) else {
        let message = "must be {\"type\": \"function\", \"function\": {\"name\": …}}";
        return Err(ApiError::invalid(param, message));
    };
    let index = names.iter().position(|known| known == name);
    index.ok_or_else(|| ApiError::invalid(param, format!("`{name}` is none of the `tools`")))
}

fn allowed_tools(value: &Value, names: &[String], param: &str) -> Result<ToolChoice, ApiError> {
    let items = value["tools"].as_array().filter(|items| !items.is_empty());
    let Some(items) = items else {
        let message = "must be a list of tools that is not empty";
        return Err(ApiError::invalid(format!("{param}.tools"), message));
    };
    let numbered = items.iter().enumerate();
    let indices = numbered.map(|(k, item)| function(item, names, &format!("{param}.tools[{k}]")));
    let mut indices: Vec<usize> = indices.collect::<Result<_, _>>()?;
    indices.sort_unstable();
    indices.dedup();
    match value["mode"].as_str() {
        Some("auto") => Ok(ToolChoice::Auto(indices)),
        Some("required") => Ok(ToolChoice::Required(indices)),
        _ => Err(ApiError::invalid(format!("{param}.mode"), "must be \"auto\" or \"required\"")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(field: Value) -> Result<ToolChoice, String> {
        ToolChoice::read(Some(&field), &["f".to_owned(), "g".to_owned()]).map_err(|error| {
            let ApiError::InvalidField { param, .. } = error else { panic!("{error:?}") };
            param
        })
    }

    fn function(name: &str) -> Value {
        json!({"type": "function", "function": {"name": name}})
    }

    fn allowed(mode: &str, tools: Value) -> Value {
        json!({"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}})
    }

    #[test]
    fn every_form_is_read() {
        assert_eq!(read(json!("auto")), Ok(ToolChoice::Auto(vec![0, 1])));
        assert_eq!(read(json!("none")), Ok(ToolChoice::None));
        assert_eq!(read(json!("required")), Ok(ToolChoice::Required(vec![0, 1])));
        assert_eq!(read(function("g")), Ok(ToolChoice::Function(1)));
        let twice = json!([function("g"), function("g")]);
        assert_eq!(read(allowed("auto", twice)), Ok(ToolChoice::Auto(vec![1])));
        let both = json!([function("g"), function("f")]);
        assert_eq!(read(allowed("required", both)), Ok(ToolChoice::Required(vec![0, 1])));
    }

    #[test]
    fn other_forms_are_refused_by_name() {
        let refused = |field, param: &str| assert_eq!(read(field), Err(param.to_owned()));
        for field in [json!("any"), json!(5), json!({"type": "custom"}), function("h")] {
            refused(field, "tool_choice");
        }
        refused(json!({"type": "function"}), "tool_choice");
        refused(json!({"type": "allowed_tools"}), "tool_choice.allowed_tools.tools");
        refused(allowed("auto", json!([])), "tool_choice.allowed_tools.tools");
        refused(allowed("none", json!([function("f")])), "tool_choice.allowed_tools.mode");
        for item in [function("h"), json!({"function": {"name": "f"}}), json!("f")] {
            let field = allowed("auto", json!([function("f"), item]));
            refused(field, "tool_choice.allowed_tools.tools[1]");
        }
        assert!(ToolChoice::read(Some(&json!("required")), &[]).is_err());
    }
}
