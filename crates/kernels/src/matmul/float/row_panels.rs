//! Activations in panels: blocks of rows with the values of one input feature side by side.
//!
//! A kernel then reads straight ahead, whatever the width of a row. The rows are cut into as few
//! blocks as the instruction set allows, as even as possible, so that no block is much slower for
//! each row than another.

use crate::row_view::RowView;
use crate::thread_pool::ThreadPool;
use std::ops::Range;

/// Input features that are moved together: a piece of a panel that stays in the nearest cache.
const PIECE: usize = 64;
/// Side of the squares that are turned in registers.
const SIDE: usize = 4;
/// Rows up to which the calling thread packs alone.
const MAX_ROWS_ALONE: usize = 16;

/// Rows of activations, `[num_blocks, in_features, rows of the block]`.
///
/// The memory is reused from product to product.
#[derive(Debug, Default)]
pub(crate) struct RowPanels {
    in_features: usize,
    num_rows: usize,
    num_blocks: usize,
    values: Vec<f32>,
}

impl RowPanels {
    /// Replaces the content with the rows of `x`, `[num_rows, in_features]`, in blocks of at most
    /// `max_rows`.
    pub(super) fn pack(
        &mut self,
        pool: &ThreadPool,
        x: &[f32],
        in_features: usize,
        max_rows: usize,
    ) {
        self.in_features = in_features;
        self.num_rows = x.len() / in_features;
        self.num_blocks = self.num_rows.div_ceil(max_rows);
        let mut values = std::mem::take(&mut self.values);
        if values.len() < x.len() {
            values.resize(x.len(), 0.0);
        }
        let panels = RowView::new(&mut values[..x.len()], x.len());
        let pack = |block: usize| {
            let rows = self.rows(block);
            let range = rows.start * in_features..rows.end * in_features;
            // SAFETY: each block is packed by one call, and blocks have rows of their own.
            let panel = unsafe { panels.piece(0, range.start, range.len()) };
            pack_block(&x[range], in_features, panel);
        };
        if self.num_rows <= MAX_ROWS_ALONE {
            (0..self.num_blocks).for_each(pack);
        } else {
            pool.claim(self.num_blocks, pack);
        }
        self.values = values;
    }

    pub(super) fn in_features(&self) -> usize {
        self.in_features
    }

    /// Returns the bytes of all rows.
    pub(super) fn num_bytes(&self) -> usize {
        self.num_rows * self.in_features * size_of::<f32>()
    }

    pub(super) fn num_blocks(&self) -> usize {
        self.num_blocks
    }

    /// Returns the rows of a block.
    pub(super) fn rows(&self, block: usize) -> Range<usize> {
        let start = |block| self.num_rows * block / self.num_blocks;
        start(block)..start(block + 1)
    }

    /// Returns the values of a block, `[in_features, rows of the block]`.
    pub(super) fn panel(&self, block: usize) -> &[f32] {
        let rows = self.rows(block);
        &self.values[rows.start * self.in_features..rows.end * self.in_features]
    }
}

fn pack_block(x: &[f32], in_features: usize, panel: &mut [f32]) {
    let num_rows = x.len() / in_features;
    for (piece, panel) in panel.chunks_mut(PIECE * num_rows).enumerate() {
        let len = panel.len() / num_rows;
        let from = |row: usize| &x[row * in_features + piece * PIECE..][..len];
        let squares = num_rows / SIDE * SIDE;
        for row in (0..squares).step_by(SIDE) {
            pack_square_rows(std::array::from_fn(|i| from(row + i)), &mut panel[row..], num_rows);
        }
        for row in squares..num_rows {
            for (panel, from) in panel[row..].iter_mut().step_by(num_rows).zip(from(row)) {
                *panel = *from;
            }
        }
    }
}

/// Moves [`SIDE`] rows to the first places of a panel, in squares that are turned in registers.
fn pack_square_rows(rows: [&[f32]; SIDE], panel: &mut [f32], num_rows: usize) {
    let len = rows[0].len();
    let squares = len / SIDE * SIDE;
    for k in (0..squares).step_by(SIDE) {
        let square: [[f32; SIDE]; SIDE] =
            rows.map(|row| row[k..k + SIDE].try_into().expect("a side long"));
        for i in 0..SIDE {
            let column: [f32; SIDE] = std::array::from_fn(|r| square[r][i]);
            panel[(k + i) * num_rows..][..SIDE].copy_from_slice(&column);
        }
    }
    for k in squares..len {
        let column: [f32; SIDE] = std::array::from_fn(|r| rows[r][k]);
        panel[k * num_rows..][..SIDE].copy_from_slice(&column);
    }
}
