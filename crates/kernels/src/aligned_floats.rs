//! Floats that begin on a cache line, so that no vector of a kernel lies on two.
//!
//! A load or store across two lines costs twice, and much more where another thread writes the
//! rest of a line.

use crate::lanes::LANES;
use bytemuck::{Pod, Zeroable};
use std::ops::{Deref, DerefMut};

#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C, align(64))]
struct CacheLine([f32; LANES]);

/// A buffer of floats for temporary use, which keeps its memory.
#[derive(Clone, Debug, Default)]
pub struct AlignedFloats {
    lines: Vec<CacheLine>,
    /// Floats in use.
    len: usize,
}

impl AlignedFloats {
    /// Gives the buffer a length; the floats are those that were last written there.
    pub fn resize(&mut self, len: usize) {
        let num_lines = len.div_ceil(LANES);
        if self.lines.len() < num_lines {
            self.lines.resize(num_lines, CacheLine::zeroed());
        }
        self.len = len;
    }

    /// Returns the first `len` floats; the buffer grows as needed.
    pub(crate) fn first_mut(&mut self, len: usize) -> &mut [f32] {
        self.resize(len.max(self.len));
        &mut self[..len]
    }
}

impl Deref for AlignedFloats {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        &bytemuck::cast_slice(&self.lines)[..self.len]
    }
}

impl DerefMut for AlignedFloats {
    fn deref_mut(&mut self) -> &mut [f32] {
        &mut bytemuck::cast_slice_mut(&mut self.lines)[..self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_begin_on_a_line_and_stay_while_the_length_changes() {
        let mut floats = AlignedFloats::default();
        assert!(floats.is_empty());
        for len in [1, 40, 3, 17] {
            floats.resize(len);
            assert_eq!((floats.len(), floats.as_ptr().addr() % 64), (len, 0));
            floats[0] += 1.0;
        }
        assert_eq!(floats[0], 4.0);
        assert_eq!((floats.first_mut(2).len(), floats.len()), (2, 17));
        assert_eq!((floats.first_mut(50).len(), floats.len()), (50, 50));
    }
}
