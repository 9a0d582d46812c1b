//! An output that is one thing or another, each with a constraint of its own.
//!
//! The parsers of the alternatives run side by side, each exactly as if it were alone, until what was
//! written leaves one: no grammar is put together from others, so names, lexers and options of a
//! client's grammar cannot meet ours. What begins with a head of an alternative is that alternative,
//! whatever else it could become, so a program that knows the heads can tell them apart. Once one is
//! left, a step costs what it does for that one alone.

use mini_infer_core::{
    ConstraintError, OutputConstraint, OutputMatcher, OutputStatus, TokenConstraint, TokenId,
    TokenMask,
};
use mini_infer_text::{OutputHead, Tokenizer};
use std::sync::Arc;

/// One of the things that an output can be.
#[derive(Clone, Debug)]
pub struct Alternative {
    /// What it must be.
    pub constraint: OutputConstraint,
    /// What it alone may begin with.
    pub heads: Vec<OutputHead>,
    /// What the rest of the output must be when this is complete; `None`: there is no rest.
    pub then: Option<OutputConstraint>,
}

/// The alternatives of an output.
#[derive(Debug)]
pub(crate) struct Alternatives {
    pub(crate) all: Arc<[Alternative]>,
    pub(crate) tokenizer: Arc<Tokenizer>,
}

impl TokenConstraint for Alternatives {
    fn start(&self) -> Box<dyn OutputMatcher> {
        let numbered = self.all.iter().enumerate();
        let heads = numbered.clone().flat_map(|(index, alternative)| {
            alternative.heads.iter().map(move |head| (index, head.clone()))
        });
        let live = numbered.map(|(index, Alternative { constraint, then, .. })| Live {
            index,
            matcher: constraint.start(),
            then: then.clone(),
        });
        Box::new(AlternativeMatcher {
            live: live.collect(),
            heads: heads.collect(),
            num_bytes: 0,
            tokenizer: Arc::clone(&self.tokenizer),
            allowed: None,
        })
    }
}

/// An alternative that the output can still be.
#[derive(Debug)]
struct Live {
    /// Which one.
    index: usize,
    matcher: Box<dyn OutputMatcher>,
    /// What the rest of the output must be when this is complete.
    then: Option<OutputConstraint>,
}

/// Follows an output that can be several things.
#[derive(Debug)]
struct AlternativeMatcher {
    live: Vec<Live>,
    /// Heads that what was written is a beginning of, and whose they are.
    heads: Vec<(usize, OutputHead)>,
    /// Bytes of text that were written, as long as there are heads.
    num_bytes: usize,
    tokenizer: Arc<Tokenizer>,
    /// What may come next, if it is known.
    allowed: Option<Arc<TokenMask>>,
}

impl AlternativeMatcher {
    /// Tells whose head the output has with `token`, if it has one.
    fn completes(&self, token: TokenId) -> Option<usize> {
        let bytes = self.tokenizer.output_bytes(token);
        let has_come = |head: &OutputHead| match head {
            OutputHead::Token(id) => *id == token && self.num_bytes == 0,
            OutputHead::Text(text) => bytes.starts_with(&text.as_bytes()[self.num_bytes..]),
        };
        self.heads.iter().find(|(_, head)| has_come(head)).map(|(index, _)| *index)
    }

    /// Keeps the heads that may still come behind `token`, which completes none.
    fn keep_heads(&mut self, token: TokenId) {
        let bytes = self.tokenizer.output_bytes(token);
        let num_bytes = self.num_bytes;
        self.heads.retain(|(_, head)| match head {
            OutputHead::Token(_) => bytes.is_empty(),
            OutputHead::Text(text) => text.as_bytes()[num_bytes..].starts_with(bytes),
        });
        self.num_bytes += bytes.len();
    }

    /// Returns what may come next: what an alternative allows, but for heads of others.
    fn union(&mut self) -> Result<TokenMask, ConstraintError> {
        let mut masks = Vec::with_capacity(self.live.len());
        for live in &mut self.live {
            masks.push((live.index, live.matcher.allowed()?));
        }
        let num_words = masks.iter().map(|(_, mask)| mask.words().len()).max().unwrap_or(0);
        let mut words = vec![0_u32; num_words];
        for (_, mask) in &masks {
            words.iter_mut().zip(mask.words()).for_each(|(word, more)| *word |= more);
        }
        let union = TokenMask::from_words(words);
        if self.heads.is_empty() {
            return Ok(union);
        }
        let may = |&token: &TokenId| {
            self.completes(token).is_none_or(|owner| {
                masks.iter().any(|(index, mask)| *index == owner && mask.allows(token))
            })
        };
        Ok(union.iter().filter(may).collect())
    }
}

impl OutputMatcher for AlternativeMatcher {
    fn prepare(&mut self) {
        self.live.iter_mut().for_each(|live| live.matcher.prepare());
    }

    fn allowed(&mut self) -> Result<Arc<TokenMask>, ConstraintError> {
        if let ([live], true) = (&mut self.live[..], self.heads.is_empty()) {
            return live.matcher.allowed();
        }
        if let Some(allowed) = &self.allowed {
            return Ok(Arc::clone(allowed));
        }
        let allowed = Arc::new(self.union()?);
        if allowed.iter().next().is_none() {
            let message = "nothing can follow that is told apart from the other alternatives";
            return Err(ConstraintError { message: message.to_owned() });
        }
        Ok(Arc::clone(self.allowed.insert(allowed)))
    }

    fn accept(&mut self, token: TokenId) -> Result<OutputStatus, ConstraintError> {
        self.allowed = None;
        let owner = self.completes(token);
        if self.live.len() > 1 {
            let mut kept = Vec::with_capacity(self.live.len());
            for mut live in std::mem::take(&mut self.live) {
                let is_owner = owner.is_none_or(|owner| owner == live.index);
                if is_owner && live.matcher.allowed()?.allows(token) {
                    kept.push(live);
                }
            }
            self.live = kept;
        }
        match owner {
            Some(_) => self.heads.clear(),
            None => self.keep_heads(token),
        }
        let mut complete = None;
        for live in &mut self.live {
            if live.matcher.accept(token)? == OutputStatus::Complete && complete.is_none() {
                complete = Some((live.index, live.then.take()));
            }
        }
        // What is complete is not waited for to become something else.
        let Some((index, then)) = complete else { return Ok(OutputStatus::Open) };
        let Some(rest) = then else { return Ok(OutputStatus::Complete) };
        self.live = vec![Live { index, matcher: rest.start(), then: None }];
        self.heads.clear();
        Ok(OutputStatus::Open)
    }
}
