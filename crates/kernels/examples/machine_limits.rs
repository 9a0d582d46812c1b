//! Prints what this machine can do at most: bytes read and arithmetic per second.
//!
//! Argument: threads; by default all processors.

#![allow(clippy::print_stdout, reason = "an example prints")]

use mini_infer_kernels::{Limit, MachineLimits};
use std::num::NonZeroUsize;

fn main() {
    let given = std::env::args().nth(1).and_then(|threads| threads.parse().ok());
    let threads = given.or_else(|| std::thread::available_parallelism().ok());
    let threads = threads.unwrap_or(NonZeroUsize::MIN);
    let limits = MachineLimits::measure(threads).expect("memory for a buffer");
    let print = |name: &str, limit: Limit| {
        let [one, all] = [limit.one_thread, limit.all_threads].map(|rate| rate / 1e9);
        println!("{name:14} {one:8.1} {all:8.1}");
    };
    println!("10^9 per second on 1 and on {threads} threads");
    print("bytes read", limits.read_bytes_per_s);
    for set in &limits.arithmetic {
        let name = set.isa.name();
        print(&format!("{name} f32"), set.f32_per_s);
        if let Some(limit) = set.bf16_per_s {
            print(&format!("{name} bf16"), limit);
        }
        if let Some(limit) = set.int8_per_s {
            print(&format!("{name} int8"), limit);
        }
    }
}
