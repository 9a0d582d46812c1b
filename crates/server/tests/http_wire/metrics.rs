//! `/metrics`, for our own dashboard and for those made for vLLM.

use crate::client::{get, post};
use crate::harness::{Setup, TestServer};
use serde_json::json;
use std::collections::BTreeMap;

/// vLLM's names, their types, and the labels before the value.
const VLLM: &[(&str, &str, &str)] = &[
    ("vllm:num_requests_running", "gauge", ""),
    ("vllm:num_requests_waiting", "gauge", ""),
    ("vllm:kv_cache_usage_perc", "gauge", ""),
    ("vllm:gpu_cache_usage_perc", "gauge", ""),
    ("vllm:prefix_cache_queries_total", "counter", ""),
    ("vllm:prefix_cache_hits_total", "counter", ""),
    ("vllm:prompt_tokens_total", "counter", ""),
    ("vllm:generation_tokens_total", "counter", ""),
    ("vllm:num_preemptions_total", "counter", ""),
    ("vllm:request_success_total", "counter", ",finished_reason=\"length\""),
    ("vllm:request_queue_time_seconds_count", "histogram", ""),
    ("vllm:time_to_first_token_seconds_count", "histogram", ""),
    ("vllm:inter_token_latency_seconds_count", "histogram", ""),
    ("vllm:time_per_output_token_seconds_count", "histogram", ""),
    ("vllm:request_time_per_output_token_seconds_count", "histogram", ""),
    ("vllm:e2e_request_latency_seconds_count", "histogram", ""),
];

/// Returns the metrics' types by name, without what OpenMetrics adds for a sample.
fn types(text: &str) -> BTreeMap<&str, &str> {
    let lines = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
    lines.collect()
}

#[test]
fn vllm_s_names_carry_the_same_numbers() {
    let server = TestServer::start(Setup::default());
    let body = json!({"prompt": "abc".repeat(20), "max_tokens": 8, "ignore_eos": true});
    for _ in 0..2 {
        assert_eq!(post(server.address, "/v1/completions", &body.to_string()).status, 200);
    }
    let value = |name: &str, more: &str| {
        server.metric(&format!("{name}{{model_name=\"script\",engine=\"0\"{more}}}"))
    };
    let text = get(server.address, "/metrics").body;
    let types = types(&text);
    for (name, kind, more) in VLLM {
        let family = name.trim_end_matches("_total").trim_end_matches("_count");
        assert_eq!(types.get(family), Some(kind), "{name}");
        if !name.ends_with("_perc") {
            value(name, more);
        }
    }
    assert_eq!(value("vllm:prompt_tokens_total", ""), 120);
    assert_eq!(value("vllm:generation_tokens_total", ""), 16);
    assert_eq!(value("vllm:prefix_cache_hits_total", ""), 59);
    assert_eq!(value("vllm:request_success_total", ",finished_reason=\"length\""), 2);
    assert_eq!(value("vllm:e2e_request_latency_seconds_count", ""), 2);
    assert_eq!(value("vllm:request_time_per_output_token_seconds_count", ""), 2);
    assert_eq!(value("vllm:inter_token_latency_seconds_count", ""), 14);
    assert_eq!(server.metric("mini_infer_time_per_output_token_seconds_count"), 2);
    assert!(text.contains("vllm:kv_cache_usage_perc{model_name=\"script\",engine=\"0\"} 0.0"));
    assert_eq!(text.matches("# EOF").count(), 1);
}

#[test]
fn answers_are_counted_by_route_and_status_and_never_by_path() {
    let server = TestServer::start(Setup::default());
    for path in ["/secret1", "/secret2", "/v1/models/secret", "/version"] {
        get(server.address, path);
    }
    let count = |route: &str, status: u16, expected: u64| {
        let labels = format!("{{route=\"{route}\",status=\"{status}\"}}");
        server.wait_for_metric(&format!("mini_infer_http_answers_total{labels}"), expected);
    };
    count("none", 404, 2);
    count("/v1/models/{*id}", 404, 1);
    count("/version", 200, 1);
    assert!(!get(server.address, "/metrics").body.contains("secret"));
}

#[cfg(target_os = "linux")]
#[test]
fn the_process_s_memory_is_told() {
    let server = TestServer::start(Setup::default());
    let resident = server.metric("process_resident_memory_bytes");
    let anonymous = server.metric("process_anonymous_memory_bytes");
    assert!(resident > 1 << 20 && anonymous <= resident, "{resident} {anonymous}");
    server.metric("process_swap_bytes");
}

#[test]
fn gateways_learn_what_the_engine_and_the_model_are() {
    let server = TestServer::start(Setup::default());
    for path in ["/model_info", "/get_model_info"] {
        let info = get(server.address, path).json();
        assert_eq!(info["model_path"], "script");
        assert_eq!(info["is_generation"], true);
        assert_eq!(info["max_model_len"], 256);
        assert_eq!(info["eos_token_id"], json!([257]));
    }
    for path in ["/server_info", "/get_server_info"] {
        let info = get(server.address, path).json();
        assert_eq!(info["served_model_name"], "script");
        assert_eq!((&info["engine"], &info["num_running_seqs"]), (&json!("mini-infer"), &json!(0)));
    }
}

#[test]
fn every_metric_of_the_dashboard_exists() {
    let server = TestServer::start(Setup::default());
    let body = json!({"prompt": "x", "max_tokens": 3}).to_string();
    assert_eq!(post(server.address, "/v1/completions", &body).status, 200);
    server.wait_for_metric(
        "mini_infer_http_answers_total{route=\"/v1/completions\",status=\"200\"}",
        1,
    );
    let text = get(server.address, "/metrics").body;
    let dashboard = include_str!("../../../../docs/grafana-dashboard.json");
    let dashboard: serde_json::Value = serde_json::from_str(dashboard).unwrap();
    let mut num_names = 0;
    for panel in dashboard["panels"].as_array().unwrap() {
        for target in panel["targets"].as_array().into_iter().flatten() {
            let query = target["expr"].as_str().unwrap();
            let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
            let words = query.split(|c: char| !is_name(c));
            for name in
                words.filter(|word| word.starts_with("mini_infer_") || word.starts_with("process_"))
            {
                let is_there = |line: &str| {
                    line.strip_prefix(name).is_some_and(|rest| rest.starts_with([' ', '{']))
                };
                assert!(text.lines().any(is_there), "{}: {name}", panel["title"]);
                num_names += 1;
            }
        }
    }
    assert!(num_names > 20, "{num_names}");
}

#[test]
fn a_step_s_time_is_told_by_phase() {
    let server = TestServer::start(Setup::default());
    let count = |phase: &str| {
        server.metric(&format!("mini_infer_step_phase_time_seconds_count{{phase=\"{phase}\"}}"))
    };
    let body = json!({"prompt": "xx", "max_tokens": 5, "ignore_eos": true});
    assert_eq!(post(server.address, "/v1/completions", &body.to_string()).status, 200);
    server.wait_until_idle();
    assert_eq!((count("prefill"), count("decode"), count("masks")), (1, 4, 0));
    for phase in ["schedule", "sampling", "output"] {
        assert_eq!(count(phase), 5, "{phase}");
    }
    let constrained = json!({"prompt": "x", "max_tokens": 5, "guided_regex": "[a-z]{3}"});
    assert_eq!(post(server.address, "/v1/completions", &constrained.to_string()).status, 200);
    server.wait_until_idle();
    assert!(count("masks") > 0);
    // The last step's events may be on their way to their client still.
    server.wait_for_metric(
        "mini_infer_step_phase_time_seconds_count{phase=\"delivery\"}",
        server.metric("mini_infer_step_time_seconds_count"),
    );
    assert!(count("commands") < count("delivery"), "not while the thread sleeps");
}
