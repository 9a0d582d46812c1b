//! The API's document says what the server does: no less, no more.

use crate::client::{Connection, Response, get, post};
use crate::document::{Document, Operation};
use crate::harness::{Setup, TestServer};
use mini_infer_server::{KeyScope, ServerConfig};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Tells whether an answer says that a field is none of the route's, in the words of its API.
fn is_unknown(answer: &Response, field: &str) -> bool {
    let told = |words: String| answer.body.contains(&words);
    told(format!("Unrecognized request argument supplied: {field}\""))
        || told(format!("\"{field}: unrecognized field\""))
}

/// Returns bodies that a route takes, to which a field is added; at least what is required.
fn bodies(document: &Document, operation: &Operation) -> Vec<Value> {
    let texts = json!([{"role": "user", "content": "a"}]);
    match operation.path.as_str() {
        "/v1/completions" => vec![json!({"prompt": "a", "max_tokens": 2})],
        "/tokenize" => vec![json!({"prompt": "a"}), json!({"messages": texts})],
        "/v1/embeddings" => vec![json!({"input": "a"})],
        "/v1/responses" | "/v1/responses/input_tokens" => {
            vec![json!({"input": "a", "max_output_tokens": 2})]
        }
        "/api/chat" => vec![json!({"model": "script", "messages": texts, "stream": false})],
        "/api/generate" => vec![json!({"model": "script", "prompt": "a", "stream": false})],
        "/api/show" => vec![json!({"model": "script"})],
        "/detokenize" => vec![json!({"tokens": [97]})],
        "/v1/load_lora_adapter" => vec![json!({"lora_name": "a", "lora_path": "a"})],
        "/v1/unload_lora_adapter" => vec![json!({"lora_name": "a"})],
        _ => {
            let schema = document.resolved(&operation.request.as_ref().unwrap().0);
            let has = |field: &str| schema["properties"].get(field).is_some();
            let mut body = json!({"messages": texts});
            if has("max_tokens") {
                body["max_tokens"] = json!(2);
            }
            vec![body]
        }
    }
}

/// Returns the properties of what an operation takes.
fn properties<'a>(
    document: &'a Document,
    operation: &'a Operation,
) -> BTreeMap<&'a str, &'a Value> {
    let schema = document.resolved(&operation.request.as_ref().unwrap().0);
    let properties = schema["properties"].as_object().unwrap().iter();
    properties.map(|(name, schema)| (name.as_str(), schema)).collect()
}

/// Sends `body` with `field` set to `value`.
fn with_field(
    server: &TestServer,
    path: &str,
    body: &Value,
    field: &str,
    value: Value,
) -> Response {
    let mut body = body.clone();
    body[field] = value;
    post(server.address, path, &body.to_string())
}

#[test]
fn every_route_takes_the_methods_that_the_document_names() {
    let server = TestServer::start(Setup::default());
    let document = Document::of(server.address);
    let mut by_path: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for operation in &document.operations {
        by_path.entry(&operation.path).or_default().insert(&operation.method);
    }
    for (path, mut methods) in by_path {
        if methods.contains("GET") {
            methods.insert("HEAD");
        }
        let path = path.replace("{id}", "script");
        for method in ["PURGE", "PATCH", "TRACE"] {
            let line = format!("{method} {path}");
            let refused = Connection::send(server.address, &line, "", "").finish();
            assert_eq!(refused.status, 405, "{line}: {refused:?}");
            let allowed = refused.header("allow").unwrap().to_uppercase();
            let allowed: BTreeSet<&str> = allowed.split(',').map(str::trim).collect();
            assert_eq!(allowed, methods, "{line}");
        }
    }
}

#[test]
fn answers_without_a_body_are_as_documented() {
    let server = TestServer::start(Setup::default());
    let document = Document::of(server.address);
    let mut num_checked = 0;
    for operation in document.operations.iter().filter(|operation| operation.method == "GET") {
        for id in ["script", "org/other-name", "nobody"] {
            let path = operation.path.replace("{id}", id);
            operation.check_answer(&get(server.address, &path), &path);
            num_checked += 1;
        }
    }
    assert!(num_checked > 30);
    let loading = TestServer::start_loading(ServerConfig::default());
    for operation in &document.operations {
        let line = format!("{} {}", operation.method, operation.path.replace("{id}", "script"));
        let headers = "content-type: application/json\r\n";
        let answer = Connection::send(loading.address, &line, headers, "{}").finish();
        operation.check_answer(&answer, "nothing, while the model loads");
    }
}

#[test]
fn bodies_that_are_none_get_documented_refusals() {
    let config = ServerConfig { max_body_bytes: 4096, ..ServerConfig::default() };
    let server = TestServer::start(Setup { config, ..Setup::default() });
    let document = Document::of(server.address);
    for operation in document.with_bodies() {
        let line = format!("POST {}", operation.path);
        let check = |headers: &str, body: &str, expected: u16| {
            let answer = Connection::send(server.address, &line, headers, body).finish();
            assert_eq!(answer.status, expected, "{line}: {answer:?}");
            operation.check_answer(&answer, "a body that is none");
        };
        let json = "content-type: application/json\r\n";
        check("", "{}", 415);
        check("content-type: text/plain\r\n", "{}", 415);
        check(json, "", 400);
        check(json, "[]", 400);
        check(json, "null", 400);
        check(json, &format!("{{\"x\": \"{}\"}}", "x".repeat(5000)), 413);
        check("content-type: application/json\r\nx-request-timeout: soon\r\n", "{}", 400);
    }
}

/// Returns all words that could be the name of a field: those in quotes in the sources of the server,
/// and those that fields of wire types have.
fn candidates() -> BTreeSet<String> {
    let mut files = vec![PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("src")];
    let mut words = BTreeSet::new();
    while let Some(path) = files.pop() {
        if path.is_dir() {
            files.extend(path.read_dir().unwrap().map(|entry| entry.unwrap().path()));
        } else {
            words.extend(words_of(&path));
        }
    }
    words
}

fn words_of(file: &Path) -> Vec<String> {
    let source = std::fs::read_to_string(file).unwrap();
    let source = source.split("#[cfg(test)]").next().unwrap_or_default();
    let is_wire = file.components().any(|part| part.as_os_str() == "wire");
    let is_word = |word: &&str| {
        !word.is_empty()
            && word.chars().all(|c| c.is_ascii_lowercase() || c == '_' || c.is_numeric())
    };
    let quoted = source.split('"').filter(is_word);
    let fields = source.lines().filter_map(|line| {
        let (name, _) = line.split_once(": ")?;
        name.split(' ').next_back()
    });
    let fields = fields.filter(|_| is_wire).filter(is_word);
    quoted.chain(fields).map(str::to_owned).collect()
}

#[test]
fn the_fields_that_the_server_reads_are_those_of_the_document() {
    let server = TestServer::start(Setup::default());
    let document = Document::of(server.address);
    let candidates = candidates();
    assert!(candidates.contains("dry_multiplier") && candidates.contains("prompt_cache_key"));
    for operation in document.with_bodies() {
        let documented = properties(&document, operation);
        let documented: BTreeSet<&str> = documented.keys().copied().collect();
        let bodies = bodies(&document, operation);
        let is_read = |field: &str| {
            bodies.iter().any(|body| {
                let answer = with_field(&server, &operation.path, body, field, json!([{"?": 1}]));
                !is_unknown(&answer, field)
            })
        };
        let names = candidates.iter().map(String::as_str).chain(documented.iter().copied());
        let read: BTreeSet<&str> = names.filter(|name| is_read(name)).collect();
        assert_eq!(read, documented, "{}", operation.path);
    }
}

/// Returns numbers at the bounds that a schema gives, and whether they are inside.
fn bounds(schema: &Value) -> Vec<(Value, bool)> {
    let is_whole = schema["type"] == "integer" || schema["type"][0] == "integer";
    let mut values = Vec::new();
    for (key, sign) in [("minimum", -1), ("maximum", 1)] {
        match (schema[key].as_i64(), schema[key].as_f64()) {
            (Some(bound), _) if is_whole => {
                values.extend([(json!(bound), true), (json!(bound + sign), false)]);
            }
            (_, Some(bound)) => {
                // Nearer to the bound than an `f32` can tell, and not so near that it is read as it.
                let outside = if sign < 0 { bound - 1e-9 } else { bound + 1e-9 };
                values.extend([(json!(bound), true), (json!(outside), false)]);
            }
            (_, None) => {}
        }
    }
    if let Some(bound) = schema["exclusiveMinimum"].as_f64() {
        values.extend([(json!(bound + 1e-60), true), (json!(bound), false)]);
    }
    values
}

#[test]
fn ranges_and_values_are_those_of_the_server() {
    let server = TestServer::start(Setup::default());
    let document = Document::of(server.address);
    let (mut num_bounds, mut num_values) = (0, 0);
    for operation in document.with_bodies() {
        for (field, schema) in properties(&document, operation) {
            let mut body = bodies(&document, operation).remove(0);
            let needs: &[(&str, Value)] = match (operation.path.as_str(), field) {
                ("/v1/completions", "max_tokens" | "max_completion_tokens") => {
                    &[("echo", json!(true)), ("logprobs", json!(0))]
                }
                ("/v1/chat/completions" | "/api/chat" | "/api/generate", "top_logprobs") => {
                    &[("logprobs", json!(true))]
                }
                _ => &[],
            };
            for (name, value) in needs {
                body[*name] = value.clone();
            }
            let is_refused = |value: Value| {
                let answer = with_field(&server, &operation.path, &body, field, value.clone());
                assert!(answer.status < 500, "{field} {value}: {answer:?}");
                let told = |rest: &str| {
                    ["message", "error"].iter().any(|member| {
                        answer.body.contains(&format!("\"{member}\":\"{field}{rest}"))
                    })
                };
                let names_field = told(": ") || told(" is not supported");
                (answer.status == 400 && names_field, answer.body)
            };
            let schema = document.resolved(schema);
            for (value, is_allowed) in bounds(schema) {
                let (refused, answer) = is_refused(value.clone());
                assert_ne!(refused, is_allowed, "{} {field} {value}: {answer}", operation.path);
                num_bounds += 1;
            }
            for value in schema["enum"].as_array().into_iter().flatten() {
                let (refused, answer) = is_refused(value.clone());
                assert!(!refused, "{} {field} {value}: {answer}", operation.path);
                num_values += 1;
            }
        }
    }
    assert!(num_bounds > 60 && num_values > 20, "{num_bounds} bounds, {num_values} values");
}

#[test]
fn the_document_needs_a_key_where_all_do_and_says_so() {
    let open = TestServer::start(Setup::default());
    assert_eq!(Document::of(open.address).json["security"], json!([]));
    let mut config = ServerConfig::default();
    config.access.keys.add("secret", KeyScope::Inference).unwrap();
    let server = TestServer::start(Setup { config, ..Setup::default() });
    let document = Document::of(open.address);
    for operation in &document.operations {
        let line = format!("{} {}", operation.method, operation.path.replace("{id}", "script"));
        let answer = Connection::send(server.address, &line, "", "").finish();
        operation.check_answer(&answer, "nothing, without a key");
        let expected = if operation.path == "/health/live" { 200 } else { 401 };
        assert_eq!(answer.status, expected, "{line}");
    }
    let headers = "authorization: Bearer secret\r\n";
    let answer = Connection::send(server.address, "GET /openapi.json", headers, "").finish();
    assert_eq!(answer.status, 200);
    let keyed = answer.json();
    assert_eq!(keyed["security"], json!([{"bearer": []}, {"apiKey": []}]));
    assert_eq!(keyed["paths"]["/health/live"]["get"]["security"], json!([]));
    assert!(keyed["paths"]["/version"]["get"].get("security").is_none());
}
