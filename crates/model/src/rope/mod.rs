//! Rotary position embedding: how positions turn queries and keys.
//!
//! Owns the angles: dimension pair `i` of a head is rotated by `position * frequency(i)` with
//! `frequency(i) = theta^(-2i / rotary_dim)`, changed as the scaling says and divided by the
//! checkpoint's own factor for the pair, when it has them (Su et al., RoFormer, section 3.2.2; the
//! factors are how GGUF carries Llama 3's scaling, and both formats LongRoPE's). Angles are computed in f64, since f32 loses a
//! tenth of a radian at position 10^6; the table is f32.

mod scaling;

use crate::error::ModelError;
use scaling::check_divisors;
pub use scaling::{
    Llama3Scaling, LongRopeDivisors, LongRopeScaling, RopeScaling, YarnBorders, YarnScaling,
};

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

/// Cosines and sines of every position, times the scaling's attention factor.
#[derive(Clone, Debug)]
pub struct RopeTable {
    style: RopeStyle,
    num_pairs: usize,
    /// `[max_len, num_pairs]`, row-major.
    cos: Vec<f32>,
    /// `[max_len, num_pairs]`, row-major.
    sin: Vec<f32>,
}

impl RopeConfig {
    /// Returns by what angle each pair turns from one position to the next. `factors`, one for each
    /// pair, divide the frequencies.
    fn frequencies(&self, factors: Option<&[f32]>) -> Vec<f64> {
        let exponents = (0..self.rotary_dim).step_by(2).map(|i| -(i as f64));
        let power = |exponent: f64| f64::from(self.theta).powf(exponent / self.rotary_dim as f64);
        let mut frequencies: Vec<f64> = exponents.map(power).collect();
        self.scaling.apply(&mut frequencies, self.theta);
        for (frequency, factor) in frequencies.iter_mut().zip(factors.unwrap_or_default()) {
            *frequency /= f64::from(*factor);
        }
        frequencies
    }
}

impl RopeTable {
    /// Computes the table for positions `0..max_len`. `factors`, one for each pair, divide the
    /// frequencies.
    ///
    /// # Errors
    /// When a factor is not a positive finite number, when there is not one for each pair, or when
    /// the scaling's numbers give no frequencies.
    pub fn new(
        config: &RopeConfig,
        max_len: usize,
        factors: Option<&[f32]>,
    ) -> Result<Self, ModelError> {
        let num_pairs = config.rotary_dim / 2;
        if let Some(factors) = factors {
            check_divisors(factors, num_pairs)?;
        }
        let frequencies = config.frequencies(factors);
        let angles = (0..max_len).flat_map(|position| {
            frequencies.iter().map(move |frequency| position as f64 * frequency)
        });
        let length = f64::from(config.scaling.attention_factor());
        if !frequencies.iter().chain([&length]).all(|number| number.is_finite()) {
            return Err(ModelError::Malformed {
                what: "the RoPE scaling".to_owned(),
                got: format!("{:?} of the base {}", config.scaling, config.theta),
                expected: "one that gives finite frequencies",
            });
        }
        let turn = |angle: f64| (to_f32(length * angle.cos()), to_f32(length * angle.sin()));
        let (cos, sin) = angles.map(turn).unzip();
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
    fn scalings_that_give_no_frequencies_are_refused() {
        let yarn = YarnScaling {
            factor: 4.0,
            original_context_length: 1024,
            beta_fast: 32.0,
            beta_slow: 1.0,
            borders: YarnBorders::WholePairs,
            attention_factor: 1.0,
        };
        let scaled = config(RopeScaling::Yarn(yarn));
        assert!(RopeTable::new(&scaled, 4, None).is_ok());
        for wrong in [
            RopeConfig { theta: 1.0, ..scaled.clone() },
            config(RopeScaling::Yarn(YarnScaling { attention_factor: f32::INFINITY, ..yarn })),
        ] {
            let error = RopeTable::new(&wrong, 4, None).unwrap_err().to_string();
            assert!(error.contains("RoPE scaling"), "{error}");
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
