//! The thread that owns the engine.
//!
//! Commands come in over one bounded channel; events go out per request over bounded channels.
//! The thread never waits for a client: an event that finds its channel full aborts the request,
//! and a request whose receiver is gone is aborted before the next step, wherever it stands.
//! Without work the thread sleeps on its channel, and wakes by itself at most to release idle
//! memory. A panic here ends the process: nothing could be served after it, and nothing limps on.
//!
//! Cost outside the engine: one atomic load per live request and step. Snapshots are made between
//! steps, one for all who ask at that time, and turned into JSON elsewhere.

use crate::engine_monitor::EngineMonitor;
use crate::idle_release::IdleRelease;
use crate::request_record::RequestRecord;
use crate::step_phases::StepPhase;
use mini_infer_core::{Clock, EngineEvent, Executor, FixedHashMap, Request, RequestId, SequenceId};
use mini_infer_engine::{Engine, KvSnapshot, SubmitError};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout_at;

/// Commands that wait for the engine thread at most; beyond it, requests are refused as if the
/// queue were full. A step takes tens of milliseconds, in which few clients arrive.
const MAX_COMMANDS: usize = 1024;

/// What the engine thread does besides running steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineThreadConfig {
    /// Time without work after which cached blocks are evicted and the memory of free ones is
    /// given back to the system; `None` keeps both.
    pub idle_release: Option<Duration>,
    /// Cached blocks that stay nevertheless: the ones used last.
    pub idle_keep_blocks: u32,
    /// Cached blocks that are evicted at once, at least 1: what waits for a command meanwhile.
    pub idle_slice_blocks: u32,
    /// Time between two such slices, in which a tier writes what it was given.
    pub idle_slice_pause: Duration,
}

/// What the engine thread can be asked to do.
enum EngineCommand {
    /// Takes a request; the answer tells whether the engine accepted it.
    Submit {
        request: Box<Request>,
        record: Option<Arc<RequestRecord>>,
        events: mpsc::Sender<EngineEvent>,
        answer: oneshot::Sender<Result<(), SubmitError>>,
    },
    /// Ends a sequence whose text met a stop string after this many output tokens.
    FinishSequence { sequence: SequenceId, num_output_tokens: u32 },
    /// Tells what the KV memory holds.
    Snapshot { answer: oneshot::Sender<Arc<KvSnapshot>> },
    /// Aborts every request.
    AbortAll,
    /// Hands what is cached to the tiers and ends the thread.
    Stop { answer: oneshot::Sender<()> },
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
    /// Most sequences that run side by side.
    max_num_seqs: u32,
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
    pub fn spawn<E, C>(engine: Engine<E, C>, config: EngineThreadConfig) -> io::Result<Self>
    where
        E: Executor + Send + 'static,
        C: Clock + Send + 'static,
    {
        let (commands, receiver) = mpsc::channel(MAX_COMMANDS);
        let max_num_seqs = engine.max_num_seqs();
        let monitor = Arc::new(EngineMonitor::new(engine.stats()));
        // Only to sleep on the channel until a time; nothing is spawned on it.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
        let engine_loop = EngineLoop {
            engine,
            commands: receiver,
            runtime,
            monitor: Arc::clone(&monitor),
            idle_release: IdleRelease::new(config),
            snapshot_answers: Vec::new(),
            live: FixedHashMap::default(),
            events: Vec::new(),
            last_ended: None,
            stop: None,
        };
        thread::Builder::new().name("engine".to_owned()).spawn(move || {
            let _guard = AbortProcessOnPanic;
            engine_loop.run();
        })?;
        Ok(Self { commands, monitor, next_request: Arc::new(AtomicU64::new(0)), max_num_seqs })
    }

    /// Returns the engine's published state.
    pub(crate) fn monitor(&self) -> &Arc<EngineMonitor> {
        &self.monitor
    }

    /// Returns the most sequences that run side by side.
    pub(crate) fn max_num_seqs(&self) -> u32 {
        self.max_num_seqs
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
        let record = RequestRecord::current();
        let request = Box::new(request);
        let command = EngineCommand::Submit { request, record, events, answer };
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

    /// Asks what the KV memory holds; the answer comes between two steps.
    pub(crate) async fn kv_snapshot(&self) -> Result<Arc<KvSnapshot>, SubmitFailure> {
        let (answer, pending) = oneshot::channel();
        let sent = self.commands.try_send(EngineCommand::Snapshot { answer });
        sent.map_err(|error| match error {
            TrySendError::Full(_) => SubmitFailure::Busy,
            TrySendError::Closed(_) => SubmitFailure::Stopped,
        })?;
        pending.await.map_err(|_| SubmitFailure::Stopped)
    }

    /// Aborts every request that the engine holds.
    pub(crate) async fn abort_all(&self) {
        // A closed channel means that there is nothing left to abort.
        let _ = self.commands.send(EngineCommand::AbortAll).await;
    }

    /// Ends the engine thread, its requests aborted and what is cached handed to the tiers, and waits
    /// for that.
    pub(crate) async fn stop(&self) {
        let (answer, stopped) = oneshot::channel();
        if self.commands.send(EngineCommand::Stop { answer }).await.is_ok() {
            // An answer that is dropped means the same as one that is sent.
            let _ = stopped.await;
        }
    }
}

/// A request that the engine holds.
struct LiveRequest {
    record: Option<Arc<RequestRecord>>,
    events: mpsc::Sender<EngineEvent>,
    num_unfinished: u32,
}

struct EngineLoop<E: Executor, C: Clock> {
    engine: Engine<E, C>,
    commands: mpsc::Receiver<EngineCommand>,
    runtime: Runtime,
    monitor: Arc<EngineMonitor>,
    idle_release: IdleRelease,
    snapshot_answers: Vec<oneshot::Sender<Arc<KvSnapshot>>>,
    live: FixedHashMap<RequestId, LiveRequest>,
    events: Vec<EngineEvent>,
    /// When the last step's events were delivered; `None` after sleep.
    last_ended: Option<Instant>,
    /// Set when the thread is to end.
    stop: Option<oneshot::Sender<()>>,
}

impl<E: Executor, C: Clock> EngineLoop<E, C> {
    fn run(mut self) {
        while self.take_commands() {
            self.abort_abandoned();
            self.answer_snapshots();
            if self.engine.has_work() {
                self.step();
            }
        }
        if let Some(answer) = self.stop.take() {
            self.idle_release.release_all(&mut self.engine);
            // Closes the tiers, which write what they were given.
            drop(self.engine);
            // Who asked may not have waited.
            let _ = answer.send(());
        }
    }

    fn step(&mut self) {
        let started = Instant::now();
        if let Some(ended) = self.last_ended {
            self.monitor.phases().observe(StepPhase::Commands, started - ended);
        }
        self.monitor.step_starts();
        let report = self.engine.step(&mut self.events);
        for request in self.engine.first_admissions() {
            let live = self.live.get(&request);
            if let Some(record) = live.and_then(|live| live.record.as_ref()) {
                record.note_admission(started);
            }
        }
        // Published first: the metrics are never behind what a client was told.
        let stepped = Instant::now();
        self.monitor.phases().observe_step(&report.times);
        self.monitor.step_ended(stepped - started, self.engine.stats());
        self.deliver_events();
        let ended = Instant::now();
        self.monitor.phases().observe(StepPhase::Delivery, ended - stepped);
        self.last_ended = self.engine.has_work().then_some(ended);
        if !self.engine.has_work() {
            self.idle_release.work_ended(ended);
        }
    }

    /// Takes all commands that wait, sleeping for the first one when there is nothing to do.
    /// Returns `false` when the thread is to end: it was told to, or no command can come any more
    /// and no request is live.
    fn take_commands(&mut self) -> bool {
        if !self.engine.has_work() {
            debug_assert!(self.live.is_empty(), "a request outlived its sequences");
            match self.sleep() {
                Some(command) => self.execute(command),
                None => return false,
            }
        }
        while let Ok(command) = self.commands.try_recv() {
            self.execute(command);
        }
        self.stop.is_none()
    }

    /// Waits for a command, and releases memory when none comes for long enough.
    fn sleep(&mut self) -> Option<EngineCommand> {
        loop {
            self.monitor.idles(self.engine.stats());
            let Some(release_at) = self.idle_release.due() else {
                return self.runtime.block_on(self.commands.recv());
            };
            let commands = &mut self.commands;
            // The timer belongs to the runtime, so it is made inside of it.
            let command = async { timeout_at(release_at.into(), commands.recv()).await };
            match self.runtime.block_on(command) {
                Ok(command) => return command,
                Err(_) => self.idle_release.release(&mut self.engine, Instant::now()),
            }
        }
    }

    fn execute(&mut self, command: EngineCommand) {
        match command {
            EngineCommand::Submit { request, record, events, answer } => {
                let (id, num_unfinished) = (request.id, request.sampling.n);
                let result = self.engine.submit(*request);
                if result.is_ok() {
                    self.live.insert(id, LiveRequest { record, events, num_unfinished });
                }
                // A client that left meanwhile is noticed by its dropped event receiver.
                let _ = answer.send(result);
            }
            EngineCommand::FinishSequence { sequence, num_output_tokens } => {
                self.engine.finish_sequence(sequence, num_output_tokens);
            }
            EngineCommand::Snapshot { answer } => self.snapshot_answers.push(answer),
            EngineCommand::AbortAll => self.abort_all(),
            EngineCommand::Stop { answer } => {
                self.abort_all();
                self.stop = Some(answer);
            }
        }
    }

    fn abort_all(&mut self) {
        for &request in self.live.keys() {
            self.engine.abort(request);
        }
    }

    /// Answers all who asked for a snapshot with the same one.
    fn answer_snapshots(&mut self) {
        self.snapshot_answers.retain(|answer| !answer.is_closed());
        if self.snapshot_answers.is_empty() {
            return;
        }
        let snapshot = Arc::new(self.engine.kv_snapshot());
        for answer in self.snapshot_answers.drain(..) {
            // Who left meanwhile needs no answer.
            let _ = answer.send(Arc::clone(&snapshot));
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
                EngineEvent::Token { sequence, .. }
                | EngineEvent::PromptLogprobs { sequence, .. }
                | EngineEvent::Embedding { sequence, .. } => (*sequence, false),
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
