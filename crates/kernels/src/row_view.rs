//! A matrix that several threads write, each its own part.
//!
//! [`RowView`] borrows a row-major matrix mutably for its whole life and hands out writable pieces
//! of rows from shared references. The borrow checker cannot see that two threads never ask for
//! the same piece; the caller of [`RowView::piece`] promises it.

use std::marker::PhantomData;

/// A mutable row-major matrix `[num_rows, width]`, shared between threads.
#[derive(Debug)]
pub(crate) struct RowView<'a, T> {
    start: *mut T,
    num_rows: usize,
    width: usize,
    borrow: PhantomData<&'a mut [T]>,
}

// SAFETY: the view is a mutable borrow of the elements; sharing it gives other threads access to
// them only through `piece`, whose contract keeps accesses disjoint. `T: Send` lets another thread
// write elements.
unsafe impl<T: Send> Sync for RowView<'_, T> {}

impl<'a, T> RowView<'a, T> {
    /// Borrows `data` as rows of `width`.
    ///
    /// # Panics
    /// When `data` is not a whole number of rows.
    pub(crate) fn new(data: &'a mut [T], width: usize) -> Self {
        assert!(width > 0 && data.len().is_multiple_of(width), "data is whole rows");
        Self { start: data.as_mut_ptr(), num_rows: data.len() / width, width, borrow: PhantomData }
    }

    /// Returns `len` elements of `row` from `first` on.
    ///
    /// # Panics
    /// When the piece lies outside the row.
    ///
    /// # Safety
    /// While the returned piece lives, no other piece that shares an element with it may exist.
    #[expect(clippy::mut_from_ref, reason = "disjointness is the caller's promise")]
    pub(crate) unsafe fn piece(&self, row: usize, first: usize, len: usize) -> &mut [T] {
        assert!(row < self.num_rows && first <= self.width && len <= self.width - first);
        // SAFETY: the assertion keeps the offset inside the borrowed slice.
        let start = unsafe { self.start.add(row * self.width + first) };
        // SAFETY: `start..start + len` lies inside one row of the slice borrowed for `'a`; the
        // caller promises that nobody else holds any of these elements.
        unsafe { std::slice::from_raw_parts_mut(start, len) }
    }
}
