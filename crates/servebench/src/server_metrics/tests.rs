use super::*;

/// Some of what a mini-infer server tells.
const MINI_INFER: &str = "\
# HELP mini_infer_time_to_first_token_seconds From arrival to the first output token.
# TYPE mini_infer_time_to_first_token_seconds histogram
# UNIT mini_infer_time_to_first_token_seconds seconds
mini_infer_time_to_first_token_seconds_sum 1.5
mini_infer_time_to_first_token_seconds_count 3
mini_infer_time_to_first_token_seconds_bucket{le=\"0.001\"} 0
mini_infer_time_to_first_token_seconds_bucket{le=\"+Inf\"} 3
mini_infer_running_sequences 2
mini_infer_waiting_sequences 5
mini_infer_kv_pool_blocks 100
mini_infer_kv_blocks{state=\"free\"} 60
mini_infer_kv_blocks{state=\"active\"} 25
mini_infer_kv_blocks{state=\"cached\"} 15
mini_infer_tokens_total{kind=\"prompt\"} 1000
mini_infer_tokens_total{kind=\"output\"} 300
mini_infer_prefix_cache_queried_tokens_total 1000
mini_infer_prefix_cache_hit_tokens_total 400
mini_infer_preemptions_total 7
# EOF
";

fn check(line: &str, expected: &[(&str, f64)]) {
    let expected = expected.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
    assert_eq!(parse(line), expected, "{line}");
}

fn metrics(start: Option<&str>, end: &str) -> Vec<(String, f64)> {
    let start = start.map(parse);
    standard_metrics(start.as_ref(), &parse(end)).into_iter().collect()
}

fn named(figures: &[(&str, f64)]) -> Vec<(String, f64)> {
    figures.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect()
}

#[test]
fn numbers_are_read_in_every_form() {
    for (text, value) in [
        ("a 1", 1.0),
        ("a -2.5e-3", -0.0025),
        ("a 1.5E+3", 1500.0),
        ("a +Inf", f64::INFINITY),
        ("a -Inf", f64::NEG_INFINITY),
        ("a .5", 0.5),
        ("  a\t7  ", 7.0),
        ("a 7 1700000000000", 7.0),
        ("a 7 # {trace_id=\"x\"} 0.5 1.2", 7.0),
    ] {
        check(text, &[("a", value)]);
    }
    assert!(parse("a NaN")["a"].is_nan());
}

#[test]
fn lines_that_are_no_samples_are_left_out() {
    for line in ["", "# HELP a b", "a", "a b", "a{x=\"1\" 2", "a{x=1} 2", "9a 1", "{x=\"1\"} 2"] {
        check(line, &[]);
    }
}

#[test]
fn labels_are_summed_and_each_label_s_part_is_kept() {
    let text = "a{x=\"1\",y=\"p\"} 1\na{x=\"2\", y=\"p\",} 2\n";
    let expected = [("a", 3.0), ("a{x=\"1\"}", 1.0), ("a{x=\"2\"}", 2.0), ("a{y=\"p\"}", 3.0)];
    check(text, &expected);
}

#[test]
fn labels_may_hold_escapes_braces_and_commas() {
    let sample = parse_line(r#"a{p="C:\\x, {\"y\"}\n",q=""} 4"#).unwrap();
    let expected = [("p", "C:\\x, {\"y\"}\n"), ("q", "")];
    let expected = expected.map(|(label, value)| (label.to_owned(), value.to_owned()));
    assert_eq!((sample.labels.as_slice(), sample.value), (expected.as_slice(), 4.0));
}

#[test]
fn buckets_and_quantiles_are_left_out() {
    let text = "a_bucket{le=\"1\"} 3\na_sum 2\na_count 4\nb{quantile=\"0.5\"} 9\nb_count 1\n";
    check(text, &[("a_sum", 2.0), ("a_count", 4.0), ("b_count", 1.0)]);
}

#[test]
fn mini_infer_s_figures_are_gauges_at_the_end_and_counters_since_the_start() {
    let start = "mini_infer_tokens_total{kind=\"prompt\"} 900\n\
        mini_infer_tokens_total{kind=\"output\"} 100\n\
        mini_infer_prefix_cache_queried_tokens_total 500\nmini_infer_preemptions_total 7\n";
    let expected = named(&[
        ("generation_tokens_total", 200.0),
        ("gpu_cache_usage", 0.25),
        ("num_requests_running", 2.0),
        ("num_requests_waiting", 5.0),
        ("preemptions", 0.0),
        ("prefix_cache_hit_tokens", 400.0),
        ("prefix_cache_queried_tokens", 500.0),
        ("prompt_tokens_total", 100.0),
    ]);
    assert_eq!(metrics(Some(start), MINI_INFER), expected);
}

#[test]
fn without_a_start_there_are_no_counters() {
    let expected = named(&[
        ("gpu_cache_usage", 0.25),
        ("num_requests_running", 2.0),
        ("num_requests_waiting", 5.0),
    ]);
    assert_eq!(metrics(None, MINI_INFER), expected);
}

#[test]
fn a_server_that_was_started_anew_has_no_difference() {
    let (start, end) = ("vllm:prompt_tokens_total 50\n", "vllm:prompt_tokens_total 10\n");
    assert_eq!(metrics(Some(start), end), []);
    assert_eq!(metrics(Some(end), start), named(&[("prompt_tokens_total", 40.0)]));
}

#[test]
fn several_vllm_engines_add_up_but_their_kv_use_is_a_mean() {
    let end = "vllm:num_requests_running{engine=\"0\",model_name=\"m\"} 3.0\n\
        vllm:num_requests_running{engine=\"1\",model_name=\"m\"} 4.0\n\
        vllm:kv_cache_usage_perc{engine=\"0\",model_name=\"m\"} 0.5\n\
        vllm:kv_cache_usage_perc{engine=\"1\",model_name=\"m\"} 0.7\n\
        vllm:prefix_cache_hits_total{engine=\"0\"} 64.0\n\
        vllm:prefix_cache_hit_rate 0.9\n\
        vllm:num_preemptions_total{engine=\"0\"} 2.0\n";
    let expected = named(&[
        ("gpu_cache_usage", 0.6),
        ("num_requests_running", 7.0),
        ("preemptions", 2.0),
        ("prefix_cache_hit_tokens", 64.0),
    ]);
    assert_eq!(metrics(Some(""), end), expected);
}

#[test]
fn the_other_engines_names_are_known() {
    let cases = [
        ("sglang:num_queue_reqs 1\nsglang:num_running_reqs 2\nsglang:token_usage 0.5\n", 3),
        ("llamacpp:requests_processing 1\nllamacpp:tokens_predicted_total 5\n", 2),
        ("tgi_queue_size 1\ntgi_batch_current_size 2\ntgi_request_generated_tokens_sum 9\n", 3),
    ];
    for (text, count) in cases {
        assert_eq!(metrics(Some(""), text).len(), count, "{text}");
    }
}

#[test]
fn what_json_cannot_hold_is_left_out() {
    assert_eq!(
        metrics(Some(""), "vllm:kv_cache_usage_perc NaN\nvllm:prompt_tokens_total +Inf\n"),
        []
    );
}

#[test]
fn metrics_are_beside_the_api_or_where_the_user_says() {
    let auto = |base| metrics_url(base, Some("auto"));
    assert_eq!(auto("http://h:1/v1").as_deref(), Some("http://h:1/metrics"));
    assert_eq!(auto("https://h/a/v1/").as_deref(), Some("https://h/a/metrics"));
    let given = metrics_url("http://h:1/v1", Some("https://m:9/x"));
    assert_eq!(given.as_deref(), Some("https://m:9/x"));
    assert_eq!(metrics_url("http://h:1/v1", None), None);
    assert_eq!(metrics_url("http://h:1/v1", Some("yes")), None);
}

#[tokio::test]
async fn metrics_are_scraped_over_http_and_their_absence_is_none() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let router = axum::Router::new()
        .route("/metrics", axum::routing::get(async || MINI_INFER))
        .route("/empty", axum::routing::get(async || "<html></html>"));
    tokio::spawn(async move { axum::serve(listener, router).await });
    let url = |path: &str| format!("http://127.0.0.1:{port}/{path}");
    assert_eq!(scrape(&url("metrics")).await, Some(parse(MINI_INFER)));
    assert_eq!(scrape(&url("empty")).await, None);
    assert_eq!(scrape(&url("absent")).await, None);
}
