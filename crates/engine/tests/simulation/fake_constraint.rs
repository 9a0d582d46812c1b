//! A constraint that depends on every token of the output so far.
//!
//! A hash of the output says which tokens may come next and whether anything may. A matcher that
//! missed a token, or was told one twice, allows others than the plain function of the output does.

use mini_infer_core::{
    ConstraintError, OutputMatcher, OutputStatus, TokenConstraint, TokenId, TokenMask, mix64,
};
use std::sync::Arc;

/// What the output must be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FakeConstraint {
    pub(crate) vocab_size: u32,
    pub(crate) seed: u64,
}

impl FakeConstraint {
    /// Returns the tokens that may follow an output.
    pub(crate) fn allowed(self, output: &[TokenId]) -> Vec<TokenId> {
        allowed(self.vocab_size, self.hash(output))
    }

    /// Tells whether an output is complete.
    pub(crate) fn is_complete(self, output: &[TokenId]) -> bool {
        !output.is_empty() && is_complete(self.hash(output))
    }

    fn hash(self, output: &[TokenId]) -> u64 {
        output.iter().fold(self.seed, |hash, &token| extend(hash, token))
    }
}

fn extend(hash: u64, token: TokenId) -> u64 {
    mix64(hash ^ mix64(u64::from(token) + 1))
}

fn is_complete(hash: u64) -> bool {
    hash.is_multiple_of(20)
}

/// About half of the vocabulary, at least one token.
fn allowed(vocab_size: u32, hash: u64) -> Vec<TokenId> {
    let forced = u32::try_from((hash >> 32) % u64::from(vocab_size)).unwrap();
    (0..vocab_size).filter(|&token| token == forced || hash >> token & 1 == 1).collect()
}

impl TokenConstraint for FakeConstraint {
    fn start(&self) -> Box<dyn OutputMatcher> {
        Box::new(FakeMatcher { vocab_size: self.vocab_size, hash: self.seed })
    }
}

#[derive(Debug)]
struct FakeMatcher {
    vocab_size: u32,
    hash: u64,
}

impl OutputMatcher for FakeMatcher {
    fn prepare(&mut self) {}

    fn allowed(&mut self) -> Result<Arc<TokenMask>, ConstraintError> {
        Ok(Arc::new(allowed(self.vocab_size, self.hash).into_iter().collect()))
    }

    fn accept(&mut self, token: TokenId) -> Result<OutputStatus, ConstraintError> {
        assert!(allowed(self.vocab_size, self.hash).contains(&token), "{token} is not allowed");
        self.hash = extend(self.hash, token);
        Ok(if is_complete(self.hash) { OutputStatus::Complete } else { OutputStatus::Open })
    }
}
