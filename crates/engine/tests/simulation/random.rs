//! Random numbers for scenarios.

/// A small random number generator (xorshift64*), so that scenarios never change with a library.
pub(crate) struct Random(u64);

impl Random {
    /// Creates the generator of a scenario.
    pub(crate) fn new(seed: u64) -> Self {
        // Odd multiples keep neighbouring seeds apart, and xorshift away from 0.
        let mut random = Self((2 * seed + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
        for _ in 0..8 {
            random.next();
        }
        random
    }

    /// The next 32 bits.
    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 32
    }

    /// A number in `range`, the end included.
    pub(crate) fn within(&mut self, range: std::ops::RangeInclusive<u32>) -> u32 {
        let size = u64::from(range.end() - range.start()) + 1;
        range.start() + u32::try_from(self.next() % size).unwrap()
    }

    /// True once in `n` times.
    pub(crate) fn one_in(&mut self, n: u32) -> bool {
        self.within(1..=n) == 1
    }

    /// One of some things.
    pub(crate) fn pick<T: Clone>(&mut self, items: &[T]) -> T {
        let last = u32::try_from(items.len() - 1).unwrap();
        items[self.within(0..=last) as usize].clone()
    }
}
