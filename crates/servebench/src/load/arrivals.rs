//! When the requests of an open loop are due.
//!
//! Made before the level starts, from a seed: equal seeds give equal arrivals.

use crate::prompts::Prompt;
use crate::results::{ArrivalDist, LoadValue};
use rand::SeedableRng;
use rand::rngs::StdRng;
use rand_distr::{Distribution, Exp, Gamma};
use std::time::Duration;

/// A process of arrivals.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ArrivalProcess {
    /// Mean arrivals per second; infinity is all at once.
    pub rate: LoadValue,
    /// How they spread.
    pub distribution: ArrivalDist,
    /// Shape of a gamma process: the variance of a gap is the square of its mean divided by this.
    pub burstiness: f64,
}

impl ArrivalProcess {
    /// Returns the arrivals without end, since the start of the level. Positive rate and
    /// burstiness.
    pub fn arrivals(self, seed: u64) -> impl Iterator<Item = Duration> {
        let mut random = StdRng::seed_from_u64(seed);
        let mut due = 0.0;
        std::iter::from_fn(move || {
            due += self.gap(&mut random);
            Duration::try_from_secs_f64(due).ok()
        })
    }

    fn gap(self, random: &mut StdRng) -> f64 {
        let rate = self.rate.0;
        if rate.is_infinite() {
            return 0.0;
        }
        match self.distribution {
            ArrivalDist::Poisson => Exp::new(rate).expect("a rate is positive").sample(random),
            ArrivalDist::Gamma => {
                let scale = 1.0 / (rate * self.burstiness);
                Gamma::new(self.burstiness, scale)
                    .expect("rate and burstiness are positive")
                    .sample(random)
            }
        }
    }
}

/// Returns when prompts of a trace arrive, `speed` times as fast as recorded; `None` unless all
/// say so.
#[must_use]
pub fn recorded_arrivals(prompts: &[Prompt], speed: f64) -> Option<Vec<Duration>> {
    let stretched = |arrival: Duration| {
        Duration::try_from_secs_f64(arrival.as_secs_f64() / speed).unwrap_or(Duration::MAX)
    };
    prompts.iter().map(|prompt| prompt.arrival.map(stretched)).collect()
}

/// Returns the mean rate of arrivals, by the gaps between them; infinity when all come at once.
#[must_use]
pub fn mean_rate(arrivals: &[Duration]) -> LoadValue {
    let (Some(first), Some(last)) = (arrivals.iter().min(), arrivals.iter().max()) else {
        return LoadValue(f64::INFINITY);
    };
    #[expect(clippy::cast_precision_loss, reason = "a number of requests is far below 2^52")]
    let num_gaps = (arrivals.len() - 1) as f64;
    let span = (*last - *first).as_secs_f64();
    LoadValue(if span > 0.0 { num_gaps / span } else { f64::INFINITY })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEED: u64 = 11;
    const NUM_GAPS: usize = 40_000;

    /// Returns mean and variance of the gaps of a process.
    fn moments(process: ArrivalProcess) -> (f64, f64) {
        let arrivals: Vec<Duration> = process.arrivals(SEED).take(NUM_GAPS).collect();
        let mut previous = Duration::ZERO;
        let gaps: Vec<f64> = arrivals
            .iter()
            .map(|due| {
                let gap = *due - previous;
                previous = *due;
                gap.as_secs_f64()
            })
            .collect();
        let num = NUM_GAPS as f64;
        let mean = gaps.iter().sum::<f64>() / num;
        let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / num;
        (mean, variance)
    }

    #[test]
    fn gaps_have_the_mean_and_variance_of_their_process() {
        for (distribution, burstiness) in
            [(ArrivalDist::Poisson, 1.0), (ArrivalDist::Gamma, 0.25), (ArrivalDist::Gamma, 4.0)]
        {
            let rate = LoadValue(8.0);
            let (mean, variance) = moments(ArrivalProcess { rate, distribution, burstiness });
            let expected_variance = 0.125 * 0.125 / burstiness;
            // Standard error of the mean is sigma / sqrt(n); the variance's is wider for the
            // heavy tail of a small shape.
            assert!((mean / 0.125 - 1.0).abs() < 0.04, "{distribution:?} mean {mean}");
            let ratio = variance / expected_variance;
            assert!((ratio - 1.0).abs() < 0.12, "{distribution:?} variance ratio {ratio}");
        }
    }

    #[test]
    fn equal_seeds_give_equal_arrivals_and_infinity_gives_none_apart() {
        let process = ArrivalProcess {
            rate: LoadValue(3.0),
            distribution: ArrivalDist::Poisson,
            burstiness: 1.0,
        };
        let take = |seed| process.arrivals(seed).take(5).collect::<Vec<_>>();
        assert_eq!(take(1), take(1));
        assert_ne!(take(1), take(2));
        let at_once = ArrivalProcess { rate: LoadValue(f64::INFINITY), ..process };
        assert!(at_once.arrivals(1).take(9).all(|due| due == Duration::ZERO));
    }

    #[test]
    fn a_trace_is_stretched_and_its_rate_with_it() {
        let prompt = |arrival: Option<u64>| Prompt {
            turns: vec!["x".to_owned()],
            source: "trace".to_owned(),
            output_len: None,
            arrival: arrival.map(Duration::from_secs),
        };
        let prompts = [prompt(Some(0)), prompt(Some(4)), prompt(Some(8))];
        let arrivals = recorded_arrivals(&prompts, 2.0).unwrap();
        assert_eq!(arrivals, [0, 2, 4].map(Duration::from_secs));
        assert_eq!(mean_rate(&arrivals), LoadValue(0.5));
        assert_eq!(mean_rate(&arrivals[..1]), LoadValue(f64::INFINITY));
        assert_eq!(recorded_arrivals(&[prompt(Some(0)), prompt(None)], 1.0), None);
    }
}
