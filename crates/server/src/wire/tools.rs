//! Tools in a chat request, and calls of them in its messages and its answer.
//!
//! A tool goes to the chat template as the client wrote it, as transformers passes it: names are
//! checked because answers are told from calls by them, and `parameters` because a model that is
//! shown no schema guesses. Arguments of earlier calls are a string on the wire and an object to
//! templates.

use super::error::ApiError;
use super::tool_choice::ToolChoice;
use mini_infer_core::mix64;
use mini_infer_text::CallableTool;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// Most tools of a request, as at OpenAI.
pub(crate) const MAX_TOOLS: usize = 128;
/// Most characters of a tool's name, as at OpenAI.
pub(super) const MAX_NAME_LEN: usize = 64;
/// Letters and digits of a short id.
const ID_LETTERS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
/// Length of a short id, which Mistral's templates insist on.
const SHORT_ID_LEN: usize = 9;

/// The tools that a model may call.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Tools {
    /// As the client wrote them, for the chat template.
    pub(crate) items: Vec<Value>,
    /// Their names, in the same order.
    pub(crate) names: Vec<String>,
    /// How many calls an answer may have.
    pub(crate) call_limit: CallLimit,
    /// The calls that an answer must consist of; none where it may be anything.
    pub(crate) required: Vec<CallSignature>,
}

/// What a call of a tool must be.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct CallSignature {
    /// The tool's name.
    pub(crate) name: String,
    /// What its arguments, an object, follow.
    pub(crate) schema: Value,
    /// Path of the schema in the body.
    pub(crate) param: String,
}

/// How many calls an answer may have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum CallLimit {
    /// As many as the model makes.
    #[default]
    None,
    /// The answer ends behind the first.
    One,
}

impl Tools {
    /// Takes `tools`, `tool_choice` and `parallel_tool_calls` out of a body's fields.
    ///
    /// # Errors
    /// Refuses tools that are not well-formed, and choices that are not served.
    pub(crate) fn take(extra: &mut BTreeMap<String, Value>) -> Result<Self, ApiError> {
        let mut take = |field: &str| extra.remove(field).filter(|value| !value.is_null());
        let items = match take("tools") {
            None => Vec::new(),
            Some(Value::Array(items)) => items,
            Some(_) => return Err(ApiError::invalid("tools", "must be a list of tools")),
        };
        let names = check_tools(&items)?;
        let call_limit = match take("parallel_tool_calls") {
            None | Some(Value::Bool(true)) => CallLimit::None,
            Some(Value::Bool(false)) => CallLimit::One,
            Some(_) => {
                return Err(ApiError::invalid("parallel_tool_calls", "must be true or false"));
            }
        };
        let choice = ToolChoice::read(take("tool_choice").as_ref(), &names)?;
        let (shown, required, call_limit) = match choice {
            ToolChoice::None => return Ok(Self::default()),
            ToolChoice::Auto(shown) => (shown, Vec::new(), call_limit),
            ToolChoice::Required(shown) => (shown.clone(), shown, call_limit),
            ToolChoice::Function(one) => ((0..names.len()).collect(), vec![one], CallLimit::One),
        };
        let signature = |&i: &usize| CallSignature::new(&items[i], &names[i], i);
        Ok(Self {
            required: required.iter().map(signature).collect::<Result<_, _>>()?,
            items: shown.iter().map(|&i| items[i].clone()).collect(),
            names: shown.iter().map(|&i| names[i].clone()).collect(),
            call_limit,
        })
    }

    /// Returns what outputs are looked through for.
    pub(crate) fn callable(&self) -> Vec<CallableTool> {
        let tools = self.names.iter().zip(&self.items);
        tools
            .map(|(name, tool)| CallableTool::new(name, tool.pointer("/function/parameters")))
            .collect()
    }
}

impl CallSignature {
    /// Takes the signature of a checked tool, the request's `index`th.
    ///
    /// # Errors
    /// Refuses schemas of something else than an object.
    fn new(tool: &Value, name: &str, index: usize) -> Result<Self, ApiError> {
        let param = format!("tools[{index}].function.parameters");
        let mut schema = match tool.pointer("/function/parameters") {
            // No arguments, as at OpenAI.
            None | Some(Value::Null) => json!({"properties": {}, "additionalProperties": false}),
            Some(schema) => schema.clone(),
        };
        let takes_objects = match &schema["type"] {
            Value::Null => true,
            Value::Array(types) => types.contains(&json!("object")),
            Value::String(_) | Value::Bool(_) | Value::Number(_) | Value::Object(_) => {
                schema["type"] == "object"
            }
        };
        if !takes_objects {
            let message = "must be \"object\", since arguments are one";
            return Err(ApiError::invalid(format!("{param}.type"), message));
        }
        schema["type"] = json!("object");
        Ok(Self { name: name.to_owned(), schema, param })
    }
}

fn check_tools(items: &[Value]) -> Result<Vec<String>, ApiError> {
    if items.len() > MAX_TOOLS {
        let message = format!("takes at most {MAX_TOOLS} tools, got {}", items.len());
        return Err(ApiError::invalid("tools", message));
    }
    let mut seen = BTreeSet::new();
    let mut names = Vec::with_capacity(items.len());
    for (i, item) in items.iter().enumerate() {
        let param = format!("tools[{i}]");
        let name = check_tool(item, &param)?;
        if !seen.insert(name) {
            let message = format!("`{name}` is the name of another tool");
            return Err(ApiError::invalid(format!("{param}.function.name"), message));
        }
        names.push(name.to_owned());
    }
    Ok(names)
}

/// Checks one tool and returns its name.
fn check_tool<'a>(item: &'a Value, param: &str) -> Result<&'a str, ApiError> {
    let invalid =
        |field: &str, message: &str| ApiError::invalid(format!("{param}{field}"), message);
    let Some(tool) = item.as_object() else { return Err(invalid("", "must be an object")) };
    if tool.get("type").and_then(Value::as_str) != Some("function") {
        return Err(invalid(".type", "must be \"function\": no other tools are served"));
    }
    let Some(function) = tool.get("function").and_then(Value::as_object) else {
        return Err(invalid(".function", "must be an object with a `name`"));
    };
    let name = function.get("name").and_then(Value::as_str).unwrap_or_default();
    if !is_name(name) {
        let message = format!("must be 1 to {MAX_NAME_LEN} of a-z, A-Z, 0-9, _ and -");
        return Err(invalid(".function.name", &message));
    }
    let is_absent = |field: &str| function.get(field).is_none_or(Value::is_null);
    if !is_absent("description") && !function["description"].is_string() {
        return Err(invalid(".function.description", "must be a string"));
    }
    if !is_absent("parameters") && !function["parameters"].is_object() {
        return Err(invalid(".function.parameters", "must be a JSON schema of an object"));
    }
    if !is_absent("strict") && !function["strict"].is_boolean() {
        return Err(invalid(".function.strict", "must be true or false"));
    }
    Ok(name)
}

fn is_name(name: &str) -> bool {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    (1..=MAX_NAME_LEN).contains(&name.len()) && name.chars().all(is_allowed)
}

/// Checks what a message holds about calls and reasoning, and brings it into the form that chat
/// templates expect. `null` is taken out.
///
/// # Errors
/// Refuses fields of another type or role, naming them below `param`.
pub(crate) fn prepare_message(
    role: &str,
    fields: &mut BTreeMap<String, Value>,
    param: &str,
) -> Result<(), ApiError> {
    let invalid =
        |field: &str, message: &str| ApiError::invalid(format!("{param}.{field}"), message);
    for field in ["name", "tool_call_id", "reasoning_content", "refusal", "tool_calls"] {
        if fields.get(field).is_some_and(Value::is_null) {
            fields.remove(field);
        }
    }
    for field in ["name", "tool_call_id", "reasoning_content", "refusal"] {
        if fields.get(field).is_some_and(|value| !value.is_string()) {
            return Err(invalid(field, "must be a string"));
        }
    }
    for field in ["reasoning_content", "refusal", "tool_calls"] {
        if role != "assistant" && fields.contains_key(field) {
            return Err(invalid(field, "belongs to messages of the assistant"));
        }
    }
    // Templates ask whether the field is there, and fail on an empty list.
    let has_calls = match fields.get_mut("tool_calls") {
        None => return Ok(()),
        Some(Value::Array(calls)) => {
            for (k, call) in calls.iter_mut().enumerate() {
                prepare_call(call, &format!("{param}.tool_calls[{k}]"))?;
            }
            !calls.is_empty()
        }
        Some(_) => return Err(invalid("tool_calls", "must be a list of calls")),
    };
    if !has_calls {
        fields.remove("tool_calls");
    }
    Ok(())
}

fn prepare_call(call: &mut Value, param: &str) -> Result<(), ApiError> {
    let invalid =
        |field: &str, message: &str| ApiError::invalid(format!("{param}{field}"), message);
    let Some(call) = call.as_object_mut() else { return Err(invalid("", "must be an object")) };
    if call.get("id").is_some_and(Value::is_null) {
        call.remove("id");
    }
    if call.get("id").is_some_and(|id| !id.is_string()) {
        return Err(invalid(".id", "must be a string"));
    }
    if call.get("type").is_some_and(|kind| kind != "function") {
        return Err(invalid(".type", "must be \"function\": no other tools are served"));
    }
    call.insert("type".to_owned(), Value::from("function"));
    let Some(function) = call.get_mut("function").and_then(Value::as_object_mut) else {
        return Err(invalid(".function", "must be an object with `name` and `arguments`"));
    };
    if !function.get("name").is_some_and(Value::is_string) {
        return Err(invalid(".function.name", "must be a string"));
    }
    let arguments = match function.get("arguments") {
        None | Some(Value::Null) => Value::Object(Map::new()),
        Some(Value::Object(_)) => return Ok(()),
        Some(Value::String(text)) => match serde_json::from_str(text) {
            Ok(arguments @ Value::Object(_)) => arguments,
            // What a model wrote need not be JSON: the template gets it as it is.
            Ok(_) | Err(_) => return Ok(()),
        },
        Some(_) => return Err(invalid(".function.arguments", "must be a string")),
    };
    function.insert("arguments".to_owned(), arguments);
    Ok(())
}

/// Makes ids of calls that no other answer of this process has.
#[derive(Clone, Debug)]
pub(crate) struct CallIds {
    /// What tells the answer from others.
    answer: String,
    style: CallIdStyle,
}

/// What ids of calls look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallIdStyle {
    /// `call_` and hexadecimal digits.
    Prefixed,
    /// `toolu_` and hexadecimal digits, as Anthropic's API has it.
    ToolUse,
    /// Nine letters and digits.
    Short,
}

impl CallIds {
    /// Makes ids for the answer with this id.
    pub(crate) fn new(response_id: &str, style: CallIdStyle) -> Self {
        let answer = response_id.rsplit('-').next().unwrap_or(response_id);
        Self { answer: answer.to_owned(), style }
    }

    /// Returns the id of a choice's call.
    pub(crate) fn id(&self, choice: usize, index: usize) -> String {
        let long = format!("{}{choice:02x}{index:02x}", self.answer);
        match self.style {
            CallIdStyle::Prefixed => format!("call_{long}"),
            CallIdStyle::ToolUse => format!("toolu_{long}"),
            CallIdStyle::Short => {
                let mut hash = long.bytes().fold(0, |hash, byte| mix64(hash ^ u64::from(byte)));
                let mut letter = || {
                    let letter = ID_LETTERS[(hash % 62) as usize];
                    hash /= 62;
                    char::from(letter)
                };
                (0..SHORT_ID_LEN).map(|_| letter()).collect()
            }
        }
    }
}

/// Returns the arguments of a call as APIs have them that know no broken JSON: what is no object,
/// mostly because it was cut, stands in one as Anthropic's documentation tells clients to write it.
pub(crate) fn arguments_object(text: &str) -> Value {
    match serde_json::from_str(text) {
        Ok(arguments @ Value::Object(_)) => arguments,
        Ok(_) | Err(_) if text.is_empty() => json!({}),
        Ok(_) | Err(_) => json!({"INVALID_JSON": text}),
    }
}

/// A whole call.
#[derive(Debug, PartialEq, Serialize, JsonSchema)]
pub(crate) struct ToolCall {
    pub(crate) id: String,
    #[serde(rename = "type")]
    #[schemars(extend("const" = "function"))]
    pub(crate) kind: &'static str,
    pub(crate) function: FunctionCall,
}

/// What is called.
#[derive(Debug, PartialEq, Serialize, JsonSchema)]
pub(crate) struct FunctionCall {
    pub(crate) name: String,
    /// JSON, as the model wrote it.
    pub(crate) arguments: String,
}

/// What one chunk adds to a call: all but the index come once, in the call's first.
#[derive(Debug, PartialEq, Serialize, JsonSchema)]
pub(crate) struct ToolCallDelta {
    pub(crate) index: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) id: Option<String>,
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub(crate) kind: Option<&'static str>,
    pub(crate) function: FunctionDelta,
}

/// What one chunk adds to the name and the arguments.
#[derive(Debug, PartialEq, Serialize, JsonSchema)]
pub(crate) struct FunctionDelta {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<String>,
    pub(crate) arguments: String,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::slice;

    fn take(fields: Value) -> Result<Tools, (String, &'static str)> {
        let mut fields = serde_json::from_value(fields).unwrap();
        match Tools::take(&mut fields) {
            Ok(tools) => Ok(tools),
            Err(ApiError::InvalidField { param, .. }) => Err((param, "invalid")),
            Err(other) => panic!("{other:?}"),
        }
    }

    fn tool(name: &str) -> Value {
        json!({"type": "function", "function": {"name": name, "parameters": {"type": "object"}}})
    }

    #[test]
    fn tools_are_taken_as_they_are() {
        let tools =
            take(json!({"tools": [tool("a"), tool("b-1")], "tool_choice": "auto"})).unwrap();
        assert_eq!(
            (tools.names, tools.items),
            (vec!["a".to_owned(), "b-1".to_owned()], vec![tool("a"), tool("b-1")])
        );
        assert_eq!(tools.call_limit, CallLimit::None);
        let one = take(json!({"tools": [tool("a")], "parallel_tool_calls": false})).unwrap();
        assert_eq!(one.call_limit, CallLimit::One);
        for none in [
            json!({}),
            json!({"tools": null}),
            json!({"tools": [], "tool_choice": "auto"}),
            json!({"tools": [tool("a")], "tool_choice": "none"}),
        ] {
            assert_eq!(take(none).unwrap(), Tools::default());
        }
    }

    #[test]
    fn tools_that_are_not_well_formed_are_refused_by_name() {
        let refused = |tool: Value, field: &str| {
            let expected = (format!("tools[0]{field}"), "invalid");
            assert_eq!(take(json!({"tools": [tool]})).unwrap_err(), expected);
        };
        refused(json!("f"), "");
        refused(json!({"function": {"name": "f"}}), ".type");
        refused(json!({"type": "web_search"}), ".type");
        refused(json!({"type": "function"}), ".function");
        for name in ["", "a b", "é", &"x".repeat(65)] {
            refused(tool(name), ".function.name");
        }
        let with = |field: &str, value: Value| {
            let mut tool = tool("f");
            tool["function"][field] = value;
            tool
        };
        refused(with("parameters", json!([])), ".function.parameters");
        refused(with("description", json!(5)), ".function.description");
        refused(with("strict", json!("yes")), ".function.strict");
        let whole = |value: Value| take(value).unwrap_err().0;
        assert_eq!(whole(json!({"tools": {}})), "tools");
        assert_eq!(whole(json!({"tools": vec![tool("f"); 129]})), "tools");
        assert_eq!(whole(json!({"tools": [tool("f"), tool("f")]})), "tools[1].function.name");
        assert_eq!(whole(json!({"parallel_tool_calls": 1})), "parallel_tool_calls");
    }

    #[test]
    fn required_calls_have_signatures() {
        let take = |choice: Value| {
            let bare = json!({"type": "function", "function": {"name": "b"}});
            take(json!({"tools": [tool("a"), bare], "tool_choice": choice})).unwrap()
        };
        let signature = |name: &str, schema: Value, index: usize| CallSignature {
            name: name.to_owned(),
            schema,
            param: format!("tools[{index}].function.parameters"),
        };
        let a = signature("a", json!({"type": "object"}), 0);
        let none = json!({"properties": {}, "additionalProperties": false, "type": "object"});
        let b = signature("b", none, 1);
        let required = take(json!("required"));
        assert_eq!((required.required, required.call_limit), (vec![a, b.clone()], CallLimit::None));
        let function = json!({"type": "function", "function": {"name": "b"}});
        let named = take(function.clone());
        assert_eq!((named.items.len(), named.call_limit), (2, CallLimit::One));
        assert_eq!(named.required, slice::from_ref(&b));
        let allowed = |mode| {
            let allowed = json!({"mode": mode, "tools": [function]});
            take(json!({"type": "allowed_tools", "allowed_tools": allowed}))
        };
        let (auto, required) = (allowed("auto"), allowed("required"));
        assert_eq!((auto.names, auto.required), (vec!["b".to_owned()], vec![]));
        assert_eq!((required.names, required.required), (vec!["b".to_owned()], vec![b]));
    }

    #[test]
    fn required_arguments_are_objects() {
        let take = |kind: Value| {
            let mut tool = tool("f");
            tool["function"]["parameters"] = json!({"type": kind});
            take(json!({"tools": [tool], "tool_choice": "required"}))
        };
        let param = "tools[0].function.parameters.type".to_owned();
        assert_eq!(take(json!("string")).unwrap_err(), (param.clone(), "invalid"));
        assert_eq!(take(json!(["string"])).unwrap_err(), (param, "invalid"));
        let either = take(json!(["null", "object"])).unwrap();
        assert_eq!(either.required[0].schema, json!({"type": "object"}));
    }

    fn prepare(role: &str, fields: Value) -> Result<Value, String> {
        let mut fields: BTreeMap<String, Value> = serde_json::from_value(fields).unwrap();
        match prepare_message(role, &mut fields, "m") {
            Ok(()) => Ok(json!(fields)),
            Err(ApiError::InvalidField { param, .. }) => Err(param),
            Err(other) => panic!("{other:?}"),
        }
    }

    #[test]
    fn arguments_of_earlier_calls_become_objects() {
        let call = |arguments: Value| json!({"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}});
        for (sent, seen) in [
            (json!("{\"b\": 1, \"a\": 2}"), json!({"b": 1, "a": 2})),
            (json!({"a": 1}), json!({"a": 1})),
            (Value::Null, json!({})),
            (json!("{broken"), json!("{broken")),
            (json!("5"), json!("5")),
        ] {
            let got = prepare("assistant", json!({"tool_calls": [call(sent)]})).unwrap();
            assert_eq!(got, json!({"tool_calls": [call(seen)]}));
        }
        let bare = json!({"tool_calls": [{"id": null, "function": {"name": "f"}}]});
        let expected = json!({"tool_calls": [{"type": "function", "function": {"name": "f", "arguments": {}}}]});
        assert_eq!(prepare("assistant", bare).unwrap(), expected);
    }

    #[test]
    fn nothing_is_left_of_fields_that_say_nothing() {
        let fields =
            json!({"tool_calls": [], "refusal": null, "reasoning_content": null, "name": null});
        assert_eq!(prepare("assistant", fields).unwrap(), json!({}));
        assert_eq!(prepare("tool", json!({"tool_call_id": null})).unwrap(), json!({}));
        let kept = json!({"reasoning_content": "r", "refusal": "no"});
        assert_eq!(prepare("assistant", kept.clone()).unwrap(), kept);
    }

    #[test]
    fn messages_name_what_is_wrong_with_their_calls() {
        let refused = |role, fields, expected: &str| {
            assert_eq!(prepare(role, fields).unwrap_err(), expected);
        };
        refused("user", json!({"tool_calls": [{}]}), "m.tool_calls");
        refused("user", json!({"reasoning_content": "r"}), "m.reasoning_content");
        refused("tool", json!({"tool_call_id": 5}), "m.tool_call_id");
        refused("assistant", json!({"refusal": 5}), "m.refusal");
        refused("assistant", json!({"tool_calls": {}}), "m.tool_calls");
        refused("assistant", json!({"tool_calls": [5]}), "m.tool_calls[0]");
        refused("assistant", json!({"tool_calls": [{}]}), "m.tool_calls[0].function");
        refused("assistant", json!({"tool_calls": [{"id": 5}]}), "m.tool_calls[0].id");
        refused("assistant", json!({"tool_calls": [{"type": "custom"}]}), "m.tool_calls[0].type");
        let nameless = json!({"tool_calls": [{"function": {"arguments": "{}"}}]});
        refused("assistant", nameless, "m.tool_calls[0].function.name");
        let listed = json!({"tool_calls": [{"function": {"name": "f", "arguments": []}}]});
        refused("assistant", listed, "m.tool_calls[0].function.arguments");
    }

    #[test]
    fn ids_of_calls_are_distinct() {
        let mut seen = BTreeSet::new();
        for style in [CallIdStyle::Prefixed, CallIdStyle::Short] {
            for answer in 0..50 {
                let ids = CallIds::new(&format!("chatcmpl-{answer:016x}"), style);
                for (choice, index) in [(0, 0), (0, 1), (1, 0), (1, 256), (17, 0), (0, 17)] {
                    let id = ids.id(choice, index);
                    let is_short = id.len() == 9 && id.bytes().all(|b| b.is_ascii_alphanumeric());
                    assert_eq!(is_short, style == CallIdStyle::Short, "{id}");
                    assert!(seen.insert(id));
                }
            }
        }
    }
}
