//! A grammar that was compiled for a vocabulary: what the sequences that follow it start from.

use crate::mask_pool::MaskPool;
use crate::matcher_slot::{self, MatcherSlot, SlotMatcher};
use llguidance::Matcher;
use mini_infer_core::{OutputMatcher, TokenConstraint, TokenId, TokenMask};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use toktrie::TokEnv;

/// How an output shows that it is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// Nothing can follow, or the model ends its answer.
    ByGrammar,
    /// Also where nothing but white space could follow: the output is JSON.
    ByJson,
}

/// A grammar without output.
pub(crate) struct CompiledGrammar {
    /// Never moved on; in a mutex because copying it is not for two threads at once.
    pristine: Mutex<Matcher>,
    vocabulary: TokEnv,
    first_mask: Arc<TokenMask>,
    ending: Ending,
}

impl CompiledGrammar {
    /// Takes a parser without output and computes what it may begin with.
    ///
    /// # Errors
    /// Returns the parser's message when there is no way to begin.
    pub(crate) fn new(
        mut pristine: Matcher,
        vocabulary: TokEnv,
        ending: Ending,
    ) -> Result<Self, String> {
        let first_mask = matcher_slot::mask(&mut pristine).map_err(|error| error.message)?;
        Ok(Self { pristine: Mutex::new(pristine), vocabulary, first_mask, ending })
    }

    /// Returns a parser without output that shares nothing which changes.
    pub(crate) fn start(&self) -> Matcher {
        self.pristine.lock().unwrap_or_else(PoisonError::into_inner).deep_clone()
    }

    /// Returns the tokens that an output may begin with.
    pub(crate) fn first_mask(&self) -> Arc<TokenMask> {
        Arc::clone(&self.first_mask)
    }

    /// Tells whether an output that is complete with `token` cannot grow into another: JSON does so
    /// only after a number, which ends with a digit.
    pub(crate) fn ends_with(&self, token: TokenId) -> bool {
        let last = self.vocabulary.tok_trie().token(token).last();
        self.ending == Ending::ByJson && last.is_some_and(|byte| !byte.is_ascii_digit())
    }
}

/// A compiled grammar and the threads that compute its masks.
#[derive(Clone)]
pub(crate) struct PooledGrammar {
    pub(crate) grammar: Arc<CompiledGrammar>,
    pub(crate) pool: Arc<MaskPool>,
}

impl fmt::Debug for PooledGrammar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PooledGrammar")
            .field("ending", &self.grammar.ending)
            .finish_non_exhaustive()
    }
}

impl TokenConstraint for PooledGrammar {
    fn start(&self) -> Box<dyn OutputMatcher> {
        let slot = Arc::new(MatcherSlot::new(Arc::clone(&self.grammar)));
        Box::new(SlotMatcher { slot, pool: Arc::clone(&self.pool) })
    }
}
