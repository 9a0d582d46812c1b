//! The thread that hands out pieces when they are due.
//!
//! The service is behind a lock that is held for microseconds: by a connection that begins or ends
//! a request, and by this thread for each piece. Between deadlines the thread sleeps on a condition
//! variable, which the system wakes within some 0.1 ms.

use super::config::MockConfig;
use super::lateness::Lateness;
use super::script::MockRequest;
use super::service::{Accepted, MockStats, Refusal, RequestNumber, Service};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Instant;

/// The thread; ends when it is dropped.
#[derive(Debug)]
pub(super) struct Clockwork {
    handle: Handle,
    thread: Option<JoinHandle<()>>,
}

/// Reaches the service from any thread.
#[derive(Clone, Debug)]
pub(super) struct Handle(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    service: Mutex<Service>,
    /// Something is due earlier than before, or the end has come.
    changed: Condvar,
    has_ended: AtomicBool,
    /// From due until handed to a connection.
    lateness: Arc<Lateness>,
    /// From due until taken by the connection.
    write_lateness: Lateness,
}

impl Clockwork {
    /// Starts the thread.
    pub(super) fn start(config: MockConfig) -> io::Result<Self> {
        let lateness = Arc::new(Lateness::new());
        let shared = Arc::new(Shared {
            service: Mutex::new(Service::new(config, Arc::clone(&lateness))),
            changed: Condvar::new(),
            has_ended: AtomicBool::new(false),
            lateness,
            write_lateness: Lateness::new(),
        });
        let run = {
            let shared = Arc::clone(&shared);
            move || shared.run()
        };
        let thread = thread::Builder::new().name("mock-clockwork".to_owned()).spawn(run)?;
        Ok(Self { handle: Handle(shared), thread: Some(thread) })
    }

    pub(super) fn handle(&self) -> Handle {
        self.handle.clone()
    }
}

impl Drop for Clockwork {
    fn drop(&mut self) {
        let shared = &self.handle.0;
        {
            // Under the lock, so that the thread is either asleep or still to look.
            let _service = shared.lock();
            shared.has_ended.store(true, Ordering::Relaxed);
        }
        shared.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Service> {
        // A connection that panicked leaves the service as it was before or after its call.
        self.service.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        let mut service = self.lock();
        while !self.has_ended.load(Ordering::Relaxed) {
            let now = Instant::now();
            if service.step(now) {
                continue;
            }
            service = match service.next_due() {
                Some(due) => {
                    let wait = due.saturating_duration_since(now);
                    let woken = self.changed.wait_timeout(service, wait);
                    woken.unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.changed.wait(service).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }
}

impl Handle {
    /// Takes a request that has just arrived, or says why not.
    pub(super) fn accept(&self, request: MockRequest) -> Result<Accepted, Refusal> {
        let arrived = Instant::now();
        self.change(|service| service.accept(request, arrived))
    }

    /// Ends a request whose client is gone; one that has ended already is fine.
    pub(super) fn abort(&self, number: RequestNumber) {
        let now = Instant::now();
        self.change(|service| service.abort(number, now));
    }

    /// Returns the settings.
    pub(super) fn config(&self) -> Arc<MockConfig> {
        self.0.lock().config()
    }

    /// Changes all settings, for requests from here on.
    pub(super) fn set(&self, config: MockConfig) {
        let now = Instant::now();
        self.change(|service| service.set(config, now));
    }

    /// Changes all settings and forgets all counts.
    pub(super) fn reset(&self, config: MockConfig) {
        self.set(config);
        self.0.lock().clear_stats();
        self.0.lateness.clear();
        self.0.write_lateness.clear();
    }

    /// Counts a connection.
    pub(super) fn add_connection(&self) {
        self.0.lock().add_connection();
    }

    /// Counts a piece that a connection takes to write it.
    pub(super) fn add_written(&self, due: Instant) {
        self.0.write_lateness.add(due.elapsed());
    }

    /// Returns all counts.
    pub(super) fn stats(&self) -> MockStats {
        let stats = self.0.lock().stats();
        let (late, write_late) = (&self.0.lateness, &self.0.write_lateness);
        MockStats {
            late_p50_ms: late.percentile_ms(50),
            late_p99_ms: late.percentile_ms(99),
            late_max_ms: late.max_ms(),
            write_late_p50_ms: write_late.percentile_ms(50),
            write_late_p99_ms: write_late.percentile_ms(99),
            write_late_max_ms: write_late.max_ms(),
            ..stats
        }
    }

    /// Changes the service, and wakes the thread if something is due earlier than it thinks.
    fn change<T>(&self, change: impl FnOnce(&mut Service) -> T) -> T {
        let mut service = self.0.lock();
        let due_before = service.next_due();
        let result = change(&mut service);
        let due_after = service.next_due();
        drop(service);
        let is_earlier = due_after.is_some_and(|after| due_before.is_none_or(|due| after < due));
        if is_earlier {
            self.0.changed.notify_one();
        }
        result
    }
}
