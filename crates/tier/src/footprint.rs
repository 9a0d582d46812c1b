//! How much of a capacity one block takes.

/// What both a file's header and the bookkeeping of an allocation fit into.
const OVERHEAD_BYTES: u64 = 128;
/// Memory and disks are handed out in pieces of this size, on most systems.
const GRANULE_BYTES: u64 = 4096;

/// Returns the bytes of memory or disk that keeping a block of `num_bytes` takes: the measure of
/// all capacities of this crate, rounded up so that what the system hands out stays below them too.
#[must_use]
pub const fn footprint(num_bytes: usize) -> u64 {
    (num_bytes as u64).saturating_add(OVERHEAD_BYTES).div_ceil(GRANULE_BYTES) * GRANULE_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_footprint_is_never_below_the_bytes_and_the_header() {
        for num_bytes in [0, 1, 3968, 3969, 4096, 368_640, 1 << 30] {
            assert!(footprint(num_bytes) >= num_bytes as u64 + 104);
            assert!(footprint(num_bytes) < num_bytes as u64 + 4096 + 128);
        }
    }
}
