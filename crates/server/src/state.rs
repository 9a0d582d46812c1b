//! What all routes share: configuration, life cycle, and the model once it serves.
//!
//! The life cycle only moves forward: loading, ready, shutting down. Requests for the model pass
//! [`AppState::serving`], which is the one place that refuses them before and after.

use crate::access_log::{AccessLine, AccessLog};
use crate::client_limits::ClientLimits;
use crate::engine_thread::EngineHandle;
use crate::host_check::HostRule;
use crate::metrics::Metrics;
use crate::response_store::ResponseStore;
use crate::seeds::SeedSource;
use crate::served_model::ServedModel;
use crate::server::ServerConfig;
use crate::tiers::KvDetails;
use crate::trace_exporter::TraceExporter;
use crate::wire::error::ApiError;
use axum::http::Method;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::sync::{SetOnce, watch};

/// The shared state; clones are handles on the same one.
#[derive(Clone)]
pub(crate) struct AppState {
    inner: Arc<Inner>,
}

struct Inner {
    config: ServerConfig,
    host_rule: HostRule,
    client_limits: Arc<ClientLimits>,
    access_log: OnceLock<AccessLog>,
    traces: OnceLock<TraceExporter>,
    metrics: Metrics,
    seeds: SeedSource,
    started_at: u64,
    next_response: AtomicU64,
    responses: ResponseStore,
    serving: SetOnce<Arc<Serving>>,
    shutting_down: AtomicBool,
    num_in_flight: watch::Sender<usize>,
}

/// The model that is served and the engine that runs it.
pub(crate) struct Serving {
    /// Names, texts and limits of the model.
    pub(crate) model: ServedModel,
    /// The engine thread.
    pub(crate) engine: EngineHandle,
    /// What the engine does not know about its KV memory.
    pub(crate) kv: KvDetails,
}

/// Where the server stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LifeCycle {
    /// The model is not there yet.
    Loading,
    /// Requests are served.
    Ready,
    /// The engine has been inside one step for too long.
    Stalled,
    /// Running requests finish, others are refused.
    ShuttingDown,
}

impl AppState {
    /// Creates the state of a server that is loading.
    pub(crate) fn new(config: ServerConfig, host_rule: HostRule) -> Self {
        let seeds = SeedSource::new(config.seed);
        let client_limits = Arc::new(ClientLimits::new(config.max_requests_per_client));
        let responses = ResponseStore::new(config.response_store);
        let inner = Inner {
            config,
            host_rule,
            client_limits,
            access_log: OnceLock::new(),
            traces: OnceLock::new(),
            metrics: Metrics::new(),
            started_at: unix_time(),
            next_response: AtomicU64::new(SeedSource::new(None).next_seed()),
            responses,
            seeds,
            serving: SetOnce::new(),
            shutting_down: AtomicBool::new(false),
            num_in_flight: watch::Sender::new(0),
        };
        Self { inner: Arc::new(inner) }
    }

    /// Returns the configuration.
    pub(crate) fn config(&self) -> &ServerConfig {
        &self.inner.config
    }

    /// Returns for which hosts the server answers.
    pub(crate) fn host_rule(&self) -> &HostRule {
        &self.inner.host_rule
    }

    /// Returns the counts of each client's requests.
    pub(crate) fn client_limits(&self) -> &Arc<ClientLimits> {
        &self.inner.client_limits
    }

    /// Has a line written for each request from here on.
    pub(crate) fn set_access_log(&self, log: AccessLog) {
        // Set by the server that owns this state, once.
        let _ = self.inner.access_log.set(log);
    }

    /// Has spans sent for each request to the model from here on.
    pub(crate) fn set_traces(&self, exporter: TraceExporter) {
        // Set by the server that owns this state, once.
        let _ = self.inner.traces.set(exporter);
    }

    /// Waits until the spans of requests that have ended are sent, or cannot be.
    pub(crate) async fn flush_traces(&self) {
        if let Some(traces) = self.inner.traces.get() {
            traces.flush().await;
        }
    }

    /// Tells everybody who wants to know that a request has ended.
    pub(crate) fn note_request_end(&self, line: &AccessLine<'_>) {
        self.inner.metrics.count_answer(line.route, line.status.as_u16());
        if let Some(log) = self.inner.access_log.get() {
            log.write(line);
        }
        // What only watches the server would drown what it is asked for.
        if let (Some(traces), true) = (self.inner.traces.get(), line.method == Method::POST) {
            traces.note(line);
        }
    }

    /// Returns the metrics.
    pub(crate) fn metrics(&self) -> &Metrics {
        &self.inner.metrics
    }

    /// Returns the source of seeds for requests without one.
    pub(crate) fn seeds(&self) -> &SeedSource {
        &self.inner.seeds
    }

    /// Returns when the server started, in seconds since 1970.
    pub(crate) fn started_at(&self) -> u64 {
        self.inner.started_at
    }

    /// Returns a response id that no other response of this process has, and hardly any of
    /// another.
    pub(crate) fn response_id(&self, prefix: &str) -> String {
        let id = self.inner.next_response.fetch_add(1, Ordering::Relaxed);
        format!("{prefix}-{id:016x}")
    }

    /// Returns the responses that are kept.
    pub(crate) fn responses(&self) -> &ResponseStore {
        &self.inner.responses
    }

    /// Ends loading.
    pub(crate) fn set_serving(&self, serving: Serving) {
        let monitor = Arc::clone(serving.engine.monitor());
        let model = &serving.model.names[0];
        self.inner.metrics.watch_engine(monitor, serving.kv.clone(), model);
        let is_first = self.inner.serving.set(Arc::new(serving)).is_ok();
        assert!(is_first, "a server serves one model for its whole life");
    }

    /// Starts to refuse requests.
    pub(crate) fn set_shutting_down(&self) {
        self.inner.shutting_down.store(true, Ordering::Release);
    }

    /// Returns where the server stands.
    pub(crate) fn life_cycle(&self) -> LifeCycle {
        if self.inner.shutting_down.load(Ordering::Acquire) {
            return LifeCycle::ShuttingDown;
        }
        let Some(serving) = self.inner.serving.get() else {
            return LifeCycle::Loading;
        };
        let without_progress = serving.engine.monitor().time_without_progress();
        if without_progress > self.inner.config.stall_timeout {
            return LifeCycle::Stalled;
        }
        LifeCycle::Ready
    }

    /// Returns the model for a request to the model.
    ///
    /// # Errors
    /// Refuses while loading and while shutting down.
    pub(crate) fn serving(&self) -> Result<Arc<Serving>, ApiError> {
        match (self.life_cycle(), self.inner.serving.get()) {
            (LifeCycle::ShuttingDown, _) => Err(ApiError::ShuttingDown),
            (_, None) => Err(ApiError::Loading),
            (_, Some(serving)) => Ok(Arc::clone(serving)),
        }
    }

    /// Waits until loading has ended.
    pub(crate) async fn loaded(&self) -> Arc<Serving> {
        Arc::clone(self.inner.serving.wait().await)
    }

    /// Returns the model and its engine once there are any, also while shutting down.
    pub(crate) fn served(&self) -> Option<Arc<Serving>> {
        self.inner.serving.get().cloned()
    }

    /// Counts a request as in flight until the guard is dropped.
    pub(crate) fn enter_flight(&self) -> InFlight {
        self.inner.num_in_flight.send_modify(|count| *count += 1);
        InFlight { state: self.clone() }
    }

    /// Waits until no request is in flight.
    pub(crate) async fn landed(&self) {
        let mut count = self.inner.num_in_flight.subscribe();
        // The sender lives in `self`, so waiting cannot fail.
        let _ = count.wait_for(|&count| count == 0).await;
    }
}

/// A request in flight, for as long as this lives.
pub(crate) struct InFlight {
    state: AppState,
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.state.inner.num_in_flight.send_modify(|count| *count -= 1);
    }
}

/// Returns the seconds since 1970.
pub(crate) fn unix_time() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
