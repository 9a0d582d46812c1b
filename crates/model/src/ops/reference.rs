//! The ops in plain f32: what every device must compute, up to rounding.
//!
//! Weights are dequantised when loaded and KV is stored as f32, so the only difference to exact
//! arithmetic is f32 rounding. Sums run in a fixed number of lanes that are joined in a fixed
//! order, which lets the compiler vectorise them and keeps a row's result independent of how rows
//! and features are split between threads. A 135-million-parameter model reads 2,000 tokens in
//! seconds to tens of seconds on two cores: enough to judge a fast path by.

use super::{Activation, AttentionGeometry, HeadWeights, Ops, ResidualNorms, RowTargets};
use crate::config::ModelConfig;
use crate::error::ModelError;
use crate::rope::RopeTable;
use crate::weights::TensorView;
use mini_infer_core::{Batch, BlockId, BlockSize, KvPart, TokenId};
use mini_infer_kernels::{
    Int4Columns, Int4Error, QuantizeError, QuantizedType, ReleaseBytes, ThreadPool, quantize,
};
use std::num::NonZeroUsize;
use std::ops::Range;

/// Partial sums that a dot product keeps.
const LANES: usize = 16;
/// Rows that share one pass over a weight matrix, so that weights are read from memory once for
/// all of them; their inputs together still fit the second-level cache.
const ROW_TILE: usize = 32;
/// Features of a single row that one thread takes at a time.
const FEATURE_TILE: usize = 256;
/// Multiplications below which starting a thread costs more than it saves.
const LEAST_PARALLEL_WORK: usize = 1 << 20;

/// Naive ops on the host.
#[derive(Clone, Copy, Debug)]
pub struct ReferenceOps {
    num_threads: usize,
}

/// Activations `[rows, width]`, row-major.
#[derive(Clone, Debug, Default)]
pub struct ReferenceBuffer {
    width: usize,
    values: Vec<f32>,
}

/// A dequantised matrix, `[out_features, in_features]`, row-major.
#[derive(Clone, Debug)]
pub struct ReferenceMatrix {
    in_features: usize,
    weights: Vec<f32>,
}

/// Keys and values as f32, each `[num_layers, num_slots, kv_width]`.
#[derive(Clone, Debug)]
pub struct ReferenceKv {
    block_size: BlockSize,
    num_slots: usize,
    kv_width: usize,
    keys: Vec<f32>,
    values: Vec<f32>,
}

impl ReferenceOps {
    /// Returns ops that split large operations between `num_threads` threads, at least one.
    #[must_use]
    pub fn new(num_threads: usize) -> Self {
        Self { num_threads: num_threads.max(1) }
    }
}

impl ReferenceBuffer {
    fn rows(&self) -> usize {
        self.values.len() / self.width
    }

    fn row(&self, i: usize) -> &[f32] {
        &self.values[i * self.width..][..self.width]
    }

    fn each_row(&self) -> std::slice::ChunksExact<'_, f32> {
        self.values.chunks_exact(self.width)
    }

    /// Gives the buffer a shape and fills it with zeros.
    fn reset(&mut self, rows: usize, width: usize) {
        self.width = width;
        self.values.clear();
        self.values.resize(rows * width, 0.0);
    }
}

impl ReferenceMatrix {
    fn out_features(&self) -> usize {
        self.weights.len() / self.in_features
    }

    fn row(&self, i: usize) -> &[f32] {
        &self.weights[i * self.in_features..][..self.in_features]
    }
}

impl ReferenceKv {
    /// Returns storage for `num_blocks` blocks of a model.
    #[must_use]
    pub fn new(config: &ModelConfig, num_blocks: usize, block_size: BlockSize) -> Self {
        let num_slots = num_blocks * block_size.tokens() as usize;
        let kv_width = config.attention.kv_width();
        let len = config.num_layers * num_slots * kv_width;
        Self { block_size, num_slots, kv_width, keys: vec![0.0; len], values: vec![0.0; len] }
    }

    /// Returns where a slot's numbers of one layer begin.
    fn start(&self, layer: usize, slot: usize) -> usize {
        debug_assert!(slot < self.num_slots);
        (layer * self.num_slots + slot) * self.kv_width
    }

    /// Returns where the numbers of the token at `position` of a sequence begin.
    fn start_of(&self, layer: usize, block_table: &[BlockId], position: usize) -> usize {
        let tokens = self.block_size.tokens() as usize;
        self.start(layer, block_table[position / tokens].index() * tokens + position % tokens)
    }

    /// Returns where the numbers of a block lie in `keys` and `values`, layer by layer.
    fn stretches(&self, block: BlockId) -> impl Iterator<Item = Range<usize>> + use<> {
        let len = self.block_size.tokens() as usize * self.kv_width;
        let layer_len = self.num_slots * self.kv_width;
        let first = block.index() * len;
        assert!(first + len <= layer_len, "{block:?} of {} slots", self.num_slots);
        (first..self.keys.len()).step_by(layer_len).map(move |start| start..start + len)
    }
}

impl Ops for ReferenceOps {
    type Buffer = ReferenceBuffer;
    type Matrix = ReferenceMatrix;
    type Vector = Vec<f32>;
    /// `[qkv_width]`
    type QkvBias = Vec<f32>;
    type Kv = ReferenceKv;

    fn matrix(
        &self,
        parts: &[TensorView<'_>],
        _: &ReleaseBytes<'_>,
    ) -> Result<ReferenceMatrix, ModelError> {
        let in_features = parts[0].in_features();
        let mut weights = Vec::new();
        for part in parts {
            if part.shape.len() != 2 || part.in_features() != in_features {
                return Err(ModelError::TensorShape {
                    tensor: part.name.to_owned(),
                    got: part.shape.to_vec(),
                    expected: vec![part.out_features(), in_features],
                });
            }
            weights.extend(part.to_f32());
        }
        Ok(ReferenceMatrix { in_features, weights })
    }

    fn quantize(
        &self,
        tensor: &TensorView<'_>,
        to: QuantizedType,
        release: &ReleaseBytes<'_>,
    ) -> Result<Vec<u8>, QuantizeError> {
        quantize(&ThreadPool::new(NonZeroUsize::MIN), &tensor.rows(), to, release)
    }

    fn int4_rows(
        &self,
        columns: &Int4Columns<'_>,
        outputs: Range<usize>,
    ) -> Result<Vec<u8>, Int4Error> {
        columns.to_rows(&ThreadPool::new(NonZeroUsize::MIN), outputs)
    }

    fn vector(&self, weights: Vec<f32>) -> Vec<f32> {
        weights
    }

    fn qkv_biases(
        &self,
        layers: &[[TensorView<'_>; 3]],
        _: &AttentionGeometry,
        _: &RopeTable,
    ) -> Vec<Vec<f32>> {
        layers.iter().map(|parts| parts.iter().flat_map(TensorView::to_f32).collect()).collect()
    }

    fn check_attention(&self, _: &AttentionGeometry) -> Result<(), ModelError> {
        Ok(())
    }

    fn buffer(&self) -> ReferenceBuffer {
        ReferenceBuffer::default()
    }

    fn embed(&self, table: &ReferenceMatrix, tokens: &[TokenId], out: &mut ReferenceBuffer) {
        out.reset(tokens.len(), table.in_features);
        for (row, token) in out.values.chunks_exact_mut(table.in_features).zip(tokens) {
            row.copy_from_slice(table.row(*token as usize));
        }
    }

    fn rms_norm(
        &self,
        x: &ReferenceBuffer,
        weight: &Vec<f32>,
        epsilon: f32,
        out: &mut ReferenceBuffer,
    ) {
        assert_eq!(x.width, weight.len());
        out.reset(x.rows(), x.width);
        out.values.copy_from_slice(&x.values);
        for row in out.values.chunks_exact_mut(x.width) {
            normalise(row, weight, epsilon);
        }
    }

    fn matmul(&self, x: &ReferenceBuffer, w: &ReferenceMatrix, out: &mut ReferenceBuffer) {
        assert_eq!(x.width, w.in_features);
        let (rows, out_features) = (x.rows(), w.out_features());
        out.reset(rows, out_features);
        let work = rows * w.weights.len();
        if rows == 1 {
            self.split(&mut out.values, FEATURE_TILE, work, |tile, out| {
                for (i, out) in out.iter_mut().enumerate() {
                    *out = dot(&x.values, w.row(tile * FEATURE_TILE + i));
                }
            });
            return;
        }
        self.split(&mut out.values, ROW_TILE * out_features, work, |tile, out| {
            for feature in 0..out_features {
                let weights = w.row(feature);
                for (i, out) in out.chunks_exact_mut(out_features).enumerate() {
                    out[feature] = dot(x.row(tile * ROW_TILE + i), weights);
                }
            }
        });
    }

    fn add_and_norm(
        &self,
        x: &ReferenceBuffer,
        sum: &mut ReferenceBuffer,
        norms: ResidualNorms<'_, Vec<f32>>,
        out: &mut ReferenceBuffer,
    ) {
        assert_eq!((x.width, x.values.len()), (sum.width, sum.values.len()));
        let mut x = x.values.clone();
        if let Some(weight) = norms.added {
            for row in x.chunks_exact_mut(sum.width) {
                normalise(row, weight, norms.epsilon);
            }
        }
        for (sum, x) in sum.values.iter_mut().zip(&x) {
            *sum += x;
        }
        self.rms_norm(sum, norms.sum, norms.epsilon, out);
    }

    fn scale(&self, x: &mut ReferenceBuffer, factor: f32) {
        for x in &mut x.values {
            *x *= factor;
        }
    }

    fn prepare_and_store_kv(
        &self,
        qkv: &mut ReferenceBuffer,
        geometry: &AttentionGeometry,
        weights: HeadWeights<'_, Vec<f32>, Vec<f32>>,
        rope: &RopeTable,
        layer: usize,
        batch: &Batch,
        kv: &mut ReferenceKv,
    ) {
        assert_eq!(qkv.width, geometry.qkv_width());
        let rotated_width = geometry.query_width() + geometry.kv_width();
        let tokens = batch.positions.iter().zip(&batch.slot_mapping);
        for (row, (position, slot)) in qkv.values.chunks_exact_mut(qkv.width).zip(tokens) {
            if let Some(bias) = weights.bias {
                row.iter_mut().zip(bias).for_each(|(x, bias)| *x += bias);
            }
            let heads = row[..rotated_width].chunks_exact_mut(geometry.head_dim);
            for (index, head) in heads.enumerate() {
                if let Some(norms) = &weights.norms {
                    let is_query = index < geometry.num_heads;
                    let weight = if is_query { norms.query } else { norms.key };
                    normalise(head, weight, norms.epsilon);
                }
                rotate(head, rope, *position);
            }
            let start = kv.start(layer, slot.index());
            let (keys, values) = row[geometry.query_width()..].split_at(geometry.kv_width());
            kv.keys[start..][..kv.kv_width].copy_from_slice(keys);
            kv.values[start..][..kv.kv_width].copy_from_slice(values);
        }
    }

    fn attention(
        &self,
        qkv: &ReferenceBuffer,
        geometry: &AttentionGeometry,
        _: Option<&Vec<f32>>,
        layer: usize,
        batch: &Batch,
        kv: &ReferenceKv,
        out: &mut ReferenceBuffer,
    ) {
        let query_width = geometry.query_width();
        out.reset(qkv.rows(), query_width);
        let tables: Vec<_> = (0..batch.num_seqs())
            .map(|i| batch.sequence(i))
            .flat_map(|sequence| std::iter::repeat_n(sequence.block_table, sequence.num_tokens))
            .collect();
        let positions = batch.positions.iter().map(|position| *position as usize);
        let visible: Vec<_> = positions.map(|p| geometry.first_visible(p)..p + 1).collect();
        let work = 2 * query_width * visible.iter().map(ExactSizeIterator::len).sum::<usize>();
        self.split(&mut out.values, query_width, work, |row, out| {
            let positions = visible[row].clone();
            let starts: Vec<_> =
                positions.map(|position| kv.start_of(layer, tables[row], position)).collect();
            attend(&qkv.row(row)[..query_width], geometry, kv, &starts, out);
        });
    }

    fn gated_activation(
        &self,
        gate_up: &ReferenceBuffer,
        activation: Activation,
        out: &mut ReferenceBuffer,
    ) {
        let width = gate_up.width / 2;
        out.reset(gate_up.rows(), width);
        for (row, out) in gate_up.each_row().zip(out.values.chunks_exact_mut(width)) {
            let (gates, ups) = row.split_at(width);
            for ((out, gate), up) in out.iter_mut().zip(gates).zip(ups) {
                *out = activate(*gate, activation) * up;
            }
        }
    }

    fn gather_rows(&self, x: &ReferenceBuffer, rows: &[u32], out: &mut ReferenceBuffer) {
        out.reset(rows.len(), x.width);
        for (out, row) in out.values.chunks_exact_mut(x.width).zip(rows) {
            out.copy_from_slice(x.row(*row as usize));
        }
    }

    fn zeros_like(&self, x: &ReferenceBuffer, out: &mut ReferenceBuffer) {
        out.reset(x.rows(), x.width);
    }

    fn add_rows(&self, x: &ReferenceBuffer, to: RowTargets<'_>, out: &mut ReferenceBuffer) {
        let places = to.places([x.rows(), x.width], out.width);
        for (x, (place, factor)) in x.each_row().zip(places) {
            out.values[place].iter_mut().zip(x).for_each(|(sum, x)| *sum += factor * x);
        }
    }

    fn soft_cap(&self, values: &mut [f32], cap: f32) {
        values.iter_mut().for_each(|value| *value = cap * (*value / cap).tanh());
    }

    fn matmul_to_host(&self, x: &ReferenceBuffer, w: &ReferenceMatrix, out: &mut Vec<f32>) {
        let mut product = ReferenceBuffer::default();
        self.matmul(x, w, &mut product);
        *out = product.values;
    }

    fn read(&self, x: &ReferenceBuffer, out: &mut Vec<f32>) {
        out.clone_from(&x.values);
    }

    fn block_bytes(&self, kv: &ReferenceKv) -> usize {
        let floats: usize = kv.stretches(BlockId(0)).map(|stretch| 2 * stretch.len()).sum();
        floats * size_of::<f32>()
    }

    fn copy_block(&self, kv: &mut ReferenceKv, from: BlockId, to: BlockId) {
        for (from, to) in kv.stretches(from).zip(kv.stretches(to)) {
            kv.keys.copy_within(from.clone(), to.start);
            kv.values.copy_within(from, to.start);
        }
    }

    fn export_block<'a>(
        &self,
        kv: &'a ReferenceKv,
        block: BlockId,
        scratch: &'a mut Vec<u8>,
    ) -> &'a [u8] {
        scratch.clear();
        for stretch in kv.stretches(block) {
            let floats = kv.keys[stretch.clone()].iter().chain(&kv.values[stretch]);
            scratch.extend(floats.flat_map(|x| x.to_le_bytes()));
        }
        scratch
    }

    fn import_block(&self, kv: &mut ReferenceKv, block: BlockId, bytes: &[u8]) {
        assert_eq!(bytes.len(), self.block_bytes(kv));
        let mut floats = bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
        for stretch in kv.stretches(block) {
            let places = kv.keys[stretch.clone()].iter_mut().chain(&mut kv.values[stretch]);
            places.zip(&mut floats).for_each(|(place, x)| *place = x);
        }
    }

    /// Does nothing: plain vectors keep their memory.
    fn discard(&self, _kv: &mut ReferenceKv, _part: KvPart, _first: BlockId, _num_blocks: u32) {}
}

impl ReferenceOps {
    /// Calls `compute` with each piece of `out` and its index; pieces have `piece_len` values, the
    /// last perhaps fewer. Neighbours go to different threads, because later rows attend to more.
    fn split(
        &self,
        out: &mut [f32],
        piece_len: usize,
        work: usize,
        compute: impl Fn(usize, &mut [f32]) + Sync,
    ) {
        let pieces = out.chunks_mut(piece_len).enumerate();
        if self.num_threads == 1 || work < LEAST_PARALLEL_WORK {
            pieces.for_each(|(i, piece)| compute(i, piece));
            return;
        }
        let mut shares: Vec<_> = (0..self.num_threads).map(|_| Vec::new()).collect();
        pieces.for_each(|(i, piece)| shares[i % self.num_threads].push((i, piece)));
        std::thread::scope(|scope| {
            for share in shares {
                scope.spawn(|| share.into_iter().for_each(|(i, piece)| compute(i, piece)));
            }
        });
    }
}

/// Returns the sum of products in [`LANES`] partial sums.
fn dot(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    let (a_chunks, a_rest) = a.as_chunks::<LANES>();
    let (b_chunks, b_rest) = b.as_chunks::<LANES>();
    let mut lanes = [0.0; LANES];
    for (a, b) in a_chunks.iter().zip(b_chunks) {
        for lane in 0..LANES {
            lanes[lane] += a[lane] * b[lane];
        }
    }
    let rest: f32 = a_rest.iter().zip(b_rest).map(|(a, b)| a * b).sum();
    lanes.iter().sum::<f32>() + rest
}

/// Normalises one row or head.
fn normalise(x: &mut [f32], weight: &[f32], epsilon: f32) {
    assert_eq!(x.len(), weight.len());
    let mean_square = dot(x, x) / x.len() as f32;
    let factor = 1.0 / (mean_square + epsilon).sqrt();
    for (x, weight) in x.iter_mut().zip(weight) {
        *x = weight * (*x * factor);
    }
}

/// Rotates one head to its position.
fn rotate(head: &mut [f32], rope: &RopeTable, position: u32) {
    let angles = rope.cos(position).iter().zip(rope.sin(position));
    for (i, (cos, sin)) in angles.enumerate() {
        let (a, b) = rope.pair(i);
        let (x, y) = (head[a], head[b]);
        head[a] = x * cos - y * sin;
        head[b] = x * sin + y * cos;
    }
}

/// Attends the query heads of one token to the keys and values that begin at `starts`, in order.
fn attend(
    query: &[f32],
    geometry: &AttentionGeometry,
    kv: &ReferenceKv,
    starts: &[usize],
    out: &mut [f32],
) {
    let head_dim = geometry.head_dim;
    let group = geometry.num_heads / geometry.num_kv_heads;
    let mut weights = vec![0.0; starts.len()];
    let heads = query.chunks_exact(head_dim).zip(out.chunks_exact_mut(head_dim));
    for (head, (query, out)) in heads.enumerate() {
        let head_start = head / group * head_dim;
        for (weight, start) in weights.iter_mut().zip(starts) {
            let key = &kv.keys[start + head_start..][..head_dim];
            *weight = dot(query, key) * geometry.scale;
            if let Some(cap) = geometry.soft_cap {
                *weight = cap * (*weight / cap).tanh();
            }
        }
        softmax(&mut weights);
        for (weight, start) in weights.iter().zip(starts) {
            let value = &kv.values[start + head_start..][..head_dim];
            for (out, value) in out.iter_mut().zip(value) {
                *out += weight * value;
            }
        }
    }
}

/// Turns scores into probabilities; subtracting the largest keeps `exp` from overflowing.
fn softmax(scores: &mut [f32]) {
    let largest = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut sum = 0.0;
    for score in scores.iter_mut() {
        *score = (*score - largest).exp();
        sum += *score;
    }
    for score in scores.iter_mut() {
        *score /= sum;
    }
}

/// Applies a nonlinearity to one number.
fn activate(x: f32, activation: Activation) -> f32 {
    match activation {
        Activation::Silu => x / (1.0 + (-x).exp()),
        Activation::GeluTanh => {
            let inner = (2.0 / std::f32::consts::PI).sqrt() * (x + 0.044_715 * x * x * x);
            0.5 * x * (1.0 + inner.tanh())
        }
    }
}
