//! Compiles grammars for one model, and keeps those used last.

use crate::GrammarError;
use crate::GrammarSource;
use crate::alternatives::{Alternative, Alternatives};
use crate::compiled_grammar::{CompiledGrammar, Ending, PooledGrammar};
use crate::compiler::Compiler;
use crate::grammar_cache::GrammarCache;
use crate::mask_pool::MaskPool;
use crate::token_vocabulary::TokenVocabulary;
use mini_infer_core::{OutputConstraint, TokenId};
use mini_infer_text::Tokenizer;
use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread;
use toktrie::TokEnv;

/// Stack of a thread that compiles, in bytes: the compiler recurses over references and rules, of
/// which there are thousands at most. Only what is used of it becomes memory.
const STACK_BYTES: usize = 256 << 20;

/// The grammars of one model.
///
/// The vocabulary is prepared when the first grammar comes, so that whoever uses none pays nothing.
pub struct Grammars {
    tokenizer: Arc<Tokenizer>,
    stop_token_ids: Vec<TokenId>,
    compiler: OnceLock<Result<Compiler, String>>,
    cache: Mutex<GrammarCache>,
    pool: Arc<MaskPool>,
}

impl Grammars {
    /// Starts the threads that compute masks; `stop_token_ids` end an answer.
    ///
    /// # Errors
    /// Returns the system's error when a thread cannot be started.
    pub fn new(
        tokenizer: Arc<Tokenizer>,
        stop_token_ids: Vec<TokenId>,
        num_threads: usize,
    ) -> io::Result<Self> {
        Ok(Self {
            tokenizer,
            stop_token_ids,
            compiler: OnceLock::new(),
            cache: Mutex::default(),
            pool: Arc::new(MaskPool::start(num_threads)?),
        })
    }

    /// Returns the constraint of a source that was compiled lately; costs no more than reading it.
    #[must_use]
    pub fn cached(&self, source: &GrammarSource) -> Option<OutputConstraint> {
        let grammar = self.cache().get(&source.key())?;
        Some(self.constraint(grammar))
    }

    /// Compiles a source, or finds it compiled. Takes a millisecond for an ordinary schema and up to
    /// about a second for the worst, so it is not for a thread that others wait for.
    ///
    /// # Errors
    /// Says what is wrong with the source, and where if it is a schema.
    pub fn compile(&self, source: &GrammarSource) -> Result<OutputConstraint, GrammarError> {
        if let Some(constraint) = self.cached(source) {
            return Ok(constraint);
        }
        let grammar = self.build(source)?;
        self.cache().insert(source.key(), Arc::clone(&grammar));
        Ok(self.constraint(grammar))
    }

    /// Puts alternatives together to one constraint: an output is one of them.
    #[must_use]
    pub fn one_of(&self, alternatives: Vec<Alternative>) -> OutputConstraint {
        let tokenizer = Arc::clone(&self.tokenizer);
        OutputConstraint::new(Alternatives { all: alternatives.into(), tokenizer })
    }

    /// Compiles a source for nothing but what is wrong with it.
    ///
    /// # Errors
    /// As [`Grammars::compile`].
    pub fn check(&self, source: &GrammarSource) -> Result<(), GrammarError> {
        self.build(source).map(|_| ())
    }

    /// Compiles on a thread with a deep stack.
    fn build(&self, source: &GrammarSource) -> Result<Arc<CompiledGrammar>, GrammarError> {
        thread::scope(|scope| {
            let builder = thread::Builder::new().name("grammar".to_owned());
            let started =
                builder.stack_size(STACK_BYTES).spawn_scoped(scope, || self.build_here(source));
            let thread = started.map_err(|error| GrammarError::whole(error.to_string()))?;
            let crashed = |_| Err(GrammarError::whole("the compiler failed on this grammar"));
            thread.join().unwrap_or_else(crashed)
        })
    }

    fn build_here(&self, source: &GrammarSource) -> Result<Arc<CompiledGrammar>, GrammarError> {
        let compiler = self.compiler.get_or_init(|| {
            let vocabulary = TokenVocabulary::new(&self.tokenizer, &self.stop_token_ids);
            Compiler::new(&(Arc::new(vocabulary) as TokEnv))
        });
        let compiler = compiler.as_ref().map_err(GrammarError::whole)?;
        let pristine = compiler.compile(source)?;
        let ending = if source.is_json() { Ending::ByJson } else { Ending::ByGrammar };
        let vocabulary = Arc::clone(compiler.vocabulary());
        let grammar = CompiledGrammar::new(pristine, vocabulary, ending);
        grammar.map(Arc::new).map_err(GrammarError::whole)
    }

    fn cache(&self) -> std::sync::MutexGuard<'_, GrammarCache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn constraint(&self, grammar: Arc<CompiledGrammar>) -> OutputConstraint {
        OutputConstraint::new(PooledGrammar { grammar, pool: Arc::clone(&self.pool) })
    }
}

impl fmt::Debug for Grammars {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Grammars").field("tokenizer", &self.tokenizer).finish_non_exhaustive()
    }
}
