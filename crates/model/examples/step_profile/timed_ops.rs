//! Operations that count their own time.

use mini_infer_core::{Batch, BlockId, KvPart, TokenId};
use mini_infer_kernels::{Int4Columns, Int4Error, QuantizeError, QuantizedType, ReleaseBytes};
use mini_infer_model::ModelError;
use mini_infer_model::ops::{
    Activation, AttentionGeometry, HeadWeights, Ops, ResidualNorms, RowTargets,
};
use mini_infer_model::rope::RopeTable;
use mini_infer_model::weights::TensorView;
use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Runs the operations of `O` and adds up the time that each kind takes.
pub(crate) struct TimedOps<O> {
    inner: O,
    times: Times,
}

/// What each kind took, in the order of first use.
pub(crate) type Times = Rc<RefCell<Vec<Entry>>>;

/// The time of one kind.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub(crate) kind: Kind,
    pub(crate) num_calls: u32,
    pub(crate) time: Duration,
}

/// What time is spent on; products are told apart by their shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// An operation that has only one shape in a step.
    Named(&'static str),
    /// A product with weights `[out_features, in_features]`.
    Product(Product),
}

/// A product with a weight matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Product {
    pub(crate) in_features: usize,
    pub(crate) out_features: usize,
    /// Bytes of the weights in the checkpoint.
    pub(crate) num_bytes: usize,
}

impl<O> TimedOps<O> {
    /// Counts the time of `inner` in `times`.
    pub(crate) fn new(inner: O, times: Times) -> Self {
        Self { inner, times }
    }

    fn time<T>(&self, kind: Kind, run: impl FnOnce(&O) -> T) -> T {
        let started = Instant::now();
        let result = run(&self.inner);
        let elapsed = started.elapsed();
        let mut times = self.times.borrow_mut();
        match times.iter_mut().find(|entry| entry.kind == kind) {
            Some(entry) => {
                entry.num_calls += 1;
                entry.time += elapsed;
            }
            None => times.push(Entry { kind, num_calls: 1, time: elapsed }),
        }
        result
    }
}

/// A matrix that remembers its shape.
pub(crate) struct ShapedMatrix<M> {
    inner: M,
    product: Product,
}

impl<O: Ops> Ops for TimedOps<O> {
    type Buffer = O::Buffer;
    type Matrix = ShapedMatrix<O::Matrix>;
    type Vector = O::Vector;
    type QkvBias = O::QkvBias;
    type Kv = O::Kv;

    fn matrix(
        &self,
        parts: &[TensorView<'_>],
        release: &ReleaseBytes<'_>,
    ) -> Result<Self::Matrix, ModelError> {
        let product = Product {
            in_features: parts[0].in_features(),
            out_features: parts.iter().map(TensorView::out_features).sum(),
            num_bytes: parts.iter().map(TensorView::num_stored_bytes).sum(),
        };
        Ok(ShapedMatrix { inner: self.inner.matrix(parts, release)?, product })
    }

    fn quantize(
        &self,
        tensor: &TensorView<'_>,
        to: QuantizedType,
        release: &ReleaseBytes<'_>,
    ) -> Result<Vec<u8>, QuantizeError> {
        self.inner.quantize(tensor, to, release)
    }

    fn int4_rows(
        &self,
        columns: &Int4Columns<'_>,
        outputs: Range<usize>,
    ) -> Result<Vec<u8>, Int4Error> {
        self.inner.int4_rows(columns, outputs)
    }

    fn vector(&self, weights: Vec<f32>) -> Self::Vector {
        self.inner.vector(weights)
    }

    fn qkv_biases(
        &self,
        layers: &[[TensorView<'_>; 3]],
        geometry: &AttentionGeometry,
        rope: &RopeTable,
    ) -> Vec<O::QkvBias> {
        self.inner.qkv_biases(layers, geometry, rope)
    }

    fn check_attention(&self, geometry: &AttentionGeometry) -> Result<(), ModelError> {
        self.inner.check_attention(geometry)
    }

    fn buffer(&self) -> Self::Buffer {
        self.inner.buffer()
    }

    fn embed(&self, table: &Self::Matrix, tokens: &[TokenId], out: &mut Self::Buffer) {
        self.time(Kind::Named("embed"), |ops| ops.embed(&table.inner, tokens, out));
    }

    fn rms_norm(&self, x: &O::Buffer, weight: &O::Vector, epsilon: f32, out: &mut O::Buffer) {
        self.time(Kind::Named("norms"), |ops| ops.rms_norm(x, weight, epsilon, out));
    }

    fn matmul(&self, x: &Self::Buffer, w: &Self::Matrix, out: &mut Self::Buffer) {
        self.time(Kind::Product(w.product), |ops| ops.matmul(x, &w.inner, out));
    }

    fn add_and_norm(
        &self,
        x: &O::Buffer,
        sum: &mut O::Buffer,
        norms: ResidualNorms<'_, O::Vector>,
        out: &mut O::Buffer,
    ) {
        self.time(Kind::Named("residual adds and norms"), |ops| {
            ops.add_and_norm(x, sum, norms, out)
        });
    }

    fn scale(&self, x: &mut Self::Buffer, factor: f32) {
        self.time(Kind::Named("embedding scale"), |ops| ops.scale(x, factor));
    }

    fn prepare_and_store_kv(
        &self,
        qkv: &mut Self::Buffer,
        geometry: &AttentionGeometry,
        heads: HeadWeights<'_, O::QkvBias, O::Vector>,
        rope: &RopeTable,
        layer: usize,
        batch: &Batch,
        kv: &mut Self::Kv,
    ) {
        self.time(Kind::Named("RoPE and KV writes"), |ops| {
            ops.prepare_and_store_kv(qkv, geometry, heads, rope, layer, batch, kv);
        });
    }

    fn attention(
        &self,
        qkv: &Self::Buffer,
        geometry: &AttentionGeometry,
        bias: Option<&O::QkvBias>,
        layer: usize,
        batch: &Batch,
        kv: &Self::Kv,
        out: &mut Self::Buffer,
    ) {
        self.time(Kind::Named("attention"), |ops| {
            ops.attention(qkv, geometry, bias, layer, batch, kv, out);
        });
    }

    fn gated_activation(
        &self,
        gate_up: &Self::Buffer,
        activation: Activation,
        out: &mut Self::Buffer,
    ) {
        self.time(Kind::Named("gated activation"), |ops| {
            ops.gated_activation(gate_up, activation, out);
        });
    }

    fn zeros_like(&self, x: &Self::Buffer, out: &mut Self::Buffer) {
        self.time(Kind::Named("sums of experts"), |ops| ops.zeros_like(x, out));
    }

    fn add_rows(&self, x: &O::Buffer, to: RowTargets<'_>, out: &mut O::Buffer) {
        let name = if to.factors.is_some() { "sums of experts" } else { "adapters" };
        self.time(Kind::Named(name), |ops| ops.add_rows(x, to, out));
    }

    fn soft_cap(&self, values: &mut [f32], cap: f32) {
        self.time(Kind::Named("soft cap"), |ops| ops.soft_cap(values, cap));
    }

    fn gather_rows(&self, x: &Self::Buffer, rows: &[u32], out: &mut Self::Buffer) {
        self.time(Kind::Named("gather rows"), |ops| ops.gather_rows(x, rows, out));
    }

    fn matmul_to_host(&self, x: &Self::Buffer, w: &Self::Matrix, out: &mut Vec<f32>) {
        self.time(Kind::Product(w.product), |ops| ops.matmul_to_host(x, &w.inner, out));
    }

    fn read(&self, x: &Self::Buffer, out: &mut Vec<f32>) {
        self.inner.read(x, out);
    }

    fn block_bytes(&self, kv: &Self::Kv) -> usize {
        self.inner.block_bytes(kv)
    }

    fn copy_block(&self, kv: &mut Self::Kv, from: BlockId, to: BlockId) {
        self.inner.copy_block(kv, from, to);
    }

    fn export_block<'a>(
        &self,
        kv: &'a Self::Kv,
        block: BlockId,
        scratch: &'a mut Vec<u8>,
    ) -> &'a [u8] {
        self.inner.export_block(kv, block, scratch)
    }

    fn import_block(&self, kv: &mut Self::Kv, block: BlockId, bytes: &[u8]) {
        self.inner.import_block(kv, block, bytes);
    }

    fn discard(&self, kv: &mut Self::Kv, part: KvPart, first: BlockId, num_blocks: u32) {
        self.inner.discard(kv, part, first, num_blocks);
    }
}
