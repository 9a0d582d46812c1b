//! Asks a running benchmark to stop.

use std::sync::Arc;
use tokio::sync::watch;

/// Asks a running benchmark to stop and keep what it has. Clones ask the same benchmark.
#[derive(Clone, Debug)]
pub struct StopHandle {
    requested: Arc<watch::Sender<bool>>,
}

impl Default for StopHandle {
    fn default() -> Self {
        Self { requested: Arc::new(watch::Sender::new(false)) }
    }
}

impl StopHandle {
    /// Asks for the stop. Requests in flight are aborted; those that have ended are kept.
    pub fn stop(&self) {
        self.requested.send_replace(true);
    }

    /// Tells whether a stop has been asked for.
    #[must_use]
    pub fn is_requested(&self) -> bool {
        *self.requested.borrow()
    }

    /// Waits until a stop is asked for.
    pub async fn requested(&self) {
        let mut receiver = self.requested.subscribe();
        // The sender lives in `self`, so the wait cannot fail.
        let _ = receiver.wait_for(|requested| *requested).await;
    }
}
