//! A server of made-up tokens at exact times, to test clients and to try commands without a model.
//!
//! Speaks OpenAI's API: `/v1/models`, `/v1/chat/completions` and `/v1/completions`, streamed or
//! not, `/health`, and `/metrics` with vLLM's names. `/stats`, `/_mock/config` and `/_mock/reset`
//! are its own. For a request that begins when `active` are being served, itself among them:
//!
//! ```text
//! factor                = 1 + slowdown * (active - 1)
//! first token           = (ttft_ms + prefill_ms_per_token * prompt words) * factor
//! each token after it   = itl_ms * factor
//! ```
//!
//! Every piece has an absolute deadline, so errors do not add up. A thread of its own waits for
//! them, since asynchronous timers are a millisecond coarse. How late it was is in `/stats`: a test
//! can tell this server's error from its client's.

mod answer;
mod clockwork;
mod config;
mod http;
mod lateness;
mod script;
mod service;
mod wire;

pub use config::{ConfigError, MockConfig};
pub use service::MockStats;

use clockwork::Clockwork;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::thread::JoinHandle;
use tokio::sync::oneshot;

/// A server that runs until it is dropped.
#[derive(Debug)]
pub struct MockServer {
    address: SocketAddr,
    clockwork: Clockwork,
    stop: Option<oneshot::Sender<()>>,
    connections: Option<JoinHandle<()>>,
}

impl MockServer {
    /// Starts on a free port of this machine.
    ///
    /// # Errors
    /// When there is no port or no thread to be had.
    ///
    /// # Panics
    /// When the settings are out of range: see [`MockConfig::check`].
    pub fn start(config: MockConfig) -> io::Result<Self> {
        Self::start_at(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), config)
    }

    /// Starts at an address.
    ///
    /// # Errors
    /// When the address cannot be used or there is no thread to be had.
    ///
    /// # Panics
    /// When the settings are out of range: see [`MockConfig::check`].
    pub fn start_at(address: SocketAddr, config: MockConfig) -> io::Result<Self> {
        assert_eq!(config.check(), Ok(()), "the settings are in range");
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let clockwork = Clockwork::start(config)?;
        let (stop, stopped) = oneshot::channel();
        let connections = http::serve(listener, clockwork.handle(), stopped)?;
        Ok(Self { address, clockwork, stop: Some(stop), connections: Some(connections) })
    }

    /// Returns the base URL of its API, such as `http://127.0.0.1:40123/v1`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}/v1", self.address)
    }

    /// Changes all settings, for requests from here on.
    ///
    /// # Panics
    /// When they are out of range: see [`MockConfig::check`].
    pub fn set(&self, config: MockConfig) {
        assert_eq!(config.check(), Ok(()), "the settings are in range");
        self.clockwork.handle().set(config);
    }

    /// Returns what it did since the start, or since [`reset`](Self::reset).
    #[must_use]
    pub fn stats(&self) -> MockStats {
        self.clockwork.handle().stats()
    }

    /// Changes all settings and forgets what it did.
    ///
    /// # Panics
    /// When the settings are out of range: see [`MockConfig::check`].
    pub fn reset(&self, config: MockConfig) {
        assert_eq!(config.check(), Ok(()), "the settings are in range");
        self.clockwork.handle().reset(config);
    }
}

impl Drop for MockServer {
    fn drop(&mut self) {
        // The thread may have ended by itself.
        let _ = self.stop.take().map(|stop| stop.send(()));
        if let Some(connections) = self.connections.take() {
            let _ = connections.join();
        }
    }
}
