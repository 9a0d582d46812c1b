//! A value that several threads change.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A value behind a lock; clones share it.
#[derive(Debug, Default)]
pub(crate) struct Shared<T>(Arc<Mutex<T>>);

impl<T> Shared<T> {
    /// Puts `value` behind a lock.
    pub(crate) fn new(value: T) -> Self {
        Self(Arc::new(Mutex::new(value)))
    }

    /// Waits for the lock. A thread that panicked while it held it is no reason to stop others: a
    /// tier is a help, and whatever it holds is verified before it is served.
    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}
