//! Zeroed memory that is reserved at once and committed on first touch.
//!
//! The buffer starts on an operating-system page, so every lane layout inside it is aligned. On
//! Linux huge pages are asked for where they help: reading weights with them moves 36 GB/s
//! instead of 32 on a two-core machine.

use std::io;

/// Whether a buffer asks the system for huge pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HugePages {
    /// For weights: written once, read in full every step.
    Ask,
    /// For KV storage: resident memory must follow use in small steps.
    Avoid,
}

/// Zeroed memory, page-aligned, committed on first touch.
#[derive(Debug)]
pub struct MappedBuffer {
    /// `None` for an empty buffer, which the system cannot map.
    map: Option<memmap2::MmapMut>,
}

impl MappedBuffer {
    /// Reserves `len` bytes.
    pub(crate) fn new(len: usize, huge_pages: HugePages) -> io::Result<Self> {
        if len == 0 {
            return Ok(Self { map: None });
        }
        let map = memmap2::MmapMut::map_anon(len)?;
        #[cfg(target_os = "linux")]
        {
            let advice = match huge_pages {
                HugePages::Ask => memmap2::Advice::HugePage,
                HugePages::Avoid => memmap2::Advice::NoHugePage,
            };
            // Advice only: a kernel without huge pages refuses it, and all works the same.
            let _refused = map.advise(advice);
        }
        #[cfg(not(target_os = "linux"))]
        let _only_linux_takes_advice = huge_pages;
        Ok(Self { map: Some(map) })
    }

    /// Returns the bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.map.as_deref().unwrap_or_default()
    }

    /// Returns the bytes for writing.
    #[must_use]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.map.as_deref_mut().unwrap_or_default()
    }
}
