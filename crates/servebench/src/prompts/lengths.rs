//! How long prompts and outputs are: presets, and how lengths spread around the one asked for.

use crate::results::LengthDist;
use clap::ValueEnum;
use rand::RngExt;
use rand::rngs::StdRng;
use rand_distr::{Distribution, LogNormal, Normal};

/// A kind of use, by the lengths that are usual for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Preset {
    /// Conversation: 128 tokens in, 256 out.
    Chat,
    /// Questions about documents: 2048 tokens in, 128 out.
    Rag,
    /// Writing code: 512 tokens in, 512 out.
    Code,
    /// An agent with tools: 1024 tokens in, 384 out.
    Agent,
}

/// Tokens of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lengths {
    /// Of the prompt.
    pub input_len: u32,
    /// Of the output.
    pub output_len: u32,
}

impl Preset {
    /// Returns the lengths of a request.
    #[must_use]
    pub fn lengths(self) -> Lengths {
        let (input_len, output_len) = match self {
            Self::Chat => (128, 256),
            Self::Rag => (2048, 128),
            Self::Code => (512, 512),
            Self::Agent => (1024, 384),
        };
        Lengths { input_len, output_len }
    }
}

/// Standard deviation of normal lengths, as a share of their mean.
const NORMAL_DEVIATION: f64 = 0.25;

/// Standard deviation of the logarithm of log-normal lengths.
const LOG_DEVIATION: f64 = 0.5;

/// Returns a length of a distribution around `length`, at least 1.
pub(super) fn sample(dist: LengthDist, length: u32, rng: &mut StdRng) -> u32 {
    let mean = f64::from(length.max(1));
    let sampled = match dist {
        LengthDist::Fixed => mean,
        LengthDist::Normal => Normal::new(mean, mean * NORMAL_DEVIATION)
            .expect("the deviation is finite and positive")
            .sample(rng),
        // The mean of a log-normal lies above its median by half the variance of the logarithm.
        LengthDist::Lognormal => {
            LogNormal::new(mean.ln() - LOG_DEVIATION * LOG_DEVIATION / 2.0, LOG_DEVIATION)
                .expect("the deviation is finite and positive")
                .sample(rng)
        }
        LengthDist::Uniform => {
            let length = u64::from(length.max(1));
            let sampled = rng.random_range(length.div_ceil(2)..=length * 3 / 2);
            return u32::try_from(sampled).unwrap_or(u32::MAX);
        }
    };
    whole(sampled)
}

/// Rounds a number of tokens, at least 1.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a cast from f64 saturates, and the number is at least 1"
)]
pub(super) fn whole(num_tokens: f64) -> u32 {
    num_tokens.round().max(1.0) as u32
}

#[cfg(test)]
mod tests {
    use super::super::words::stream;
    use super::*;

    /// Mean, deviation, smallest and largest of 20,000 lengths around 200.
    fn shape(dist: LengthDist) -> [f64; 4] {
        let mut rng = stream(1, 2);
        let lengths: Vec<f64> = (0..20_000).map(|_| sample(dist, 200, &mut rng).into()).collect();
        let mean = lengths.iter().sum::<f64>() / 20_000.0;
        let variance = lengths.iter().map(|length| (length - mean).powi(2)).sum::<f64>() / 20_000.0;
        let min = lengths.iter().copied().fold(f64::INFINITY, f64::min);
        [mean, variance.sqrt(), min, lengths.iter().copied().fold(0.0, f64::max)]
    }

    #[test]
    fn lengths_spread_as_documented() {
        assert_eq!(shape(LengthDist::Fixed), [200.0, 0.0, 200.0, 200.0]);
        let [mean, deviation, ..] = shape(LengthDist::Normal);
        assert!((mean - 200.0).abs() < 2.0 && (deviation - 50.0).abs() < 1.0);
        // The deviation of a log-normal is mean * sqrt(exp(0.25) - 1).
        let [mean, deviation, min, _] = shape(LengthDist::Lognormal);
        assert!((mean - 200.0).abs() < 3.0 && (deviation - 106.6).abs() < 5.0 && min >= 1.0);
        let [mean, deviation, min, max] = shape(LengthDist::Uniform);
        assert!((mean - 200.0).abs() < 2.0 && (deviation - 58.0).abs() < 1.0);
        assert_eq!((min, max), (100.0, 300.0));
    }

    #[test]
    fn no_length_is_below_one() {
        let mut rng = stream(1, 2);
        let dists = [LengthDist::Normal, LengthDist::Lognormal, LengthDist::Uniform];
        for _ in 0..1000 {
            assert!(dists.iter().all(|&dist| sample(dist, 1, &mut rng) >= 1));
        }
    }
}
