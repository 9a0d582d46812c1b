//! Random numbers as a function of where they are used.
//!
//! The number for one token depends on nothing but the request's seed, the sequence's index in the
//! request and the token's position. A sequence that is preempted, recomputed or batched otherwise
//! therefore draws the same numbers again, and the sequences of one request draw different ones.
//!
//! Mixing is [`mix64`].

use mini_infer_core::mix64;

/// The random numbers of one sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RandomStream {
    key: u64,
}

/// The random numbers for one token, each uniform in `[0, 1)`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Draw {
    /// Chooses the token.
    pub(crate) uniform: f64,
    /// Decides what happens now and then.
    pub(crate) coin: f64,
}

impl RandomStream {
    /// Creates the stream of the sequence with this index in a request with this seed.
    pub(crate) fn new(seed: u64, sequence_index: u32) -> Self {
        Self { key: mix64(mix64(seed).wrapping_add(u64::from(sequence_index))) }
    }

    /// Returns the numbers for the token at `position`.
    pub(crate) fn draw_at(self, position: u32) -> Draw {
        let coins = Self { key: mix64(self.key) };
        Draw { uniform: self.uniform_at(position), coin: coins.uniform_at(position) }
    }

    /// Returns the number that chooses the token at `position`, uniform in `[0, 1)`.
    pub(crate) fn uniform_at(self, position: u32) -> f64 {
        let bits = mix64(self.key.wrapping_add(u64::from(position))) >> (u64::BITS - MANTISSA_BITS);
        bits as f64 / (1_u64 << MANTISSA_BITS) as f64
    }
}

/// Bits that an f64 holds exactly.
const MANTISSA_BITS: u32 = f64::MANTISSA_DIGITS;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_depends_on_seed_index_and_position_only() {
        let stream = RandomStream::new(7, 1);
        assert_eq!(stream.uniform_at(3).to_bits(), RandomStream::new(7, 1).uniform_at(3).to_bits());
        assert_ne!(stream.uniform_at(3).to_bits(), stream.uniform_at(4).to_bits());
        assert_eq!(stream.draw_at(3), RandomStream::new(7, 1).draw_at(3));
        assert_eq!(stream.draw_at(3).uniform.to_bits(), stream.uniform_at(3).to_bits());
        assert_ne!(stream.draw_at(3).coin.to_bits(), stream.uniform_at(3).to_bits());
        assert_ne!(stream, RandomStream::new(7, 0));
        assert_ne!(stream, RandomStream::new(8, 1));
    }

    #[test]
    fn numbers_fill_the_unit_interval_evenly() {
        for (seed, index) in [(0, 0), (0, 1), (u64::MAX, 5)] {
            let stream = RandomStream::new(seed, index);
            let mut buckets = [0_u32; 16];
            for position in 0..16_000 {
                let u = stream.uniform_at(position);
                assert!((0.0..1.0).contains(&u));
                buckets[(0..16).filter(|&i| u >= f64::from(i) / 16.0).count() - 1] += 1;
            }
            // Each bucket expects 1,000 with a standard deviation of 31.
            assert!(buckets.iter().all(|&count| count.abs_diff(1000) < 160), "{buckets:?}");
        }
    }
}
