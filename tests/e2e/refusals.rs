//! Requests at fault: each is answered with what is wrong, and the server goes on.

use crate::http::Exchange;
use crate::shared_server::{API_KEY, DEFAULT, KEYED};
use libtest_mimic::Trial;
use serde_json::{Value, json};

pub(crate) fn trials() -> Vec<Trial> {
    trials![
        numbers_out_of_range_are_refused_by_name,
        prompts_that_no_model_can_read_are_refused,
        messages_that_no_template_can_take_are_refused,
        fields_that_would_be_ignored_are_refused,
        other_models_and_routes_are_not_found,
        other_origins_get_no_permission,
        with_a_key_only_live_health_is_open,
    ]
}

/// Sends a raw body and checks that it is refused with 400 for `param`.
fn check_refused(path: &str, body: &str, param: &str) {
    let server = DEFAULT.get();
    let response = Exchange::post(server.address, path, body).response();
    let (status, _, found) = response.error();
    assert_eq!((status, found.as_str()), (400, param), "{body}: {}", response.body);
}

/// Checks that the server still answers after what was refused.
fn check_alive() {
    let body = json!({"prompt": "Hi", "max_tokens": 1});
    assert_eq!(DEFAULT.get().complete(&body)["usage"]["completion_tokens"], 1);
}

fn numbers_out_of_range_are_refused_by_name() {
    let checks: [(&str, &[&str]); 9] = [
        ("temperature", &["\"NaN\"", "-1", "2.5", "3", "true", "[1]"]),
        ("top_p", &["0", "-0.5", "1.5", "\"x\""]),
        ("min_p", &["-0.1", "1.1"]),
        ("top_k", &["-2", "0.5", "\"5\""]),
        ("n", &["0", "-1", "129", "1.5"]),
        ("max_tokens", &["0", "-1", "1.5", "99999999999"]),
        ("max_completion_tokens", &["0", "-1"]),
        ("seed", &["1.5", "\"a\""]),
        ("stop", &["\"\"", "[\"\"]", "5", "[5]"]),
    ];
    for (field, values) in checks {
        for value in values {
            let body = format!("{{\"prompt\": \"Hi\", \"{field}\": {value}}}");
            check_refused("/v1/completions", &body, field);
        }
    }
    // JSON has no such numbers, so the whole body is at fault, wherever it breaks.
    for value in ["NaN", "Infinity", "-Infinity", "1e400"] {
        let body = format!("{{\"prompt\": \"Hi\", \"temperature\": {value}}}");
        let response = Exchange::post(DEFAULT.get().address, "/v1/completions", &body).response();
        assert_eq!(response.error().0, 400, "{body}");
    }
    check_alive();
}

fn prompts_that_no_model_can_read_are_refused() {
    for prompt in ["\"\"", "[]", "[999999]", "[-1]", "[9223372036854775808]", "[1e30]", "5", "{}"] {
        check_refused("/v1/completions", &format!("{{\"prompt\": {prompt}}}"), "prompt");
    }
    check_refused("/v1/completions", "{\"prompt\": [\"a\", \"\"]}", "prompt[1]");
    check_refused("/v1/completions", "{}", "prompt");
    check_alive();
}

fn messages_that_no_template_can_take_are_refused() {
    let checks = [
        (json!([]), "messages"),
        (json!([{"role": "wizard", "content": "Hi"}]), "messages[0].role"),
        (json!([{"role": "user"}]), "messages[0].content"),
        (
            json!([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]),
            "messages[0].content[0]",
        ),
    ];
    for (messages, param) in checks {
        let body = json!({"messages": messages}).to_string();
        check_refused("/v1/chat/completions", &body, param);
    }
    check_alive();
}

fn fields_that_would_be_ignored_are_refused() {
    let checks = [
        (json!({"options": {"num_ctx": 4096}}), "unknown_parameter", "options"),
        (json!({"logit_bias": {"191222": -100}}), "invalid_value", "logit_bias.191222"),
        (json!({"store": true}), "unsupported_parameter", "store"),
    ];
    for (extra, code, param) in checks {
        let mut body = json!({"prompt": "Hi"});
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        let error = DEFAULT.get().post("/v1/completions", &body).error();
        assert_eq!(error, (400, code.to_owned(), param.to_owned()));
    }
}

fn other_models_and_routes_are_not_found() {
    let server = DEFAULT.get();
    let body = json!({"model": "gpt-4", "prompt": "Hi"});
    let error = server.post("/v1/completions", &body).error();
    assert_eq!(error, (404, "model_not_found".to_owned(), "model".to_owned()));
    assert_eq!(server.get("/v1/models/gpt-4").error().0, 404);
    assert_eq!(server.get("/v1/nothing").error().0, 404);
    assert_eq!(server.get("/v1/completions").error().0, 405);
}

fn other_origins_get_no_permission() {
    let server = DEFAULT.get();
    let origin = "origin: https://evil.example\r\n";
    let send = |line: &str, headers: &str, body: &str| {
        Exchange::send(server.address, line, headers, body).response()
    };
    let preflight = format!("{origin}access-control-request-method: POST\r\n");
    let simple = format!("{origin}content-type: text/plain\r\n");
    let body = json!({"prompt": "Hi", "max_tokens": 1}).to_string();
    let responses = [
        send("GET /v1/models", origin, ""),
        send("OPTIONS /v1/completions", &preflight, ""),
        send("POST /v1/completions", &simple, &body),
    ];
    for response in &responses {
        assert_eq!(response.header("access-control-allow-origin"), None);
    }
    assert_eq!(responses.map(|response| response.status), [200, 405, 415]);
}

fn with_a_key_only_live_health_is_open() {
    let server = KEYED.get();
    let status = |line: &str, headers: &str| {
        let headers = format!("{headers}content-type: application/json\r\n");
        let body: Value = json!({"prompt": "Hi", "max_tokens": 1});
        Exchange::send(server.address, line, &headers, &body.to_string()).response().status
    };
    let routes = [
        "GET /v1/models",
        "POST /v1/completions",
        "GET /health",
        "GET /metrics",
        "GET /version",
        "GET /v1/models/smollm2-135m",
    ];
    let right = format!("authorization: Bearer {API_KEY}\r\n");
    let wrong = ["", "authorization: Bearer open\r\n", "authorization: Basic open-sesame\r\n"];
    for route in routes {
        assert_eq!(status(route, &right), 200, "{route}");
        for headers in wrong {
            assert_eq!(status(route, headers), 401, "{route} {headers}");
        }
    }
    assert_eq!(status("GET /v1/nothing", ""), 401, "routes cannot be explored without a key");
    assert_eq!(status("GET /health/live", ""), 200);
}
