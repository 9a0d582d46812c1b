//! Tool calls and reasoning: whole and streamed, and what is refused.
//!
//! The model recites: the last character of the conversation chooses the answer, token by token.

use crate::byte_level;
use crate::client::{Response, post};
use crate::harness::{Setup, TestServer, error_of};
use mini_infer_core::{Batch, Executor, ExecutorError, KvTransfer, Pooling, TokenId};
use mini_infer_grammar::Grammars;
use mini_infer_server::{
    AdapterSource, Adapters, EmbeddingShape, LoadedAdapter, ModelDetails, ServedModel,
};
use mini_infer_text::{
    ChatTemplate, GgufVocabulary, OutputFormat, ReasoningFormat, Tokenizer, ToolFormat,
};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

const CHAT: &str = "/v1/chat/completions";
const END: TokenId = 256;
/// A marker that is a control token.
const TOOL_CALLS: TokenId = 257;

/// Shows tools and what templates look at in messages, and ends with the last message.
const TEMPLATE: &str = "{% if messages[-1].content == 'show' %}\
    {{ raise_exception((messages[:-1] | tojson) ~ (tools | tojson)) }}{% endif %}\
    {% if tools %}{{ tools | tojson }}{% endif %}\
    {% for m in messages %}{{ m.content }}{% endfor %}";

const CALL: [&str; 6] = [
    "<tool_",
    "call>\n{\"name\":",
    " \"get_weather\", \"argu",
    "ments\": {\"city\": \"K",
    "öln\"}}\n</too",
    "l_call>",
];

/// Answers by the character that asks for them, token by token; no token is in two of them.
const ANSWERS: &[(u8, &[&str])] = &[
    (b'a', &["Plain", " text"]),
    (b'c', &CALL),
    (
        b'd',
        &[
            "Two:\n<t",
            "ool_call>{\"name\": \"get_w",
            "eather\", \"arguments\": {\"city\": \"Köl",
            "n\"}}</tool_call>\n<tool_call>\n{\"na",
            "me\": \"get_weather\", \"arguments\": {\"city\": \"Köln\"",
            "}}\n</tool_call>",
        ],
    ),
    (b'm', &["<tool_call>", "{\"name\": ", "oops}", "</tool_call>"]),
    (b'r', &["<thi", "nk>\nWhy", " not?\n</th", "ink>\n\n", "Yes."]),
    (
        b'b',
        &[
            "<think>Hm</th",
            "ink>\n<tool_call>{\"name\"",
            ": \"get_weather\", \"arguments\": {\"city\": \"Kö",
            "ln\"}}</tool_call>",
        ],
    ),
    (b't', &["<think>e", "ndless"]),
    (b's', &["<think>a", " STOP b</thin", "k>ccc"]),
    (b'>', &["Hm", "</th", "ink>Yes"]),
    (b'M', &["[TOOL_CALLS]", "f{\"a\"", ": 1}"]),
];

struct Recital {
    next: BTreeMap<TokenId, TokenId>,
    vocab_size: usize,
}

impl Executor for Recital {
    fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    fn transfer(&mut self, _transfers: &[KvTransfer]) {}

    fn forward(&mut self, batch: &Batch, logits: &mut Vec<f32>) -> Result<(), ExecutorError> {
        logits.clear();
        for &row in &batch.logits_rows {
            let first = logits.len();
            logits.resize(first + self.vocab_size, -1e30);
            let next = self.next.get(&batch.tokens[row as usize]).copied().unwrap_or(END);
            logits[first + next as usize] = 0.0;
        }
        Ok(())
    }
}

pub(crate) struct NoAdapters;

impl AdapterSource for NoAdapters {
    fn load(&self, _folder: &Path) -> Result<LoadedAdapter, String> {
        Err("there are none".to_owned())
    }
}

/// Starts a server that marks calls and reasoning in the given ways.
pub(crate) fn start(
    tools: Option<ToolFormat>,
    reasoning: Option<ReasoningFormat>,
    template: &str,
) -> TestServer {
    let control = ["<|end|>", "[TOOL_CALLS]"];
    let (mut words, mut next) = (Vec::new(), BTreeMap::new());
    for (key, pieces) in ANSWERS {
        let mut last = TokenId::from(*key);
        for piece in *pieces {
            let token = if *piece == control[1] {
                TOOL_CALLS
            } else {
                words.push(*piece);
                TOOL_CALLS + TokenId::try_from(words.len()).unwrap()
            };
            next.insert(last, token);
            last = token;
        }
    }
    let vocabulary = byte_level::vocabulary(&control, &words);
    let vocabulary = GgufVocabulary { eos: Some(END), ..vocabulary };
    let tokenizer = Arc::new(Tokenizer::from_gguf(vocabulary).unwrap());
    let vocab_size = tokenizer.vocab_size();
    let stop_token_ids = tokenizer.stop_token_ids().to_vec();
    let grammars = Grammars::new(Arc::clone(&tokenizer), stop_token_ids.clone(), 1).unwrap();
    let model = ServedModel {
        names: vec!["recital".to_owned()],
        stop_token_ids,
        grammars: Arc::new(grammars),
        chat_template: Some(ChatTemplate::new(template, &tokenizer).unwrap()),
        output_format: OutputFormat::new(tools, reasoning, &tokenizer),
        tokenizer,
        adapters: Adapters::new(Box::new(NoAdapters), None),
        max_model_len: 256,
        vocab_size,
        embeddings: EmbeddingShape { pooling: Pooling::Mean, hidden_size: 1 },
        details: ModelDetails::default(),
    };
    TestServer::start_model(Setup::default(), Recital { next, vocab_size }, model)
}

pub(crate) fn hermes() -> TestServer {
    start(Some(ToolFormat::Hermes), Some(ReasoningFormat::Qwen3), TEMPLATE)
}

fn tool(name: &str) -> Value {
    json!({"type": "function", "function": {"name": name, "parameters": {"type": "object"}}})
}

fn body(ask: &str) -> Value {
    let messages = json!([{"role": "user", "content": ask}]);
    json!({"messages": messages, "tools": [tool("get_weather")]})
}

fn send(server: &TestServer, body: &Value) -> Response {
    post(server.address, CHAT, &body.to_string())
}

fn answer(server: &TestServer, body: &Value) -> Value {
    let response = send(server, body);
    assert_eq!(response.status, 200, "{}", response.body);
    response.json()
}

/// Joins a stream's deltas as OpenAI's client does, and checks what each may hold.
fn joined(server: &TestServer, body: &Value) -> (Value, Value) {
    let mut body = body.clone();
    body["stream"] = json!(true);
    body["stream_options"] = json!({"include_usage": true});
    let response = send(server, &body);
    assert_eq!(response.status, 200, "{}", response.body);
    let chunks = response.chunks();
    let mut message = json!({"role": "assistant", "content": null, "refusal": null});
    let mut finish_reason = Value::Null;
    for chunk in &chunks[..chunks.len() - 1] {
        let choice = &chunk["choices"][0];
        let delta = choice["delta"].as_object().unwrap();
        let mut add = |field: &str| {
            if let Some(text) = delta.get(field).and_then(Value::as_str) {
                let before = message[field].as_str().unwrap_or_default();
                message[field] = json!(format!("{before}{text}"));
            }
        };
        add("content");
        add("reasoning_content");
        if let Some(call) = delta.get("tool_calls") {
            let call = &call.as_array().unwrap()[0];
            let index = usize::try_from(call["index"].as_u64().unwrap()).unwrap();
            let calls = &mut message["tool_calls"];
            if calls.is_null() {
                *calls = json!([]);
            }
            if calls[index].is_null() {
                assert_eq!(call["type"], "function", "{call}");
                assert_eq!(call["function"]["arguments"], "", "{call}");
                let call =
                    json!({"id": call["id"], "type": "function", "function": call["function"]});
                calls.as_array_mut().unwrap().push(call);
            } else {
                let fields: Vec<&String> = call.as_object().unwrap().keys().collect();
                assert_eq!(fields, ["index", "function"], "{call}");
                assert!(call["function"].get("name").is_none(), "{call}");
                let arguments = &mut calls[index]["function"]["arguments"];
                let piece = call["function"]["arguments"].as_str().unwrap();
                *arguments = json!(format!("{}{piece}", arguments.as_str().unwrap()));
            }
        }
        if !choice["finish_reason"].is_null() {
            finish_reason = choice["finish_reason"].clone();
        }
    }
    let usage = chunks.last().unwrap()["usage"].clone();
    (json!({"message": message, "finish_reason": finish_reason}), usage)
}

/// Asks whole and streamed, checks that both say the same, and returns message, reason and usage.
pub(crate) fn ask(server: &TestServer, body: &Value) -> (Value, Value, Value) {
    let whole = answer(server, body);
    let (mut streamed, streamed_usage) = joined(server, body);
    let mut choice = whole["choices"][0].clone();
    // Ids differ from answer to answer.
    for choice in [&mut choice, &mut streamed] {
        for call in choice["message"]["tool_calls"].as_array_mut().into_iter().flatten() {
            assert!(call["id"].as_str().is_some_and(|id| id.len() >= 9), "{call}");
            call["id"] = Value::Null;
        }
    }
    assert_eq!(choice["message"], streamed["message"]);
    assert_eq!(choice["finish_reason"], streamed["finish_reason"]);
    let without_hits = |usage: &Value| {
        let mut usage = usage.clone();
        usage["prompt_tokens_details"] = Value::Null;
        usage
    };
    assert_eq!(without_hits(&whole["usage"]), without_hits(&streamed_usage));
    (choice["message"].clone(), choice["finish_reason"].clone(), whole["usage"].clone())
}

fn call() -> Value {
    let arguments = "{\"city\": \"Köln\"}";
    json!({"id": null, "type": "function", "function": {"name": "get_weather", "arguments": arguments}})
}

#[test]
fn tools_are_counted_as_tokens_of_the_prompt() {
    let server = hermes();
    let mut body = body("a");
    let count = |body: &Value| {
        let response = post(server.address, "/tokenize", &body.to_string());
        assert_eq!(response.status, 200, "{}", response.body);
        response.json()["count"].as_u64().unwrap()
    };
    let num_used = |body: &Value| answer(&server, body)["usage"]["prompt_tokens"].as_u64().unwrap();
    let with_tools = count(&body);
    assert_eq!(with_tools, num_used(&body));
    let rendered = post(server.address, "/apply-template", &body.to_string()).json();
    assert!(rendered["prompt"].as_str().unwrap().contains("get_weather"));
    body["tool_choice"] = json!("none");
    assert_eq!((count(&body), num_used(&body)), (1, 1));
}

#[test]
fn a_call_comes_as_the_openai_api_tells_it() {
    let server = hermes();
    let (message, reason, usage) = ask(&server, &body("c"));
    let expected =
        json!({"role": "assistant", "content": null, "refusal": null, "tool_calls": [call()]});
    assert_eq!((message, reason), (expected, json!("tool_calls")));
    assert_eq!(usage["completion_tokens"], CALL.len() + 1);
    assert_eq!(usage["completion_tokens_details"], json!({"reasoning_tokens": 0}));
    let ids: Vec<Value> = (0..2)
        .map(|_| {
            answer(&server, &body("c"))["choices"][0]["message"]["tool_calls"][0]["id"].clone()
        })
        .collect();
    assert!(ids[0] != ids[1] && ids[0].as_str().unwrap().starts_with("call_"), "{ids:?}");
    server.wait_until_idle();
}

#[test]
fn a_streamed_call_is_these_deltas() {
    let server = hermes();
    let mut body = body("c");
    body["stream"] = json!(true);
    let response = send(&server, &body);
    let mut text = response.body.clone();
    for (chunk, name) in response.chunks().iter().zip(["", "ID"]) {
        if let Some(id) = chunk["choices"][0]["delta"]["tool_calls"][0]["id"].as_str() {
            text = text.replace(id, name);
        }
    }
    let deltas: Vec<&str> = text
        .split_terminator("\n\n")
        .filter_map(|event| event.split_once("\"delta\":")?.1.split_once(",\"logprobs\""))
        .map(|(delta, _)| delta)
        .collect();
    let expected = [
        r#"{"role":"assistant","content":null}"#,
        r#"{"tool_calls":[{"index":0,"id":"ID","type":"function","function":{"name":"get_weather","arguments":""}}]}"#,
        r#"{"tool_calls":[{"index":0,"function":{"arguments":"{\"city\": \"K"}}]}"#,
        r#"{"tool_calls":[{"index":0,"function":{"arguments":"öln\"}"}}]}"#,
        "{}",
    ];
    assert_eq!(deltas, expected);
}

#[test]
fn several_calls_have_indexes_and_ids_of_their_own() {
    let server = hermes();
    let (message, reason, _) = ask(&server, &body("d"));
    assert_eq!((&message["content"], reason), (&json!("Two:"), json!("tool_calls")));
    assert_eq!(message["tool_calls"], json!([call(), call()]));
    let calls = &answer(&server, &body("d"))["choices"][0]["message"]["tool_calls"];
    assert_ne!(calls[0]["id"], calls[1]["id"]);
    let mut two = body("c");
    two["n"] = json!(2);
    let choices = &answer(&server, &two)["choices"];
    let id = |i: usize| choices[i]["message"]["tool_calls"][0]["id"].clone();
    assert_ne!(id(0), id(1));
}

#[test]
fn without_parallel_calls_the_first_ends_the_answer() {
    let server = hermes();
    let mut body = body("d");
    body["parallel_tool_calls"] = json!(false);
    let (message, reason, usage) = ask(&server, &body);
    assert_eq!((&message["tool_calls"], reason), (&json!([call()]), json!("tool_calls")));
    // The call is whole before its end marker.
    assert_eq!(usage["completion_tokens"], 4);
    server.wait_until_idle();
}

#[test]
fn what_is_no_call_stays_text() {
    let server = hermes();
    let (message, reason, _) = ask(&server, &body("m"));
    let text = "<tool_call>{\"name\": oops}</tool_call>";
    assert_eq!((&message["content"], reason), (&json!(text), json!("stop")));
    let (message, reason, _) = ask(&server, &body("a"));
    assert_eq!((&message["content"], reason), (&json!("Plain text"), json!("stop")));
    // Without tools, or with none to choose, nothing is a call.
    for change in [json!({"tools": null}), json!({"tool_choice": "none"})] {
        let mut body = body("c");
        body.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        let (message, reason, _) = ask(&server, &body);
        assert_eq!((&message["content"], reason), (&json!(CALL.concat()), json!("stop")));
    }
}

#[test]
fn an_answer_that_is_cut_in_a_call_says_length() {
    let server = hermes();
    let mut body = body("c");
    body["max_tokens"] = json!(4);
    let (message, reason, _) = ask(&server, &body);
    let arguments = &message["tool_calls"][0]["function"]["arguments"];
    assert_eq!((arguments, reason), (&json!("{\"city\": \"K"), json!("length")));
}

#[test]
fn reasoning_is_split_off_and_counted() {
    let server = hermes();
    let (message, reason, usage) = ask(&server, &body("r"));
    assert_eq!(message["reasoning_content"], "Why not?");
    assert_eq!((&message["content"], reason), (&json!("Yes."), json!("stop")));
    assert_eq!(usage["completion_tokens"], 6);
    assert_eq!(usage["completion_tokens_details"]["reasoning_tokens"], 3);
    let (message, reason, _) = ask(&server, &body("b"));
    assert_eq!(message["reasoning_content"], "Hm");
    assert_eq!((&message["tool_calls"], reason), (&json!([call()]), json!("tool_calls")));
    let (message, _, _) = ask(&server, &body("t"));
    assert_eq!(
        (&message["content"], &message["reasoning_content"]),
        (&Value::Null, &json!("endless"))
    );
    // Without tools as well.
    let plain = json!({"messages": [{"role": "user", "content": "r"}]});
    assert_eq!(ask(&server, &plain).0["reasoning_content"], "Why not?");
}

#[test]
fn a_stop_string_leaves_no_fragment_of_a_marker() {
    let server = hermes();
    let mut body = body("s");
    body["stop"] = json!(["STOP", "</thin", "nk>x"]);
    let (message, reason, _) = ask(&server, &body);
    assert_eq!((&message["content"], &message["reasoning_content"]), (&Value::Null, &json!("a")));
    assert_eq!(reason, "stop");
    body["stop"] = json!("k>c");
    let (message, _, _) = ask(&server, &body);
    assert_eq!(
        (&message["content"], &message["reasoning_content"]),
        (&Value::Null, &json!("a STOP b</thin"))
    );
}

#[test]
fn a_prompt_may_end_inside_reasoning() {
    let template = "{% for m in messages %}{{ m.content }}{% endfor %}<think>";
    let server = start(None, Some(ReasoningFormat::Qwen3), template);
    let body = json!({"messages": [{"role": "user", "content": "x"}]});
    let (message, _, usage) = ask(&server, &body);
    assert_eq!((&message["content"], &message["reasoning_content"]), (&json!("Yes"), &json!("Hm")));
    assert_eq!(usage["completion_tokens_details"]["reasoning_tokens"], 3);
}

#[test]
fn markers_that_are_control_tokens_are_seen_and_ids_suit_mistral() {
    let server = start(Some(ToolFormat::Mistral), None, TEMPLATE);
    let whole = answer(&server, &body("M"));
    let message = &whole["choices"][0]["message"];
    assert_eq!(message["content"], Value::Null);
    let call = &message["tool_calls"][0];
    assert_eq!(call["function"], json!({"name": "f", "arguments": "{\"a\": 1}"}));
    assert_eq!(call["id"].as_str().unwrap().len(), 9);
    assert_eq!(ask(&server, &body("M")).1, "tool_calls");
}

#[test]
fn log_probabilities_of_markup_come_with_the_next_piece() {
    let server = hermes();
    let mut body = body("r");
    body["logprobs"] = json!(true);
    let whole = answer(&server, &body);
    let tokens = whole["choices"][0]["logprobs"]["content"].as_array().unwrap();
    let text: String = tokens.iter().map(|token| token["token"].as_str().unwrap()).collect();
    assert_eq!(text, "<think>\nWhy not?\n</think>\n\nYes.");
}

#[test]
fn templates_see_tools_calls_and_what_they_gave() {
    let server = hermes();
    let body = json!({
        "messages": [
            {"role": "assistant", "content": null, "reasoning_content": "hm", "tool_calls": [
                {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{\"a\": 1}"}},
            ]},
            {"role": "tool", "tool_call_id": "call_1", "content": "5"},
            {"role": "tool", "tool_call_id": null, "content": "6"},
            {"role": "user", "content": "show"},
        ],
        "tools": [tool("g")],
    });
    let response = send(&server, &body);
    assert_eq!((response.status, error_of(&response).0.as_str()), (400, "messages"));
    let message = response.json()["error"]["message"].as_str().unwrap().to_owned();
    let (_, seen) = message.split_once("messages: ").unwrap();
    let expected = concat!(
        r#"[{"role": "assistant", "content": "", "tool_calls": [{"id": "call_1", "type": "function", "#,
        r#""function": {"name": "f", "arguments": {"a": 1}}}], "reasoning_content": "hm"}, "#,
        r#"{"role": "tool", "content": "5", "tool_call_id": "call_1"}, {"role": "tool", "content": "6"}]"#,
        r#"[{"type": "function", "function": {"name": "g", "parameters": {"type": "object"}}}]"#,
    );
    assert_eq!(seen, expected);
}

#[test]
fn tools_that_would_have_no_effect_are_refused() {
    let check = |server: &TestServer, reason: &str| {
        let response = send(server, &body("a"));
        assert_eq!((response.status, error_of(&response).0.as_str()), (400, "tools"));
        assert!(response.body.contains(reason), "{}", response.body);
    };
    let template = "{% for m in messages %}{{ m.content }}{% endfor %}";
    check(&start(Some(ToolFormat::Hermes), None, template), "does not show tools");
    check(&start(None, None, TEMPLATE), "--tool-call-parser");
    check(&TestServer::start(Setup::default()), "--tool-call-parser");
}
