//! Where and when a run happened, and what answered.

use serde::{Deserialize, Serialize};

/// Where and when a run happened, and what answered.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Environment {
    /// Version of the program that measured.
    pub servebench_version: String,
    /// Version of Python that ran it; empty for this program, which is native.
    pub python: String,
    /// Operating system of the client.
    pub platform: String,
    /// Processor of the client and its number of threads.
    pub client_cpu: Option<String>,
    /// When, in UTC, RFC 3339.
    pub timestamp: String,
    /// Models that the server lists.
    pub server_models: Option<Vec<String>>,
    /// The user's own words.
    pub notes: Option<String>,
    /// Processor of the client.
    pub cpu: Option<String>,
    /// Memory of the client, in GiB.
    pub ram_gb: Option<f64>,
    /// GPUs of the client.
    pub gpus: Option<Vec<String>>,
    /// Whether the server is on the client's machine.
    pub local_server: Option<bool>,
    /// What answered.
    pub engine: Option<String>,
    /// Its version.
    pub engine_version: Option<String>,
    /// What it says about the model.
    pub model_info: Option<serde_json::Map<String, serde_json::Value>>,
}
