//! Rotary position embedding: how positions turn queries and keys.
//!
//! Owns the angles: dimension pair `i` of a head is rotated by `position * frequency(i)` with
//! `frequency(i) = theta^(-2i / rotary_dim)`, changed as the scaling says and divided by the
//! checkpoint's own factor for the pair, when it has them (Su et al., RoFormer, section 3.2.2; the
//! factors are how GGUF carries Llama 3's scaling). Angles are computed in f64, since f32 loses a
//! tenth of a radian at position 10^6; the table is f32.

use crate::error::ModelError;
use std::f64::consts::TAU;

/// Which two dimensions of a head make a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopeStyle {
    /// Dimensions `2i` and `2i + 1` (GGUF's order for `llama`).
    Interleaved,
    /// Dimensions `i` and `i + rotary_dim / 2`.
    HalfSplit,
}

/// The rotation of one kind of layer.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeConfig {
    /// Base of the frequencies.
    pub theta: f32,
    /// Leading dimensions of a head that are rotated; even, at most the head's.
    pub rotary_dim: usize,
    /// Which dimensions are paired.
    pub style: RopeStyle,
    /// How frequencies are changed for contexts longer than those of the first training.
    pub scaling: RopeScaling,
}

/// How frequencies are changed for contexts longer than those of the first training.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RopeScaling {
    /// They are not.
    None,
    /// All are divided by this.
    Linear(f32),
    /// Slow ones are divided, fast ones are not.
    Llama3(Llama3Scaling),
}

/// The scaling of Llama 3.1 and later (`_compute_llama3_parameters` of transformers): frequencies
/// that turn less than `low_freq_factor` times within the original context are divided by `factor`,
/// those that turn more than `high_freq_factor` times stay, and between them it is blended.
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

impl RopeScaling {
    /// Returns what becomes of a frequency, in radians per position.
    fn apply(self, frequency: f64) -> f64 {
        match self {
            Self::None => frequency,
            Self::Linear(factor) => frequency / f64::from(factor),
            Self::Llama3(scaling) => {
                let turns = scaling.original_context_length as f64 * frequency / TAU;
                let low = f64::from(scaling.low_freq_factor);
                let high = f64::from(scaling.high_freq_factor);
                let share = ((turns - low) / (high - low)).clamp(0.0, 1.0);
                let slowed = frequency / f64::from(scaling.factor);
                (1.0 - share) * slowed + share * frequency
            }
        }
    }
}

/// Cosines and sines of every position.
#[derive(Clone, Debug)]
pub struct RopeTable {
    style: RopeStyle,
    num_pairs: usize,
    /// `[max_len, num_pairs]`, row-major.
    cos: Vec<f32>,
    /// `[max_len, num_pairs]`, row-major.
    sin: Vec<f32>,
}

impl RopeTable {
    /// Computes the table for positions `0..max_len`. `factors`, one for each pair, divide the
    /// frequencies.
    ///
    /// # Errors
    /// When a factor is not a positive finite number, or there is not one for each pair.
    pub fn new(
        config: &RopeConfig,
        max_len: usize,
        factors: Option<&[f32]>,
    ) -> Result<Self, ModelError> {
        let num_pairs = config.rotary_dim / 2;
        if let Some(factors) = factors {
            check_factors(factors, num_pairs)?;
        }
        let frequencies: Vec<f64> = (0..num_pairs)
            .map(|i| {
                let exponent = -2.0 * i as f64 / config.rotary_dim as f64;
                let factor = factors.map_or(1.0, |factors| f64::from(factors[i]));
                config.scaling.apply(f64::from(config.theta).powf(exponent)) / factor
            })
            .collect();
        let angles = (0..max_len).flat_map(|position| {
            frequencies.iter().map(move |frequency| position as f64 * frequency)
        });
        let (cos, sin) = angles.map(|angle| (to_f32(angle.cos()), to_f32(angle.sin()))).unzip();
        Ok(Self { style: config.style, num_pairs, cos, sin })
    }

    /// Returns which dimensions are paired.
    #[must_use]
    pub fn style(&self) -> RopeStyle {
        self.style
    }

    /// Returns the number of leading dimensions of a head that are rotated.
    #[must_use]
    pub fn rotary_dim(&self) -> usize {
        2 * self.num_pairs
    }

    /// Returns the number of positions in the table.
    #[must_use]
    pub fn max_len(&self) -> usize {
        self.cos.len() / self.num_pairs
    }

    /// Returns the cosines of `position`, `[rotary_dim / 2]`.
    ///
    /// # Panics
    /// When `position` is not below `max_len`.
    #[must_use]
    pub fn cos(&self, position: u32) -> &[f32] {
        &self.cos[position as usize * self.num_pairs..][..self.num_pairs]
    }

    /// Returns the sines of `position`, `[rotary_dim / 2]`.
    ///
    /// # Panics
    /// When `position` is not below `max_len`.
    #[must_use]
    pub fn sin(&self, position: u32) -> &[f32] {
        &self.sin[position as usize * self.num_pairs..][..self.num_pairs]
    }

    /// Returns the dimensions of a head that pair `i` rotates.
    #[must_use]
    pub fn pair(&self, i: usize) -> (usize, usize) {
        match self.style {
            RopeStyle::Interleaved => (2 * i, 2 * i + 1),
            RopeStyle::HalfSplit => (i, i + self.num_pairs),
        }
    }
}

fn check_factors(factors: &[f32], num_pairs: usize) -> Result<(), ModelError> {
    let usable = factors.iter().all(|factor| factor.is_finite() && *factor > 0.0);
    if usable && factors.len() == num_pairs {
        return Ok(());
    }
    Err(ModelError::Malformed {
        what: format!("the list of {num_pairs} RoPE factors"),
        got: format!("{factors:?}"),
        expected: "one positive finite number for each rotated pair",
    })
}

/// Rounds a cosine or sine to f32.
#[expect(clippy::cast_possible_truncation, reason = "rounding to f32 is the purpose")]
fn to_f32(x: f64) -> f32 {
    x as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(scaling: RopeScaling) -> RopeConfig {
        RopeConfig { theta: 10000.0, rotary_dim: 8, style: RopeStyle::Interleaved, scaling }
    }

    #[test]
    fn angles_are_position_times_frequency() {
        let table = RopeTable::new(&config(RopeScaling::None), 100, None).unwrap();
        assert_eq!((table.max_len(), table.rotary_dim()), (100, 8));
        for (i, frequency) in [1.0, 0.1, 0.01, 0.001_f64].into_iter().enumerate() {
            let angle = 99.0 * frequency;
            assert_eq!(table.cos(99)[i], to_f32(angle.cos()));
            assert_eq!(table.sin(99)[i], to_f32(angle.sin()));
        }
    }

    #[test]
    fn linear_scale_and_factors_slow_the_rotation() {
        let plain = RopeTable::new(&config(RopeScaling::None), 25, None).unwrap();
        let scaled = RopeTable::new(&config(RopeScaling::Linear(4.0)), 100, None).unwrap();
        assert_eq!(plain.cos(24), scaled.cos(96));
        let factors = [1.0, 2.0, 1.0, 1.0];
        let factored = RopeTable::new(&config(RopeScaling::None), 100, Some(&factors)).unwrap();
        assert_eq!(factored.sin(48)[1], plain.sin(24)[1]);
        assert_eq!(factored.sin(24)[0], plain.sin(24)[0]);
    }

    /// Frequencies of `ROPE_INIT_FUNCTIONS["llama3"]` of transformers 5.24 for Llama 3.1's settings
    /// and heads of 32 dimensions: fast, blended and slow ones.
    #[test]
    fn llama3_scaling_is_that_of_transformers() {
        let expected = [
            1.0,
            0.440_366_63,
            0.193_922_76,
            0.085_397_1,
            0.037_606_03,
            0.016_560_44,
            0.007_292_665,
            0.003_211_446,
            0.000_524_846,
            7.784_655e-5,
            3.428_102_4e-5,
            1.509_621_8e-5,
            6.647_87e-6,
            2.927_499_7e-6,
            1.289_173_2e-6,
            5.677_088e-7_f32,
        ];
        let scaling = Llama3Scaling {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_context_length: 8192,
        };
        let scaling = RopeScaling::Llama3(scaling);
        let config = RopeConfig { theta: 500_000.0, rotary_dim: 32, ..config(scaling) };
        let table = RopeTable::new(&config, 2, None).unwrap();
        for (sine, frequency) in table.sin(1).iter().zip(expected) {
            let relative = (sine / frequency.sin() - 1.0).abs();
            assert!(relative < 1e-6, "{sine} instead of the sine of {frequency}");
        }
    }

    #[test]
    fn wrong_factors_are_refused() {
        for factors in [&[1.0; 3][..], &[1.0, 0.0, 1.0, 1.0], &[1.0, f32::NAN, 1.0, 1.0]] {
            assert!(
                RopeTable::new(&config(RopeScaling::None), 4, Some(factors)).is_err(),
                "{factors:?}"
            );
        }
    }

    #[test]
    fn styles_pair_neighbours_or_halves() {
        let mut config = config(RopeScaling::None);
        assert_eq!(RopeTable::new(&config, 1, None).unwrap().pair(3), (6, 7));
        config.style = RopeStyle::HalfSplit;
        assert_eq!(RopeTable::new(&config, 1, None).unwrap().pair(3), (3, 7));
    }
}
