//! Finds local servers, and tells which engine answers at an address.

use serde_json::{Map, Value};

/// Ports on which local servers listen, in order of preference.
pub const KNOWN_PORTS: [(u16, &str); 5] = [
    (8000, "mini-infer or vLLM"),
    (8080, "llama.cpp"),
    (11434, "Ollama"),
    (1234, "LM Studio"),
    (30000, "SGLang"),
];

/// A server that answers.
#[derive(Clone, Debug, PartialEq)]
pub struct Server {
    /// Base URL of its API, such as `http://127.0.0.1:8000/v1`.
    pub url: String,
    /// What it is, such as `llama.cpp`; `OpenAI-compatible` when nothing tells.
    pub engine: String,
    /// Its version.
    pub version: Option<String>,
    /// The models that it lists.
    pub models: Vec<String>,
    /// What it says about itself.
    pub details: Map<String, Value>,
}

/// Returns what answers at a base URL; `None` if nothing lists models there.
pub async fn identify(_url: &str, _api_key: Option<&str>) -> Option<Server> {
    None
}

/// Returns every server that answers on a known port of this machine.
pub async fn find_local() -> Vec<Server> {
    Vec::new()
}

/// Returns what the server says about a model, best asked after a run, when it is loaded.
pub async fn model_info(_server: &Server, _model: &str) -> Option<Map<String, Value>> {
    None
}
