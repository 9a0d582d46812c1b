//! A sequential read of memory that no cache holds.
//!
//! The buffer is written first: memory that was never written is one page of zeros, however large
//! it is. The sum of its words is the result, one addition for 8 bytes, which vectors do far faster
//! than memory delivers.

use super::{Limit, Shortest, time};
use crate::dispatch::for_each_isa;
use crate::isa::Isa;
use crate::mapped_buffer::MappedBuffer;
use crate::thread_pool::ThreadPool;
use std::hint::black_box;
use std::io;

/// Words that are added side by side: four vectors of 64 bytes.
const NUM_SUMS: usize = 32;
/// What a thread takes at once.
const PIECE_BYTES: usize = 1 << 20;
/// Windows of the buffer.
const NUM_WINDOWS: usize = 4;
/// Smallest buffer, and the one where the system does not tell its caches.
const MIN_BUFFER_BYTES: usize = 512 << 20;
/// Largest buffer: more takes too long to write.
const MAX_BUFFER_BYTES: usize = 1 << 30;
/// By how much the buffer is larger than the last cache, so that little of it can still be there
/// when it is read again.
const CACHES: usize = 4;

for_each_isa! {
    fn sum(words: &[u64]) -> u64 = sum_body
}

#[inline(always)]
fn sum_body(words: &[u64]) -> u64 {
    let mut sums = [0_u64; NUM_SUMS];
    let (chunks, rest) = words.as_chunks::<NUM_SUMS>();
    for chunk in chunks {
        for (sum, word) in sums.iter_mut().zip(chunk) {
            *sum = sum.wrapping_add(*word);
        }
    }
    sums.iter().chain(rest).fold(0, |sum, word| sum.wrapping_add(*word))
}

/// Returns the size of a buffer that the caches of this machine do not hold.
pub(super) fn buffer_bytes() -> usize {
    let caches = last_cache_bytes().unwrap_or_default().saturating_mul(CACHES);
    caches.clamp(MIN_BUFFER_BYTES, MAX_BUFFER_BYTES)
}

/// Returns the size of the largest cache, where the system tells it.
fn last_cache_bytes() -> Option<usize> {
    let caches = std::fs::read_dir("/sys/devices/system/cpu/cpu0/cache").ok()?;
    let sizes = caches.filter_map(|cache| {
        let size = std::fs::read_to_string(cache.ok()?.path().join("size")).ok()?;
        size.trim().strip_suffix('K')?.parse().ok().map(|kib: usize| kib << 10)
    });
    sizes.max()
}

/// Trials of reading a buffer. A trial reads one window of it, and windows take turns, so that all
/// others are read before one is read again.
#[derive(Debug)]
pub(super) struct MemoryRead {
    isa: Isa,
    buffer: MappedBuffer,
    next_window: usize,
    shortest: Shortest,
}

impl MemoryRead {
    /// Makes a buffer of this size.
    pub(super) fn new(isa: Isa, buffer_bytes: usize) -> io::Result<Self> {
        let mut buffer = MappedBuffer::new(buffer_bytes)?;
        buffer.bytes_mut().fill(1);
        Ok(Self { isa, buffer, next_window: 0, shortest: Shortest::default() })
    }

    /// Reads a window on one thread, and one on all of `pool`.
    pub(super) fn run(&mut self, pool: &ThreadPool) {
        let isa = self.isa;
        let window = self.take_window();
        let pieces: Vec<_> = self.pieces(window).collect();
        let one_thread = time(|| {
            for piece in &pieces {
                black_box(sum(isa, piece));
            }
        });
        let window = self.take_window();
        let pieces: Vec<_> = self.pieces(window).collect();
        let all_threads = time(|| {
            pool.claim(pieces.len(), |i| {
                black_box(sum(isa, pieces[i]));
            });
        });
        self.shortest.note(one_thread, all_threads);
    }

    /// Returns bytes per second.
    pub(super) fn limit(&self) -> Limit {
        #[expect(clippy::cast_precision_loss, reason = "at most a GiB")]
        let bytes = (self.buffer.bytes().len() / NUM_WINDOWS) as f64;
        self.shortest.limit([bytes; 2])
    }

    fn take_window(&mut self) -> usize {
        let window = self.next_window;
        self.next_window = (window + 1) % NUM_WINDOWS;
        window
    }

    fn pieces(&self, window: usize) -> impl Iterator<Item = &[u64]> {
        let words: &[u64] = bytemuck::cast_slice(self.buffer.bytes());
        let window_words = words.len() / NUM_WINDOWS;
        let words = &words[window * window_words..][..window_words];
        words.chunks(PIECE_BYTES / size_of::<u64>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_is_read_on_every_set() {
        let words: Vec<u64> = (0..1000).collect();
        for isa in Isa::all_present() {
            for len in [0, 1, 31, 32, 33, 1000] {
                let len_words = u64::try_from(len).unwrap();
                let expected = len_words * len_words.saturating_sub(1) / 2;
                assert_eq!(sum(isa, &words[..len]), expected, "{len} on {}", isa.name());
            }
        }
    }

    #[test]
    fn the_buffer_is_larger_than_any_cache_that_is_not_enormous() {
        let bytes = buffer_bytes();
        assert!((MIN_BUFFER_BYTES..=MAX_BUFFER_BYTES).contains(&bytes));
    }

    #[test]
    fn windows_cover_the_buffer_and_take_turns() {
        let mut memory = MemoryRead::new(Isa::Scalar, 8 << 20).unwrap();
        let windows: Vec<_> = (0..NUM_WINDOWS + 1).map(|_| memory.take_window()).collect();
        assert_eq!(windows, [0, 1, 2, 3, 0]);
        let starts: Vec<_> = (0..NUM_WINDOWS)
            .map(|window| {
                let pieces: Vec<_> = memory.pieces(window).collect();
                assert_eq!(pieces.iter().map(|piece| piece.len() * 8).sum::<usize>(), 2 << 20);
                pieces[0].as_ptr().addr() - memory.buffer.bytes().as_ptr().addr()
            })
            .collect();
        assert_eq!(starts, [0, 2 << 20, 4 << 20, 6 << 20]);
    }
}
