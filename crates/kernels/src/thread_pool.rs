//! The compute pool: threads that spin briefly, then park.
//!
//! A step runs hundreds of short kernels, so handing work out must cost well under a microsecond
//! (waking a parked thread costs tens). Workers spin after each run, then yield, then park. The
//! caller works too, and takes what others do not: units are claimed, and a run ends when all are
//! done and every worker that joined has left. A worker that another process keeps from running
//! therefore costs its share of the speed, not the whole step. Results never depend on who does
//! which unit.
//!
//! A panic in a worker is carried to the caller, which panics in turn.

use std::num::NonZeroUsize;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};

/// How long a waiting thread only spins: about the length of a short kernel.
const SPIN: Duration = Duration::from_micros(20);
/// How long it waits before it parks, yielding its processor from [`SPIN`] on: longer than the
/// serial gaps between the kernels of one step, short enough that an idle server is idle.
const WAIT: Duration = Duration::from_micros(200);
/// Pieces of a split for each thread: small enough to even out, few enough to cost nothing.
const PIECES_PER_THREAD: usize = 4;

/// The work of one run: claims units until there are none.
type Work<'a> = &'a (dyn Fn() + Sync);

/// A fixed set of threads that run kernels together.
#[derive(Debug)]
pub struct ThreadPool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    /// Held during a run, so that two callers cannot interleave.
    run_lock: Mutex<()>,
}

#[derive(Debug)]
struct Shared {
    /// The current run; see [`RunState`].
    run: AtomicU64,
    /// The work of the current run; valid while the run is open or a worker is in it.
    work: Mutex<Option<WorkPointer>>,
    /// Number of workers that are parked or about to park.
    num_parked: AtomicUsize,
    stop: AtomicBool,
    /// The first panic of a worker in the current run.
    panic: Mutex<Option<Box<dyn std::any::Any + Send>>>,
    caller: Mutex<Option<Thread>>,
}

/// One word that says which run it is, whether workers may join, and how many are in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RunState(u64);

impl RunState {
    const OPEN: u64 = 1 << 31;
    const COUNT: u64 = Self::OPEN - 1;

    fn opened_after(previous: Self) -> Self {
        Self(((previous.number() + 1) << 32) | Self::OPEN)
    }

    fn number(self) -> u64 {
        self.0 >> 32
    }

    fn is_open(self) -> bool {
        self.0 & Self::OPEN != 0
    }

    fn num_joined(self) -> u64 {
        self.0 & Self::COUNT
    }
}

/// A borrowed closure whose lifetime `run` guarantees by waiting.
#[derive(Clone, Copy, Debug)]
struct WorkPointer(*const (dyn Fn() + Sync));

// SAFETY: the closure is `Sync`, so that calling it from another thread is allowed; `run` keeps it
// alive until every worker that joined has left.
unsafe impl Send for WorkPointer {}

impl ThreadPool {
    /// Starts `num_threads - 1` workers; the calling thread is the remaining one.
    ///
    /// # Panics
    /// When the system refuses to start a thread.
    #[must_use]
    pub fn new(num_threads: NonZeroUsize) -> Self {
        let shared = Arc::new(Shared {
            run: AtomicU64::new(0),
            work: Mutex::new(None),
            num_parked: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
            panic: Mutex::new(None),
            caller: Mutex::new(None),
        });
        let workers = (1..num_threads.get())
            .map(|index| {
                let shared = Arc::clone(&shared);
                std::thread::Builder::new()
                    .name(format!("compute-{index}"))
                    .spawn(move || shared.work_until_stopped())
                    .expect("the system starts a compute thread")
            })
            .collect();
        Self { shared, workers, run_lock: Mutex::new(()) }
    }

    /// Returns the number of threads, the caller included.
    #[must_use]
    pub fn num_threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Calls `body` once with each part of `0..num_units`, cut evenly, and waits for all of them.
    ///
    /// # Panics
    /// When `body` panics on any thread.
    pub fn split(&self, num_units: usize, body: impl Fn(Range<usize>) + Sync) {
        let num_pieces = num_units.min(self.num_threads() * PIECES_PER_THREAD);
        if self.workers.is_empty() || num_pieces <= 1 {
            if num_units > 0 {
                body(0..num_units);
            }
            return;
        }
        let start = |piece: usize| num_units * piece / num_pieces;
        self.claim(num_pieces, |piece| body(start(piece)..start(piece + 1)));
    }

    /// Calls `body` once with each of `0..num_units`; a thread takes the next unit when it is done
    /// with one.
    ///
    /// # Panics
    /// When `body` panics on any thread.
    pub fn claim(&self, num_units: usize, body: impl Fn(usize) + Sync) {
        let next = AtomicUsize::new(0);
        let claim_all = || {
            loop {
                let unit = next.fetch_add(1, Ordering::Relaxed);
                if unit >= num_units {
                    return;
                }
                body(unit);
            }
        };
        if self.workers.is_empty() || num_units <= 1 {
            claim_all();
        } else {
            self.run(&claim_all);
        }
    }

    fn run(&self, work: Work<'_>) {
        let _one_run = self.run_lock.lock().unwrap_or_else(PoisonError::into_inner);
        let shared = &*self.shared;
        // SAFETY: only the lifetime is erased. Workers call the closure only after joining an open
        // run, and `run` neither returns nor unwinds before it has closed the run and all that
        // joined have left.
        let work_pointer =
            WorkPointer(unsafe { std::mem::transmute::<Work<'_>, Work<'static>>(work) });
        *lock(&shared.work) = Some(work_pointer);
        *lock(&shared.caller) = Some(std::thread::current());
        let opened = RunState::opened_after(shared.state());
        // Sequentially consistent with the worker's announcement of parking: either the worker
        // sees the open run before it parks, or this thread sees that it parked.
        shared.run.store(opened.0, Ordering::SeqCst);
        if shared.num_parked.load(Ordering::SeqCst) > 0 {
            self.workers.iter().for_each(|worker| worker.thread().unpark());
        }
        let own_result = catch_unwind(AssertUnwindSafe(work));
        shared.run.fetch_and(!RunState::OPEN, Ordering::SeqCst);
        wait_until(|| shared.state().num_joined() == 0, std::thread::park);
        *lock(&shared.work) = None;
        let worker_panic = lock(&shared.panic).take();
        if let Some(payload) = own_result.err().or(worker_panic) {
            resume_unwind(payload);
        }
    }
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        for worker in self.workers.drain(..) {
            worker.thread().unpark();
            // A worker's panic was already carried to the caller of `run`.
            let _finished = worker.join();
        }
    }
}

impl Shared {
    fn state(&self) -> RunState {
        RunState(self.run.load(Ordering::SeqCst))
    }

    fn work_until_stopped(&self) {
        let mut seen = 0;
        loop {
            let is_called = || {
                let state = self.state();
                (state.is_open() && state.number() != seen) || self.stop.load(Ordering::SeqCst)
            };
            wait_until(is_called, || {
                self.num_parked.fetch_add(1, Ordering::SeqCst);
                if !is_called() {
                    std::thread::park();
                }
                self.num_parked.fetch_sub(1, Ordering::SeqCst);
            });
            if self.stop.load(Ordering::SeqCst) {
                return;
            }
            if let Some(joined) = self.join() {
                seen = joined.number();
                self.work_in_run();
            }
        }
    }

    /// Joins the current run, unless it has been closed.
    fn join(&self) -> Option<RunState> {
        let increment = |state| RunState(state).is_open().then_some(state + 1);
        let before = self.run.fetch_update(Ordering::SeqCst, Ordering::SeqCst, increment);
        before.ok().map(RunState)
    }

    /// Does the work of the run that this thread has joined, and leaves it.
    fn work_in_run(&self) {
        let work = lock(&self.work).expect("an open run has work");
        // SAFETY: this thread has joined the run, and the caller of `run` waits until it has left
        // below, so the closure is alive.
        let work: Work<'_> = unsafe { &*work.0 };
        if let Err(payload) = catch_unwind(AssertUnwindSafe(work)) {
            lock(&self.panic).get_or_insert(payload);
        }
        let caller = lock(&self.caller).clone();
        let left = RunState(self.run.fetch_sub(1, Ordering::SeqCst) - 1);
        if left.num_joined() == 0
            && !left.is_open()
            && let Some(caller) = caller
        {
            caller.unpark();
        }
    }
}

/// Waits until `ready`: spins, then yields, then parks with `park`, again and again.
fn wait_until(ready: impl Fn() -> bool, park: impl Fn()) {
    // Looking at the clock costs about as much as this many spins.
    const SPINS_PER_LOOK: usize = 64;
    let started = Instant::now();
    loop {
        for _ in 0..SPINS_PER_LOOK {
            if ready() {
                return;
            }
            std::hint::spin_loop();
        }
        let waited = started.elapsed();
        if waited > WAIT {
            park();
        } else if waited > SPIN {
            std::thread::yield_now();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(num_threads: usize) -> ThreadPool {
        ThreadPool::new(NonZeroUsize::new(num_threads).unwrap())
    }

    #[test]
    fn every_unit_runs_exactly_once_on_any_number_of_threads() {
        for num_threads in 1..=5 {
            let pool = pool(num_threads);
            for num_units in 0..40 {
                let counts: Vec<_> = (0..num_units).map(|_| AtomicUsize::new(0)).collect();
                pool.split(num_units, |range| {
                    range.for_each(|i| {
                        counts[i].fetch_add(1, Ordering::Relaxed);
                    });
                });
                pool.claim(num_units, |i| {
                    counts[i].fetch_add(1, Ordering::Relaxed);
                });
                assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) == 2));
            }
        }
    }

    #[test]
    fn a_worker_that_parked_wakes_up_again() {
        let pool = pool(3);
        for _ in 0..20 {
            // Two units that wait for each other need two threads.
            let num_there = AtomicUsize::new(0);
            pool.claim(2, |_| {
                num_there.fetch_add(1, Ordering::SeqCst);
                while num_there.load(Ordering::SeqCst) < 2 {
                    std::thread::yield_now();
                }
            });
            let parked_by = Instant::now() + WAIT * 3;
            while Instant::now() < parked_by {
                std::thread::yield_now();
            }
        }
    }

    #[test]
    fn a_panic_on_a_worker_reaches_the_caller_and_the_pool_survives() {
        let pool = pool(2);
        let caller = std::thread::current().id();
        let num_there = AtomicUsize::new(0);
        let result = catch_unwind(AssertUnwindSafe(|| {
            pool.claim(2, |_| {
                num_there.fetch_add(1, Ordering::SeqCst);
                while num_there.load(Ordering::SeqCst) < 2 {
                    std::thread::yield_now();
                }
                assert!(std::thread::current().id() == caller, "the worker fails");
            });
        }));
        assert!(result.is_err());
        let sum = AtomicUsize::new(0);
        pool.split(10, |range| {
            sum.fetch_add(range.len(), Ordering::Relaxed);
        });
        assert_eq!(sum.load(Ordering::Relaxed), 10);
    }

    #[test]
    fn a_late_worker_never_touches_work_that_is_gone() {
        let pool = pool(4);
        for round in 0..20_000_usize {
            let values: Vec<_> = (0..3).map(|_| AtomicUsize::new(round)).collect();
            pool.claim(3, |i| {
                values[i].fetch_add(1, Ordering::Relaxed);
            });
            assert!(values.iter().all(|value| value.load(Ordering::Relaxed) == round + 1));
        }
    }
}
