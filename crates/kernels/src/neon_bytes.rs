//! NEON's instructions that multiply bytes and add the products into 32-bit integers.
//!
//! Rust's intrinsics for them are not stable, so they are written as assembly.

use std::arch::aarch64::{int8x16_t, int32x4_t};
use std::arch::asm;

/// Returns `sum` with the dot product of each four bytes of `a` and word `WORD` of `b` added.
#[inline]
#[target_feature(enable = "neon,dotprod")]
pub(crate) fn sdot<const WORD: usize>(sum: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
    let mut sum = sum;
    // SAFETY: the function has the feature; the instruction touches registers only.
    unsafe {
        asm!(
            "sdot {sum:v}.4s, {a:v}.16b, {b:v}.4b[{word}]",
            sum = inout(vreg) sum,
            a = in(vreg) a,
            b = in(vreg) b,
            word = const WORD,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    sum
}

/// Returns `sum + a * b^T`, where `a` and `b` are matrices of 2 by 8 bytes and `sum` of 2 by 2.
#[inline]
#[target_feature(enable = "neon,i8mm")]
pub(crate) fn smmla(sum: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
    let mut sum = sum;
    // SAFETY: the function has the feature; the instruction touches registers only.
    unsafe {
        asm!(
            "smmla {sum:v}.4s, {a:v}.16b, {b:v}.16b",
            sum = inout(vreg) sum,
            a = in(vreg) a,
            b = in(vreg) b,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    sum
}
