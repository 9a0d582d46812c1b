//! Ollama's API: whole, streamed and refused.

use crate::client::{Connection, Response, get, post};
use crate::harness::{Setup, TestServer, wait_until};
use crate::script::Gate;
use crate::tools::{hermes, start};
use mini_infer_server::{AccessConfig, KeyScope, ServerConfig};
use mini_infer_text::ReasoningFormat;
use serde_json::{Value, json};

const CHAT: &str = "/api/chat";
const GENERATE: &str = "/api/generate";
const DURATIONS: [&str; 4] =
    ["total_duration", "load_duration", "prompt_eval_duration", "eval_duration"];

/// Returns a body that asks one thing of the model, with further fields.
fn chat_body(model: &str, ask: &str, fields: Value) -> Value {
    let messages = json!([{"role": "user", "content": ask}]);
    with(json!({"model": model, "messages": messages}), fields)
}

fn with(mut body: Value, fields: Value) -> Value {
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    body
}

fn send(server: &TestServer, path: &str, body: &Value) -> Response {
    post(server.address, path, &body.to_string())
}

/// Returns the lines of a stream.
fn lines(server: &TestServer, path: &str, body: &Value) -> Vec<Value> {
    let response = send(server, path, body);
    assert_eq!(response.status, 200, "{}", response.body);
    assert_eq!(response.header("content-type"), Some("application/x-ndjson"));
    assert!(response.body.ends_with('\n'), "{}", response.body);
    response.body.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Puts a stream together as Ollama's client would, and checks what each line may hold.
fn joined(server: &TestServer, path: &str, body: &Value) -> Value {
    let mut lines = lines(server, path, body);
    let mut whole = lines.pop().unwrap();
    let (mut texts, mut calls, mut logprobs) = (["".to_owned(), "".to_owned()], vec![], vec![]);
    for line in &lines {
        assert_eq!((&line["done"], line.get("done_reason")), (&json!(false), None), "{line}");
        let part = line.get("message").unwrap_or(line);
        let fields = [part.get("content").or(part.get("response")), part.get("thinking")];
        for (text, field) in texts.iter_mut().zip(fields) {
            text.push_str(field.and_then(Value::as_str).unwrap_or_default());
        }
        let items = |part: &Value, field: &str| part[field].as_array().cloned().unwrap_or_default();
        calls.extend(items(part, "tool_calls"));
        logprobs.extend(items(line, "logprobs"));
    }
    let [content, thinking] = texts;
    let name = if path == CHAT { "content" } else { "response" };
    let part = if path == CHAT { &mut whole["message"] } else { &mut whole };
    assert_eq!(part[name], "", "{part}");
    part[name] = json!(content);
    if !thinking.is_empty() {
        part["thinking"] = json!(thinking);
    }
    if !calls.is_empty() {
        part["tool_calls"] = json!(calls);
    }
    if !logprobs.is_empty() {
        whole["logprobs"] = json!(logprobs);
    }
    whole
}

/// Asks whole and streamed, checks that both say the same, and returns it without what differs
/// from run to run.
fn ask(server: &TestServer, path: &str, body: &Value) -> Value {
    let response = send(server, path, &with(body.clone(), json!({"stream": false})));
    assert_eq!(response.status, 200, "{}", response.body);
    let (mut whole, mut streamed) = (response.json(), joined(server, path, body));
    for answer in [&mut whole, &mut streamed] {
        assert_eq!(answer["done"], true, "{answer}");
        let duration = |name: &str| answer[name].as_u64().unwrap();
        let [total, parts @ ..] = DURATIONS.map(duration);
        assert_eq!(total, parts.iter().sum::<u64>(), "{answer}");
        assert!(parts.iter().all(|part| *part > 0), "{answer}");
        let created_at = answer["created_at"].as_str().unwrap();
        assert!(created_at.starts_with("20") && created_at.ends_with('Z'), "{created_at}");
        let members = answer.as_object_mut().unwrap();
        members.retain(|name, _| name != "created_at" && !DURATIONS.contains(&name.as_str()));
        if let Some(calls) = answer.pointer_mut("/message/tool_calls") {
            for call in calls.as_array_mut().unwrap() {
                assert!(call["id"].as_str().unwrap().starts_with("call_"), "{call}");
                call["id"] = Value::Null;
            }
        }
    }
    assert_eq!(whole, streamed);
    whole
}

/// Checks that a response is an error of Ollama's shape, and returns its message.
fn error_of(response: &Response) -> String {
    let json = response.json();
    let members: Vec<&String> = json.as_object().unwrap().keys().collect();
    assert_eq!(members, ["error"], "{json}");
    json["error"].as_str().unwrap().to_owned()
}

fn check_refused(server: &TestServer, path: &str, body: &Value, param: &str) {
    let response = send(server, path, body);
    assert_eq!(response.status, 400, "{body}: {}", response.body);
    let message = error_of(&response);
    assert!(message.contains(param), "{body}: {message}");
}

#[test]
fn a_conversation_is_answered_whole_and_as_a_stream() {
    let server = TestServer::start(Setup::default());
    // The template ends with a line break, which `a` follows.
    let body = chat_body("script", "hi", json!({"options": {"num_predict": 5, "top_k": 1}}));
    let expected = json!({
        "model": "script", "message": {"role": "assistant", "content": "abcde"}, "done": true,
        "done_reason": "length", "prompt_eval_count": 21, "eval_count": 5,
    });
    assert_eq!(ask(&server, CHAT, &body), expected);
    let stopped = chat_body("script", "hi", json!({"options": {"stop": ["d"]}}));
    let answer = ask(&server, CHAT, &stopped);
    assert_eq!(
        (&answer["message"]["content"], &answer["done_reason"]),
        (&json!("abc"), &json!("stop"))
    );
    server.wait_until_idle();
}

#[test]
fn streams_tell_each_token_when_it_comes() {
    let setup = Setup { gate: Gate::new(3), ..Setup::default() };
    let server = TestServer::start(setup);
    let body = chat_body("script", "hi", json!({"options": {"num_predict": 5}}));
    let mut connection = Connection::post(server.address, CHAT, &body.to_string());
    connection.read_until("\"b\"");
    server.gate.open();
    let response = connection.finish();
    assert_eq!(response.header("x-accel-buffering"), Some("no"));
    assert_eq!(response.body.lines().count(), 6, "{}", response.body);
}

#[test]
fn prompts_are_answered_through_the_template_or_raw() {
    let server = TestServer::start(Setup::default());
    let options = json!({"options": {"num_predict": 3}});
    let body = |fields: Value| with(with(json!({"model": "script"}), options.clone()), fields);
    let chat = ask(&server, GENERATE, &body(json!({"prompt": "hi"})));
    assert_eq!((&chat["response"], &chat["prompt_eval_count"]), (&json!("abc"), &json!(21)));
    let system = body(json!({"prompt": "hi", "system": "x"}));
    assert_eq!(ask(&server, GENERATE, &system)["prompt_eval_count"], 21 + 11);
    let raw = ask(&server, GENERATE, &body(json!({"prompt": "x5", "raw": true})));
    assert_eq!((&raw["response"], &raw["prompt_eval_count"]), (&json!("678"), &json!(2)));
    // Without a limit, a raw prompt's output may fill the context.
    let open = json!({"model": "script", "prompt": "xa", "raw": true});
    let open = ask(&server, GENERATE, &open);
    assert_eq!((&open["eval_count"], &open["done_reason"]), (&json!(254), &json!("length")));
    // The gap between `ab` and `cd` follows the third mark.
    let gap = ask(&server, GENERATE, &body(json!({"prompt": "ab", "suffix": "cd"})));
    assert_eq!((&gap["prompt_eval_count"], &gap["eval_count"]), (&json!(7), &json!(3)));
}

#[test]
fn requests_for_nothing_tell_that_the_model_is_there() {
    let server = TestServer::start(Setup::default());
    for fields in [json!({}), json!({"keep_alive": "5m"}), json!({"keep_alive": -1})] {
        let body = with(json!({"model": "script"}), fields);
        let chat = send(&server, CHAT, &body).json();
        assert_eq!((&chat["done_reason"], &chat["done"]), (&json!("load"), &json!(true)), "{chat}");
        assert_eq!(chat["message"], json!({"role": "assistant", "content": ""}));
        let text = send(&server, GENERATE, &body).json();
        assert_eq!((&text["done_reason"], &text["response"]), (&json!("load"), &json!("")));
        assert_eq!(text.get("total_duration"), None);
    }
    for zero in [json!(0), json!("0s"), json!("0h0m")] {
        let body = json!({"model": "script", "keep_alive": zero});
        check_refused(&server, CHAT, &body, "keep_alive");
        check_refused(&server, GENERATE, &body, "keep_alive");
    }
}

fn tools() -> Value {
    let function = json!({"name": "get_weather", "parameters": {"type": "object"}});
    json!({"tools": [{"type": "function", "function": function}]})
}

fn call(arguments: Value) -> Value {
    let function = json!({"index": 0, "name": "get_weather", "arguments": arguments});
    json!({"id": null, "function": function})
}

#[test]
fn calls_are_told_whole_and_reasoning_apart() {
    let server = hermes();
    let check = |ask_for: &str, fields: Value, message: Value, done_reason: &str| {
        let answer = ask(&server, CHAT, &chat_body("recital", ask_for, with(tools(), fields)));
        let message = with(json!({"role": "assistant"}), message);
        assert_eq!((&answer["message"], &answer["done_reason"]), (&message, &json!(done_reason)));
    };
    let koeln = call(json!({"city": "Köln"}));
    check("c", json!({}), json!({"content": "", "tool_calls": [koeln]}), "stop");
    let mut second = koeln.clone();
    second["function"]["index"] = json!(1);
    check("d", json!({}), json!({"content": "Two:", "tool_calls": [koeln, second]}), "stop");
    let thought = json!({"content": "", "thinking": "Hm", "tool_calls": [koeln]});
    check("b", json!({}), thought, "stop");
    check("r", json!({}), json!({"content": "Yes.", "thinking": "Why not?"}), "stop");
    // A call that is cut is no JSON.
    let cut = call(json!({"INVALID_JSON": "{\"city\": \"K"}));
    let options = json!({"options": {"num_predict": 4}});
    check("c", options, json!({"content": "", "tool_calls": [cut]}), "length");
    let text = json!({"model": "recital", "prompt": "r"});
    let text = ask(&server, GENERATE, &text);
    assert_eq!((&text["response"], &text["thinking"]), (&json!("Yes."), &json!("Why not?")));
}

#[test]
fn messages_reach_the_template_in_its_form() {
    let server = hermes();
    let call = json!({"id": "c", "function": {"index": 0, "name": "f", "arguments": {"a": 1}}});
    let messages = json!([
        {"role": "User", "content": "hi", "images": []},
        {"role": "assistant", "thinking": "hm", "tool_calls": [call]},
        {"role": "tool", "content": "rain", "tool_name": "f", "tool_call_id": "c"},
        {"role": "user", "content": "show"},
    ]);
    let body = with(json!({"model": "recital", "messages": messages}), tools());
    let message = error_of(&send(&server, CHAT, &body));
    let seen = message.split_once('[').map(|(_, rest)| format!("[{rest}")).unwrap();
    let seen: Value =
        serde_json::Deserializer::from_str(&seen).into_iter().next().unwrap().unwrap();
    let call =
        json!({"id": "c", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}});
    let expected = json!([
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "", "reasoning_content": "hm", "tool_calls": [call]},
        {"role": "tool", "content": "rain", "name": "f", "tool_call_id": "c"},
    ]);
    assert_eq!(seen, expected, "{message}");
}

#[test]
fn an_answer_goes_on_with_what_the_assistant_has_begun() {
    let server = TestServer::start(Setup::default());
    let messages = json!([
        {"role": "user", "content": "hi"}, {"role": "assistant", "content": "x5"},
    ]);
    let options = json!({"num_predict": 3});
    let body = json!({"model": "script", "messages": messages, "options": options});
    assert_eq!(ask(&server, CHAT, &body)["message"]["content"], "678");
}

#[test]
fn thinking_is_the_templates_matter() {
    let template = "{{ messages[0].content }}{% if enable_thinking is not defined %}c\
        {% elif not enable_thinking %}a{% elif reasoning_effort == 'low' %}t{% else %}r{% endif %}";
    let server = start(None, Some(ReasoningFormat::Qwen3), template);
    let message = |think: Value| {
        let fields = json!({"think": think, "options": {"num_predict": 20}});
        ask(&server, CHAT, &chat_body("recital", "x", fields))["message"].clone()
    };
    assert_eq!(message(json!(false))["content"], "Plain text");
    assert_eq!(message(json!(true))["thinking"], "Why not?");
    assert_eq!(message(json!("low"))["thinking"], "endless");
    assert!(message(json!(null))["content"].as_str().unwrap().starts_with("<tool_call>"));
    let script = TestServer::start(Setup::default());
    for think in [json!(true), json!("high")] {
        check_refused(
            &script,
            CHAT,
            &chat_body("script", "hi", json!({"think": think})),
            "think: ",
        );
    }
    let off = chat_body("script", "hi", json!({"think": false, "options": {"num_predict": 1}}));
    assert_eq!(ask(&script, CHAT, &off)["message"]["content"], "a");
}

#[test]
fn formats_hold_the_answer() {
    let server = TestServer::start(Setup::default());
    let schema = json!({"type": "object", "properties": {"a": {"enum": [7]}}, "required": ["a"],
        "additionalProperties": false});
    let parsed = |text: &Value| serde_json::from_str::<Value>(text.as_str().unwrap()).unwrap();
    // White space inside is as good as none to this model.
    let options = json!({"temperature": 0});
    let fields = json!({"format": schema, "options": options});
    let chat = ask(&server, CHAT, &chat_body("script", "hi", fields));
    assert_eq!(parsed(&chat["message"]["content"]), json!({"a": 7}));
    for fields in [json!({}), json!({"raw": true})] {
        let body = json!({"model": "script", "prompt": "hi", "format": schema, "options": options});
        let text = ask(&server, GENERATE, &with(body, fields));
        assert_eq!(parsed(&text["response"]), json!({"a": 7}));
    }
    let none = json!({"format": "", "options": {"num_predict": 1}});
    assert_eq!(ask(&server, CHAT, &chat_body("script", "hi", none))["message"]["content"], "a");
    let wrong = json!({"type": "object", "properties": {"a": {"not": {}}}});
    let body = chat_body("script", "hi", json!({"format": wrong}));
    check_refused(&server, CHAT, &body, "format.properties.a.not");
    check_refused(&server, CHAT, &chat_body("script", "hi", json!({"format": "xml"})), "format");
}

#[test]
fn log_probabilities_come_with_their_tokens() {
    let server = TestServer::start(Setup::default());
    let fields = json!({"logprobs": true, "top_logprobs": 1, "options": {"num_predict": 2}});
    let chat = ask(&server, CHAT, &chat_body("script", "hi", fields.clone()));
    let token = |text: &str| {
        let token = json!({"token": text, "logprob": 0.0, "bytes": text.as_bytes()});
        with(token.clone(), json!({"top_logprobs": [token]}))
    };
    assert_eq!(chat["logprobs"], json!([token("a"), token("b")]));
    let raw = with(json!({"model": "script", "prompt": "x5", "raw": true}), fields);
    assert_eq!(ask(&server, GENERATE, &raw)["logprobs"], json!([token("6"), token("7")]));
}

#[test]
fn models_are_listed_and_described() {
    let server = TestServer::start(Setup::default());
    let tags = get(server.address, "/api/tags").json();
    let names: Vec<&Value> =
        tags["models"].as_array().unwrap().iter().map(|m| &m["name"]).collect();
    assert_eq!(names, ["script", "org/other-name"]);
    let first = &tags["models"][0];
    assert_eq!((&first["model"], &first["size"]), (&json!("script"), &json!(6_000_000)));
    assert_eq!(first["modified_at"], "2023-11-14T22:13:20Z");
    assert_eq!(first["digest"].as_str().map(str::len), Some(64));
    let details = json!({
        "parent_model": "", "format": "script", "family": "bytes", "families": ["bytes"],
        "parameter_size": "1.50M", "quantization_level": "F32",
    });
    assert_eq!(first["details"], details);
    let running = &get(server.address, "/api/ps").json()["models"][0];
    assert_eq!((&running["context_length"], &running["size_vram"]), (&json!(256), &json!(0)));
    for body in [json!({"model": "script:latest"}), json!({"name": "script", "verbose": true})] {
        let shown = send(&server, "/api/show", &body).json();
        assert_eq!(shown["details"], details);
        assert_eq!(shown["capabilities"], json!(["completion", "insert"]));
        assert_eq!(shown["model_info"]["bytes.context_length"], 256);
        assert!(shown["template"].as_str().unwrap().contains("im_start"));
    }
    let shown = send(&hermes(), "/api/show", &json!({"model": "recital"})).json();
    assert_eq!(shown["capabilities"], json!(["completion", "tools", "thinking"]));
    check_refused(&server, "/api/show", &json!({}), "model");
    check_refused(&server, "/api/show", &json!({"model": "script", "system": "x"}), "system");
    assert_eq!(send(&server, "/api/show", &json!({"model": "x"})).status, 404);
}

#[test]
fn clients_find_a_server_before_there_is_a_model() {
    let server = TestServer::start_loading(ServerConfig::default());
    let version = get(server.address, "/api/version").json();
    assert!(version["version"].as_str().unwrap().starts_with("0."), "{version}");
    assert_eq!(get(server.address, "/").body, "mini-infer is running");
    let head = Connection::send(server.address, "HEAD /", "", "").finish();
    assert_eq!((head.status, head.body.as_str()), (200, ""));
    let response = get(server.address, "/api/tags");
    assert_eq!((response.status, response.header("retry-after")), (503, Some("1")));
    error_of(&response);
}

#[test]
fn what_is_not_served_is_refused_by_name() {
    let server = TestServer::start(Setup::default());
    for (fields, param) in [
        (json!({"options": {"temperature": 9}}), "options.temperature: "),
        (json!({"options": {"top_p": 0}}), "options.top_p: "),
        (json!({"options": {"repeat_penalty": 0}}), "options.repeat_penalty: "),
        (json!({"options": {"stop": [""]}}), "options.stop: "),
        (json!({"options": {"num_predict": "5"}}), "options.num_predict: "),
        (json!({"options": {"num_ctx": 257}}), "options.num_ctx: "),
        (json!({"options": {"mirostat": 1}}), "options.mirostat "),
        (json!({"options": {"spread": 1}}), "options.spread"),
        (json!({"options": []}), "options: "),
        (json!({"think": "deep"}), "think: "),
        (json!({"tools": tools()["tools"]}), "tools: "),
        (json!({"top_logprobs": 2}), "top_logprobs: "),
        (json!({"_debug_render_only": true}), "_debug_render_only"),
        (json!({"cat": 1}), "cat"),
        (
            json!({"messages": [{"role": "user", "content": "x", "images": ["aa"]}]}),
            "messages[0].images",
        ),
        (
            json!({"messages": [{"role": "user", "content": "x", "thinking": "y"}]}),
            "messages[0].thinking: ",
        ),
        (json!({"messages": [{"role": "user", "content": "x", "name": "y"}]}), "messages[0].name"),
        (json!({"messages": [{"role": "robot", "content": "x"}]}), "messages[0].role: "),
        (json!({"messages": [{"role": "user", "content": 5}]}), "messages[0].content: "),
        (json!({"model": ""}), "model: "),
    ] {
        check_refused(&server, CHAT, &chat_body("script", "hi", fields), param);
    }
    for (fields, param) in [
        (json!({"template": "{{ .Prompt }}"}), "template"),
        (json!({"context": [1]}), "context"),
        (json!({"images": ["aa"]}), "images"),
        (json!({"width": 64}), "width"),
        (json!({"raw": true, "system": "x"}), "system: "),
        (json!({"suffix": "x", "think": true}), "think: "),
        (json!({"prompt": "", "suffix": "x"}), "prompt: "),
        (json!({"options": {"min_p": 2}, "raw": true}), "options.min_p: "),
    ] {
        let body = with(json!({"model": "script", "prompt": "hi"}), fields);
        check_refused(&server, GENERATE, &body, param);
    }
    let neutral = json!({
        "template": "", "context": [], "images": [], "system": "", "suffix": "", "shift": true,
        "truncate": false, "_debug_render_only": false, "keep_alive": "5m", "width": null,
        "options": {"num_ctx": 128, "num_gpu": 1, "repeat_last_n": 64, "num_predict": 1},
    });
    let body = with(json!({"model": "script", "prompt": "hi"}), neutral);
    assert_eq!(ask(&server, GENERATE, &body)["response"], "a");
}

#[test]
fn what_does_not_fit_is_refused_and_never_cut() {
    let server = TestServer::start(Setup::default());
    let long = "x".repeat(300);
    check_refused(&server, CHAT, &chat_body("script", &long, json!({})), "256 tokens");
    let raw = json!({"model": "script", "prompt": long, "raw": true, "truncate": true});
    check_refused(&server, GENERATE, &raw, "256 tokens");
}

#[test]
fn every_error_of_these_paths_has_ollamas_shape() {
    let server = TestServer::start(Setup::default());
    let unknown = send(&server, CHAT, &chat_body("nobody", "hi", json!({})));
    assert_eq!(unknown.status, 404);
    assert!(error_of(&unknown).contains("`nobody`"));
    let pull = send(&server, "/api/pull", &json!({"model": "x"}));
    assert_eq!((pull.status, error_of(&pull).as_str()), (404, "there is no route /api/pull"));
    let method = get(server.address, CHAT);
    assert_eq!(method.status, 405);
    error_of(&method);
    let broken = post(server.address, CHAT, "{");
    assert_eq!(broken.status, 400);
    error_of(&broken);
    let undeclared = Connection::send(server.address, "POST /api/chat", "", "{}").finish();
    assert_eq!(undeclared.status, 415);
    error_of(&undeclared);
    // Other paths keep theirs.
    assert!(get(server.address, "/apis").json()["error"]["message"].is_string());
}

#[test]
fn failures_end_a_stream_with_an_error_line() {
    let server = TestServer::start(Setup { num_good_steps: 2, ..Setup::default() });
    let body = chat_body("script", "hi", json!({}));
    let lines = lines(&server, CHAT, &body);
    let last = lines.last().unwrap();
    assert!(last["error"].as_str().unwrap().contains("the script says so"), "{last}");
    assert!(lines.iter().all(|line| line["done"] != true), "{lines:?}");
}

#[test]
fn a_client_that_leaves_frees_its_memory() {
    let server = TestServer::start(Setup { gate: Gate::new(3), ..Setup::default() });
    let body = chat_body("script", "hi", json!({})).to_string();
    let mut connection = Connection::post(server.address, CHAT, &body);
    connection.read_until("\"b\"");
    drop(connection);
    let aborted = "mini_infer_finished_sequences_total{reason=\"abort\"}";
    // A step at a time, or the answer might end before the server has noticed.
    wait_until("an abort", || {
        server.gate.pass(1);
        server.metric(aborted) == 1
    });
    server.wait_until_idle();
}

#[test]
fn keys_are_asked_for_here_too() {
    let mut access = AccessConfig::default();
    access.keys.add("secret", KeyScope::Inference).unwrap();
    let server = TestServer::start(Setup {
        config: ServerConfig { access, ..ServerConfig::default() },
        ..Setup::default()
    });
    for path in ["/", "/api/tags", "/api/version"] {
        assert_eq!(get(server.address, path).status, 401, "{path}");
    }
    let refused = send(&server, CHAT, &chat_body("script", "hi", json!({})));
    assert_eq!(refused.status, 401);
    error_of(&refused);
}
