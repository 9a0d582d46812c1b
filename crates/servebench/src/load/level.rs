//! One level of load, run once.

use super::alarm::Alarm;
use super::conversation::{FinishedRequest, LevelContext, PromptText, Turns};
use super::lag::{ClientLoad, LagMonitor};
use super::open_loop::Arrival;
use super::progress::{Counters, Observer};
use super::prompt_stock::PromptStock;
use super::stop::StopHandle;
use super::{closed_loop, open_loop};
use crate::client::{Connections, RequestSpec};
use std::panic;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;
use tokio::task::{JoinError, JoinHandle};

/// How often those who watch hear of a level.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);

/// What a level sends.
#[derive(Debug)]
pub(super) enum Load {
    /// So many at any moment.
    Closed {
        /// What they send.
        stock: PromptStock,
        /// How many.
        num_users: usize,
    },
    /// Each when it is due.
    Open(Vec<Arrival>),
}

/// How a level sends it.
#[derive(Debug)]
pub(super) struct LevelSetup {
    pub(super) spec: RequestSpec,
    pub(super) connections: Connections,
    pub(super) duration: Option<Duration>,
    pub(super) max_in_flight: Option<usize>,
    pub(super) turns: Turns,
    pub(super) prompt_text: PromptText,
}

/// What came of it.
#[derive(Debug)]
pub(super) struct LevelOutcome {
    pub(super) finished: Vec<FinishedRequest>,
    /// From the start until the last request ended, in seconds.
    pub(super) duration: f64,
    pub(super) client: ClientLoad,
    /// Requests that a stop aborted, where there was one.
    pub(super) num_interrupted: Option<usize>,
}

/// Runs a level until all that it sends has ended, or a stop is asked for.
///
/// # Errors
/// When no thread can be started.
pub(super) async fn run(
    load: Load,
    setup: LevelSetup,
    observer: &mut dyn Observer,
    stop: &StopHandle,
) -> std::io::Result<LevelOutcome> {
    let alarm = Alarm::start()?;
    let lag = LagMonitor::start()?;
    let origin = Instant::now();
    let level = Arc::new(LevelContext {
        spec: setup.spec,
        connections: setup.connections,
        alarm,
        origin,
        deadline: setup.duration.map(|duration| origin + duration),
        turns: setup.turns,
        prompt_text: setup.prompt_text,
        permits: setup.max_in_flight.map(|limit| Semaphore::new(limit.min(Semaphore::MAX_PERMITS))),
        counters: Counters::default(),
        finished: Mutex::new(Vec::new()),
    });
    let sending = Arc::clone(&level);
    let sender = tokio::spawn(async move {
        match load {
            Load::Closed { stock, num_users } => closed_loop::run(sending, stock, num_users).await,
            Load::Open(arrivals) => open_loop::run(sending, arrivals).await,
        }
    });
    let end = watch(sender, &level, observer, stop).await;
    let client = lag.stop().await;
    let finished = {
        let mut finished = level.finished.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *finished)
    };
    let last = finished.iter().map(|request| request.exchange.ended).max().unwrap_or(origin);
    let (ended, num_interrupted) = match end {
        End::Complete => (last, None),
        End::Stopped { at, num_due } => {
            (at.max(last), Some(num_due.saturating_sub(finished.len())))
        }
    };
    let duration = (ended - origin).as_secs_f64();
    Ok(LevelOutcome { finished, duration, client, num_interrupted })
}

/// How a level ended.
enum End {
    Complete,
    Stopped { at: Instant, num_due: usize },
}

async fn watch(
    mut sender: JoinHandle<()>,
    level: &LevelContext,
    observer: &mut dyn Observer,
    stop: &StopHandle,
) -> End {
    let mut refresh = tokio::time::interval(PROGRESS_INTERVAL);
    loop {
        tokio::select! {
            biased;
            result = &mut sender => {
                propagate_panic(result);
                observer.progress(&level.counters.progress(level.origin.elapsed()));
                return End::Complete;
            }
            () = stop.requested() => {
                let at = Instant::now();
                // The sender owns what is in flight, so all of it is aborted with it.
                sender.abort();
                propagate_panic(sender.await);
                let progress = level.counters.progress(level.origin.elapsed());
                return End::Stopped { at, num_due: progress.num_ended + progress.num_in_flight };
            }
            _ = refresh.tick() => {
                observer.progress(&level.counters.progress(level.origin.elapsed()));
            }
        }
    }
}

/// A panic is a bug of this program and ends it; an abort is not.
fn propagate_panic(result: Result<(), JoinError>) {
    if let Err(error) = result
        && error.is_panic()
    {
        panic::resume_unwind(error.into_panic());
    }
}
