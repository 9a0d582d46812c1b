//! Vectors of sixteen lanes in memory, each a cache line of its own.

use crate::lanes::LANES;
use std::arch::x86_64::{
    __m256, __m256i, __m512, __m512i, _mm256_load_ps, _mm256_load_si256, _mm256_store_ps,
    _mm256_store_si256, _mm512_load_ps, _mm512_load_si512, _mm512_store_ps, _mm512_store_si512,
};

/// Four codes of each lane, signed bytes.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(super) struct CodeLine(pub(super) [u8; LANES * 4]);

/// One i32 of each lane.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(super) struct SumLine(pub(super) [i32; LANES]);

/// One f32 of each lane.
#[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C, align(64))]
pub(super) struct FloatLine(pub(super) [f32; LANES]);

impl CodeLine {
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(super) fn load(&self) -> __m512i {
        // SAFETY: the line is one vector long and aligned to it.
        unsafe { _mm512_load_si512(self.0.as_ptr().cast()) }
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(super) fn store(&mut self, vector: __m512i) {
        // SAFETY: as in `load`.
        unsafe { _mm512_store_si512(self.0.as_mut_ptr().cast(), vector) };
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    pub(super) fn halves(&self) -> [__m256i; 2] {
        let halves = self.0.as_chunks::<{ LANES * 2 }>().0;
        // SAFETY: each half is one vector long, and the line is aligned to both.
        [0, 1].map(|h| unsafe { _mm256_load_si256(halves[h].as_ptr().cast()) })
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    pub(super) fn put_halves(&mut self, halves: [__m256i; 2]) {
        let places = self.0.as_chunks_mut::<{ LANES * 2 }>().0;
        for (place, half) in places.iter_mut().zip(halves) {
            // SAFETY: as in `halves`.
            unsafe { _mm256_store_si256(place.as_mut_ptr().cast(), half) };
        }
    }
}

impl SumLine {
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(super) fn load(&self) -> __m512i {
        // SAFETY: the line is one vector long and aligned to it.
        unsafe { _mm512_load_si512(self.0.as_ptr().cast()) }
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(super) fn store(&mut self, vector: __m512i) {
        // SAFETY: as in `load`.
        unsafe { _mm512_store_si512(self.0.as_mut_ptr().cast(), vector) };
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    pub(super) fn halves(&self) -> [__m256i; 2] {
        let halves = self.0.as_chunks::<{ LANES / 2 }>().0;
        // SAFETY: each half is one vector long, and the line is aligned to both.
        [0, 1].map(|h| unsafe { _mm256_load_si256(halves[h].as_ptr().cast()) })
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    pub(super) fn put_halves(&mut self, halves: [__m256i; 2]) {
        let places = self.0.as_chunks_mut::<{ LANES / 2 }>().0;
        for (place, half) in places.iter_mut().zip(halves) {
            // SAFETY: as in `halves`.
            unsafe { _mm256_store_si256(place.as_mut_ptr().cast(), half) };
        }
    }
}

impl FloatLine {
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(super) fn load(&self) -> __m512 {
        // SAFETY: the line is one vector long and aligned to it.
        unsafe { _mm512_load_ps(self.0.as_ptr()) }
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(super) fn store(&mut self, vector: __m512) {
        // SAFETY: as in `load`.
        unsafe { _mm512_store_ps(self.0.as_mut_ptr(), vector) };
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    pub(super) fn halves(&self) -> [__m256; 2] {
        let halves = self.0.as_chunks::<{ LANES / 2 }>().0;
        // SAFETY: each half is one vector long, and the line is aligned to both.
        [0, 1].map(|h| unsafe { _mm256_load_ps(halves[h].as_ptr()) })
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    pub(super) fn put_halves(&mut self, halves: [__m256; 2]) {
        let places = self.0.as_chunks_mut::<{ LANES / 2 }>().0;
        for (place, half) in places.iter_mut().zip(halves) {
            // SAFETY: as in `halves`.
            unsafe { _mm256_store_ps(place.as_mut_ptr(), half) };
        }
    }
}
