//! Calls that a request demands: the model writes at random, so only the constraint makes them calls.

use crate::byte_level;
use crate::client::post;
use crate::harness::{Setup, TestServer, error_of};
use crate::random_model::RandomModel;
use crate::tools::{NoAdapters, ask};
use mini_infer_core::{Pooling, TokenId};
use mini_infer_grammar::Grammars;
use mini_infer_server::{Adapters, EmbeddingShape, ModelDetails, ServedModel};
use mini_infer_text::{
    ChatTemplate, GgufVocabulary, OutputFormat, ReasoningFormat, Tokenizer, ToolFormat,
};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::sync::Arc;

const CHAT: &str = "/v1/chat/completions";
const END: TokenId = 256;
pub(crate) const TEMPLATE: &str =
    "{% if tools %}T{% endif %}{% for m in messages %}{{ m.content }}{% endfor %}";
/// Tokens that cross the borders of texts, JSON and markers.
const WORDS: &[&str] = &[
    "{\"", "\":", "\": ", "}}", "}\n", ", ", "\", \"", "}}\n</", "tool", "_call>", "</", "; {",
    "}, {", "name", "add", "now", "[{", "}]", "```", "json\n", "[ARGS", "[TOOL_", "CALLS]",
    "<think>", "ö",
];

/// Starts a server; `markers` are control tokens.
pub(crate) fn start(
    tools: ToolFormat,
    reasoning: Option<ReasoningFormat>,
    template: &str,
    markers: &[&str],
) -> TestServer {
    start_liking(tools, reasoning, template, markers, &[])
}

/// Starts a server whose model likes the tokens of some texts more.
pub(crate) fn start_liking(
    tools: ToolFormat,
    reasoning: Option<ReasoningFormat>,
    template: &str,
    markers: &[&str],
    liked: &[&str],
) -> TestServer {
    let control = [&["<|end|>"], markers].concat();
    let vocabulary = byte_level::vocabulary(&control, WORDS);
    let vocabulary = GgufVocabulary { eos: Some(END), ..vocabulary };
    let tokenizer = Arc::new(Tokenizer::from_gguf(vocabulary).unwrap());
    let ids = 0..TokenId::try_from(tokenizer.vocab_size()).unwrap();
    let is_liked =
        |id: &TokenId| liked.iter().any(|text| tokenizer.token_bytes(*id) == Some(text.as_bytes()));
    let liked: Vec<TokenId> = ids.filter(is_liked).collect();
    let random = RandomModel::new(&tokenizer, "\"}:", &liked, 3.0);
    let stop_token_ids = tokenizer.stop_token_ids().to_vec();
    let grammars = Grammars::new(Arc::clone(&tokenizer), stop_token_ids.clone(), 1).unwrap();
    let model = ServedModel {
        names: vec!["random".to_owned()],
        stop_token_ids,
        grammars: Arc::new(grammars),
        chat_template: Some(ChatTemplate::new(template, &tokenizer).unwrap()),
        output_format: OutputFormat::new(Some(tools), reasoning, &tokenizer),
        vocab_size: tokenizer.vocab_size(),
        tokenizer,
        adapters: Adapters::new(Box::new(NoAdapters), None),
        max_model_len: 256,
        embeddings: EmbeddingShape { pooling: Pooling::Mean, hidden_size: 1 },
        details: ModelDetails::default(),
    };
    TestServer::start_model(Setup::default(), random, model)
}

fn tools() -> Value {
    let add = json!({
        "type": "object",
        "properties": {
            "x": {"type": "integer", "minimum": 0, "maximum": 99},
            "text": {"type": "string", "maxLength": 6},
        },
        "required": ["x"],
        "additionalProperties": false,
    });
    let now = json!({
        "type": "object",
        "properties": {"zone": {"enum": ["UTC", "</tool_call>", "```\n[ARGS]"]}},
        "required": ["zone"],
        "additionalProperties": false,
    });
    json!([
        {"type": "function", "function": {"name": "add", "parameters": add, "strict": true}},
        {"type": "function", "function": {"name": "now", "parameters": now}},
        {"type": "function", "function": {"name": "stop-all"}},
    ])
}

pub(crate) fn body(choice: Value, seed: u64) -> Value {
    json!({
        "messages": [{"role": "user", "content": seed.to_string()}], "tools": tools(),
        "tool_choice": choice, "temperature": 1, "seed": seed, "max_tokens": 150,
    })
}

pub(crate) fn function(name: &str) -> Value {
    json!({"type": "function", "function": {"name": name}})
}

/// Checks the calls of an answer, whole and streamed, and returns the tools' names. The
/// last call may break off where the answer may be no longer.
pub(crate) fn check_calls(server: &TestServer, body: &Value) -> Vec<String> {
    let (message, reason, _) = ask(server, body);
    let calls = message["tool_calls"].as_array().unwrap_or_else(|| panic!("{body}: {message}"));
    let is_whole = reason == "tool_calls";
    assert!(is_whole || reason == "length", "{reason}: {message}");
    // The head of a call that breaks off is text.
    assert!(message["content"].is_null() || !is_whole, "{message}");
    let schema = |name: &str| {
        let tools = body["tools"].as_array().unwrap().iter();
        let tool = tools.clone().find(|tool| tool["function"]["name"] == name);
        let none = json!({"type": "object", "maxProperties": 0});
        tool.unwrap()["function"].get("parameters").cloned().unwrap_or(none)
    };
    let num_whole = if is_whole { calls.len() } else { calls.len() - 1 };
    for call in &calls[..num_whole] {
        let text = call["function"]["arguments"].as_str().unwrap();
        let arguments = serde_json::from_str(text).unwrap_or_else(|_| panic!("{message}"));
        let schema = schema(call["function"]["name"].as_str().unwrap());
        assert!(jsonschema::is_valid(&schema, &arguments), "{message}");
    }
    calls.iter().map(|call| call["function"]["name"].as_str().unwrap().to_owned()).collect()
}

/// Checks every choice on a server, over some random answers.
fn check(server: &TestServer) {
    let names = ["add", "now", "stop-all"];
    let mut num_several = 0;
    let mut seen = BTreeSet::new();
    for (seed, name) in (0..4).zip(names.iter().cycle()) {
        let all = check_calls(server, &body(json!("required"), seed));
        num_several += usize::from(all.len() > 1);
        seen.extend(all);
        assert_eq!(check_calls(server, &body(function(name), seed)), [*name]);
    }
    assert!(num_several > 0 && seen.len() > 1, "{num_several} {seen:?}");
    let mut one = body(json!("required"), 0);
    one["parallel_tool_calls"] = json!(false);
    assert_eq!(check_calls(server, &one).len(), 1);
    let allowed = json!({"mode": "required", "tools": [function("now")]});
    let allowed = json!({"type": "allowed_tools", "allowed_tools": allowed});
    assert!(check_calls(server, &body(allowed, 0)).iter().all(|name| name == "now"));
    server.wait_until_idle();
}

#[test]
fn hermes_calls_are_what_was_demanded() {
    check(&start(ToolFormat::Hermes, None, TEMPLATE, &[]));
    check(&start(ToolFormat::Hermes, None, TEMPLATE, &["<tool_call>", "</tool_call>"]));
}

#[test]
fn mistral_calls_are_what_was_demanded() {
    check(&start(ToolFormat::Mistral, None, TEMPLATE, &["[TOOL_CALLS]"]));
    check(&start(ToolFormat::Mistral, None, TEMPLATE, &["[TOOL_CALLS]", "[ARGS]"]));
    check(&start(ToolFormat::Mistral, None, TEMPLATE, &[]));
}

#[test]
fn calls_without_markers_are_what_was_demanded() {
    for format in [ToolFormat::Llama3Json, ToolFormat::Json, ToolFormat::Pythonic] {
        check(&start(format, None, TEMPLATE, &[]));
    }
    check(&start(ToolFormat::Gemma, None, TEMPLATE, &[]));
}

#[test]
fn reasoning_that_the_prompt_has_begun_is_ended_first() {
    let template = &format!("{TEMPLATE}<think>\n");
    for format in [ReasoningFormat::Qwen3, ReasoningFormat::DeepseekR1] {
        check(&start(ToolFormat::Hermes, Some(format), template, &[]));
    }
    check(&start(ToolFormat::Json, Some(ReasoningFormat::Qwen3), TEMPLATE, &["</think>"]));
    let markers = ["[TOOL_CALLS]", "[ARGS]", "[THINK]", "[/THINK]"];
    let template = &format!("{TEMPLATE}[THINK]");
    check(&start(ToolFormat::Mistral, Some(ReasoningFormat::Mistral), template, &markers));
}

#[test]
fn what_cannot_be_demanded_is_refused_and_names_its_place() {
    let server = start(ToolFormat::Hermes, None, TEMPLATE, &[]);
    let refused = |fields: Value, expected: &str| {
        let mut body = body(json!("required"), 0);
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let response = post(server.address, CHAT, &body.to_string());
        assert_eq!(response.status, 400, "{fields}: {}", response.body);
        assert_eq!(error_of(&response).0, expected, "{fields}");
    };
    let with = |parameters: Value| {
        let mut tools = tools();
        tools[1]["function"]["parameters"] = parameters;
        json!({"tools": tools})
    };
    let at = "tools[1].function.parameters";
    refused(with(json!({"type": "string"})), &format!("{at}.type"));
    let property = |schema: Value| with(json!({"type": "object", "properties": {"a": schema}}));
    let pattern = property(json!({"type": "string", "pattern": "(a"}));
    refused(pattern, &format!("{at}.properties.a.pattern"));
    refused(property(json!({"not": {}})), &format!("{at}.properties.a.not"));
    let remote = property(json!({"$ref": "http://example.com/x"}));
    refused(remote, &format!("{at}.properties.a.$ref"));
    refused(json!({"tool_choice": function("sub")}), "tool_choice");
    refused(json!({"tools": null}), "tool_choice");
    let large = property(json!({"enum": vec!["x".repeat(1000); 300]}));
    refused(large, at);
    // Only schemas that have to be followed are compiled.
    let mut other = body(function("add"), 0);
    other["tools"][1]["function"]["parameters"] = json!({"type": "object", "not": {}});
    assert_eq!(check_calls(&server, &other), ["add"]);
    server.wait_until_idle();
}
