//! How RoPE is changed for contexts longer than a model was first trained on.
//!
//! Owns the kinds of change and their arithmetic, as the Python package transformers has it
//! (`modeling_rope_utils.py`, version 5): each kind turns the frequencies of the pairs into others,
//! and may lengthen what is rotated by an attention factor. Everything depends on the model and on
//! the longest sequence that the server accepts, never on the sequence at hand: keys stay in the KV
//! pool and are shared by requests of any length. "Dynamic" scaling, whose frequencies follow the
//! length of each sequence, is therefore not among them.

use crate::error::ModelError;
use std::f64::consts::TAU;

/// No context is longer, whatever a file says: a table of angles has a row for each position.
const MAX_REACH: usize = 1 << 24;

/// How frequencies are changed for contexts longer than those of the first training.
#[derive(Clone, Debug, PartialEq)]
pub enum RopeScaling {
    /// They are not.
    None,
    /// All are divided by this.
    Linear(f32),
    /// Slow ones are divided, fast ones are not.
    Llama3(Llama3Scaling),
    /// The same, and attention is sharpened.
    Yarn(YarnScaling),
    /// Each has a divisor of its own, for short or for long contexts.
    LongRope(LongRopeScaling),
}

/// The scaling of Llama 3.1 and later: frequencies that turn less than `low_freq_factor` times
/// within the original context are divided by `factor`, those that turn more than
/// `high_freq_factor` times stay, and between them it is blended.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Llama3Scaling {
    /// What slow frequencies are divided by.
    pub factor: f32,
    /// Turns within the original context below which a frequency is slow.
    pub low_freq_factor: f32,
    /// Turns from which it is fast; larger than `low_freq_factor`.
    pub high_freq_factor: f32,
    /// Tokens of the first training's context.
    pub original_context_length: usize,
}

/// YaRN (Peng et al., 2023, section 3).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct YarnScaling {
    /// Divisor of the frequencies that turn seldom.
    pub factor: f32,
    /// Tokens of the first training's context.
    pub original_context_length: usize,
    /// Pairs that turn more often than this within the original context are kept.
    pub beta_fast: f32,
    /// Pairs that turn less often than this are divided; those between are blended.
    pub beta_slow: f32,
    /// Whether the borders of the blend are whole pairs.
    pub borders: YarnBorders,
    /// Factor on rotated queries and on rotated keys.
    pub attention_factor: f32,
}

/// Where YaRN's blend begins and ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum YarnBorders {
    /// At the pair before the first border and at the one after the second.
    WholePairs,
    /// At the borders themselves.
    Exact,
}

/// LongRoPE (Ding et al., 2024), as in Phi-3.
///
/// The long divisors are used when the server accepts sequences longer than the original context,
/// and then for short ones too; transformers switches when a sequence grows past it, which gives
/// up the keys that it has. To have the short divisors, serve with at most the original context.
#[derive(Clone, Debug, PartialEq)]
pub struct LongRopeScaling {
    /// Tokens of the first training's context.
    pub original_context_length: usize,
    /// Factor on rotated queries and on rotated keys.
    pub attention_factor: f32,
    /// Divisors of the frequencies.
    pub divisors: LongRopeDivisors,
}

/// Where the divisors of LongRoPE are, one for each pair.
#[derive(Clone, Debug, PartialEq)]
pub enum LongRopeDivisors {
    /// In the configuration.
    Listed {
        /// For sequences of up to the original context length.
        short: Vec<f32>,
        /// For longer ones.
        long: Vec<f32>,
    },
    /// In the tensors `rope_factors_short.weight` and `rope_factors_long.weight`.
    InTensors,
}

impl RopeScaling {
    /// Changes the frequencies of the pairs of a rotation with `theta` as its base. LongRoPE's
    /// divisors are the table's factors.
    pub(crate) fn apply(&self, frequencies: &mut [f64], theta: f32) {
        match self {
            Self::None | Self::LongRope(_) => {}
            Self::Linear(factor) => {
                frequencies.iter_mut().for_each(|frequency| *frequency /= f64::from(*factor));
            }
            Self::Llama3(scaling) => {
                frequencies.iter_mut().for_each(|frequency| *frequency = scaling.of(*frequency));
            }
            Self::Yarn(scaling) => scaling.apply(frequencies, theta),
        }
    }

    /// Returns the factor on rotated queries and keys, and so on the cosines and sines.
    #[must_use]
    pub fn attention_factor(&self) -> f32 {
        match self {
            Self::None | Self::Linear(_) | Self::Llama3(_) => 1.0,
            Self::Yarn(scaling) => scaling.attention_factor,
            Self::LongRope(scaling) => scaling.attention_factor,
        }
    }

    /// Returns LongRoPE's numbers, if it is that.
    #[must_use]
    pub fn long_rope(&self) -> Option<&LongRopeScaling> {
        match self {
            Self::LongRope(scaling) => Some(scaling),
            Self::None | Self::Linear(_) | Self::Llama3(_) | Self::Yarn(_) => None,
        }
    }

    /// Returns the tokens of context of a model that states `context_length`: YaRN reaches as far
    /// as its factor, whatever is stated.
    #[must_use]
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a positive number of tokens, saturating"
    )]
    pub fn reach(&self, context_length: usize) -> usize {
        let Self::Yarn(scaling) = self else { return context_length };
        let reach = f64::from(scaling.factor) * scaling.original_context_length as f64;
        context_length.max((reach as usize).min(MAX_REACH))
    }
}

impl Llama3Scaling {
    /// Returns what becomes of a frequency.
    fn of(&self, frequency: f64) -> f64 {
        let [factor, low, high] =
            [self.factor, self.low_freq_factor, self.high_freq_factor].map(f64::from);
        let turns = self.original_context_length as f64 * frequency / TAU;
        let kept = ((turns - low) / (high - low)).clamp(0.0, 1.0);
        (1.0 - kept) * frequency / factor + kept * frequency
    }
}

impl YarnScaling {
    /// Returns the usual attention factor of a scaling by `factor`. `strength` is 1 where the model
    /// does not say; where it says two ("mscale" and "mscale_all_dim"), their quotient is the factor.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "rounding to f32 is the purpose")]
    pub fn usual_attention_factor(factor: f32, strength: f32) -> f32 {
        (0.1 * f64::from(strength) * f64::from(factor).max(1.0).ln() + 1.0) as f32
    }

    fn apply(&self, frequencies: &mut [f64], theta: f32) {
        let rotary_dim = 2.0 * frequencies.len() as f64;
        let context = self.original_context_length as f64;
        // The pair, not necessarily whole, that turns so often within the original context.
        let pair_of = |turns: f32| {
            let wavelength = context / (f64::from(turns) * TAU);
            rotary_dim * wavelength.ln() / (2.0 * f64::from(theta).ln())
        };
        let (mut first, mut last) = (pair_of(self.beta_fast), pair_of(self.beta_slow));
        if self.borders == YarnBorders::WholePairs {
            (first, last) = (first.floor(), last.ceil());
        }
        let (first, mut last) = (first.max(0.0), last.min(rotary_dim - 1.0));
        if first == last {
            last += 0.001;
        }
        for (i, frequency) in frequencies.iter_mut().enumerate() {
            let divided = ((i as f64 - first) / (last - first)).clamp(0.0, 1.0);
            let kept = 1.0 - divided;
            *frequency = *frequency / f64::from(self.factor) * divided + *frequency * kept;
        }
    }
}

impl LongRopeScaling {
    /// Returns the usual attention factor of a context `factor` times the original one.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "rounding to f32 is the purpose")]
    pub fn usual_attention_factor(factor: f32, original_context_length: usize) -> f32 {
        let growth = f64::from(factor).max(1.0).ln() / (original_context_length as f64).ln();
        (1.0 + growth).sqrt() as f32
    }

    /// Returns which of two lists is for sequences of up to `max_len` tokens.
    pub(crate) fn choose<T>(&self, short: T, long: T, max_len: usize) -> T {
        if max_len > self.original_context_length { long } else { short }
    }
}

/// Refuses divisors that make no frequencies.
pub(crate) fn check_divisors(divisors: &[f32], num_pairs: usize) -> Result<(), ModelError> {
    let usable = divisors.iter().all(|divisor| divisor.is_finite() && *divisor > 0.0);
    if usable && divisors.len() == num_pairs {
        return Ok(());
    }
    Err(ModelError::Malformed {
        what: format!("the list of {num_pairs} RoPE factors"),
        got: format!("{divisors:?}"),
        expected: "one positive finite number for each rotated pair",
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rope::{RopeConfig, RopeStyle};

    /// Returns the cases of testdata/make_rope_frequencies.py: base, rotated dimensions and scaling.
    fn case(name: &str) -> (f32, usize, RopeScaling) {
        let llama3 = Llama3Scaling {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_context_length: 8192,
        };
        let yarn = YarnScaling {
            factor: 4.0,
            original_context_length: 32768,
            beta_fast: 32.0,
            beta_slow: 1.0,
            borders: YarnBorders::WholePairs,
            attention_factor: YarnScaling::usual_attention_factor(4.0, 1.0),
        };
        let betas = YarnScaling { beta_fast: 16.0, beta_slow: 2.0, ..yarn };
        let exact = YarnScaling {
            factor: 32.0,
            borders: YarnBorders::Exact,
            attention_factor: YarnScaling::usual_attention_factor(32.0, 1.0),
            ..yarn
        };
        let attention_factor = YarnScaling::usual_attention_factor(4.0, 1.0)
            / YarnScaling::usual_attention_factor(4.0, 0.8);
        let longrope = RopeScaling::LongRope(LongRopeScaling {
            original_context_length: 4096,
            attention_factor: LongRopeScaling::usual_attention_factor(32.0, 4096),
            divisors: LongRopeDivisors::InTensors,
        });
        match name {
            "linear" => (10_000.0, 16, RopeScaling::Linear(2.5)),
            "llama3" => (500_000.0, 32, RopeScaling::Llama3(llama3)),
            "yarn" => (1_000_000.0, 32, RopeScaling::Yarn(yarn)),
            "yarn-betas" => (1_000_000.0, 32, RopeScaling::Yarn(betas)),
            "yarn-exact" => (150_000.0, 64, RopeScaling::Yarn(exact)),
            "yarn-mscale" => {
                (10_000.0, 64, RopeScaling::Yarn(YarnScaling { attention_factor, ..yarn }))
            }
            "yarn-partial" => {
                (10_000.0, 16, RopeScaling::Yarn(YarnScaling { attention_factor: 1.25, ..yarn }))
            }
            "longrope-short" | "longrope-long" => (10_000.0, 16, longrope),
            other => panic!("{other} is unknown"),
        }
    }

    #[test]
    fn every_kind_of_scaling_gives_the_frequencies_and_the_factor_of_transformers() {
        let text = include_str!("../../../../testdata/rope_frequencies.txt");
        assert_eq!(text.lines().count(), 9);
        for line in text.lines() {
            let mut words = line.split(' ');
            let name = words.next().unwrap();
            let mut expected = words.map(|word| word.parse::<f64>().unwrap());
            let (theta, rotary_dim, scaling) = case(name);
            let attention_factor = f64::from(scaling.attention_factor());
            assert!((attention_factor / expected.next().unwrap() - 1.0).abs() < 1e-6, "{name}");
            let (short, long): (Vec<_>, Vec<_>) =
                (0..8_u8).map(f32::from).map(|i| (1.0 + 0.25 * i, 1.5 + 0.75 * i)).unzip();
            let longest = if name == "longrope-long" { 4097 } else { 4096 };
            let divisors = scaling.long_rope().map(|scaling| scaling.choose(short, long, longest));
            let config = RopeConfig { theta, rotary_dim, style: RopeStyle::HalfSplit, scaling };
            let frequencies = config.frequencies(divisors.as_deref());
            let expected: Vec<_> = expected.collect();
            assert_eq!(frequencies.len(), expected.len(), "{name}");
            for (frequency, expected) in frequencies.iter().zip(expected) {
                let relative = (frequency / expected - 1.0).abs();
                assert!(relative < 1e-6, "{name}: {frequency} instead of {expected}");
            }
        }
    }

    #[test]
    fn yarn_reaches_as_far_as_its_factor_and_others_as_stated() {
        let yarn = case("yarn").2;
        assert_eq!(yarn.reach(32768), 131_072);
        assert_eq!(yarn.reach(200_000), 200_000);
        let RopeScaling::Yarn(yarn) = yarn else { panic!("not YaRN") };
        let endless = RopeScaling::Yarn(YarnScaling { factor: f32::MAX, ..yarn });
        assert_eq!(endless.reach(32768), MAX_REACH);
        assert_eq!(case("llama3").2.reach(131_072), 131_072);
    }
}
