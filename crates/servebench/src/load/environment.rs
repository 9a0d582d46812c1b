//! Where a run happens and what answers, as `run.json` keeps it.

use crate::client::is_local_host;
use crate::detect::Server;
use crate::machine::Machine;
use crate::results::{Environment, RunConfig};
use jiff::Timestamp;

/// Returns the environment of a run.
pub(super) fn describe(
    config: &RunConfig,
    server: Option<&Server>,
    notes: Option<String>,
) -> Environment {
    let machine = Machine::detect();
    let num_cpus = machine.num_logical_cpus;
    let client_cpu = match &machine.cpu {
        Some(name) => format!("{name}, {num_cpus} logical CPUs"),
        None => format!("{num_cpus} logical CPUs"),
    };
    let host = reqwest::Url::parse(&config.url).ok();
    let host = host.as_ref().and_then(|url| url.host_str());
    Environment {
        servebench_version: env!("CARGO_PKG_VERSION").to_owned(),
        python: String::new(),
        platform: machine.platform,
        client_cpu: Some(client_cpu),
        timestamp: Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S+00:00").to_string(),
        server_models: server.map(|server| server.models.clone()),
        notes,
        cpu: machine.cpu,
        ram_gb: machine.ram_gb,
        gpus: machine.gpus,
        local_server: Some(host.is_some_and(is_local_host)),
        engine: server.map(|server| server.engine.clone()),
        engine_version: server.and_then(|server| server.version.clone()),
        model_info: None,
    }
}

/// Returns what does not look right about a server before anything is sent to it.
pub(super) fn warnings(config: &RunConfig, environment: &Environment) -> Vec<String> {
    let mut warnings = Vec::new();
    let models = environment.server_models.as_deref().unwrap_or_default();
    if !models.is_empty() && !models.contains(&config.model) {
        // No error: servers take aliases that they do not list.
        warnings.push(format!(
            "the server does not list the model {:?}; it lists {}",
            config.model,
            models.join(", ")
        ));
    }
    if cfg!(windows) && config.url.contains("//localhost") {
        warnings.push(
            "\"localhost\" is tried over IPv6 first, which may cost 0.3 s for each connection; \
             127.0.0.1 is not"
                .to_owned(),
        );
    }
    warnings
}
