//! One sequence's parser, which goes back and forth between the engine's thread and the pool's.
//!
//! A thread takes the parser out, works without holding the lock, and puts it back with the mask. So
//! whoever finds no parser waits for that thread, and whoever finds one may use it. The parser is
//! copied from the compiled grammar when it is first needed, on whichever thread that is: each sequence
//! has its own, so that limits on time and memory cannot depend on what other sequences wrote.

use crate::compiled_grammar::CompiledGrammar;
use crate::mask_pool::MaskPool;
use llguidance::Matcher;
use llguidance::api::StopReason;
use mini_infer_core::{ConstraintError, OutputMatcher, OutputStatus, TokenId, TokenMask};
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// What may come next.
type Allowed = Result<Arc<TokenMask>, ConstraintError>;

/// Where a sequence's parser is and what it has found.
pub(crate) struct MatcherSlot {
    grammar: Arc<CompiledGrammar>,
    state: Mutex<SlotState>,
    is_back: Condvar,
}

enum Parser {
    /// The sequence has no output yet, and nobody needed a parser.
    Unstarted,
    /// At the end of the output.
    Here(Box<Matcher>),
    /// A thread works with it.
    Taken,
}

struct SlotState {
    parser: Parser,
    /// Whether a thread of the pool is to compute the mask.
    is_queued: bool,
    /// What may come next, if it is known.
    allowed: Option<Allowed>,
}

impl MatcherSlot {
    /// Creates the slot of a sequence without output.
    pub(crate) fn new(grammar: Arc<CompiledGrammar>) -> Self {
        let allowed = Some(Ok(grammar.first_mask()));
        let state = SlotState { parser: Parser::Unstarted, is_queued: false, allowed };
        Self { grammar, state: Mutex::new(state), is_back: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, SlotState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the parser out, once no other thread has it.
    fn take<'a>(
        &'a self,
        mut state: MutexGuard<'a, SlotState>,
    ) -> (MutexGuard<'a, SlotState>, Option<Box<Matcher>>) {
        let is_taken = |state: &mut SlotState| matches!(state.parser, Parser::Taken);
        state = self.is_back.wait_while(state, is_taken).unwrap_or_else(PoisonError::into_inner);
        state.is_queued = false;
        match std::mem::replace(&mut state.parser, Parser::Taken) {
            Parser::Here(matcher) => (state, Some(matcher)),
            Parser::Unstarted | Parser::Taken => (state, None),
        }
    }

    fn put_back(&self, matcher: Box<Matcher>, allowed: Option<Allowed>) {
        let mut state = self.lock();
        state.parser = Parser::Here(matcher);
        state.allowed = allowed;
        self.is_back.notify_all();
    }

    /// Computes the mask unless somebody else has or does.
    pub(crate) fn compute_if_queued(&self) {
        let state = self.lock();
        if state.is_queued && !matches!(state.parser, Parser::Taken) {
            // Kept for whoever asks.
            let _ = self.compute(state);
        }
    }

    /// Returns the mask, computing it if nobody has.
    fn allowed(&self) -> Allowed {
        let state = self.lock();
        let is_coming = |state: &mut SlotState| {
            state.allowed.is_none() && matches!(state.parser, Parser::Taken)
        };
        let state = self.is_back.wait_while(state, is_coming);
        let state = state.unwrap_or_else(PoisonError::into_inner);
        match &state.allowed {
            Some(allowed) => allowed.clone(),
            None => self.compute(state),
        }
    }

    /// Starts the parser if there is none, and computes the mask if it is not known.
    fn compute(&self, state: MutexGuard<'_, SlotState>) -> Allowed {
        let (state, matcher) = self.take(state);
        let known = state.allowed.clone();
        drop(state);
        let mut matcher = matcher.unwrap_or_else(|| Box::new(self.grammar.start()));
        let allowed = known.unwrap_or_else(|| mask(&mut matcher));
        self.put_back(matcher, Some(allowed.clone()));
        allowed
    }

    /// Moves the parser on by a token.
    fn accept(&self, token: TokenId) -> Result<OutputStatus, ConstraintError> {
        let (state, matcher) = self.take(self.lock());
        drop(state);
        let mut matcher = matcher.unwrap_or_else(|| Box::new(self.grammar.start()));
        let status = self.advance(&mut matcher, token);
        self.put_back(matcher, None);
        status
    }

    fn advance(
        &self,
        matcher: &mut Matcher,
        token: TokenId,
    ) -> Result<OutputStatus, ConstraintError> {
        matcher.consume_token(token).map_err(error)?;
        match matcher.stop_reason() {
            StopReason::NotStopped => {
                let is_over =
                    self.grammar.ends_with(token) && matcher.is_accepting().map_err(error)?;
                Ok(if is_over { OutputStatus::Complete } else { OutputStatus::Open })
            }
            StopReason::NoExtension | StopReason::NoExtensionBias | StopReason::EndOfSentence => {
                Ok(OutputStatus::Complete)
            }
            reason @ (StopReason::MaxTokensTotal
            | StopReason::MaxTokensParser
            | StopReason::InternalError
            | StopReason::LexerTooComplex
            | StopReason::ParserTooComplex
            | StopReason::Cancelled) => Err(ConstraintError { message: reason.to_string() }),
        }
    }
}

/// Computes what may follow the parser's output.
pub(crate) fn mask(matcher: &mut Matcher) -> Allowed {
    let set = matcher.compute_mask().map_err(error)?;
    let num_tokens = set.len();
    let mut words: Vec<u32> = set.into();
    // The parser's sets have a bit more than there are tokens.
    words.truncate(num_tokens.div_ceil(32));
    if let (Some(last), rest @ 1..) = (words.last_mut(), num_tokens % 32) {
        *last &= (1 << rest) - 1;
    }
    Ok(Arc::new(TokenMask::from_words(words)))
}

/// Takes the first line of the parser's message; what follows are its internals.
fn error(error: impl fmt::Display) -> ConstraintError {
    let message = error.to_string();
    ConstraintError { message: message.lines().next().unwrap_or_default().to_owned() }
}

impl fmt::Debug for MatcherSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MatcherSlot").finish_non_exhaustive()
    }
}

/// A sequence's end of a slot.
#[derive(Debug)]
pub(crate) struct SlotMatcher {
    pub(crate) slot: Arc<MatcherSlot>,
    pub(crate) pool: Arc<MaskPool>,
}

impl OutputMatcher for SlotMatcher {
    fn prepare(&mut self) {
        let mut state = self.slot.lock();
        let is_started = matches!(state.parser, Parser::Here(_));
        if state.is_queued || matches!(state.parser, Parser::Taken) {
            return;
        }
        if is_started && state.allowed.is_some() {
            return;
        }
        state.is_queued = true;
        drop(state);
        self.pool.push(Arc::clone(&self.slot));
    }

    fn allowed(&mut self) -> Allowed {
        self.slot.allowed()
    }

    fn accept(&mut self, token: TokenId) -> Result<OutputStatus, ConstraintError> {
        self.slot.accept(token)
    }
}
