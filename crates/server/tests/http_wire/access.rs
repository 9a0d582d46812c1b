//! Who may reach the server: keys, hosts and web pages.

use crate::client::{Connection, Response, get, post};
use crate::harness::{Setup, TestServer, error_of};
use mini_infer_server::{AccessConfig, ApiKeys, KeyScope, ServerConfig};

const COMPLETIONS: &str = "/v1/completions";
const MANAGEMENT_GETS: [&str; 2] = ["/v1/kv", "/metrics"];
const MANAGEMENT_POSTS: [&str; 2] = ["/v1/load_lora_adapter", "/v1/unload_lora_adapter"];

fn start(access: AccessConfig) -> TestServer {
    let config = ServerConfig { access, ..ServerConfig::default() };
    TestServer::start(Setup { config, ..Setup::default() })
}

fn start_with_keys(keys: &[(&str, KeyScope)]) -> TestServer {
    let mut access = AccessConfig::default();
    keys.iter().for_each(|(key, scope)| access.keys.add(key, *scope).unwrap());
    start(access)
}

fn send(server: &TestServer, line: &str, headers: &str) -> Response {
    Connection::send(server.address, line, headers, "").finish()
}

#[test]
fn with_keys_every_route_but_live_health_needs_one() {
    let server = start_with_keys(&[("one", KeyScope::Inference), ("two", KeyScope::Inference)]);
    let status = |path: &str, headers: &str| {
        let response = send(&server, &format!("GET {path}"), headers);
        if response.status == 401 {
            assert_eq!(error_of(&response).1, "invalid_api_key");
            assert_eq!(response.header("www-authenticate"), Some("bearer"));
        }
        response.status
    };
    for path in ["/v1/models", "/v1/kv", "/health", "/metrics", "/version", "/nothing"] {
        assert_eq!(status(path, ""), 401, "{path}");
        assert_eq!(status(path, "authorization: Bearer three\r\n"), 401, "{path}");
        assert_eq!(status(path, "x-api-key: three\r\n"), 401, "{path}");
    }
    assert_eq!(post(server.address, COMPLETIONS, r#"{"prompt": "a"}"#).status, 401);
    assert_eq!(status("/health/live", ""), 200);
    assert_eq!(status("/v1/models", "authorization: Bearer one\r\n"), 200);
    assert_eq!(status("/v1/models", "authorization: Bearer two\r\n"), 200);
    assert_eq!(status("/v1/models", "x-api-key: two\r\n"), 200);
    assert_eq!(status("/metrics", "x-api-key: one\r\n"), 200);
}

#[test]
fn with_a_management_key_the_others_open_the_model_only() {
    let server = start_with_keys(&[("user", KeyScope::Inference), ("root", KeyScope::Management)]);
    let user = "x-api-key: user\r\n";
    let gets = MANAGEMENT_GETS.map(|path| format!("GET {path}"));
    for line in gets.into_iter().chain(MANAGEMENT_POSTS.map(|path| format!("POST {path}"))) {
        assert_eq!(send(&server, &line, "").status, 401, "{line}");
        let refused = send(&server, &line, user);
        assert_eq!(
            (refused.status, error_of(&refused).1.as_str()),
            (403, "management_key_needed"),
            "{line}"
        );
        let passed = send(&server, &line, "x-api-key: root\r\n");
        assert!([200, 415].contains(&passed.status), "{line}: {}", passed.body);
        let both = "authorization: Bearer user\r\nx-api-key: root\r\n";
        assert_eq!(send(&server, &line, both).status, passed.status, "{line}");
    }
    for path in ["/v1/models", "/health", "/version"] {
        assert_eq!(send(&server, &format!("GET {path}"), user).status, 200, "{path}");
    }
    assert_eq!(send(&server, "GET /v1/models", "x-api-key: root\r\n").status, 200);
}

#[test]
fn a_loopback_server_answers_for_its_own_names_only() {
    let allowed_hosts = vec!["box.example".to_owned()];
    let server = start(AccessConfig { allowed_hosts, ..AccessConfig::default() });
    let check = |line: &str, host: &str, expected: u16| {
        let response = Connection::send_raw(
            server.address,
            &format!("{line} HTTP/1.1\r\n{host}connection: close\r\n\r\n"),
        )
        .finish();
        assert_eq!(response.status, expected, "{line} {host}");
        if expected == 403 {
            assert_eq!(error_of(&response).1, "host_not_allowed");
            assert!(response.body.contains("--allowed-host evil.example"), "{}", response.body);
        }
    };
    for path in ["/v1/models", "/health/live", "/metrics"] {
        for host in ["localhost:8000", "127.0.0.1", "[::1]:8000", "BOX.example:1"] {
            check(&format!("GET {path}"), &format!("host: {host}\r\n"), 200);
        }
        check(&format!("GET {path}"), "", 200);
        check(&format!("GET {path}"), "host: evil.example\r\n", 403);
        check(&format!("GET {path}"), "host: localhost\r\nhost: evil.example\r\n", 403);
        check(&format!("GET http://evil.example{path}"), "host: localhost\r\n", 403);
    }
}

/// The headers with which a page of `origin` asks whether it may send a completion.
fn preflight(origin: &str) -> String {
    format!(
        "origin: {origin}\r\naccess-control-request-method: POST\r\n\
         access-control-request-headers: authorization,content-type\r\n"
    )
}

#[test]
fn without_origins_pages_of_other_origins_are_kept_out() {
    let server = start(AccessConfig::default());
    let line = format!("OPTIONS {COMPLETIONS}");
    let response = send(&server, &line, &preflight("http://evil.example"));
    assert_eq!(response.status, 405);
    assert!(!response.head.contains("access-control"), "{}", response.head);
    // What a page can send without a preflight is not JSON.
    let simple = "origin: http://evil.example\r\ncontent-type: text/plain\r\n";
    let line = format!("POST {COMPLETIONS}");
    let response = Connection::send(server.address, &line, simple, r#"{"prompt": "a"}"#).finish();
    assert_eq!((response.status, error_of(&response).1.as_str()), (415, "unsupported_media_type"));
    assert!(!response.head.contains("access-control"), "{}", response.head);
}

#[test]
fn pages_of_allowed_origins_may_call_and_read() {
    let mut keys = ApiKeys::default();
    keys.add("key", KeyScope::Inference).unwrap();
    let cors_origins = vec!["https://chat.example".parse().unwrap()];
    let server = start(AccessConfig { keys, cors_origins, ..AccessConfig::default() });
    let line = format!("OPTIONS {COMPLETIONS}");
    let response = send(&server, &line, &preflight("https://chat.example"));
    assert_eq!((response.status, response.body.as_str()), (204, ""));
    for (name, expected) in [
        ("access-control-allow-origin", "https://chat.example"),
        ("access-control-allow-methods", "get, post, delete"),
        ("access-control-allow-headers", "authorization,content-type"),
        ("vary", "origin"),
    ] {
        assert_eq!(response.header(name), Some(expected), "{name}");
    }
    assert_eq!(response.header("access-control-allow-credentials"), None);
    let headers = "origin: https://chat.example\r\nauthorization: Bearer key\r\n";
    let response = send(&server, "GET /v1/models", headers);
    assert_eq!(response.status, 200);
    assert_eq!(response.header("access-control-allow-origin"), Some("https://chat.example"));
    // A refusal can be read as well, so that the page can tell what is wrong.
    let response = send(&server, "GET /v1/models", "origin: https://chat.example\r\n");
    assert_eq!(response.status, 401);
    assert_eq!(response.header("access-control-allow-origin"), Some("https://chat.example"));
}

#[test]
fn pages_of_other_origins_are_refused_beside_allowed_ones() {
    let cors_origins = vec!["https://chat.example".parse().unwrap()];
    let server = start(AccessConfig { cors_origins, ..AccessConfig::default() });
    let line = format!("OPTIONS {COMPLETIONS}");
    for origin in ["http://evil.example", "https://chat.example.evil", "null"] {
        let response = send(&server, &line, &preflight(origin));
        assert_eq!((response.status, error_of(&response).1.as_str()), (403, "origin_not_allowed"));
        assert!(!response.head.contains("access-control"), "{}", response.head);
        let response = send(&server, "GET /v1/models", &format!("origin: {origin}\r\n"));
        assert_eq!(response.header("access-control-allow-origin"), None);
        assert_eq!(response.header("vary"), Some("origin"));
    }
}

#[test]
fn every_origin_may_call_where_that_was_asked_for() {
    let cors_origins = vec!["*".parse().unwrap()];
    let server = start(AccessConfig { cors_origins, ..AccessConfig::default() });
    let line = format!("OPTIONS {COMPLETIONS}");
    let private = "access-control-request-private-network: true\r\n";
    let headers = preflight("https://any.example") + private;
    let response = send(&server, &line, &headers);
    assert_eq!(response.status, 204);
    assert_eq!(response.header("access-control-allow-origin"), Some("*"));
    assert_eq!(response.header("access-control-allow-private-network"), Some("true"));
    // Without an origin it is no page that asks, and `OPTIONS` alone is no preflight.
    let response = get(server.address, "/v1/models");
    assert_eq!(response.header("access-control-allow-origin"), None);
    assert_eq!(send(&server, &line, "origin: https://any.example\r\n").status, 405);
}
