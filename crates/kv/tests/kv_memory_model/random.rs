//! Random numbers that never change their meaning.

/// A small random number generator (xorshift64*).
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        // Odd multiples keep neighbouring seeds apart, and xorshift away from 0.
        let mut random = Self((2 * seed + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
        for _ in 0..8 {
            random.below(2);
        }
        random
    }

    pub(crate) fn below(&mut self, end: u32) -> u32 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let bits = self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 32;
        u32::try_from(bits % u64::from(end)).unwrap()
    }

    pub(crate) fn one_in(&mut self, n: u32) -> bool {
        self.below(n) == 0
    }

    pub(crate) fn index_of<T>(&mut self, items: &[T]) -> Option<usize> {
        let len = u32::try_from(items.len()).unwrap();
        (len > 0).then(|| self.below(len) as usize)
    }

    pub(crate) fn pick<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.index_of(items).unwrap()]
    }
}
