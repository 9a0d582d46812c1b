//! Don't repeat yourself (DRY): what it is told.
//!
//! The method is p-e-w's, as in text-generation-webui and llama.cpp: a token that would continue a
//! repetition of what stands at the end is the less likely the longer the repetition already is.

use crate::{ParamError, TokenId};
use std::sync::Arc;

/// How repetitions are penalised.
#[derive(Clone, Debug, PartialEq)]
pub struct DryParams {
    /// Penalty of the shortest repetition that has one. Range `(0, 100]`.
    pub multiplier: f32,
    /// What each further token of a repetition multiplies the penalty with. Range `1..=16`.
    pub base: f32,
    /// Length of the shortest repetition with a penalty, in tokens, at least 1.
    pub allowed_length: u32,
    /// Tokens at the end of the sequence in which repetitions are looked for, at least 1.
    pub num_last_tokens: u32,
    /// Where no repetition goes on.
    pub breakers: Arc<DryBreakers>,
}

/// Tokens that begin a text anew, so that repeating what is before them is no repetition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DryBreakers {
    /// Tokens that do so alone, ascending.
    pub tokens: Vec<TokenId>,
    /// Tokens that do so one after the other, two at least.
    pub phrases: Vec<Vec<TokenId>>,
}

impl DryParams {
    /// Checks every field against its range.
    pub(crate) fn validate(&self) -> Result<(), ParamError> {
        let m = self.multiplier;
        let fits = m > 0.0 && m <= 100.0;
        ParamError::unless(fits, "dry_multiplier", m, "between 0 and 100")?;
        let b = self.base;
        ParamError::unless((1.0..=16.0).contains(&b), "dry_base", b, "between 1 and 16")?;
        ParamError::unless(self.allowed_length > 0, "dry_allowed_length", 0, "at least 1")?;
        let is_there = self.num_last_tokens > 0;
        ParamError::unless(is_there, "dry_penalty_last_n", 0, "at least 1")
    }
}
