//! What the output of a request must be, whatever the model would rather write.
//!
//! The engine knows no grammar: for each sequence it starts an [`OutputMatcher`], asks it before each
//! token which ones are allowed, and tells it which one was chosen. What a matcher allows is a
//! function of the tokens it was told, so it outlives preemption and does not depend on chunks,
//! neighbours or the time it takes. The work may be done on other threads while the forward pass runs:
//! [`OutputMatcher::prepare`] begins it, [`OutputMatcher::allowed`] waits for what is not done.

use crate::{TokenId, TokenMask};
use std::fmt;
use std::sync::Arc;

/// A rule that every sequence of a request must follow.
pub trait TokenConstraint: fmt::Debug + Send + Sync {
    /// Returns the matcher of one sequence, which has no output yet.
    fn start(&self) -> Box<dyn OutputMatcher>;
}

/// Follows the output of one sequence.
pub trait OutputMatcher: fmt::Debug + Send + Sync {
    /// Begins to find the tokens that may come next, and returns at once. Calls without a token
    /// between them are one.
    fn prepare(&mut self);

    /// Returns the tokens that may come next, at least one; waits for them if need be.
    ///
    /// # Errors
    /// Returns [`ConstraintError`] when they cannot be found; the sequence cannot go on.
    fn allowed(&mut self) -> Result<Arc<TokenMask>, ConstraintError>;

    /// Tells that an allowed token was chosen.
    ///
    /// # Errors
    /// Returns [`ConstraintError`] when what follows it cannot be found.
    fn accept(&mut self, token: TokenId) -> Result<OutputStatus, ConstraintError>;
}

/// Whether an output can go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputStatus {
    /// More tokens may come, or must.
    Open,
    /// The output is complete and nothing may follow.
    Complete,
}

/// A matcher that gave up, for example because the rule needs more time or memory than it may take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConstraintError {
    /// What happened.
    pub message: String,
}

impl fmt::Display for ConstraintError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the constraint on the output cannot be followed: {}", self.message)
    }
}

impl std::error::Error for ConstraintError {}

/// A handle on the rule of a request; clones are the same rule.
#[derive(Clone, Debug)]
pub struct OutputConstraint(Arc<dyn TokenConstraint>);

impl OutputConstraint {
    /// Wraps a rule.
    #[must_use]
    pub fn new(constraint: impl TokenConstraint + 'static) -> Self {
        Self(Arc::new(constraint))
    }

    /// Returns the matcher of one sequence, which has no output yet.
    #[must_use]
    pub fn start(&self) -> Box<dyn OutputMatcher> {
        self.0.start()
    }
}

impl PartialEq for OutputConstraint {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for OutputConstraint {}
