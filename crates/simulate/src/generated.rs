//! Workloads with the length distributions of known data sets, from a seed.
//!
//! Lengths are log-normal, the usual shape of text lengths: many short ones and a long tail. Pairs
//! longer than the limit are drawn again, as the authors of the PagedAttention paper (Kwon et al.,
//! SOSP 2023) left such conversations out; medians are set so that the means after that are the
//! paper's (section 6.1, figure 11).
//!
//! The spread of ShareGPT's outputs follows from the paper's figure 2. With seven sequences in
//! 15,728 slots, reserved slots are 13.3 % or 299 a sequence. Seen over time that is half of
//! E[output^2] / E[output], which is thus 598 for a mean of 338: a log-normal shape of 0.865. Live
//! slots, 20.4 % or 458 a sequence, are that half and the prompt, 159: so prompts and outputs are
//! nearly independent, as here. Nothing pins the other spreads: 1.2 for ShareGPT's prompts gives
//! the long tail of figure 11, and for Alpaca 0.6 and 1.0 make short instructions with answers
//! from a word to a few hundred.
//!
//! Arrivals are a Poisson process of one request a second; the load that is simulated scales it.

use mini_infer_core::mix64;
use mini_infer_trace::{Trace, TraceRequest};
use std::f64::consts::TAU;
use std::time::Duration;

/// A log-normal distribution of lengths in tokens, at least 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LengthShape {
    /// Half of the lengths are below.
    pub median: f64,
    /// Standard deviation of the logarithm.
    pub spread: f64,
}

/// A workload that is made up.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GeneratedTrace {
    /// What it is called.
    pub name: &'static str,
    /// Lengths of prompts.
    pub prompt: LengthShape,
    /// Lengths of outputs.
    pub output: LengthShape,
    /// Most tokens of prompt and output together.
    pub limit: u32,
}

impl GeneratedTrace {
    /// Lengths as in ShareGPT: 161 prompt and 338 output tokens in the mean.
    pub const SHAREGPT: Self = Self {
        name: "sharegpt",
        prompt: LengthShape { median: 87.47, spread: 1.2 },
        output: LengthShape { median: 248.1, spread: 0.865 },
        limit: 2048,
    };
    /// Lengths as in Alpaca: 19 prompt and 58 output tokens in the mean.
    pub const ALPACA: Self = Self {
        name: "alpaca",
        prompt: LengthShape { median: 16.13, spread: 0.6 },
        output: LengthShape { median: 35.44, spread: 1.0 },
        limit: 2048,
    };

    /// Returns the workload of this name.
    #[must_use]
    pub fn by_name(name: &str) -> Option<Self> {
        [Self::SHAREGPT, Self::ALPACA].into_iter().find(|trace| trace.name == name)
    }

    /// Makes `num_requests` requests; equal seeds make equal ones.
    #[must_use]
    pub fn generate(&self, num_requests: usize, seed: u64) -> Trace {
        let mut random = Random { seed, num_drawn: 0 };
        let mut arrival = Duration::ZERO;
        let requests = (0..num_requests).map(|number| {
            if number > 0 {
                arrival += Duration::from_secs_f64(-random.uniform().ln());
            }
            let (num_prompt_tokens, num_output_tokens) = self.lengths(&mut random);
            let content_ids = Box::default();
            TraceRequest { arrival, num_prompt_tokens, num_output_tokens, content_ids }
        });
        Trace {
            name: self.name.to_owned(),
            requests: requests.collect(),
            description: self.describe(seed),
        }
    }

    /// Says what the workload is made from.
    fn describe(&self, seed: u64) -> String {
        let Self { name, prompt, output, limit } = self;
        format!(
            "generated {name}-like lengths, seed {seed}: log-normal, prompts of median {} and \
             spread {}, outputs of median {} and spread {}, at most {limit} together",
            prompt.median, prompt.spread, output.median, output.spread
        )
    }

    /// Draws a prompt and an output length.
    fn lengths(&self, random: &mut Random) -> (u32, u32) {
        loop {
            // Two independent normal numbers from two uniform ones (Box and Muller, 1958).
            let radius = (-2.0 * random.uniform().ln()).sqrt();
            let angle = TAU * random.uniform();
            let prompt = self.prompt.length(radius * angle.cos());
            let output = self.output.length(radius * angle.sin());
            if prompt.saturating_add(output) <= self.limit {
                return (prompt, output);
            }
        }
    }
}

impl LengthShape {
    /// Returns the length that is `normal` standard deviations above the median.
    fn length(self, normal: f64) -> u32 {
        let length = (self.median * (self.spread * normal).exp()).round();
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a positive number, and too large a one is as good as any other"
        )]
        let length = length as u32;
        length.max(1)
    }
}

/// A stream of random numbers.
struct Random {
    seed: u64,
    num_drawn: u64,
}

impl Random {
    /// Returns a number in (0, 1].
    fn uniform(&mut self) -> f64 {
        self.num_drawn += 1;
        let bits = mix64(mix64(self.seed) ^ self.num_drawn) >> 11;
        (bits + 1) as f64 / (1_u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_means(shape: GeneratedTrace, prompt: f64, output: f64) -> Trace {
        let trace = shape.generate(200_000, 1);
        let mean = |length: fn(&TraceRequest) -> u32| {
            let sum: u64 = trace.requests.iter().map(|request| u64::from(length(request))).sum();
            sum as f64 / trace.requests.len() as f64
        };
        let means = [mean(|r| r.num_prompt_tokens), mean(|r| r.num_output_tokens)];
        assert!((means[0] / prompt - 1.0).abs() < 0.01, "prompts: {means:?}");
        assert!((means[1] / output - 1.0).abs() < 0.01, "outputs: {means:?}");
        assert!(trace.num_tokens_of_longest() <= shape.limit);
        trace
    }

    #[test]
    fn lengths_have_the_means_of_the_data_sets() {
        check_means(GeneratedTrace::ALPACA, 19.31, 58.45);
        let trace = check_means(GeneratedTrace::SHAREGPT, 161.31, 337.99);
        let outputs = || trace.requests.iter().map(|request| f64::from(request.num_output_tokens));
        let over_time =
            outputs().map(|length| length * length).sum::<f64>() / outputs().sum::<f64>();
        assert!((over_time / 598.0 - 1.0).abs() < 0.02, "mean output seen over time: {over_time}");
        assert!(trace.num_tokens_of_longest() > 2000, "the tail reaches the limit");
    }

    #[test]
    fn arrivals_are_a_request_a_second_and_never_go_back() {
        let trace = GeneratedTrace::ALPACA.generate(20_000, 3);
        assert_eq!(trace.requests[0].arrival, Duration::ZERO);
        assert!(trace.requests.is_sorted_by_key(|request| request.arrival));
        let rate = 20_000.0 / trace.requests.last().unwrap().arrival.as_secs_f64();
        assert!((rate - 1.0).abs() < 0.03, "{rate} requests a second");
    }

    #[test]
    fn equal_seeds_make_equal_requests_and_others_do_not() {
        let shape = GeneratedTrace::SHAREGPT;
        assert_eq!(shape.generate(50, 9), shape.generate(50, 9));
        assert_ne!(shape.generate(50, 9).requests, shape.generate(50, 10).requests);
    }
}
