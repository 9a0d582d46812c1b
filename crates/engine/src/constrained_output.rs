//! A sequence's side of the constraint on its output.
//!
//! A step prepares the matchers of the sequences that it samples, then runs the forward pass, then
//! settles which tokens are allowed, one sequence after the other; only then do threads that share
//! the sequences choose. What a matcher says follows from the tokens it was told, so none of this
//! depends on preemption, chunks or neighbours.

use mini_infer_core::{
    ConstraintError, FinishReason, OutputConstraint, OutputMatcher, OutputStatus, TokenId,
    TokenMask,
};
use std::sync::Arc;

/// Follows what one sequence may write.
#[derive(Debug)]
pub(crate) struct ConstrainedOutput {
    matcher: Box<dyn OutputMatcher>,
    /// What may come next, once the step has settled it.
    allowed: Option<Result<Arc<TokenMask>, ConstraintError>>,
}

impl From<&OutputConstraint> for ConstrainedOutput {
    fn from(constraint: &OutputConstraint) -> Self {
        Self { matcher: constraint.start(), allowed: None }
    }
}

impl ConstrainedOutput {
    /// Begins to find the tokens that may come next.
    pub(crate) fn prepare(&mut self) {
        self.matcher.prepare();
    }

    /// Waits until it is known which tokens may come next.
    pub(crate) fn settle(&mut self) {
        self.allowed = Some(self.matcher.allowed());
    }

    /// Returns the tokens that may come next.
    ///
    /// # Errors
    /// Returns why they cannot be found.
    pub(crate) fn allowed(&self) -> Result<&TokenMask, &ConstraintError> {
        let allowed = self.allowed.as_ref().expect("the step settles before it samples");
        allowed.as_ref().map(|mask| &**mask)
    }

    /// Takes the token that was chosen, and returns why the sequence ends with it, if it does.
    pub(crate) fn accept(&mut self, token: TokenId) -> Option<FinishReason> {
        self.allowed = None;
        match self.matcher.accept(token) {
            Ok(OutputStatus::Open) => None,
            Ok(OutputStatus::Complete) => Some(FinishReason::Stop),
            Err(error) => Some(FinishReason::Error(error.to_string())),
        }
    }
}
