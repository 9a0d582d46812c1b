//! Memory that packed weights share.
//!
//! Huge pages begin at multiples of 2 MiB, and most matrices of a small model are smaller: each in
//! a mapping of its own, they would lie in small pages, of which a step then visits more than the
//! processor keeps the addresses of. So matrices are laid one behind the other in stretches of
//! [`STRETCH_BYTES`], of which only what is written takes memory.

use crate::mapped_buffer::MappedBuffer;
use crate::prefetch::CACHE_LINE;
use std::io;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

/// Bytes of a huge page, and what its address is a multiple of.
const HUGE_PAGE_BYTES: usize = 2 << 20;
/// Bytes that are mapped at once; a larger matrix gets as much as it needs.
const STRETCH_BYTES: usize = 64 << 20;

/// Gives out memory for weights, which lives as long as anything that it was given out for.
#[derive(Debug, Default)]
pub struct WeightMemory {
    current: Mutex<Option<Stretch>>,
}

/// A mapping with the bytes that nobody has yet.
#[derive(Debug)]
struct Stretch {
    map: Arc<MappedBuffer>,
    /// The first of them.
    free: NonNull<u8>,
    num_free: usize,
}

// SAFETY: the pointer stands for bytes of the mapping that nobody else has; threads may hand them
// on as they may a mutable slice.
unsafe impl Send for Stretch {}

/// Zeroed memory of its own, beginning on a cache line.
#[derive(Debug)]
pub(crate) struct WeightBuffer {
    start: NonNull<u8>,
    len: usize,
    /// What keeps it mapped; nobody reads or writes through this.
    _map: Arc<MappedBuffer>,
}

// SAFETY: the buffer is the only one that has its bytes, as a boxed slice would be.
unsafe impl Send for WeightBuffer {}
// SAFETY: as above; shared references only read.
unsafe impl Sync for WeightBuffer {}

impl WeightMemory {
    /// Gives out `len` zeroed bytes.
    pub(crate) fn take(&self, len: usize) -> io::Result<WeightBuffer> {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = len.next_multiple_of(CACHE_LINE);
        if let Some(stretch) = &mut *current
            && taken <= stretch.num_free
        {
            return Ok(stretch.take(len, taken));
        }
        let mut stretch = Stretch::new(taken.max(STRETCH_BYTES))?;
        let buffer = stretch.take(len, taken);
        // What is left of one of them stays free; the larger is the better one to go on with.
        if current.as_ref().is_none_or(|current| current.num_free < stretch.num_free) {
            *current = Some(stretch);
        }
        Ok(buffer)
    }
}

impl Stretch {
    /// Maps `len` bytes that begin on a huge page.
    fn new(len: usize) -> io::Result<Self> {
        let mut map = MappedBuffer::new(len + HUGE_PAGE_BYTES)?;
        let bytes = map.bytes_mut();
        let before = bytes.as_ptr().align_offset(HUGE_PAGE_BYTES);
        let free = NonNull::from(&mut bytes[before..][..len]).cast();
        Ok(Self { map: Arc::new(map), free, num_free: len })
    }

    /// Gives out `len` bytes, of the `taken` that are then no longer free.
    fn take(&mut self, len: usize, taken: usize) -> WeightBuffer {
        assert!(len <= taken && taken <= self.num_free);
        let start = self.free;
        // SAFETY: that many bytes were free from there on, all of them inside the mapping.
        self.free = unsafe { start.add(taken) };
        self.num_free -= taken;
        WeightBuffer { start, len, _map: Arc::clone(&self.map) }
    }
}

impl WeightBuffer {
    /// Returns the bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: the bytes are mapped while `_map` lives, initialised by the system, and this
        // buffer's own, so that nobody writes them while it is borrowed.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    /// Returns the bytes for writing.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`; the buffer is borrowed mutably, so nobody reads them either.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_apart_zeroed_and_on_cache_lines() {
        let memory = WeightMemory::default();
        let lengths = [1, 0, 63, 64, 65, 300_001, STRETCH_BYTES - 4096, 100, STRETCH_BYTES + 1, 7];
        let mut buffers: Vec<_> =
            lengths.iter().map(|len| memory.take(*len).expect("address space")).collect();
        for (i, buffer) in (1..).zip(&mut buffers) {
            assert!(buffer.bytes().iter().all(|byte| *byte == 0), "{} bytes", buffer.len);
            buffer.bytes_mut().fill(i);
        }
        for ((i, buffer), len) in (1..).zip(&buffers).zip(lengths) {
            assert_eq!(buffer.bytes().len(), len);
            assert!(buffer.bytes().as_ptr().addr().is_multiple_of(CACHE_LINE));
            assert!(buffer.bytes().iter().all(|byte| *byte == i), "{len} bytes");
        }
    }

    #[test]
    fn small_buffers_share_a_stretch_that_begins_on_a_huge_page() {
        let memory = WeightMemory::default();
        let [first, second] = [100, 300].map(|len| memory.take(len).expect("address space"));
        assert!(first.bytes().as_ptr().addr().is_multiple_of(HUGE_PAGE_BYTES));
        assert_eq!(second.bytes().as_ptr().addr(), first.bytes().as_ptr().addr() + 128);
        // A large one leaves what is free of the stretch before.
        let large = memory.take(STRETCH_BYTES).expect("address space");
        let third = memory.take(1).expect("address space");
        assert!(large.bytes().as_ptr().addr().is_multiple_of(HUGE_PAGE_BYTES));
        assert_eq!(third.bytes().as_ptr().addr(), second.bytes().as_ptr().addr() + 320);
    }

    #[test]
    fn memory_is_unmapped_with_the_last_that_has_some() {
        let memory = WeightMemory::default();
        let [first, second] = [100, 300].map(|len| memory.take(len).expect("address space"));
        let map = Arc::downgrade(&first._map);
        drop((memory, first));
        assert!(map.upgrade().is_some(), "the second lies there");
        drop(second);
        assert!(map.upgrade().is_none());
    }
}
