//! Asks a server in turns: who it is, its metrics, its KV blocks, the power of this machine.

use super::TopOptions;
use super::kv_blocks::KvBlocks;
use crate::detect::{MINI_INFER, Probe, ProbeError, Server, api_root, identify_or_explain};
use crate::gpu_sampler::{DeviceReading, GpuSampler};
use crate::server_metrics::{self, Scrape};
use std::time::Duration;
use tokio::sync::mpsc::{self, Receiver};
use tokio::time::MissedTickBehavior;

/// Longest wait for an answer: longer than a step of a busy server, which `/v1/kv` waits for.
const TIMEOUT: Duration = Duration::from_secs(5);

/// What one look at the server found.
#[derive(Clone, Debug)]
pub(super) enum Observation {
    /// It does not answer; why.
    Down(String),
    /// It answers.
    Up(Box<Answers>),
}

/// What a server that answers told.
#[derive(Clone, Debug)]
pub(super) struct Answers {
    pub(super) server: Server,
    /// Its metrics, or why there are none.
    pub(super) metrics: Result<Scrape, String>,
    pub(super) kv: Option<KvBlocks>,
    pub(super) device: Option<DeviceReading>,
}

/// Asks a server in turns.
#[derive(Debug)]
pub(super) struct Collector {
    url: String,
    api_key: Option<String>,
    refresh: Duration,
    probe: Probe,
    server: Option<Server>,
    device: Option<GpuSampler>,
}

impl Collector {
    pub(super) fn new(options: &TopOptions) -> Self {
        let api_key = options.api_key.as_deref();
        let probe = Probe::new(&options.url, TIMEOUT, api_key);
        // The power of this machine says nothing about a server elsewhere.
        let is_local = crate::detect::is_loopback(&options.url);
        Self {
            url: options.url.clone(),
            api_key: options.api_key.clone(),
            refresh: options.refresh,
            probe,
            server: None,
            device: is_local.then(|| GpuSampler::start(0)).flatten(),
        }
    }

    /// Returns the URL that is watched.
    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// Looks every so often from here on, until nobody listens.
    pub(super) fn start(mut self) -> Receiver<Observation> {
        // One look that waits is enough: a slow terminal sees fewer of them, not old ones.
        let (sender, receiver) = mpsc::channel(1);
        tokio::spawn(async move {
            let mut times = tokio::time::interval(self.refresh);
            times.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                times.tick().await;
                let observation = self.look().await;
                if sender.send(observation).await.is_err() {
                    return;
                }
            }
        });
        receiver
    }

    async fn look(&mut self) -> Observation {
        let server = match self.server.take() {
            Some(server) => server,
            None => match identify_or_explain(&self.url, self.api_key.as_deref()).await {
                Ok(server) => server,
                Err(error) => return Observation::Down(error.to_string()),
            },
        };
        let root = api_root(&server.url);
        let metrics = match self.probe.bytes(&format!("{root}/metrics")).await {
            Ok(text) => {
                let scrape = server_metrics::parse(&String::from_utf8_lossy(&text));
                if scrape.is_empty() { Err(no_metrics(&server.engine)) } else { Ok(scrape) }
            }
            // Who comes back may be another server, so it is asked again who it is.
            Err(ProbeError::Unreachable(reason)) => {
                return Observation::Down(format!("{}: {reason}", self.url));
            }
            Err(ProbeError::Status(401 | 403)) => {
                Err("the server does not show its metrics without the right API key".to_owned())
            }
            Err(ProbeError::Status(_) | ProbeError::Url | ProbeError::Unexpected) => {
                Err(no_metrics(&server.engine))
            }
        };
        let kv = if server.engine == MINI_INFER {
            let map = self.probe.json(&format!("{root}/v1/kv")).await.ok();
            map.and_then(|map| KvBlocks::parse(&map))
        } else {
            None
        };
        let device = self.device.as_ref().and_then(GpuSampler::latest);
        self.server = Some(server.clone());
        Observation::Up(Box::new(Answers { server, metrics, kv, device }))
    }
}

/// Says that an engine shows no metrics, and what may change that.
fn no_metrics(engine: &str) -> String {
    let hint = match engine {
        "llama.cpp" => "; start it with --metrics",
        "SGLang" => "; start it with --enable-metrics",
        _ => "",
    };
    format!("no metrics here: {engine} shows none at /metrics{hint}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::top::Display;
    use axum::Router;
    use axum::routing::get;
    use serde_json::json;
    use tokio::net::TcpListener;

    fn collector(port: u16) -> Collector {
        Collector::new(&TopOptions {
            url: format!("http://127.0.0.1:{port}/v1"),
            api_key: None,
            refresh: Duration::from_millis(1),
            duration: None,
            display: Display::Lines,
        })
    }

    fn router(owner: &str) -> Router {
        let models = json!({"object": "list", "data": [{"id": "m", "owned_by": owner}]});
        Router::new().route("/v1/models", get(async move || axum::Json(models)))
    }

    #[tokio::test]
    async fn a_server_without_metrics_is_told_with_what_would_help() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut collector = collector(listener.local_addr().unwrap().port());
        tokio::spawn(async move { axum::serve(listener, router("llamacpp")).await });
        let Observation::Up(answers) = collector.look().await else {
            panic!("the server answers");
        };
        let reason = answers.metrics.unwrap_err();
        assert!(reason.contains("llama.cpp shows none") && reason.contains("--metrics"));
        assert_eq!(answers.kv, None);
    }

    #[tokio::test]
    async fn a_server_that_comes_back_is_asked_again_who_it_is() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut collector = collector(address.port());
        let metrics = get(async || "vllm:num_requests_running 1\n");
        let router_of = |owner| router(owner).route("/metrics", metrics.clone());
        let serve = |listener, router: Router| {
            tokio::spawn(async move { axum::serve(listener, router).await })
        };
        let first = serve(listener, router_of("vllm"));
        assert!(
            matches!(collector.look().await, Observation::Up(up) if up.server.engine == "vLLM")
        );
        first.abort();
        assert!(first.await.unwrap_err().is_cancelled());
        assert!(matches!(collector.look().await, Observation::Down(_)));
        let listener = TcpListener::bind(address).await.unwrap();
        serve(listener, router_of("sglang"));
        let Observation::Up(up) = collector.look().await else {
            panic!("the server is back");
        };
        assert_eq!(up.server.engine, "SGLang");
        assert_eq!(up.metrics.unwrap()["vllm:num_requests_running"].to_bits(), 1_f64.to_bits());
    }
}
