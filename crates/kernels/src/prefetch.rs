//! Asking the processor for memory before it is needed.
//!
//! For data whose place is known and which the processor's own prefetching misses, because it lies
//! in scattered pieces. A hint: no result depends on it.

/// Bytes that are asked for at once.
pub(crate) const CACHE_LINE: usize = 64;

/// Asks for the cache line that holds the first byte of `place`, to read it soon. Does nothing
/// where the processor has no such instruction that is known here.
#[inline(always)]
pub(crate) fn prefetch<T>(place: &T) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch changes nothing and cannot fault, and the instruction is part of
        // every x86-64 processor.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(place).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _not_asked_for = place;
}

/// Does what [`prefetch`] does, for a line that is read later: it is kept from the L1 cache, which
/// has what is read until then.
#[inline(always)]
pub(crate) fn prefetch_for_later<T>(place: &T) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        // SAFETY: as in `prefetch`.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(std::ptr::from_ref(place).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _not_asked_for = place;
}
