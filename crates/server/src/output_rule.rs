//! What a request's output must be: read from OpenAI's, vLLM's and llama.cpp's fields, or calls of
//! its tools, and compiled.
//!
//! At most one field may ask for something. Compiling may take a second for what a stranger sends, so
//! it happens on threads for blocking work, few at a time, and not for what was compiled lately.

use crate::wire::error::ApiError;
use crate::wire::structured_output::OutputFields;
use crate::wire::tools::CallSignature;
use mini_infer_core::{OutputConstraint, SamplingParams};
use mini_infer_grammar::{GrammarError, GrammarSource, Grammars, OutputShape};
use serde_json::{Map, Value};
use std::sync::Arc;
use tokio::sync::Semaphore;

/// Grammars that are compiled at once; the others wait in line, while the engine keeps its processors.
static COMPILING: Semaphore = Semaphore::const_new(2);

/// What an output must be, and which field says so.
#[derive(Debug, PartialEq)]
pub(crate) struct OutputRule {
    source: GrammarSource,
    /// Path of the field, and of the schema below it.
    param: String,
    /// Schemas that the source is put together from, and their paths.
    parts: Vec<(GrammarSource, String)>,
}

impl OutputRule {
    /// Reads the fields; `None` where the output may be anything.
    ///
    /// # Errors
    /// Refuses fields of a wrong form, and more than one that asks for something.
    pub(crate) fn read(fields: OutputFields) -> Result<Option<Self>, ApiError> {
        let read = [
            fields.response_format.map(response_format).transpose()?.flatten(),
            fields.guided_json.map(|value| json("guided_json", value)).transpose()?,
            fields.guided_regex.map(|value| regex("guided_regex", value)).transpose()?,
            fields.guided_choice.map(|value| choice("guided_choice", value)).transpose()?,
            fields.guided_grammar.map(|value| grammar("guided_grammar", value)).transpose()?,
            fields.structured_outputs.map(structured_outputs).transpose()?,
            fields.grammar.map(|value| grammar("grammar", value)).transpose()?,
        ];
        let mut rules = read.into_iter().flatten();
        let rule = rules.next();
        match (&rule, rules.next()) {
            (Some(first), Some(second)) => {
                let message = format!("cannot be used together with `{}`", first.param);
                Err(ApiError::invalid(second.param, message))
            }
            _ => Ok(rule),
        }
    }

    /// Holds an output to a shape; the schemas in it that a client sent are those of `signatures`.
    pub(crate) fn shape(shape: OutputShape, signatures: &[CallSignature]) -> Self {
        let part = |signature: &CallSignature| {
            (GrammarSource::JsonSchema(signature.schema.clone()), signature.param.clone())
        };
        let parts = signatures.iter().map(part).collect();
        Self { parts, ..Self::new(GrammarSource::Shape(shape), "tools") }
    }

    fn new(source: GrammarSource, param: impl Into<String>) -> Self {
        Self { source, param: param.into(), parts: Vec::new() }
    }

    /// Refuses what cannot go together with a constraint.
    ///
    /// # Errors
    /// A beam search ranks what the model would write.
    pub(crate) fn check(&self, sampling: &SamplingParams) -> Result<(), ApiError> {
        match sampling.beam {
            None => Ok(()),
            Some(_) => {
                let message = "cannot be used together with `use_beam_search`";
                Err(ApiError::invalid(self.param.clone(), message))
            }
        }
    }

    /// Compiles the rule for the served model.
    ///
    /// # Errors
    /// Refuses what cannot be compiled, naming the place in the schema.
    pub(crate) async fn compile(
        self,
        grammars: &Arc<Grammars>,
    ) -> Result<OutputConstraint, ApiError> {
        let Self { source, param, parts } = self;
        let (source, cache) = (Arc::new(source), Arc::clone(grammars));
        let asked = Arc::clone(&source);
        if let Some(constraint) = off_the_reactor(move || cache.cached(&asked)).await? {
            return Ok(constraint);
        }
        let permit = COMPILING.acquire().await;
        let permit = permit.map_err(|error| ApiError::Engine { message: error.to_string() })?;
        let compiler = Arc::clone(grammars);
        let compiled = off_the_reactor(move || {
            // Held until the work is done, also when the client has left.
            let _permit = permit;
            compiler.compile(&source).map_err(|error| {
                // The compiler does not say which schema of several it means.
                let fault = |(part, param)| Some((compiler.check(&part).err()?, param));
                let (error, param) = parts.into_iter().find_map(fault).unwrap_or((error, param));
                refusal(error, &param)
            })
        });
        compiled.await?
    }
}

/// Refuses a source, by the place of its fault below `param`.
fn refusal(error: GrammarError, param: &str) -> ApiError {
    let place = match error.path.as_str() {
        "" => String::new(),
        path if path.starts_with('[') => path.to_owned(),
        path => format!(".{path}"),
    };
    ApiError::invalid(format!("{param}{place}"), error.message)
}

/// Runs `work` on a thread that nobody waits for.
async fn off_the_reactor<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, ApiError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| ApiError::Engine { message: error.to_string() })
}

/// Reads OpenAI's `response_format`, `None` for text.
fn response_format(value: Value) -> Result<Option<OutputRule>, ApiError> {
    const PARAM: &str = "response_format";
    let mut format = object(PARAM, value)?;
    let kind = format.remove("type");
    let rule = match kind.as_ref().and_then(Value::as_str) {
        Some("text") => None,
        // llama.cpp's form of a schema.
        Some("json_object") if format.contains_key("schema") => {
            let schema = format.remove("schema").unwrap_or_default();
            Some(json(&format!("{PARAM}.schema"), schema)?)
        }
        Some("json_object") => Some(OutputRule::new(GrammarSource::JsonObject, PARAM)),
        Some("json_schema") => {
            Some(json_schema(&format!("{PARAM}.json_schema"), format.remove("json_schema"))?)
        }
        _ => {
            let message = "must be \"text\", \"json_object\" or \"json_schema\"";
            return Err(ApiError::invalid(format!("{PARAM}.type"), message));
        }
    };
    refuse_rest(PARAM, &format)?;
    Ok(rule)
}

/// Reads `response_format.json_schema`. Outputs follow the schema to the letter whether `strict` is
/// true or not; names and descriptions are for the client.
fn json_schema(param: &str, value: Option<Value>) -> Result<OutputRule, ApiError> {
    let mut members = object(param, value.unwrap_or_default())?;
    let schema = members.remove("schema").unwrap_or_default();
    let strict = members.remove("strict").unwrap_or_default();
    if !strict.is_null() && !strict.is_boolean() {
        return Err(ApiError::invalid(format!("{param}.strict"), "must be a boolean"));
    }
    for text in ["name", "description"] {
        let value = members.remove(text).unwrap_or_default();
        if !value.is_null() && !value.is_string() {
            return Err(ApiError::invalid(format!("{param}.{text}"), "must be a string"));
        }
    }
    refuse_rest(param, &members)?;
    json(&format!("{param}.schema"), schema)
}

/// Reads a schema, as JSON or as a text that holds JSON.
fn json(param: &str, value: Value) -> Result<OutputRule, ApiError> {
    let schema = match value.as_str().map(serde_json::from_str) {
        Some(Ok(parsed)) => parsed,
        Some(Err(error)) => return Err(ApiError::invalid(param, format!("is not JSON: {error}"))),
        None => value,
    };
    let schema = Value::Object(object(param, schema)?);
    Ok(OutputRule::new(GrammarSource::JsonSchema(schema), param))
}

fn regex(param: &str, value: Value) -> Result<OutputRule, ApiError> {
    let source = GrammarSource::Regex(text(param, value)?);
    Ok(OutputRule::new(source, param))
}

fn choice(param: &str, value: Value) -> Result<OutputRule, ApiError> {
    let Value::Array(items) = value else {
        return Err(ApiError::invalid(param, "must be a list of strings"));
    };
    let numbered = items.into_iter().enumerate();
    let texts = numbered.map(|(i, item)| text(&format!("{param}[{i}]"), item));
    let source = GrammarSource::Choice(texts.collect::<Result<_, _>>()?);
    Ok(OutputRule::new(source, param))
}

fn grammar(param: &str, value: Value) -> Result<OutputRule, ApiError> {
    let source = GrammarSource::grammar(text(param, value)?);
    Ok(OutputRule::new(source, param))
}

/// Reads vLLM's `structured_outputs`, which has one member for each kind.
fn structured_outputs(value: Value) -> Result<OutputRule, ApiError> {
    const PARAM: &str = "structured_outputs";
    let members = object(PARAM, value)?;
    let mut rules = Vec::new();
    for (key, value) in members.into_iter().filter(|(_, value)| !value.is_null()) {
        let param = format!("{PARAM}.{key}");
        rules.push(match key.as_str() {
            "json" => json(&param, value)?,
            "regex" => regex(&param, value)?,
            "choice" => choice(&param, value)?,
            "grammar" => grammar(&param, value)?,
            "json_object" if value == Value::Bool(true) => {
                OutputRule::new(GrammarSource::JsonObject, param)
            }
            "json_object" if value == Value::Bool(false) => continue,
            _ => return Err(ApiError::UnsupportedField { param }),
        });
    }
    let one = rules.pop();
    match (one, rules.is_empty()) {
        (Some(rule), true) => Ok(rule),
        _ => {
            let message = "must hold one of `json`, `json_object`, `regex`, `choice` and `grammar`";
            Err(ApiError::invalid(PARAM, message))
        }
    }
}

fn object(param: &str, value: Value) -> Result<Map<String, Value>, ApiError> {
    match value {
        Value::Object(members) => Ok(members),
        Value::Null => Err(ApiError::invalid(param, "is required")),
        Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
            Err(ApiError::invalid(param, "must be an object"))
        }
    }
}

fn text(param: &str, value: Value) -> Result<String, ApiError> {
    let text = value.as_str().filter(|text| !text.is_empty());
    let text = text.map(str::to_owned);
    text.ok_or_else(|| ApiError::invalid(param, "must be a string that is not empty"))
}

/// Refuses members that nobody has read.
fn refuse_rest(param: &str, members: &Map<String, Value>) -> Result<(), ApiError> {
    match members.iter().find(|(_, value)| !value.is_null()) {
        Some((key, _)) => Err(ApiError::UnknownField { param: format!("{param}.{key}") }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(field: &str, value: Value) -> Result<Option<OutputRule>, String> {
        let mut fields = OutputFields::default();
        *match field {
            "response_format" => &mut fields.response_format,
            "guided_json" => &mut fields.guided_json,
            "guided_choice" => &mut fields.guided_choice,
            "structured_outputs" => &mut fields.structured_outputs,
            _ => &mut fields.grammar,
        } = Some(value);
        OutputRule::read(fields).map_err(|error| {
            let body = serde_json::to_value(error.body()).unwrap();
            body["error"]["param"].as_str().unwrap().to_owned()
        })
    }

    fn accepted(field: &str, value: Value) -> (GrammarSource, String) {
        let rule = read(field, value).unwrap().unwrap();
        (rule.source, rule.param)
    }

    #[test]
    fn every_form_of_a_schema_is_the_same_rule() {
        let schema = json!({"type": "integer"});
        let same = GrammarSource::JsonSchema(schema.clone());
        let named = json!({"name": "x", "strict": true, "description": null, "schema": schema});
        let format = json!({"type": "json_schema", "json_schema": named});
        let param = "response_format.json_schema.schema".to_owned();
        assert_eq!(accepted("response_format", format), (same.clone(), param));
        let format = json!({"type": "json_object", "schema": schema});
        let param = "response_format.schema".to_owned();
        assert_eq!(accepted("response_format", format), (same.clone(), param));
        assert_eq!(accepted("guided_json", schema.clone()).0, same);
        assert_eq!(accepted("guided_json", json!(schema.to_string())).0, same);
        let param = "structured_outputs.json".to_owned();
        assert_eq!(accepted("structured_outputs", json!({"json": schema})), (same, param));
        let object = accepted("response_format", json!({"type": "json_object"}));
        assert_eq!(object.0, GrammarSource::JsonObject);
        assert_eq!(read("response_format", json!({"type": "text"})), Ok(None));
    }

    #[test]
    fn wrong_forms_name_their_place() {
        let check = |field, value, expected: &str| {
            assert_eq!(read(field, value).unwrap_err(), expected);
        };
        check("response_format", json!("json"), "response_format");
        check("response_format", json!({}), "response_format.type");
        check("response_format", json!({"type": "xml"}), "response_format.type");
        check("response_format", json!({"type": "text", "x": 1}), "response_format.x");
        let format = |inner: Value| json!({"type": "json_schema", "json_schema": inner});
        let inner = "response_format.json_schema";
        check("response_format", json!({"type": "json_schema"}), inner);
        check("response_format", format(json!({"name": "x"})), &format!("{inner}.schema"));
        check(
            "response_format",
            format(json!({"schema": {}, "strict": 1})),
            &format!("{inner}.strict"),
        );
        check(
            "response_format",
            format(json!({"schema": {}, "name": 1})),
            &format!("{inner}.name"),
        );
        check("response_format", format(json!({"schema": {}, "x": 1})), &format!("{inner}.x"));
        check("guided_json", json!("{"), "guided_json");
        check("guided_json", json!([]), "guided_json");
        check("guided_choice", json!("a"), "guided_choice");
        check("guided_choice", json!(["a", 1]), "guided_choice[1]");
        check("grammar", json!(""), "grammar");
        check("structured_outputs", json!({}), "structured_outputs");
        check("structured_outputs", json!({"regex": "a", "choice": ["b"]}), "structured_outputs");
        let tag = json!({"structural_tag": "x"});
        check("structured_outputs", tag, "structured_outputs.structural_tag");
    }

    #[test]
    fn two_rules_do_not_go_together() {
        let fields = OutputFields {
            response_format: Some(json!({"type": "json_object"})),
            guided_regex: Some(json!("a")),
            ..OutputFields::default()
        };
        let error = OutputRule::read(fields).unwrap_err();
        let ApiError::InvalidField { param, message } = error else { panic!("{error:?}") };
        assert!(param == "guided_regex" && message.contains("response_format"), "{message}");
    }
}
