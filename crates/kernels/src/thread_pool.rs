//! The compute pool: threads that spin briefly, then park.
//!
//! A step runs hundreds of short kernels, so handing work out must cost well under a microsecond
//! (waking a parked thread costs tens). Workers spin on an epoch counter for [`SPIN`] after each
//! run and park after it. The caller is thread 0 and works too. One run at a time; work is split
//! into fixed contiguous ranges, and results never depend on the split.
//!
//! A panic in a worker is carried to the caller, which panics in turn.

use std::num::NonZeroUsize;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};

/// How long an idle worker spins before it parks: longer than the serial gaps between the kernels
/// of one step, short enough that an idle server uses no processor time.
const SPIN: Duration = Duration::from_micros(200);

/// The work of one run, called with the thread's index.
type Work<'a> = &'a (dyn Fn(usize) + Sync);

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
    /// Rises by one for each run; workers wait for it to change.
    epoch: AtomicU64,
    /// Workers that have not yet finished the current run.
    num_running: AtomicUsize,
    /// The work of the current run; only valid while `num_running > 0`.
    work: Mutex<Option<WorkPointer>>,
    /// Number of workers that are parked or about to park.
    num_parked: AtomicUsize,
    stop: AtomicBool,
    /// The first panic of a worker in the current run.
    panic: Mutex<Option<Box<dyn std::any::Any + Send>>>,
    caller: Mutex<Option<Thread>>,
}

/// A borrowed closure whose lifetime `run` guarantees by waiting.
#[derive(Clone, Copy, Debug)]
struct WorkPointer(*const (dyn Fn(usize) + Sync));

// SAFETY: the closure is `Sync`, so that calling it from another thread is allowed; `run` keeps it
// alive until every worker has finished with it.
unsafe impl Send for WorkPointer {}

impl ThreadPool {
    /// Starts `num_threads - 1` workers; the calling thread is the remaining one.
    ///
    /// # Panics
    /// When the system refuses to start a thread.
    #[must_use]
    pub fn new(num_threads: NonZeroUsize) -> Self {
        let shared = Arc::new(Shared {
            epoch: AtomicU64::new(0),
            num_running: AtomicUsize::new(0),
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
                    .spawn(move || shared.work_until_stopped(index))
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

    /// Calls `body` once with each part of `0..num_units`, split evenly over the threads, and
    /// waits for all of them.
    ///
    /// # Panics
    /// When `body` panics on any thread.
    pub fn split(&self, num_units: usize, body: impl Fn(Range<usize>) + Sync) {
        let num_threads = self.num_threads();
        if num_threads == 1 || num_units <= 1 {
            if num_units > 0 {
                body(0..num_units);
            }
            return;
        }
        self.run(&|thread| {
            let range =
                (num_units * thread / num_threads)..(num_units * (thread + 1) / num_threads);
            if !range.is_empty() {
                body(range);
            }
        });
    }

    /// Calls `body` once with each of `0..num_units`; a thread takes the next unit when it is done
    /// with one. For units of uneven cost.
    ///
    /// # Panics
    /// When `body` panics on any thread.
    pub fn claim(&self, num_units: usize, body: impl Fn(usize) + Sync) {
        let next = AtomicUsize::new(0);
        let claim_all = |_thread: usize| {
            loop {
                let unit = next.fetch_add(1, Ordering::Relaxed);
                if unit >= num_units {
                    return;
                }
                body(unit);
            }
        };
        if self.workers.is_empty() || num_units <= 1 {
            claim_all(0);
        } else {
            self.run(&claim_all);
        }
    }

    fn run(&self, work: Work<'_>) {
        let _one_run = self.run_lock.lock().unwrap_or_else(PoisonError::into_inner);
        let shared = &*self.shared;
        // SAFETY: only the lifetime is erased. Workers call the closure only between here and the
        // wait below, and `run` neither returns nor unwinds before all of them have finished.
        let work_pointer =
            WorkPointer(unsafe { std::mem::transmute::<Work<'_>, Work<'static>>(work) });
        *lock(&shared.work) = Some(work_pointer);
        *lock(&shared.caller) = Some(std::thread::current());
        shared.num_running.store(self.workers.len(), Ordering::Relaxed);
        // Sequentially consistent with the worker's announcement of parking: either the worker
        // sees the new epoch before it parks, or this thread sees that it parked.
        shared.epoch.fetch_add(1, Ordering::SeqCst);
        if shared.num_parked.load(Ordering::SeqCst) > 0 {
            self.workers.iter().for_each(|worker| worker.thread().unpark());
        }
        let own_result = catch_unwind(AssertUnwindSafe(|| work(0)));
        wait_until(|| shared.num_running.load(Ordering::Acquire) == 0, std::thread::park);
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
        self.shared.epoch.fetch_add(1, Ordering::SeqCst);
        for worker in self.workers.drain(..) {
            worker.thread().unpark();
            // A worker's panic was already carried to the caller of `run`.
            let _finished = worker.join();
        }
    }
}

impl Shared {
    fn work_until_stopped(&self, index: usize) {
        let mut seen = 0;
        loop {
            let changed = || self.epoch.load(Ordering::SeqCst) != seen;
            wait_until(changed, || {
                self.num_parked.fetch_add(1, Ordering::SeqCst);
                if !changed() {
                    std::thread::park();
                }
                self.num_parked.fetch_sub(1, Ordering::SeqCst);
            });
            seen = self.epoch.load(Ordering::SeqCst);
            if self.stop.load(Ordering::SeqCst) {
                return;
            }
            let work = lock(&self.work).expect("a run sets its work before the epoch");
            // SAFETY: the caller of `run` waits until this worker has decremented `num_running`
            // below, so the closure is alive.
            let work: Work<'_> = unsafe { &*work.0 };
            if let Err(payload) = catch_unwind(AssertUnwindSafe(|| work(index))) {
                lock(&self.panic).get_or_insert(payload);
            }
            let caller = lock(&self.caller).clone();
            if self.num_running.fetch_sub(1, Ordering::AcqRel) == 1
                && let Some(caller) = caller
            {
                caller.unpark();
            }
        }
    }
}

/// Spins until `ready`, or parks with `park` once [`SPIN`] has passed, again and again.
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
        if started.elapsed() > SPIN {
            park();
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
            let sum = AtomicUsize::new(0);
            pool.split(3, |range| {
                sum.fetch_add(range.sum::<usize>(), Ordering::Relaxed);
            });
            assert_eq!(sum.load(Ordering::Relaxed), 3);
            let parked_by = Instant::now() + SPIN * 3;
            while Instant::now() < parked_by {
                std::thread::yield_now();
            }
        }
    }

    #[test]
    fn a_panic_on_a_worker_reaches_the_caller_and_the_pool_survives() {
        let pool = pool(2);
        let result = catch_unwind(AssertUnwindSafe(|| {
            pool.split(2, |range| assert!(range.start == 0, "the second half fails"));
        }));
        assert!(result.is_err());
        let sum = AtomicUsize::new(0);
        pool.split(10, |range| {
            sum.fetch_add(range.len(), Ordering::Relaxed);
        });
        assert_eq!(sum.load(Ordering::Relaxed), 10);
    }
}
