//! What is known about one HTTP request while it runs: for logs, limits and traces.
//!
//! A layer around all routes makes the record; what runs inside finds it by
//! [`RequestRecord::current`], so that no route has to hand it on. It never holds text of the
//! request or of its answer.

use crate::client::Client;
use crate::trace_context::TraceContext;
use crate::wire::error::ApiError;
use crate::wire::refusal::Refusal;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::SetOnce;
use tokio::time::timeout_at;

tokio::task_local! {
    static CURRENT: Arc<RequestRecord>;
}

/// What is known about a request from its arrival on.
#[derive(Debug)]
pub(crate) struct RequestRecord {
    id: String,
    arrived_at: Instant,
    address: IpAddr,
    time_limit: Option<Duration>,
    trace: TraceContext,
    error_shape: ErrorShape,
    client: OnceLock<Client>,
    progress: Mutex<RequestProgress>,
    /// Set when the engine first ran any of it.
    admission: SetOnce<()>,
}

/// Whose API a route belongs to, as far as errors tell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ErrorShape {
    /// OpenAI's, and that of routes of no API in particular.
    #[default]
    OpenAi,
    /// Anthropic's.
    Anthropic,
    /// Ollama's.
    Ollama,
}

/// How far a request has come.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RequestProgress {
    /// Name of the model that was asked for, once it is known to be served.
    pub(crate) model: Option<String>,
    /// Tokens of all prompts.
    pub(crate) num_prompt_tokens: u64,
    /// Output tokens of all choices.
    pub(crate) num_output_tokens: u64,
    /// When the engine first ran any of it.
    pub(crate) admitted_at: Option<Instant>,
    /// When the first output token came.
    pub(crate) first_token_at: Option<Instant>,
    /// When the last one came.
    pub(crate) last_token_at: Option<Instant>,
}

impl RequestRecord {
    /// Starts the record of a request from `address`, without a time limit.
    pub(crate) fn new(id: String, address: IpAddr, trace: TraceContext) -> Self {
        Self {
            id,
            trace,
            arrived_at: Instant::now(),
            address,
            time_limit: None,
            error_shape: ErrorShape::default(),
            client: OnceLock::new(),
            progress: Mutex::default(),
            admission: SetOnce::new(),
        }
    }

    /// Bounds the time that the request may take from its arrival on.
    pub(crate) fn with_time_limit(self, time_limit: Option<Duration>) -> Self {
        Self { time_limit, ..self }
    }

    /// Has errors told in this shape.
    pub(crate) fn with_error_shape(self, error_shape: ErrorShape) -> Self {
        Self { error_shape, ..self }
    }

    /// Returns the shape in which the request's client is told of errors.
    pub(crate) fn error_shape(&self) -> ErrorShape {
        self.error_shape
    }

    /// Returns the record of the request that the calling code serves; `None` outside of one.
    pub(crate) fn current() -> Option<Arc<Self>> {
        CURRENT.try_with(Arc::clone).ok()
    }

    /// Runs `work` as part of this request, wherever it runs.
    pub(crate) fn run<T>(self: &Arc<Self>, work: impl FnOnce() -> T) -> T {
        CURRENT.sync_scope(Arc::clone(self), work)
    }

    /// Runs `work` as part of this request.
    pub(crate) async fn run_async<T>(self: &Arc<Self>, work: impl Future<Output = T>) -> T {
        CURRENT.scope(Arc::clone(self), work).await
    }

    /// Returns the request's id, which its client and its logs know it by.
    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    /// Returns when the request arrived.
    pub(crate) fn arrived_at(&self) -> Instant {
        self.arrived_at
    }

    /// Returns which trace the request belongs to.
    pub(crate) fn trace(&self) -> TraceContext {
        self.trace
    }

    /// Returns where the client connects from.
    pub(crate) fn address(&self) -> IpAddr {
        self.address
    }

    /// Returns when the request must have ended, and how long that is after its arrival.
    pub(crate) fn deadline(&self) -> Option<(Instant, Duration)> {
        self.time_limit.and_then(|limit| Some((self.arrived_at.checked_add(limit)?, limit)))
    }

    /// Waits for `work` until the request's deadline.
    ///
    /// # Errors
    /// Returns what the client is told when the deadline has passed.
    pub(crate) async fn in_time<T>(&self, work: impl Future<Output = T>) -> Result<T, ApiError> {
        let Some((deadline, limit)) = self.deadline() else {
            return Ok(work.await);
        };
        let late = || ApiError::from(Refusal::DeadlineExceeded { limit });
        // Work that is always ready would never let the timer have its turn.
        if Instant::now() >= deadline {
            return Err(late());
        }
        timeout_at(deadline.into(), work).await.map_err(|_| late())
    }

    /// Notes whose key the request carries.
    pub(crate) fn note_client(&self, client: Client) {
        // Keys are checked once per request.
        let _ = self.client.set(client);
    }

    /// Returns whose request this is.
    pub(crate) fn client(&self) -> Client {
        self.client.get().copied().unwrap_or(Client::Address(self.address))
    }

    /// Notes which model is asked for.
    pub(crate) fn note_model(&self, name: &str) {
        self.lock().model = Some(name.to_owned());
    }

    /// Notes the prompts' tokens.
    pub(crate) fn note_prompt(&self, num_tokens: usize) {
        self.lock().num_prompt_tokens += num_tokens as u64;
    }

    /// Notes that the engine runs some of the request from `now` on.
    pub(crate) fn note_admission(&self, now: Instant) {
        self.lock().admitted_at.get_or_insert(now);
        // Requests of several prompts are admitted several times.
        let _ = self.admission.set(());
    }

    /// Waits until the engine has run some of the request.
    pub(crate) async fn admitted(&self) {
        self.admission.wait().await;
    }

    /// Notes an output token that came at `now`.
    pub(crate) fn note_token(&self, now: Instant) {
        let mut progress = self.lock();
        progress.num_output_tokens += 1;
        progress.first_token_at.get_or_insert(now);
        progress.last_token_at = Some(now);
    }

    /// Returns how far the request has come.
    pub(crate) fn progress(&self) -> RequestProgress {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, RequestProgress> {
        // No code panics while it holds the lock.
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
