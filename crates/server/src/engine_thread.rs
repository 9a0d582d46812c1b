//! The thread that owns the engine.
//!
//! Commands come in over one bounded channel; events go out per request over bounded channels.
//! The thread never waits for a client: an event that finds its channel full aborts the request,
//! and a request whose receiver is gone is aborted before the next step, wherever it stands.
//! Without work the thread sleeps on its channel. A panic here ends the process: nothing could
//! be served after it, and nothing limps on.
//!
//! Cost outside the engine: one atomic load per live request and step.

use crate::engine_monitor::EngineMonitor;
use mini_infer_core::{Clock, EngineEvent, Executor, FixedHashMap, Request, RequestId, SequenceId};
use mini_infer_engine::{Engine, SubmitError};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Instant;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot};

/// Commands that wait for the engine thread at most; beyond it, requests are refused as if the
/// queue were full. A step takes tens of milliseconds, in which few clients arrive.
const MAX_COMMANDS: usize = 1024;

/// What the engine thread can be asked to do.
enum EngineCommand {
    /// Takes a request; the answer tells whether the engine accepted it.
    Submit {
        request: Request,
        events: mpsc::Sender<EngineEvent>,
        answer: oneshot::Sender<Result<(), SubmitError>>,
    },
    /// Ends a sequence whose text met a stop string after this many output tokens.
    FinishSequence { sequence: SequenceId, num_output_tokens: u32 },
    /// Aborts every request.
    AbortAll,
}

/// Why a request did not reach the engine.
#[derive(Debug)]
pub(crate) enum SubmitFailure {
    /// Too many commands wait already.
    Busy,
    /// The engine refused the request.
    Refused(SubmitError),
    /// The engine thread is gone.
    Stopped,
}

/// A handle on the engine thread; the thread ends when the last one is dropped and no request is
/// live.
#[derive(Clone, Debug)]
pub struct EngineHandle {
    commands: mpsc::Sender<EngineCommand>,
    monitor: Arc<EngineMonitor>,
    next_request: Arc<AtomicU64>,
}

/// An answer of the engine thread that has yet to come.
pub(crate) struct PendingSubmit(oneshot::Receiver<Result<(), SubmitError>>);

impl PendingSubmit {
    /// Waits until the engine accepts or refuses the request.
    pub(crate) async fn accepted(self) -> Result<(), SubmitFailure> {
        match self.0.await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(SubmitFailure::Refused(error)),
            Err(_) => Err(SubmitFailure::Stopped),
        }
    }
}

impl EngineHandle {
    /// Starts the engine thread.
    ///
    /// # Errors
    /// Returns the system's error when the thread cannot be started.
    pub fn spawn<E, C>(engine: Engine<E, C>) -> io::Result<Self>
    where
        E: Executor + Send + 'static,
        C: Clock + Send + 'static,
    {
        let (commands, receiver) = mpsc::channel(MAX_COMMANDS);
        let monitor = Arc::new(EngineMonitor::new(engine.stats()));
        let engine_loop = EngineLoop {
            engine,
            commands: receiver,
            monitor: Arc::clone(&monitor),
            live: FixedHashMap::default(),
            events: Vec::new(),
        };
        thread::Builder::new().name("engine".to_owned()).spawn(move || {
            let _guard = AbortProcessOnPanic;
            engine_loop.run();
        })?;
        Ok(Self { commands, monitor, next_request: Arc::new(AtomicU64::new(0)) })
    }

    /// Returns the engine's published state.
    pub(crate) fn monitor(&self) -> &Arc<EngineMonitor> {
        &self.monitor
    }

    /// Reserves `count` consecutive request ids and returns the first.
    pub(crate) fn reserve_requests(&self, count: u64) -> RequestId {
        RequestId(self.next_request.fetch_add(count, Ordering::Relaxed))
    }

    /// Hands a request to the engine thread; dropping `events`' receiver aborts it.
    pub(crate) fn submit(
        &self,
        request: Request,
        events: mpsc::Sender<EngineEvent>,
    ) -> Result<PendingSubmit, SubmitFailure> {
        let (answer, pending) = oneshot::channel();
        let command = EngineCommand::Submit { request, events, answer };
        self.commands.try_send(command).map_err(|error| match error {
            TrySendError::Full(_) => SubmitFailure::Busy,
            TrySendError::Closed(_) => SubmitFailure::Stopped,
        })?;
        Ok(PendingSubmit(pending))
    }

    /// Ends a sequence whose text met a stop string.
    pub(crate) async fn finish_sequence(&self, sequence: SequenceId, num_output_tokens: u32) {
        let command = EngineCommand::FinishSequence { sequence, num_output_tokens };
        // A closed channel means that the engine ended the sequence already.
        let _ = self.commands.send(command).await;
    }

    /// Aborts every request that the engine holds.
    pub(crate) async fn abort_all(&self) {
        // A closed channel means that there is nothing left to abort.
        let _ = self.commands.send(EngineCommand::AbortAll).await;
    }
}

/// A request that the engine holds.
struct LiveRequest {
    events: mpsc::Sender<EngineEvent>,
    num_unfinished: u32,
}

struct EngineLoop<E: Executor, C: Clock> {
    engine: Engine<E, C>,
    commands: mpsc::Receiver<EngineCommand>,
    monitor: Arc<EngineMonitor>,
    live: FixedHashMap<RequestId, LiveRequest>,
    events: Vec<EngineEvent>,
}

impl<E: Executor, C: Clock> EngineLoop<E, C> {
    fn run(mut self) {
        while self.take_commands() {
            self.abort_abandoned();
            let started = Instant::now();
            self.monitor.step_starts();
            self.engine.step(&mut self.events);
            // Published first: the metrics are never behind what a client was told.
            self.monitor.step_ended(started.elapsed(), self.engine.stats());
            self.deliver_events();
        }
    }

    /// Takes all commands that wait, sleeping for the first one when there is nothing to do.
    /// Returns `false` when no command can come any more and no request is live.
    fn take_commands(&mut self) -> bool {
        if !self.engine.has_work() && self.live.is_empty() {
            self.monitor.idles();
            match self.commands.blocking_recv() {
                Some(command) => self.execute(command),
                None => return false,
            }
        }
        while let Ok(command) = self.commands.try_recv() {
            self.execute(command);
        }
        true
    }

    fn execute(&mut self, command: EngineCommand) {
        match command {
            EngineCommand::Submit { request, events, answer } => {
                let (id, num_unfinished) = (request.id, request.sampling.n);
                let result = self.engine.submit(request);
                if result.is_ok() {
                    self.live.insert(id, LiveRequest { events, num_unfinished });
                }
                // A client that left meanwhile is noticed by its dropped event receiver.
                let _ = answer.send(result);
            }
            EngineCommand::FinishSequence { sequence, num_output_tokens } => {
                self.engine.finish_sequence(sequence, num_output_tokens);
            }
            EngineCommand::AbortAll => {
                let requests: Vec<RequestId> = self.live.keys().copied().collect();
                for request in requests {
                    self.engine.abort(request);
                }
            }
        }
    }

    /// Aborts the requests whose client is gone.
    fn abort_abandoned(&mut self) {
        let engine = &mut self.engine;
        self.live.retain(|&id, live| {
            let is_abandoned = live.events.is_closed();
            if is_abandoned {
                engine.abort(id);
            }
            !is_abandoned
        });
    }

    /// Hands the step's events to their requests, without waiting for anyone.
    fn deliver_events(&mut self) {
        for event in self.events.drain(..) {
            let (sequence, is_last) = match &event {
                EngineEvent::Token { sequence, .. } => (*sequence, false),
                EngineEvent::Finished { sequence, .. } => (*sequence, true),
            };
            let Some(live) = self.live.get_mut(&sequence.request) else {
                continue;
            };
            if is_last {
                live.num_unfinished -= 1;
            }
            let is_done = live.num_unfinished == 0;
            let sent = live.events.try_send(event);
            if let Err(TrySendError::Full(_)) = &sent {
                tracing::warn!(request = %sequence.request, "aborted: the client does not read");
            }
            if sent.is_err() && !is_done {
                self.engine.abort(sequence.request);
            }
            if sent.is_err() || is_done {
                self.live.remove(&sequence.request);
            }
        }
    }
}

/// Ends the process when the thread that holds it panics.
struct AbortProcessOnPanic;

impl Drop for AbortProcessOnPanic {
    fn drop(&mut self) {
        if thread::panicking() {
            tracing::error!("the engine thread panicked; the process ends");
            std::process::abort();
        }
    }
}
