//! Which engine gave a set of answers.
//!
//! What only one engine says comes first: its name in `owned_by` or `/health`. A route is taken as
//! evidence only with the shape of its engine's answer, and only after those. So a server with
//! another engine's routes beside its own, such as `/version` or Ollama's, is told by its own, and
//! one that answers anything with status 200 by nothing.

use super::MINI_INFER;
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// The routes that are asked for, below the root of the server.
pub(super) const PATHS: [&str; 9] = [
    "/health",
    "/version",
    "/props",
    "/api/version",
    "/api/v0/models",
    "/get_model_info",
    "/get_server_info",
    "/info",
    "/stats",
];

/// What a server answered.
#[derive(Debug, Default)]
pub(super) struct Answers {
    /// The entries of its list of models.
    pub(super) models: Vec<Value>,
    /// The successful answers in JSON, by path.
    pub(super) routes: BTreeMap<&'static str, Value>,
}

/// Which engine it is.
#[derive(Debug, PartialEq)]
pub(super) struct Fingerprint {
    pub(super) engine: &'static str,
    pub(super) version: Option<String>,
    pub(super) details: Map<String, Value>,
}

impl Answers {
    fn route(&self, path: &str) -> &Value {
        self.routes.get(path).unwrap_or(&Value::Null)
    }

    fn is_owned_by(&self, name: &str) -> bool {
        self.models.iter().any(|model| model["owned_by"] == name)
    }

    fn version(&self, path: &str, field: &str) -> Option<String> {
        self.route(path)[field].as_str().map(str::to_owned)
    }
}

/// Tells which engine gave these answers.
pub(super) fn judge(answers: &Answers) -> Fingerprint {
    let (engine, version) = engine(answers);
    let version = version.and_then(|(path, field)| answers.version(path, field));
    Fingerprint { engine, version, details: details(engine, answers) }
}

/// Returns the engine, and the route and field of its version.
fn engine(answers: &Answers) -> (&'static str, Option<(&'static str, &'static str)>) {
    let props = answers.route("/props");
    let is_llama_cpp = props["default_generation_settings"].is_object()
        || props["total_slots"].is_u64()
        || answers.is_owned_by("llamacpp");
    let is_sglang =
        answers.is_owned_by("sglang") || answers.route("/get_model_info")["model_path"].is_string();
    let has_version = |path| answers.route(path)["version"].is_string();
    let tgi = answers.route("/info");
    let is_lm_studio = answers.route("/api/v0/models")["data"].is_array();
    if answers.is_owned_by(MINI_INFER) || answers.route("/health")["engine"] == MINI_INFER {
        (MINI_INFER, Some(("/version", "version")))
    } else if is_llama_cpp {
        ("llama.cpp", Some(("/props", "build_info")))
    } else if answers.is_owned_by("vllm") {
        ("vLLM", Some(("/version", "version")))
    } else if is_sglang {
        ("SGLang", Some(("/get_server_info", "version")))
    } else if tgi["model_id"].is_string() && tgi["router"].is_string() {
        ("TGI", Some(("/info", "version")))
    } else if is_lm_studio {
        ("LM Studio", None)
    } else if answers.route("/stats")["connections"].is_u64() {
        ("servebench mock", None)
    } else if has_version("/api/version") {
        ("Ollama", Some(("/api/version", "version")))
    } else {
        ("OpenAI-compatible", None)
    }
}

/// Returns what the answers tell about the server itself.
fn details(engine: &str, answers: &Answers) -> Map<String, Value> {
    let mut details = Map::new();
    let mut note = |key: &str, value: &Value| {
        if !value.is_null() {
            details.insert(key.to_owned(), value.clone());
        }
    };
    match engine {
        "llama.cpp" => {
            let props = answers.route("/props");
            note("total_slots", &props["total_slots"]);
            note("model_path", &props["model_path"]);
            note("n_ctx", &props["default_generation_settings"]["n_ctx"]);
        }
        "SGLang" => {
            let info = answers.route("/get_server_info");
            for key in ["max_total_num_tokens", "max_running_requests", "tp_size", "dtype"] {
                note(key, &info[key]);
            }
        }
        "TGI" => {
            let info = answers.route("/info");
            for key in ["max_total_tokens", "max_input_tokens", "max_concurrent_requests"] {
                note(key, &info[key]);
            }
        }
        _ => {}
    }
    details
}
