//! The compute pool: threads that spin briefly, then park.
//!
//! A step runs hundreds of short kernels, so handing work out must cost well under a microsecond
//! (waking a parked thread costs tens). Workers spin after each run, then yield, then park. The
//! caller works too. Each thread begins with its own part of the work, so that it finds what it
//! wrote last in its own cache, and then takes what is left of the others' parts: a worker that
//! another process keeps from running costs its share of the speed, not the whole step. Results
//! never depend on who does which unit.
//!
//! No lock is taken on the way, and each word that is written often has a cache line to itself;
//! [`Announcement`] says why a worker never touches work that is gone. A panic in a worker is
//! carried to the caller, which panics in turn.

use std::cell::UnsafeCell;
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

/// The work of one run: what the thread of a number does in it, until there is nothing left.
type Work<'a> = &'a (dyn Fn(Place) + Sync);

/// Who calls the work of a run.
#[derive(Clone, Copy, Debug)]
struct Place {
    /// 0 for the caller, 1 and up for workers.
    thread: usize,
    /// Number of the run.
    run: u64,
}

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
    announcement: Announcement,
    /// What each thread writes during a run, by its number.
    desks: Box<[Desk]>,
    /// Number of workers that are parked or about to park.
    num_parked: AtomicUsize,
    /// Whether a worker panicked in the current run, and how the first of them did.
    has_panicked: AtomicBool,
    panic: Mutex<Option<Box<dyn std::any::Any + Send>>>,
    /// Whether the caller is parked or about to park, and who it is then.
    caller_is_parked: AtomicBool,
    caller: Mutex<Option<Thread>>,
}

/// The current run, in a cache line of its own.
///
/// A worker announces at its [`Desk`] that it is in run R, and only then looks whether R is open;
/// the caller closes R, and only then looks who is in it. All four are sequentially consistent, so
/// either the worker sees that R is closed and leaves the work alone, or the caller sees the worker
/// in R and waits for it to leave. Hence the work is read only between being written and
/// `ThreadPool::run` returning, and nobody reads it while the next run's is written.
#[derive(Debug)]
#[repr(align(128))]
struct Announcement {
    /// Twice the number of the run, plus 1 while workers may join; or [`STOP`].
    run: AtomicU64,
    /// The work of that run.
    work: UnsafeCell<Option<WorkPointer>>,
}

/// What tells workers to end.
const STOP: u64 = u64::MAX;

// SAFETY: the cell is written by the caller of `run` alone, which holds the run lock, while no
// worker is in a run, and read by workers that are in one; see the type's documentation.
unsafe impl Sync for Announcement {}

/// What one thread writes during a run, in a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Desk {
    /// Number of the run that the thread is in; 0 for none. Runs are counted from 1.
    present: AtomicU64,
    /// Pieces of the thread's part of a split that are claimed; see [`Desk::claim`].
    claimed: AtomicU64,
}

impl Desk {
    /// Bits of `claimed` that count; those above hold the low bits of the run's number.
    const COUNT_BITS: u32 = 24;

    /// Claims the next of the desk's `num_pieces` pieces in a run.
    ///
    /// The count carries the number of its run, so that nobody has to reset it before one. It is
    /// touched in each run in which the desk has pieces, since a run ends when all are done, and
    /// compared with no other run's, so that 40 bits are enough.
    fn claim(&self, run: u64, num_pieces: usize) -> Option<usize> {
        let started = run << Self::COUNT_BITS;
        let num_claimed = |word: u64| {
            let is_this_run = word >> Self::COUNT_BITS == started >> Self::COUNT_BITS;
            if is_this_run { word & ((1 << Self::COUNT_BITS) - 1) } else { 0 }
        };
        // Only counts: what pieces read and write is ordered by joining and leaving the run.
        let next = |word| {
            let claimed = num_claimed(word);
            (claimed < num_pieces as u64).then_some(started | (claimed + 1))
        };
        let before = self.claimed.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).ok()?;
        usize::try_from(num_claimed(before)).ok()
    }
}

/// A borrowed closure whose lifetime `run` guarantees by waiting.
#[derive(Clone, Copy, Debug)]
struct WorkPointer(*const (dyn Fn(Place) + Sync));

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
            announcement: Announcement { run: AtomicU64::new(0), work: UnsafeCell::new(None) },
            desks: (0..num_threads.get()).map(|_| Desk::default()).collect(),
            num_parked: AtomicUsize::new(0),
            has_panicked: AtomicBool::new(false),
            panic: Mutex::new(None),
            caller_is_parked: AtomicBool::new(false),
            caller: Mutex::new(None),
        });
        let workers = (1..num_threads.get())
            .map(|thread| {
                let shared = Arc::clone(&shared);
                std::thread::Builder::new()
                    .name(format!("compute-{thread}"))
                    .spawn(move || shared.work_until_stopped(thread))
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
    /// For units that take equally long: the same thread gets the same units each time, unless
    /// another one is done earlier.
    ///
    /// # Panics
    /// When `body` panics on any thread.
    pub fn split(&self, num_units: usize, body: impl Fn(Range<usize>) + Sync) {
        let num_threads = self.num_threads();
        let num_pieces = num_units.min(num_threads * PIECES_PER_THREAD);
        if num_threads == 1 || num_pieces <= 1 {
            if num_units > 0 {
                body(0..num_units);
            }
            return;
        }
        let start = |piece: usize| num_units * piece / num_pieces;
        let part = |thread: usize| num_pieces * thread / num_threads;
        self.run(&|place| {
            for i in 0..num_threads {
                let thread = (place.thread + i) % num_threads;
                let first = part(thread);
                let desk = &self.shared.desks[thread];
                while let Some(i) = desk.claim(place.run, part(thread + 1) - first) {
                    body(start(first + i)..start(first + i + 1));
                }
            }
        });
    }

    /// Calls `body` once with each of `0..num_units`; a thread takes the next unit when it is done
    /// with one. For units that differ in length.
    ///
    /// # Panics
    /// When `body` panics on any thread.
    pub fn claim(&self, num_units: usize, body: impl Fn(usize) + Sync) {
        let next = AtomicUsize::new(0);
        let claim_all = |_| {
            loop {
                let unit = next.fetch_add(1, Ordering::Relaxed);
                if unit >= num_units {
                    return;
                }
                body(unit);
            }
        };
        if self.workers.is_empty() || num_units <= 1 {
            (0..num_units).for_each(body);
        } else {
            self.run(&claim_all);
        }
    }

    fn run(&self, work: Work<'_>) {
        let _one_run = self.run_lock.lock().unwrap_or_else(PoisonError::into_inner);
        let shared = &*self.shared;
        let announcement = &shared.announcement;
        // SAFETY: only the lifetime is erased. Workers call the closure only while they are in the
        // run, and this function neither returns nor unwinds before all of them have left.
        let pointer = WorkPointer(unsafe { std::mem::transmute::<Work<'_>, Work<'static>>(work) });
        // SAFETY: the previous run, if any, was closed and left by all before its caller gave the
        // run lock back, and the next one is not open, so no other thread accesses the cell.
        unsafe { *announcement.work.get() = Some(pointer) };
        let run = announcement.run.load(Ordering::Relaxed) / 2 + 1;
        // Sequentially consistent with the worker's announcement of parking: either the worker
        // sees the open run before it parks, or this thread sees that it parked.
        announcement.run.store(run * 2 + 1, Ordering::SeqCst);
        if shared.num_parked.load(Ordering::SeqCst) > 0 {
            self.workers.iter().for_each(|worker| worker.thread().unpark());
        }
        let own_result = catch_unwind(AssertUnwindSafe(|| work(Place { thread: 0, run })));
        announcement.run.store(run * 2, Ordering::SeqCst);
        for desk in &shared.desks[1..] {
            let has_left = || desk.present.load(Ordering::SeqCst) != run;
            wait_until(has_left, || shared.park_caller(&has_left));
        }
        let worker_panic = shared.take_panic();
        if let Some(payload) = own_result.err().or(worker_panic) {
            resume_unwind(payload);
        }
    }
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        self.shared.announcement.run.store(STOP, Ordering::SeqCst);
        for worker in self.workers.drain(..) {
            worker.thread().unpark();
            // A worker's panic was already carried to the caller of `run`.
            let _finished = worker.join();
        }
    }
}

impl Shared {
    fn work_until_stopped(&self, thread: usize) {
        let mut seen = 0;
        loop {
            let called = || {
                let state = self.announcement.run.load(Ordering::SeqCst);
                (state % 2 == 1 && state != seen).then_some(state)
            };
            wait_until(
                || called().is_some(),
                || {
                    self.num_parked.fetch_add(1, Ordering::SeqCst);
                    if called().is_none() {
                        std::thread::park();
                    }
                    self.num_parked.fetch_sub(1, Ordering::SeqCst);
                },
            );
            match called() {
                Some(STOP) => return,
                Some(state) => {
                    seen = state;
                    self.work_in_run(thread, state);
                }
                // The run that called was closed in between.
                None => {}
            }
        }
    }

    /// Joins the run whose open state is `state`, unless it has been closed, does its work and
    /// leaves it.
    fn work_in_run(&self, thread: usize, state: u64) {
        let run = state / 2;
        let present = &self.desks[thread].present;
        present.store(run, Ordering::SeqCst);
        if self.announcement.run.load(Ordering::SeqCst) == state {
            // SAFETY: this thread is in the open run, as its desk says, so nobody writes the cell
            // until it has left below; the load above ordered the write before this.
            let work = unsafe { *self.announcement.work.get() };
            let work = work.expect("an open run has work");
            // SAFETY: the caller of `run` keeps the closure alive until this thread has left.
            let work: Work<'_> = unsafe { &*work.0 };
            let place = Place { thread, run };
            if let Err(payload) = catch_unwind(AssertUnwindSafe(|| work(place))) {
                lock(&self.panic).get_or_insert(payload);
                self.has_panicked.store(true, Ordering::Relaxed);
            }
        }
        // Sequentially consistent with the caller's announcement of parking, as for workers.
        present.store(0, Ordering::SeqCst);
        if self.caller_is_parked.load(Ordering::SeqCst)
            && let Some(caller) = &*lock(&self.caller)
        {
            caller.unpark();
        }
    }

    /// Parks the caller of `run` unless a worker `has_left`; the last one that leaves wakes it.
    fn park_caller(&self, has_left: &impl Fn() -> bool) {
        *lock(&self.caller) = Some(std::thread::current());
        self.caller_is_parked.store(true, Ordering::SeqCst);
        if !has_left() {
            std::thread::park();
        }
        self.caller_is_parked.store(false, Ordering::SeqCst);
    }

    /// Takes the first panic of a worker, if one did; ordered by the worker's leaving.
    fn take_panic(&self) -> Option<Box<dyn std::any::Any + Send>> {
        if !self.has_panicked.load(Ordering::Relaxed) {
            return None;
        }
        self.has_panicked.store(false, Ordering::Relaxed);
        lock(&self.panic).take()
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
            let num_units = 2 + round % 17;
            let values: Vec<_> = (0..num_units).map(|_| AtomicUsize::new(round)).collect();
            let add = |i: usize| values[i].fetch_add(1, Ordering::Relaxed);
            if round % 2 == 0 {
                pool.claim(num_units, |i| {
                    add(i);
                });
            } else {
                pool.split(num_units, |range| {
                    range.for_each(|i| {
                        add(i);
                    });
                });
            }
            assert!(values.iter().all(|value| value.load(Ordering::Relaxed) == round + 1));
        }
    }

    #[test]
    fn what_is_written_in_a_run_is_read_in_the_next() {
        let pool = pool(3);
        let values: Vec<_> = (0..64).map(|_| AtomicUsize::new(0)).collect();
        for round in 0..5_000 {
            // Relaxed on purpose: only the runs order these.
            pool.split(64, |range| {
                for i in range {
                    assert_eq!(values[63 - i].load(Ordering::Relaxed) & !1, round * 2);
                    values[i].store(round * 2 + 1, Ordering::Relaxed);
                }
            });
            pool.split(64, |range| {
                range.for_each(|i| values[63 - i].store(round * 2 + 2, Ordering::Relaxed));
            });
        }
    }

    #[test]
    fn a_thread_begins_with_its_own_part() {
        let pool = pool(2);
        let caller = std::thread::current().id();
        for _ in 0..100 {
            let num_there = AtomicUsize::new(0);
            pool.split(2, |range| {
                num_there.fetch_add(1, Ordering::SeqCst);
                while num_there.load(Ordering::SeqCst) < 2 {
                    std::thread::yield_now();
                }
                assert_eq!(range.start == 0, std::thread::current().id() == caller);
            });
        }
    }

    #[test]
    fn the_part_of_a_worker_that_is_held_up_is_done_by_others() {
        let pool = pool(2);
        let caller = std::thread::current().id();
        for _ in 0..100 {
            let num_done = AtomicUsize::new(0);
            pool.split(8, |range| {
                if std::thread::current().id() != caller {
                    while num_done.load(Ordering::SeqCst) < 7 {
                        std::thread::yield_now();
                    }
                }
                num_done.fetch_add(range.len(), Ordering::SeqCst);
            });
            assert_eq!(num_done.load(Ordering::SeqCst), 8);
        }
    }
}
