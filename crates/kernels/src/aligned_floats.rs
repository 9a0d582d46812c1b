//! Floats that begin on a cache line, so that no vector of a kernel lies on two.
//!
//! A load or store across two lines costs twice.

use crate::lanes::LANES;
use bytemuck::{Pod, Zeroable};

#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C, align(64))]
struct CacheLine([f32; LANES]);

/// A buffer of floats for temporary use, which grows as needed.
#[derive(Debug, Default)]
pub(crate) struct AlignedFloats(Vec<CacheLine>);

impl AlignedFloats {
    /// Returns the first `len` floats, with whatever was last written there.
    pub(crate) fn first_mut(&mut self, len: usize) -> &mut [f32] {
        let num_lines = len.div_ceil(LANES);
        if self.0.len() < num_lines {
            self.0.resize(num_lines, CacheLine::zeroed());
        }
        &mut bytemuck::cast_slice_mut(&mut self.0)[..len]
    }

    /// Returns all floats.
    pub(crate) fn all(&self) -> &[f32] {
        bytemuck::cast_slice(&self.0)
    }
}
