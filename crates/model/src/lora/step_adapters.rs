//! The adapters of one step: which rows each of them changes.

use super::lora_weights::LoraWeights;
use super::projection::Projection;
use crate::ops::{Ops, RowTargets};
use mini_infer_core::{Adapter, Batch};

/// The adapters of a batch, each with its rows in ascending order, on their way through the layers.
pub(crate) struct StepAdapters<'a, O: Ops> {
    groups: Vec<(&'a LoraWeights<O>, Vec<u32>)>,
    layer: usize,
    ops: &'a O,
    buffers: &'a mut AdapterBuffers<O>,
}

/// Intermediate results, kept to reuse their memory.
pub(crate) struct AdapterBuffers<O: Ops> {
    /// Rows of the input that an adapter changes, `[num_rows, in_features]`.
    input: O::Buffer,
    /// `[num_rows, rank]`.
    low: O::Buffer,
    /// `[num_rows, out_features]`.
    delta: O::Buffer,
}

impl<O: Ops> AdapterBuffers<O> {
    pub(crate) fn new(ops: &O) -> Self {
        Self { input: ops.buffer(), low: ops.buffer(), delta: ops.buffer() }
    }
}

impl<'a, O: Ops> StepAdapters<'a, O> {
    /// Finds the adapters of a batch.
    ///
    /// # Panics
    /// When one was made for another kind of executor.
    pub(crate) fn of(batch: &'a Batch, ops: &'a O, buffers: &'a mut AdapterBuffers<O>) -> Self {
        let mut found: Vec<(&Adapter, Vec<u32>)> = Vec::new();
        for (i, adapter) in batch.adapters.iter().enumerate() {
            let Some(adapter) = adapter else { continue };
            let rows = batch.query_start_loc[i]..batch.query_start_loc[i + 1];
            match found.iter_mut().find(|(known, _)| *known == adapter) {
                Some((_, group)) => group.extend(rows),
                None => found.push((adapter, rows.collect())),
            }
        }
        let weights = |adapter: &'a Adapter| -> &'a LoraWeights<O> {
            adapter.weights().expect("an adapter of this model's device")
        };
        let groups = found.into_iter().map(|(adapter, rows)| (weights(adapter), rows)).collect();
        Self { groups, layer: 0, ops, buffers }
    }

    /// Goes to a layer.
    pub(crate) fn enter_layer(&mut self, layer: usize) {
        self.layer = layer;
    }

    /// Adds what the adapters add to some `projections` of the layer, which were computed from `x`
    /// into `out`.
    pub(crate) fn add(&mut self, projections: &[Projection], x: &O::Buffer, out: &mut O::Buffer) {
        let Self { groups, layer, ops, buffers: b } = self;
        for (weights, rows) in groups {
            let changes = weights.layer(*layer).iter();
            let mut changes =
                changes.filter(|change| projections.contains(&change.projection)).peekable();
            if changes.peek().is_none() || rows.is_empty() {
                continue;
            }
            ops.gather_rows(x, rows, &mut b.input);
            for change in changes {
                ops.matmul(&b.input, &change.a, &mut b.low);
                ops.matmul(&b.low, &change.b, &mut b.delta);
                let first_column = change.first_column;
                ops.add_rows(&b.delta, RowTargets { rows, factors: None, first_column }, out);
            }
        }
    }

    /// Goes on with only these rows of the batch, ascending, as its rows `0..`.
    pub(crate) fn select(&mut self, kept: &[u32]) {
        for (_, rows) in &mut self.groups {
            let new = rows.iter().filter_map(|row| kept.binary_search(row).ok());
            *rows = new.map(|row| u32::try_from(row).expect("rows are 32 bits wide")).collect();
        }
    }
}
