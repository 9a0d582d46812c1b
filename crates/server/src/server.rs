//! The server from bind to exit.
//!
//! The listener is bound before the model loads, so that health checks get an answer meanwhile.
//! A shutdown has two halves: first requests are refused with 503 while running ones finish,
//! then, after the timeout, what still runs is aborted and the connections are closed.

use crate::access::{AccessConfig, Transport};
use crate::access_log::AccessLog;
use crate::auth;
use crate::body_read;
use crate::connections::{ConnectionLimits, Connections};
use crate::cors;
use crate::engine_thread::EngineHandle;
use crate::host_check::{self, HostRule};
use crate::kv_log;
use crate::request_layer;
use crate::response_store::ResponseStoreLimits;
use crate::routes;
use crate::served_model::ServedModel;
use crate::state::{AppState, Serving};
use crate::tiers::KvDetails;
use crate::tls::TlsIdentity;
use crate::trace_exporter::TraceExporter;
use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::middleware::from_fn_with_state;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::time::Duration;
use tokio::net::{TcpListener, ToSocketAddrs};
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::timeout;

/// How long open connections may take to send what is already written once nothing runs.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// How long the engine may take to end its step and to hand what is cached to the tiers.
const STOP_TIMEOUT: Duration = Duration::from_secs(15);

/// Settings of the HTTP side.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// Who may reach the server.
    pub access: AccessConfig,
    /// The certificate; without one, bytes travel as they are.
    pub tls: Option<TlsIdentity>,
    /// Most connections that are open at once; more are answered with 503 and closed.
    pub max_connections: usize,
    /// How long a client may take to send a request, and to read any of what is written to it.
    pub client_timeout: Duration,
    /// How long a request may take from its arrival on; `None` sets no limit.
    pub request_timeout: Option<Duration>,
    /// Most requests of one client, a key or else an address, that run or wait at once; `None`
    /// sets no limit.
    pub max_requests_per_client: Option<u32>,
    /// How many responses are kept for clients that ask for them again.
    pub response_store: ResponseStoreLimits,
    /// Largest request body, in bytes.
    pub max_body_bytes: usize,
    /// How long running requests may go on after a shutdown was asked for.
    pub shutdown_timeout: Duration,
    /// Silence after which a stream sends a comment, so that proxies keep it open.
    pub ping_interval: Duration,
    /// Time inside one step after which health reports the engine as stalled.
    pub stall_timeout: Duration,
    /// Makes the seeds of requests without one repeatable.
    pub seed: Option<u64>,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            access: AccessConfig::default(),
            tls: None,
            max_connections: 4096,
            client_timeout: Duration::from_secs(60),
            request_timeout: None,
            max_requests_per_client: None,
            response_store: ResponseStoreLimits::default(),
            max_body_bytes: 16 << 20,
            shutdown_timeout: Duration::from_secs(30),
            ping_interval: Duration::from_secs(15),
            stall_timeout: Duration::from_secs(60),
            seed: None,
        }
    }
}

/// Takes a line about the KV memory.
type WriteLine = Box<dyn FnMut(&str) + Send>;

/// A bound server whose model may still be loading.
pub struct Server {
    listener: TcpListener,
    state: AppState,
    kv_log: Option<WriteLine>,
}

/// Tells a running server that its model is ready.
#[derive(Clone)]
pub struct ServerHandle {
    state: AppState,
}

impl ServerHandle {
    /// Starts to serve `model` on `engine`, whose KV memory has the given details.
    ///
    /// # Panics
    /// When the server has a model already.
    pub fn set_ready(&self, model: ServedModel, engine: EngineHandle, kv: KvDetails) {
        self.state.set_serving(Serving { model, engine, kv });
    }
}

impl Server {
    /// Binds `address`; port 0 takes any free one.
    ///
    /// # Errors
    /// Returns the system's error when the address cannot be bound.
    pub async fn bind(address: impl ToSocketAddrs, config: ServerConfig) -> io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?.ip();
        let transport = if config.tls.is_some() { Transport::Tls } else { Transport::Plain };
        for warning in config.access.warnings(address, transport) {
            tracing::warn!("{warning}");
        }
        let host_rule = HostRule::new(address, &config.access.allowed_hosts);
        Ok(Self { listener, state: AppState::new(config, host_rule), kv_log: None })
    }

    /// Returns the address that clients connect to.
    ///
    /// # Errors
    /// Returns the system's error when it does not know.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Returns the handle that ends loading.
    #[must_use]
    pub fn handle(&self) -> ServerHandle {
        ServerHandle { state: self.state.clone() }
    }

    /// Has `write` called, while the server runs, with a line about the KV memory: each second
    /// while there is work, and once more when there is none. The line has no line feed.
    #[must_use]
    pub fn with_kv_log(mut self, write: impl FnMut(&str) + Send + 'static) -> Self {
        self.kv_log = Some(Box::new(write));
        self
    }

    /// Has `write` called, on a thread of its own, with a line about each request that ended: who
    /// asked for what, and how it went, never the text. The line has no line feed.
    ///
    /// # Errors
    /// Returns the system's error when the thread cannot be started.
    pub fn with_access_log(self, write: impl FnMut(&str) + Send + 'static) -> io::Result<Self> {
        self.state.set_access_log(AccessLog::start(write)?);
        Ok(self)
    }

    /// Has a span sent for each request to the model, to the OpenTelemetry collector at `endpoint`,
    /// such as `http://localhost:4318`.
    ///
    /// # Errors
    /// Returns the system's error when the thread that sends cannot be started.
    pub fn with_traces(self, endpoint: &str) -> io::Result<Self> {
        self.state.set_traces(TraceExporter::start(endpoint)?);
        Ok(self)
    }

    /// Serves until `stop` completes and the shutdown after it is done.
    pub async fn run(self, stop: impl Future<Output = ()> + Send + 'static) {
        let Self { listener, state, kv_log } = self;
        // Ends with this function: dropping the set aborts what is in it.
        let mut beside = JoinSet::new();
        if let Some(write) = kv_log {
            beside.spawn(kv_log::run(state.clone(), write));
        }
        let config = state.config();
        let tls = config.tls.clone();
        if let Some(tls) = tls.clone() {
            beside.spawn(tls.reload_on_hangup());
        }
        let limits = ConnectionLimits {
            max_connections: config.max_connections,
            client_timeout: config.client_timeout,
        };
        let router = router(state.clone());
        let (close, closed) = oneshot::channel::<()>();
        let connections = Connections { listener, router, tls, limits }.serve(async {
            // Its sender is only ever dropped.
            let _ = closed.await;
        });
        let mut connections = pin!(connections);
        tokio::select! {
            () = &mut connections => {}
            () = drain(state.clone(), stop) => {
                drop(close);
                if timeout(CLOSE_TIMEOUT, connections).await.is_err() {
                    tracing::debug!("connections were closed with bytes on their way");
                }
            }
        }
        if timeout(CLOSE_TIMEOUT, state.flush_traces()).await.is_err() {
            tracing::warn!("the last traces could not be sent in time");
        }
    }
}

/// Waits for `stop`, then until no request is in flight, which it enforces after the timeout.
async fn drain(state: AppState, stop: impl Future<Output = ()>) {
    stop.await;
    state.set_shutting_down();
    tracing::info!("shutting down: new requests are refused, running ones finish");
    if timeout(state.config().shutdown_timeout, state.landed()).await.is_err() {
        tracing::warn!("the shutdown timeout has passed; aborting what still runs");
        if let Some(serving) = state.served() {
            serving.engine.abort_all().await;
        }
        if timeout(CLOSE_TIMEOUT, state.landed()).await.is_err() {
            tracing::warn!("clients did not take their last bytes in time");
        }
    }
    if let Some(serving) = state.served()
        && timeout(STOP_TIMEOUT, serving.engine.stop()).await.is_err()
    {
        tracing::warn!("the engine did not end in time");
    }
}

/// Returns the routes behind everything that a request passes first, the last layer outermost.
fn router(state: AppState) -> Router {
    let limit = DefaultBodyLimit::max(state.config().max_body_bytes);
    routes::router()
        .route_layer(from_fn_with_state(state.clone(), body_read::read_body))
        .layer(limit)
        .layer(from_fn_with_state(state.clone(), auth::require_api_key))
        .layer(from_fn_with_state(state.clone(), cors::share_with_origins))
        .layer(from_fn_with_state(state.clone(), host_check::check_host))
        .layer(from_fn_with_state(state.clone(), request_layer::record_request))
        .with_state(state)
}
