//! What an output must be, in Anthropic's form, as OpenAI's `response_format`.

use super::members::Members;
use crate::wire::error::ApiError;
use serde_json::{Value, json};

/// How much a model may be asked to think.
pub(super) const EFFORTS: [&str; 5] = ["low", "medium", "high", "xhigh", "max"];

/// Reads `output_config`; `None` where the output may be anything.
///
/// # Errors
/// Refuses what is not well-formed, and formats other than a JSON schema.
pub(super) fn read(config: Value) -> Result<Option<Value>, ApiError> {
    let mut config = Members::new("output_config", config)?;
    if let Some(effort) = config.take("effort") {
        // Bounded by `max_tokens` alone: no model here is told of it.
        if effort.as_str().is_none_or(|effort| !EFFORTS.contains(&effort)) {
            let message = format!("must be one of {}", EFFORTS.join(", "));
            return Err(config.invalid("effort", &message));
        }
    }
    let format = config.take("format");
    config.finish()?;
    let Some(format) = format else { return Ok(None) };
    let mut format = Members::new("output_config.format", format)?;
    if format.text("type")? != "json_schema" {
        return Err(format.invalid("type", "must be \"json_schema\""));
    }
    let Some(schema @ Value::Object(_)) = format.take("schema") else {
        return Err(format.invalid("schema", "must be a JSON schema"));
    };
    format.finish()?;
    Ok(Some(json!({"type": "json_schema", "json_schema": {"schema": schema}})))
}
