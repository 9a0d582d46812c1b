use super::fingerprint::{Answers, judge};
use super::*;
use axum::Router;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::get;
use serde_json::json;

fn answers(models: Value, routes: &[(&'static str, Value)]) -> Answers {
    Answers { models: models.as_array().unwrap().clone(), routes: routes.iter().cloned().collect() }
}

fn check(answers: &Answers, engine: &str, version: Option<&str>) {
    let found = judge(answers);
    assert_eq!((found.engine, found.version.as_deref()), (engine, version), "{answers:?}");
}

#[test]
fn each_engine_is_told_by_its_own_answers() {
    let version = |text: &str| json!({"version": text});
    let owned = |name: &str| json!([{"id": "m", "owned_by": name}]);
    let props = json!({"total_slots": 4, "build_info": "b6000-abc",
        "default_generation_settings": {"n_ctx": 4096}});
    let cases = [
        (owned("mini-infer"), vec![("/version", version("0.1.0"))], MINI_INFER, Some("0.1.0")),
        (owned("llamacpp"), vec![("/props", props)], "llama.cpp", Some("b6000-abc")),
        (owned("llamacpp"), vec![], "llama.cpp", None),
        (owned("vllm"), vec![("/version", version("0.11.0"))], "vLLM", Some("0.11.0")),
        (owned("sglang"), vec![("/get_server_info", version("0.5.4"))], "SGLang", Some("0.5.4")),
        (owned("library"), vec![("/api/version", version("0.12.6"))], "Ollama", Some("0.12.6")),
        (
            owned("organization_owner"),
            vec![("/api/v0/models", json!({"object": "list", "data": []}))],
            "LM Studio",
            None,
        ),
        (
            owned("tgi"),
            vec![("/info", json!({"model_id": "m", "router": "r", "version": "3.3.5"}))],
            "TGI",
            Some("3.3.5"),
        ),
        (
            owned("servebench"),
            vec![("/stats", json!({"active": 0, "connections": 1}))],
            "servebench mock",
            None,
        ),
        (owned("openai"), vec![], "OpenAI-compatible", None),
    ];
    for (models, routes, engine, expected) in cases {
        check(&answers(models, &routes), engine, expected);
    }
}

#[test]
fn mini_infer_with_other_engines_routes_stays_mini_infer() {
    let routes = [
        ("/version", json!({"version": "0.2.0"})),
        ("/api/version", json!({"version": "0.12.6"})),
        ("/props", json!({"total_slots": 8, "default_generation_settings": {}})),
        ("/get_model_info", json!({"model_path": "m"})),
        ("/health", json!({"status": "ok", "engine": "mini-infer"})),
    ];
    check(&answers(json!([]), &routes), MINI_INFER, Some("0.2.0"));
    let card = json!([{"id": "m", "owned_by": "mini-infer"}]);
    check(&answers(card, &routes[..4]), MINI_INFER, Some("0.2.0"));
}

#[test]
fn a_bare_version_route_is_no_vllm_and_errors_with_status_200_are_no_evidence() {
    let models = || json!([{"id": "m", "owned_by": "me"}]);
    check(&answers(models(), &[("/version", json!({"version": "1"}))]), "OpenAI-compatible", None);
    let error = json!({"error": "Unexpected endpoint or method"});
    let routes = super::fingerprint::PATHS.map(|path| (path, error.clone()));
    check(&answers(models(), &routes), "OpenAI-compatible", None);
}

#[test]
fn llama_cpp_tells_its_slots_and_context() {
    let props = json!({"total_slots": 4, "model_path": "/m.gguf", "build_info": "b1",
        "default_generation_settings": {"n_ctx": 4096, "params": {}}});
    let found = judge(&answers(json!([]), &[("/props", props)]));
    let expected = json!({"total_slots": 4, "model_path": "/m.gguf", "n_ctx": 4096});
    assert_eq!(Value::Object(found.details), expected);
}

/// Serves `router` on a free port of this machine and returns the port.
async fn serve(router: Router) -> u16 {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move { axum::serve(listener, router).await });
    port
}

fn llama_cpp() -> Router {
    let listing = json!({"object": "list", "data": [{"id": "tiny", "owned_by": "llamacpp",
        "meta": {"n_params": 135, "size": 99}}]});
    let props = json!({"total_slots": 2, "build_info": "b7",
        "default_generation_settings": {"n_ctx": 512}});
    Router::new()
        .route("/v1/models", get(async move || axum::Json(listing)))
        .route("/props", get(async move || axum::Json(props)))
}

#[tokio::test]
async fn a_server_is_found_with_and_without_v1_and_asked_about_its_model() {
    let port = serve(llama_cpp()).await;
    for base in ["", "/", "/v1", "/v1/"] {
        let server = identify(&format!("http://127.0.0.1:{port}{base}"), None).await.unwrap();
        assert_eq!(server.url, format!("http://127.0.0.1:{port}/v1"));
        assert_eq!(
            (server.engine.as_str(), server.models.as_slice()),
            ("llama.cpp", &["tiny".to_owned()][..])
        );
        let facts = model_info(&server, "tiny").await.unwrap();
        let expected =
            json!({"total_slots": 2, "n_ctx": 512, "num_parameters": 135, "size_bytes": 99});
        assert_eq!(Value::Object(facts), expected);
    }
}

#[tokio::test]
async fn ports_are_searched_together_and_answer_in_their_order() {
    let (first, second) = (serve(llama_cpp()).await, serve(llama_cpp()).await);
    let unused = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let closed = unused.local_addr().unwrap().port();
    drop(unused);
    let found = find_on_ports(&[second, closed, first]).await;
    let urls: Vec<_> = found.into_iter().map(|server| server.url).collect();
    assert_eq!(urls, [second, first].map(|port| format!("http://127.0.0.1:{port}/v1")));
}

#[tokio::test]
async fn the_key_is_passed_on_and_its_lack_is_named() {
    let models = async |headers: HeaderMap| {
        let is_right = headers.get("authorization").is_some_and(|value| value == "Bearer secret");
        let body = json!({"object": "list", "data": [{"id": "m", "owned_by": "vllm"}]});
        let status = if is_right { StatusCode::OK } else { StatusCode::UNAUTHORIZED };
        (status, axum::Json(body))
    };
    let port = serve(Router::new().route("/v1/models", get(models))).await;
    let url = format!("http://127.0.0.1:{port}/v1");
    assert_eq!(identify(&url, Some("secret")).await.unwrap().engine, "vLLM");
    let error = identify_or_explain(&url, None).await.unwrap_err().to_string();
    assert!(error.contains("wants an API key"), "{error}");
    let error = identify_or_explain(&url, Some("wrong")).await.unwrap_err().to_string();
    assert!(error.contains("refuses the API key"), "{error}");
}

#[tokio::test]
async fn a_port_without_a_server_is_explained() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    let url = format!("http://127.0.0.1:{port}/v1");
    let error = identify_or_explain(&url, None).await.unwrap_err().to_string();
    assert!(error.contains("cannot be reached") && error.contains("refused"), "{error}");
    assert_eq!(identify("not a url", None).await, None);
}
