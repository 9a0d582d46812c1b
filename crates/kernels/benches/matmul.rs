//! Speed of products with packed weights: every weight type at the shapes of SmolLM2-135M and
//! Qwen2.5-0.5B, for one row (decode of one sequence), a few and many (prefill).
//!
//! Beside criterion's statistics each line says how many bytes of weights and how many operations
//! a second that is, and what share of what this machine can do at most. Bytes count each weight
//! once; a matrix that fits a cache may be read faster than memory allows. `MINI_INFER_ISA` chooses
//! the instruction set, `THREADS` in the environment the threads, by default all.

#![allow(clippy::print_stdout, reason = "a benchmark prints")]

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, BenchmarkId, Criterion, Throughput};
use mini_infer_kernels::{
    Isa, MachineLimits, PackedMatrix, QuantizedRows, ThreadPool, WeightMemory, WeightRows,
    WeightType, matmul,
};
use std::cell::Cell;
use std::num::NonZeroUsize;
use std::time::{Duration, Instant};

/// Output and input features.
const SHAPES: [(&str, usize, usize); 8] = [
    ("smollm2-qkv", 960, 576),
    ("smollm2-out", 576, 576),
    ("smollm2-gate-up", 3072, 576),
    ("smollm2-down", 576, 1536),
    ("qwen-qkv", 1152, 896),
    ("qwen-out", 896, 896),
    ("qwen-gate-up", 9728, 896),
    ("qwen-down", 896, 4864),
];
const NUM_ROWS: [usize; 4] = [1, 4, 16, 512];
/// Copies of a matrix are walked in turn until they are this large together, as the layers of a
/// model are, so that one row finds its weights where a decode step would.
const WEIGHT_BYTES: usize = 64 << 20;

fn main() {
    let threads = std::env::var("THREADS").ok().and_then(|threads| threads.parse().ok());
    let threads = threads.or_else(|| std::thread::available_parallelism().ok());
    let threads = threads.unwrap_or(NonZeroUsize::MIN);
    let isa = Isa::from_env().expect("a known instruction set");
    let bench = Bench {
        isa,
        pool: ThreadPool::new(threads),
        memory: WeightMemory::default(),
        limits: MachineLimits::measure(threads).expect("memory for a buffer"),
    };
    let mut criterion = Criterion::default()
        .warm_up_time(Duration::from_millis(100))
        .measurement_time(Duration::from_millis(300))
        .sample_size(10)
        .without_plots()
        .configure_from_args();
    for weight_type in WeightType::ALL {
        bench.pack(&mut criterion, weight_type);
        for (name, out_features, in_features) in SHAPES {
            if in_features.is_multiple_of(weight_type.group_size()) {
                let mut group = criterion.benchmark_group(format!("{weight_type}/{name}"));
                bench.shape(&mut group, weight_type, out_features, in_features);
                group.finish();
            }
        }
    }
}

struct Bench {
    isa: Isa,
    pool: ThreadPool,
    memory: WeightMemory,
    limits: MachineLimits,
}

impl Bench {
    /// Repacking of the weights of a checkpoint, whose bytes are what counts.
    fn pack(&self, criterion: &mut Criterion, weight_type: WeightType) {
        let (out_features, in_features) = (4096, 2048);
        let num_bytes = weight_type.bytes_for(in_features).expect("whole groups") * out_features;
        let bytes = vec![0x21; num_bytes];
        let rows = WeightRows { weight_type, out_features, in_features, bytes: &bytes };
        criterion
            .benchmark_group("pack")
            .throughput(Throughput::Bytes(num_bytes as u64))
            .bench_function(weight_type.name(), |bencher| {
                bencher.iter(|| {
                    PackedMatrix::pack(&self.pool, &self.memory, &[rows]).expect("that shape")
                });
            });
    }

    fn shape(
        &self,
        group: &mut BenchmarkGroup<'_, WallTime>,
        weight_type: WeightType,
        out_features: usize,
        in_features: usize,
    ) {
        let num_bytes = weight_type.bytes_for(in_features).expect("whole groups") * out_features;
        // Small numbers of every byte: none of them is a NaN or a denormal scale.
        let bytes: Vec<u8> = (0x20..0x2d).cycle().take(num_bytes).collect();
        let rows = WeightRows { weight_type, out_features, in_features, bytes: &bytes };
        let copies = (WEIGHT_BYTES / rows.packed_bytes()).max(1);
        let pack =
            |_| PackedMatrix::pack(&self.pool, &self.memory, &[rows]).expect("bytes of that shape");
        // Packed when the first benchmark runs: a filter may leave the shape out.
        let mut weights: Vec<PackedMatrix> = Vec::new();
        for num_rows in NUM_ROWS {
            let x: Vec<f32> = (0..num_rows * in_features).map(|i| (i as f32).sin()).collect();
            let mut out = vec![0.0; num_rows * out_features];
            let mut scratch = QuantizedRows::default();
            let best = Cell::new(Duration::MAX);
            group.bench_function(BenchmarkId::from_parameter(num_rows), |bencher| {
                if weights.is_empty() {
                    weights.extend((0..copies).map(pack));
                }
                bencher.iter_custom(|num_products| {
                    let started = Instant::now();
                    for (_, w) in (0..num_products).zip(weights.iter().cycle()) {
                        matmul(self.isa, &self.pool, &x, w, &mut scratch, &mut out);
                    }
                    let elapsed = started.elapsed();
                    best.set(best.get().min(elapsed.div_f64(num_products as f64)));
                    elapsed
                });
            });
            if best.get() < Duration::MAX {
                let num_ops = 2 * num_rows * out_features * in_features;
                self.print(rows.packed_bytes() as f64, num_ops as f64, best.get());
            }
        }
    }

    /// Prints what the fastest sample says.
    fn print(&self, num_bytes: f64, num_ops: f64, best: Duration) {
        let limits = &self.limits;
        let (bytes_per_s, ops_per_s) =
            (num_bytes / best.as_secs_f64(), num_ops / best.as_secs_f64());
        let arithmetic = limits.arithmetic.iter().find(|limits| limits.isa == self.isa);
        let int8 = arithmetic.and_then(|limits| limits.int8_per_s);
        let share = int8.map_or_else(String::new, |limit| {
            format!(" ({:.0} % of int8)", ops_per_s / limit.all_threads * 100.0)
        });
        println!(
            "{:>29}: {:.1} µs, {:.2} GB/s ({:.0} % of memory), {:.0} Gop/s{share}",
            "best",
            best.as_secs_f64() * 1e6,
            bytes_per_s / 1e9,
            bytes_per_s / limits.read_bytes_per_s.all_threads * 100.0,
            ops_per_s / 1e9,
        );
    }
}
