//! Exclude top choices (XTC): what it is told.
//!
//! The method is p-e-w's, as in text-generation-webui and llama.cpp: now and then, all tokens but
//! the least likely one of those that are likely enough are dropped.

use crate::ParamError;

/// How often top choices are excluded, and what counts as one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct XtcParams {
    /// How likely a token is chosen without its top choices; 0 turns XTC off. Range `0..=1`.
    pub probability: f32,
    /// Probability from which a token is a top choice; above 0.5 there is never more than one, and
    /// nothing is excluded. Range `0..=1`.
    pub threshold: f32,
}

impl XtcParams {
    /// Excludes nothing.
    pub const OFF: Self = Self { probability: 0.0, threshold: 0.1 };

    /// Checks every field against its range.
    pub(crate) fn validate(self) -> Result<(), ParamError> {
        let fields = [("xtc_probability", self.probability), ("xtc_threshold", self.threshold)];
        for (field, value) in fields {
            ParamError::unless((0.0..=1.0).contains(&value), field, value, "between 0 and 1")?;
        }
        Ok(())
    }
}
