//! Penalties on tokens that occurred already.
//!
//! The three kinds and their arithmetic are those of vLLM: `repetition` that of CTRL (Keskar et
//! al., 2019) over prompt and output, `presence` and `frequency` those of OpenAI's API over the
//! output alone. Here are the values and their ranges; the engine does the arithmetic.

use crate::ParamError;

/// How much less likely tokens become once they occurred.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Penalties {
    /// Divides a positive logit and multiplies a negative one, for tokens of prompt and output; 1
    /// changes nothing, below 1 repetition is favoured. Range `(0, 10]`.
    pub repetition: f32,
    /// Subtracted from the logits of tokens that were generated. Range `-2..=2`.
    pub presence: f32,
    /// Subtracted for each time that a token was generated. Range `-2..=2`.
    pub frequency: f32,
}

impl Penalties {
    /// No penalty.
    pub const NONE: Self = Self { repetition: 1.0, presence: 0.0, frequency: 0.0 };

    /// Checks every field against its range.
    pub(crate) fn validate(&self) -> Result<(), ParamError> {
        let Self { repetition, presence, frequency } = *self;
        let fits = repetition > 0.0 && repetition <= 10.0;
        ParamError::unless(fits, "repetition_penalty", repetition, "above 0 and at most 10")?;
        for (field, value) in [("presence_penalty", presence), ("frequency_penalty", frequency)] {
            ParamError::unless((-2.0..=2.0).contains(&value), field, value, "between -2 and 2")?;
        }
        Ok(())
    }
}

impl Default for Penalties {
    fn default() -> Self {
        Self::NONE
    }
}
