//! Finds local servers, and tells which engine answers at an address.
//!
//! Every engine has routes beside the OpenAI API that give it away. All of them are asked for at
//! once, each with a short time limit, and the answers are judged together, so that an engine that
//! also serves another one's route is not taken for it.

mod fingerprint;
mod model_facts;
mod probe;

pub(crate) use probe::{Probe, ProbeError, api_root, is_loopback};

use crate::error::ServebenchError;
use fingerprint::Answers;
use serde_json::{Map, Value};
use std::time::Duration;
use tokio::task::JoinSet;

/// Name of this project's own engine.
pub const MINI_INFER: &str = "mini-infer";

/// Ports on which local servers listen, in order of preference.
pub const KNOWN_PORTS: [(u16, &str); 5] = [
    (8000, "mini-infer or vLLM"),
    (8080, "llama.cpp"),
    (11434, "Ollama"),
    (1234, "LM Studio"),
    (30000, "SGLang"),
];

/// Longest wait for an answer of a server whose address the user gave.
const GIVEN_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest wait for an answer on a port that may as well be something else's.
const LOCAL_TIMEOUT: Duration = Duration::from_secs(1);

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
pub async fn identify(url: &str, api_key: Option<&str>) -> Option<Server> {
    identify_or_explain(url, api_key).await.ok()
}

/// Returns what answers at a base URL. One without `/v1` is tried as it is, then with it.
///
/// # Errors
/// When nothing lists models there: why, and what to do.
pub async fn identify_or_explain(
    url: &str,
    api_key: Option<&str>,
) -> Result<Server, ServebenchError> {
    let probe = Probe::new(url, GIVEN_TIMEOUT, api_key);
    identify_with(&probe, url).await.map_err(|error| ServebenchError::Server {
        url: url.to_owned(),
        message: explain(&error, api_key.is_some()),
    })
}

/// Returns every server that answers on a known port of this machine, in order of preference.
pub async fn find_local() -> Vec<Server> {
    let ports = KNOWN_PORTS.map(|(port, _)| port);
    find_on_ports(&ports).await
}

/// Returns every server that answers on these ports of this machine, in their order.
async fn find_on_ports(ports: &[u16]) -> Vec<Server> {
    let mut searches = JoinSet::new();
    for (i, port) in ports.iter().enumerate() {
        let url = format!("http://127.0.0.1:{port}/v1");
        searches.spawn(async move {
            let probe = Probe::new(&url, LOCAL_TIMEOUT, None);
            (i, identify_with(&probe, &url).await)
        });
    }
    let mut found = searches.join_all().await;
    found.sort_by_key(|(i, _)| *i);
    found.into_iter().filter_map(|(_, server)| server.ok()).collect()
}

/// Returns what the server says about a model, best asked after a run, when it is loaded.
pub async fn model_info(server: &Server, model: &str) -> Option<Map<String, Value>> {
    model_info_with_key(server, model, None).await
}

/// Returns what a server that wants a key says about a model; see [`model_info`].
pub async fn model_info_with_key(
    server: &Server,
    model: &str,
    api_key: Option<&str>,
) -> Option<Map<String, Value>> {
    let probe = Probe::new(&server.url, GIVEN_TIMEOUT, api_key);
    let facts = model_facts::ask(&probe, server, model).await;
    (!facts.is_empty()).then_some(facts)
}

async fn identify_with(probe: &Probe, url: &str) -> Result<Server, ProbeError> {
    let url = url.trim_end_matches('/');
    let listing = list_models(probe, url).await;
    let (url, listing) = match listing {
        Ok(listing) => (url.to_owned(), listing),
        Err(error) if probe::ends_in_version(url) => return Err(error),
        Err(error) => {
            let url = format!("{url}/v1");
            let listing = list_models(probe, &url).await.map_err(|_| error)?;
            (url, listing)
        }
    };
    let models = listing.iter().filter_map(|model| model["id"].as_str().map(str::to_owned));
    let models = models.collect();
    let mut answers = ask_all(probe, &api_root(&url)).await;
    answers.models = listing;
    let found = fingerprint::judge(&answers);
    let (engine, version, details) = (found.engine.to_owned(), found.version, found.details);
    Ok(Server { url, engine, version, models, details })
}

/// Returns the entries of a list of models.
async fn list_models(probe: &Probe, url: &str) -> Result<Vec<Value>, ProbeError> {
    let mut listing = probe.json(&format!("{url}/models")).await?;
    match listing["data"].take() {
        Value::Array(models) => Ok(models),
        // Some servers without a model say so with `null`.
        Value::Null if listing["object"] == "list" => Ok(Vec::new()),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Object(_) => {
            Err(ProbeError::Unexpected)
        }
    }
}

/// Asks for all routes that tell engines apart, at once.
async fn ask_all(probe: &Probe, root: &str) -> Answers {
    let mut requests = JoinSet::new();
    for path in fingerprint::PATHS {
        let (probe, url) = (probe.clone(), format!("{root}{path}"));
        requests.spawn(async move { (path, probe.json(&url).await.ok()) });
    }
    let mut answers = Answers::default();
    for (path, answer) in requests.join_all().await {
        if let Some(answer) = answer {
            answers.routes.insert(path, answer);
        }
    }
    answers
}

fn explain(error: &ProbeError, has_key: bool) -> String {
    match error {
        ProbeError::Url => "is no URL; it looks like http://127.0.0.1:8000/v1".to_owned(),
        ProbeError::Unreachable(reason) => {
            format!("cannot be reached ({reason}); is the server running, and is the port right?")
        }
        ProbeError::Status(401 | 403) if has_key => "refuses the API key".to_owned(),
        ProbeError::Status(401 | 403) => "wants an API key; pass --api-key".to_owned(),
        ProbeError::Status(503) => "is not ready (status 503); try again when it is".to_owned(),
        ProbeError::Status(404) => {
            "has no list of models there; the base URL mostly ends in /v1".to_owned()
        }
        ProbeError::Status(status) => {
            format!("answers the request for its models with status {status}")
        }
        ProbeError::Unexpected => {
            "answers, but not as an OpenAI-compatible server; is the port right?".to_owned()
        }
    }
}

#[cfg(test)]
mod tests;
