//! Weights that change the model for some requests.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

/// A handle on an adapter's weights, which only the executor that they were made for can read.
///
/// Clones are the same adapter, and two that were loaded apart are not. The weights live until the
/// last handle is gone, so a request keeps those that it began with.
#[derive(Clone)]
pub struct Adapter(Arc<dyn Any + Send + Sync>);

impl Adapter {
    /// Wraps an executor's weights.
    #[must_use]
    pub fn new<T: Any + Send + Sync>(weights: T) -> Self {
        Self(Arc::new(weights))
    }

    /// Returns the weights, or `None` when they are of another executor.
    #[must_use]
    pub fn weights<T: Any>(&self) -> Option<&T> {
        self.0.downcast_ref()
    }
}

impl PartialEq for Adapter {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Adapter {}

impl fmt::Debug for Adapter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Adapter").field(&Arc::as_ptr(&self.0)).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_clones_are_equal_and_only_their_executor_reads_them() {
        let adapter = Adapter::new(7_u64);
        assert_eq!(adapter, adapter.clone());
        assert_ne!(adapter, Adapter::new(7_u64));
        assert_eq!(adapter.weights::<u64>(), Some(&7));
        assert_eq!(adapter.weights::<u32>(), None);
    }
}
