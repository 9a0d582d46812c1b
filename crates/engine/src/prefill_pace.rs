//! How fast this machine computes prompts, learnt while it does.
//!
//! A moving average over the steps that computed mostly prompt tokens. It decides nothing but
//! whether a block is restored from a tier or computed, which changes speed and never output.

use std::time::Duration;

/// Prompt tokens from which on a step tells something about the time of one.
const LEAST_TOKENS: u32 = 16;

/// Share of the newest step in the average: 1 / 8.
const SMOOTHING: u32 = 8;

/// The time that one prompt token takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PrefillPace {
    per_token: Option<Duration>,
}

impl PrefillPace {
    /// Takes a step into account that computed `num_tokens` tokens of `num_seqs` sequences.
    pub(crate) fn observe(&mut self, num_tokens: usize, num_seqs: usize, elapsed: Duration) {
        let num_tokens = u32::try_from(num_tokens).expect("a step has fewer than 2^32 tokens");
        // Every sequence in decode has one token, so at least half of these are prompts.
        if num_tokens < LEAST_TOKENS || num_tokens as usize / 2 < num_seqs {
            return;
        }
        let newest = elapsed / num_tokens;
        self.per_token = Some(match self.per_token {
            Some(average) => (average * (SMOOTHING - 1) + newest) / SMOOTHING,
            None => newest,
        });
    }

    /// Tells whether `num_tokens` tokens take at least `other` to compute; so does a machine that
    /// has not computed any.
    pub(crate) fn takes_longer_than(self, other: Duration, num_tokens: u32) -> bool {
        self.per_token.is_none_or(|per_token| per_token * num_tokens >= other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn only_steps_with_many_prompt_tokens_tell_the_pace() {
        let mut pace = PrefillPace::default();
        pace.observe(15, 1, 1000 * MS);
        pace.observe(40, 21, 1000 * MS);
        assert!(pace.takes_longer_than(Duration::MAX, 16), "nothing is known yet");
        pace.observe(40, 20, 40 * MS);
        assert!(pace.takes_longer_than(16 * MS, 16));
        assert!(!pace.takes_longer_than(17 * MS, 16));
    }

    #[test]
    fn the_pace_follows_the_machine() {
        let mut pace = PrefillPace::default();
        pace.observe(100, 1, 100 * MS);
        for _ in 0..40 {
            pace.observe(100, 1, 200 * MS);
        }
        assert!(pace.takes_longer_than(198 * MS, 100) && !pace.takes_longer_than(201 * MS, 100));
    }
}
