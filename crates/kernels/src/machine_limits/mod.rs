//! What this machine can do at most, measured: bytes read per second and arithmetic per second.
//!
//! Each figure is the best of several short trials, on one thread and on all, so that a busy
//! machine or a processor that is still waking up costs a trial and not the figure. All of them
//! take about a second. Arithmetic is that of a dot product: multiplications and additions are
//! counted apart, so a fused multiply-add of 16 lanes is 32 operations. An instruction set without
//! an instruction for a kind of number has no figure for it.
//!
//! Only a build with optimisation measures the machine; another one measures itself.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod float_dots;
mod memory_read;
#[cfg(target_arch = "aarch64")]
mod neon;

use crate::isa::Isa;
use crate::thread_pool::ThreadPool;
use memory_read::MemoryRead;
use std::hint::black_box;
use std::io;
use std::num::NonZeroUsize;
use std::time::{Duration, Instant};

/// Vectors of one operand that a kernel goes through in a round: 4 KiB, far inside the L1 cache.
const NUM_WEIGHTS: usize = 64;
/// Trials of which the best counts.
const NUM_TRIALS: usize = 8;
/// Length of a trial of arithmetic: long against the hand-over to other threads (microseconds),
/// short against the time slices of a busy system.
const TRIAL: Duration = Duration::from_millis(4);

/// What this machine can do at most.
#[derive(Clone, Debug, PartialEq)]
pub struct MachineLimits {
    /// Threads that "all threads" means.
    pub num_threads: usize,
    /// Bytes per second of a sequential read from memory that no cache holds.
    pub read_bytes_per_s: Limit,
    /// Arithmetic by instruction set, the widest first.
    pub arithmetic: Vec<ArithmeticLimits>,
}

/// A rate on one thread and on all of them together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limit {
    /// On one thread.
    pub one_thread: f64,
    /// On all threads together.
    pub all_threads: f64,
}

/// What one instruction set can do at most, in operations per second.
#[derive(Clone, Debug, PartialEq)]
pub struct ArithmeticLimits {
    /// The instruction set.
    pub isa: Isa,
    /// Dot products of f32.
    pub f32_per_s: Limit,
    /// Dot products of bf16 into f32.
    pub bf16_per_s: Option<Limit>,
    /// Dot products of bytes into 32-bit integers.
    pub int8_per_s: Option<Limit>,
}

/// How long and how much is measured.
#[derive(Clone, Copy, Debug)]
struct Plan {
    num_threads: NonZeroUsize,
    buffer_bytes: usize,
    trial: Duration,
}

/// A loop of dot products. Its result depends on every operation, so that none can be left out.
#[derive(Clone, Copy, Debug)]
struct DotKernel {
    isa: Isa,
    /// Multiplications and additions of one round.
    ops_per_round: u32,
    /// Runs a number of rounds on that instruction set.
    run: fn(Isa, usize) -> u32,
}

impl MachineLimits {
    /// Measures this machine with `num_threads` threads for about a second.
    ///
    /// # Errors
    /// When there is no memory for a buffer that is larger than the caches.
    pub fn measure(num_threads: NonZeroUsize) -> io::Result<Self> {
        let buffer_bytes = memory_read::buffer_bytes();
        Self::measure_by(Plan { num_threads, buffer_bytes, trial: TRIAL })
    }

    fn measure_by(plan: Plan) -> io::Result<Self> {
        let pool = ThreadPool::new(plan.num_threads);
        let sets = Isa::all_present();
        let mut memory = MemoryRead::new(sets[0], plan.buffer_bytes)?;
        let kernels: Vec<_> = sets.iter().map(|isa| kernels(*isa)).collect();
        let mut trials: Vec<_> = kernels
            .iter()
            .flat_map(|kernels| kernels.iter().flatten())
            .map(|kernel| DotTrials::new(*kernel, plan.trial))
            .collect();
        // The trials of one figure lie far apart, so that another process which takes a
        // processor for a while disturbs only some of each.
        for _ in 0..NUM_TRIALS {
            memory.run(&pool);
            trials.iter_mut().for_each(|trials| trials.run(&pool));
        }
        let mut limits = trials.iter().map(|trials| trials.limit(pool.num_threads()));
        let mut next = |kernel: Option<DotKernel>| {
            kernel.map(|_| limits.next().expect("each kernel has its trials"))
        };
        let arithmetic = sets.into_iter().zip(kernels).map(|(isa, [f32, bf16, int8])| {
            let f32_per_s = next(f32).expect("every instruction set has f32");
            ArithmeticLimits { isa, f32_per_s, bf16_per_s: next(bf16), int8_per_s: next(int8) }
        });
        let arithmetic = arithmetic.collect();
        let num_threads = pool.num_threads();
        Ok(Self { num_threads, read_bytes_per_s: memory.limit(), arithmetic })
    }
}

/// Returns the kernels for f32, bf16 and bytes.
fn kernels(isa: Isa) -> [Option<DotKernel>; 3] {
    [Some(float_dots::kernel(isa)), bf16_kernel(isa), int8_kernel(isa)]
}

fn bf16_kernel(isa: Isa) -> Option<DotKernel> {
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512(proof) => avx512::bf16_kernel(proof),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2(_) => None,
        #[cfg(target_arch = "aarch64")]
        Isa::Neon(_) => None,
        Isa::Scalar => None,
    }
}

fn int8_kernel(isa: Isa) -> Option<DotKernel> {
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512(proof) => Some(avx512::int8_kernel(proof)),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2(proof) => Some(avx2::int8_kernel(proof)),
        #[cfg(target_arch = "aarch64")]
        Isa::Neon(neon) => Some(neon::int8_kernel(neon)),
        Isa::Scalar => None,
    }
}

impl DotKernel {
    fn run(self, rounds: usize) {
        black_box((self.run)(self.isa, black_box(rounds)));
    }

    /// Returns how many rounds take about as long as a trial.
    fn rounds_for(self, trial: Duration) -> usize {
        let mut rounds = 1;
        loop {
            let started = Instant::now();
            self.run(rounds);
            if started.elapsed() >= trial {
                return rounds;
            }
            rounds *= 2;
        }
    }
}

/// Trials of one kernel.
#[derive(Debug)]
struct DotTrials {
    kernel: DotKernel,
    rounds: usize,
    shortest: Shortest,
}

impl DotTrials {
    fn new(kernel: DotKernel, trial: Duration) -> Self {
        Self { kernel, rounds: kernel.rounds_for(trial), shortest: Shortest::default() }
    }

    fn run(&mut self, pool: &ThreadPool) {
        let (kernel, rounds) = (self.kernel, self.rounds);
        let one_thread = time(|| kernel.run(rounds));
        let all_threads = time(|| pool.claim(pool.num_threads(), |_| kernel.run(rounds)));
        self.shortest.note(one_thread, all_threads);
    }

    fn limit(&self, num_threads: usize) -> Limit {
        #[expect(clippy::cast_precision_loss, reason = "a trial is far below 2^52 rounds")]
        let ops = f64::from(self.kernel.ops_per_round) * self.rounds as f64;
        #[expect(clippy::cast_precision_loss, reason = "a number of threads")]
        let all_ops = ops * num_threads as f64;
        self.shortest.limit([ops, all_ops])
    }
}

/// The shortest trials.
#[derive(Clone, Copy, Debug)]
struct Shortest {
    one_thread: Duration,
    all_threads: Duration,
}

impl Default for Shortest {
    fn default() -> Self {
        Self { one_thread: Duration::MAX, all_threads: Duration::MAX }
    }
}

impl Shortest {
    fn note(&mut self, one_thread: Duration, all_threads: Duration) {
        self.one_thread = self.one_thread.min(one_thread);
        self.all_threads = self.all_threads.min(all_threads);
    }

    /// Returns the rates of a trial that does `amounts` on one thread and on all.
    fn limit(&self, amounts: [f64; 2]) -> Limit {
        Limit {
            one_thread: amounts[0] / self.one_thread.as_secs_f64(),
            all_threads: amounts[1] / self.all_threads.as_secs_f64(),
        }
    }
}

fn time(work: impl FnOnce()) -> Duration {
    let started = Instant::now();
    work();
    // A clock that does not see the trial pass must not make the rate infinite.
    started.elapsed().max(Duration::from_nanos(1))
}

/// Returns the value of a weight that float kernels go through, by its index: small and of both
/// signs, so that sums neither grow nor become denormal.
const fn weight(i: usize) -> f32 {
    let magnitude = [0.5, 0.25, 0.75, 1.0][i / 2 % 4];
    if i.is_multiple_of(2) { magnitude } else { -magnitude }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Plan = Plan {
        num_threads: NonZeroUsize::new(2).unwrap(),
        buffer_bytes: 8 << 20,
        trial: Duration::from_micros(500),
    };

    fn limits(measured: &MachineLimits) -> Vec<Limit> {
        let arithmetic = measured.arithmetic.iter().flat_map(|limits| {
            [Some(limits.f32_per_s), limits.bf16_per_s, limits.int8_per_s].into_iter().flatten()
        });
        arithmetic.chain([measured.read_bytes_per_s]).collect()
    }

    #[test]
    fn every_set_has_figures_and_two_threads_do_not_do_less_than_one() {
        // Another process can take a processor for a whole measurement, but hardly for ten.
        let is_plausible = (0..10).any(|_| {
            let measured = MachineLimits::measure_by(SHORT).unwrap();
            assert_eq!(measured.arithmetic.len(), Isa::all_present().len());
            assert_eq!(measured.num_threads, 2);
            let limits = limits(&measured);
            assert!(limits.iter().all(|limit| limit.one_thread.is_finite()));
            limits
                .iter()
                .all(|limit| limit.one_thread > 0.0 && limit.all_threads >= 0.8 * limit.one_thread)
        });
        assert!(is_plausible, "two threads were slower than one in every measurement");
    }

    #[test]
    fn more_rounds_take_longer_so_the_loops_are_there() {
        for isa in Isa::all_present() {
            for kernel in kernels(isa).into_iter().flatten() {
                let rounds = kernel.rounds_for(Duration::from_micros(200));
                let time = |rounds| (0..5).map(|_| time(|| kernel.run(rounds))).min().unwrap();
                let is_longer = (0..10).any(|_| time(rounds * 8) > time(rounds) * 4);
                assert!(is_longer, "{kernel:?} on {}", isa.name());
            }
        }
    }

    #[test]
    fn an_operation_takes_at_least_what_the_fastest_processor_needs() {
        // 4096 operations in each of 6 thousand million cycles is beyond any core's vectors.
        let limit = 6e9 * 4096.0;
        for isa in Isa::all_present() {
            for kernel in kernels(isa).into_iter().flatten() {
                let pool = ThreadPool::new(NonZeroUsize::MIN);
                let mut trials = DotTrials::new(kernel, Duration::from_micros(200));
                trials.run(&pool);
                let measured = trials.limit(1);
                assert!(measured.one_thread < limit, "{measured:?} on {}", isa.name());
            }
        }
    }
}
