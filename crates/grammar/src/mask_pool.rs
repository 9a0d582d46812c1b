//! Threads that compute masks while the engine's thread runs the forward pass.
//!
//! Neither tokio's nor the kernels': a mask takes tens of microseconds, at worst some ten
//! milliseconds, during which nothing else may wait. Slots are worked on in the order in which they
//! were asked for. Whoever needs a mask whose turn has not come computes it itself, so a busy pool
//! delays nobody.

use crate::matcher_slot::MatcherSlot;
use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;

/// Stack of a thread, in bytes; parsers recurse over nested grammars.
const STACK_BYTES: usize = 8 << 20;

/// Slots that wait for a thread.
#[derive(Debug, Default)]
struct Waiting {
    slots: VecDeque<Arc<MatcherSlot>>,
    is_closed: bool,
}

#[derive(Debug, Default)]
struct Shared {
    waiting: Mutex<Waiting>,
    is_needed: Condvar,
}

/// A fixed number of threads; they end when it is dropped.
#[derive(Debug)]
pub(crate) struct MaskPool {
    shared: Arc<Shared>,
}

impl MaskPool {
    /// Starts the threads.
    ///
    /// # Errors
    /// Returns the system's error when one cannot be started.
    pub(crate) fn start(num_threads: usize) -> io::Result<Self> {
        let shared = Arc::new(Shared::default());
        // Made first, so that what was started ends if a later thread does not start.
        let pool = Self { shared: Arc::clone(&shared) };
        for _ in 0..num_threads {
            let shared = Arc::clone(&shared);
            let thread = thread::Builder::new().name("mask".to_owned()).stack_size(STACK_BYTES);
            thread.spawn(move || {
                while let Some(slot) = shared.next() {
                    slot.compute_if_queued();
                }
            })?;
        }
        Ok(pool)
    }

    /// Has a slot worked on.
    pub(crate) fn push(&self, slot: Arc<MatcherSlot>) {
        let mut waiting = self.shared.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.slots.push_back(slot);
        self.shared.is_needed.notify_one();
    }
}

impl Shared {
    /// Waits for a slot; `None` when no more come.
    fn next(&self) -> Option<Arc<MatcherSlot>> {
        let waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let is_idle = |waiting: &mut Waiting| waiting.slots.is_empty() && !waiting.is_closed;
        let mut waiting =
            self.is_needed.wait_while(waiting, is_idle).unwrap_or_else(PoisonError::into_inner);
        waiting.slots.pop_front()
    }
}

impl Drop for MaskPool {
    fn drop(&mut self) {
        let mut waiting = self.shared.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.is_closed = true;
        waiting.slots.clear();
        self.shared.is_needed.notify_all();
    }
}
