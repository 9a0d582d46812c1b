//! Samplers that threads borrow for a row; there are as many as threads that ever worked at once.

use crate::sampler::Sampler;
use std::sync::{Mutex, PoisonError};

/// Samplers that nobody uses right now.
#[derive(Debug, Default)]
pub(crate) struct SamplerPool {
    idle: Mutex<Vec<Sampler>>,
}

impl SamplerPool {
    /// Has `work` done with a sampler that nobody else uses meanwhile.
    pub(crate) fn lend<R>(&self, work: impl FnOnce(&mut Sampler) -> R) -> R {
        let borrowed = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut sampler = borrowed.unwrap_or_default();
        let result = work(&mut sampler);
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(sampler);
        result
    }
}
