//! The server from bind to exit.
//!
//! The listener is bound before the model loads, so that health checks get an answer meanwhile.
//! A shutdown has two halves: first requests are refused with 503 while running ones finish,
//! then, after the timeout, what still runs is aborted and the connections are closed.

use crate::auth;
use crate::engine_thread::EngineHandle;
use crate::kv_log;
use crate::routes;
use crate::served_model::ServedModel;
use crate::state::{AppState, Serving};
use crate::tiers::KvDetails;
use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::middleware::from_fn_with_state;
use axum::serve::ListenerExt;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::net::{TcpListener, ToSocketAddrs};
use tokio::task::JoinSet;
use tokio::time::timeout;

/// How long open connections may take to send what is already written once nothing runs.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// How long the engine may take to end its step and to hand what is cached to the tiers.
const STOP_TIMEOUT: Duration = Duration::from_secs(15);

/// Settings of the HTTP side.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// Keys that clients must show one of; empty lets everybody in.
    pub api_keys: Vec<String>,
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
            api_keys: Vec::new(),
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
        Ok(Self { listener, state: AppState::new(config), kv_log: None })
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

    /// Serves until `stop` completes and the shutdown after it is done.
    ///
    /// # Errors
    /// Returns the system's error when the listener fails.
    pub async fn run(self, stop: impl Future<Output = ()> + Send + 'static) -> io::Result<()> {
        // Chunks are small and each matters: without this, the kernel holds one back until the
        // client acknowledged the last.
        let listener = self.listener.tap_io(|stream| {
            if let Err(error) = stream.set_nodelay(true) {
                tracing::debug!(%error, "TCP_NODELAY");
            }
        });
        let state = self.state;
        // Ends with this function: dropping the set aborts what is in it.
        let mut log = JoinSet::new();
        if let Some(write) = self.kv_log {
            log.spawn(kv_log::run(state.clone(), write));
        }
        let (closed, mut close) = tokio::sync::oneshot::channel::<()>();
        let drained = drain(state.clone(), stop);
        let graceful = async move {
            drained.await;
            let _ = closed.send(());
        };
        let serve = axum::serve(listener, router(state)).with_graceful_shutdown(graceful);
        let serve = serve.into_future();
        tokio::pin!(serve);
        tokio::select! {
            result = &mut serve => return result,
            _ = &mut close => {}
        }
        timeout(CLOSE_TIMEOUT, serve).await.unwrap_or(Ok(()))
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

fn router(state: AppState) -> Router {
    let limit = DefaultBodyLimit::max(state.config().max_body_bytes);
    routes::router()
        .layer(limit)
        .layer(from_fn_with_state(state.clone(), auth::require_api_key))
        .with_state(state)
}
