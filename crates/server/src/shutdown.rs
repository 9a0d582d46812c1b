//! When the server is asked to stop, on each platform.
//!
//! The first Ctrl-C or SIGTERM asks for a graceful stop; what a second one does is the caller's
//! choice.

use std::io;

/// The operating system's requests to stop, in order.
#[derive(Debug)]
pub struct StopSignals {
    #[cfg(unix)]
    interrupt: tokio::signal::unix::Signal,
    #[cfg(unix)]
    terminate: tokio::signal::unix::Signal,
}

impl StopSignals {
    /// Starts to listen; from here on the signals no longer end the process by themselves.
    ///
    /// # Errors
    /// Returns the system's error when a signal cannot be listened to.
    pub fn listen() -> io::Result<Self> {
        #[cfg(unix)]
        {
            use tokio::signal::unix::{SignalKind, signal};
            Ok(Self {
                interrupt: signal(SignalKind::interrupt())?,
                terminate: signal(SignalKind::terminate())?,
            })
        }
        #[cfg(not(unix))]
        Ok(Self {})
    }

    /// Waits for the next request to stop.
    pub async fn next(&mut self) {
        #[cfg(unix)]
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
        #[cfg(not(unix))]
        if tokio::signal::ctrl_c().await.is_err() {
            // Without a console there is nothing to wait for.
            std::future::pending::<()>().await;
        }
    }
}
