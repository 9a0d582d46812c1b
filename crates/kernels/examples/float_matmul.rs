//! Times products with float weights at the shapes of SmolLM2-135M and Qwen2.5-0.5B.
//!
//! `float_matmul [TYPE [THREADS [ROWS…]]]`: bf16 (the default), f16 or f32; by default all
//! processors and 1, 4, 16 and 512 rows. Prints the packing rate in bytes of checkpoint, and for
//! each number of rows the median rate of arithmetic and of weight bytes, with their shares of
//! what this machine can do at most. Matrices are used in turn, so that weights come from memory
//! as they do in a model.

#![allow(clippy::print_stdout, reason = "an example prints")]

use mini_infer_kernels::{
    Isa, MachineLimits, PackedMatrix, QuantizedRows, ThreadPool, WeightMemory, WeightRows,
    WeightType, matmul,
};
use std::num::NonZeroUsize;
use std::time::{Duration, Instant};

/// Output and input features.
const SHAPES: [(usize, usize); 9] = [
    (960, 576),
    (576, 576),
    (3072, 576),
    (576, 1536),
    (49152, 576),
    (1152, 896),
    (896, 896),
    (9728, 896),
    (896, 4864),
];
/// Bytes of all copies of a matrix together, where one is smaller.
const TOTAL_BYTES: usize = 200 << 20;
/// How long one number of rows is timed.
const TRIAL: Duration = Duration::from_millis(80);
/// Output features up to which many rows are timed: heads compute one row of each sequence.
const MAX_OUT_OF_MANY: usize = 10_000;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let weight_type = match arguments.first().map(String::as_str) {
        None | Some("bf16") => WeightType::Bf16,
        Some("f16") => WeightType::F16,
        Some("f32") => WeightType::F32,
        Some(other) => panic!("{other} is none of bf16, f16 and f32"),
    };
    let number = |text: &String| text.parse::<NonZeroUsize>().expect("a number");
    let all = || std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    let threads = arguments.get(1).map_or_else(all, number);
    let mut row_counts: Vec<usize> = arguments.iter().skip(2).map(|a| number(a).get()).collect();
    if row_counts.is_empty() {
        row_counts = vec![1, 4, 16, 512];
    }
    let isa = Isa::from_env().expect("an instruction set of this processor");
    let limits = MachineLimits::measure(threads).expect("memory for a buffer");
    let most_ops = limits
        .arithmetic
        .iter()
        .find(|set| set.isa == isa)
        .map_or(f64::NAN, |set| set.f32_per_s.all_threads);
    let most_bytes = limits.read_bytes_per_s.all_threads;
    println!("{weight_type}, {threads} threads, {}", isa.name());
    println!("at most {:.0} GFLOP/s and {:.1} GB/s", most_ops / 1e9, most_bytes / 1e9);
    let pool = ThreadPool::new(threads);
    for (out_features, in_features) in SHAPES {
        let bytes = weights(weight_type, out_features * in_features);
        let rows = WeightRows { weight_type, out_features, in_features, bytes: &bytes };
        let num_copies = (TOTAL_BYTES / bytes.len()).max(1);
        let memory = WeightMemory::default();
        let begin = Instant::now();
        let pack = |_| PackedMatrix::pack(&pool, &memory, &[rows]).expect("memory for the weights");
        let matrices: Vec<_> = (0..num_copies).map(pack).collect();
        let rate = (num_copies * bytes.len()) as f64 / begin.elapsed().as_secs_f64();
        println!("{out_features} x {in_features}, packed at {:.2} GB/s", rate / 1e9);
        for &num_rows in &row_counts {
            if num_rows > 64 && out_features > MAX_OUT_OF_MANY {
                continue;
            }
            let time = time(isa, &pool, &matrices, num_rows);
            let ops = 2.0 * (num_rows * out_features * in_features) as f64 / time;
            let read = bytes.len() as f64 / time;
            println!(
                "  {num_rows:4} rows {:9.1} us {:7.1} GFLOP/s ({:3.0} %) {:6.2} GB/s ({:3.0} %)",
                time * 1e6,
                ops / 1e9,
                100.0 * ops / most_ops,
                read / 1e9,
                100.0 * read / most_bytes,
            );
        }
    }
}

/// Returns the median seconds of a product, over passes through all matrices.
fn time(isa: Isa, pool: &ThreadPool, matrices: &[PackedMatrix], num_rows: usize) -> f64 {
    let (in_features, out_features) = (matrices[0].in_features(), matrices[0].out_features());
    let x: Vec<f32> =
        (0..num_rows * in_features).map(|i| (i * 31 % 1009) as f32 / 500.0 - 1.0).collect();
    let mut out = vec![0.0; num_rows * out_features];
    let mut scratch = QuantizedRows::default();
    let mut times = Vec::new();
    let begin = Instant::now();
    while begin.elapsed() < TRIAL || times.len() < matrices.len().min(8) {
        let matrix = &matrices[times.len() % matrices.len()];
        let started = Instant::now();
        matmul(isa, pool, &x, matrix, &mut scratch, &mut out);
        times.push(started.elapsed().as_secs_f64());
    }
    times.sort_unstable_by(f64::total_cmp);
    times[times.len() / 2]
}

/// Returns stored weights between -1 and 1.
fn weights(weight_type: WeightType, count: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(count * 4);
    for i in 0..count {
        let weight = (i * 7919 % 2003) as f32 / 1001.0 - 1.0;
        let [_, _, low, high] = weight.to_le_bytes();
        if weight_type == WeightType::F32 {
            bytes.extend(weight.to_le_bytes());
        } else if weight_type == WeightType::F16 {
            // A normal half below 2, with the sign of the number.
            bytes.extend([low, high & 0xbf]);
        } else {
            bytes.extend([low, high]);
        }
    }
    bytes
}
