//! The ops on the CPU's fast kernels, computing on the checkpoint's quantised weights.
//!
//! Weights are packed when loaded, activations are quantised for each product, and keys and
//! values live in paged storage in their stored form. Numbers differ from [`super::reference`] by
//! the rounding of activations to int8 and of KV to its stored form; they are the same on every
//! instruction set.

use super::{Activation, AttentionGeometry, HeadWeights, Ops, ResidualNorms, RowTargets};
use crate::error::ModelError;
use crate::rope::{RopeStyle, RopeTable};
use crate::weights::TensorView;
use mini_infer_core::{Batch, BlockId, KvPart, TokenId};
use mini_infer_kernels::{
    AddAndNorm, AlignedFloats, AttentionShape, HeadNorms, Int4Columns, Int4Error, Isa, KeyOffset,
    KvStorage, OffsetPair, PackError, PackedMatrix, PairTurns, QuantizeError, QuantizedRows,
    QuantizedType, ReleaseBytes, RotaryPairs, Rotation, ThreadPool, TokenHeads, TokenHeadsScratch,
    WeightMemory, add_and_norm, attention, gelu_tanh_gate, matmul, quantize, rms_norm, silu_gate,
    soft_cap,
};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::sync::Arc;

/// Fast ops on the host.
#[derive(Debug)]
pub struct CpuOps {
    isa: Isa,
    pool: ThreadPool,
    /// Where matrices lie; those of one model or adapter together.
    weight_memory: WeightMemory,
    /// Quantised activations of the product that is running; kept to reuse its memory.
    quantized: RefCell<QuantizedRows>,
    heads_scratch: RefCell<TokenHeadsScratch>,
    stored_keys: StoredKeys,
}

/// How much of keys is stored. Attention computes the same from both, up to rounding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoredKeys {
    /// All of it: fastest.
    Whole,
    /// Not the largest biases, whose products with queries are added instead: where stored forms
    /// are coarse, a large bias would take the codes from all that depends on the token.
    WithoutLargeBiases,
}

/// What one layer adds to queries, keys and values.
#[derive(Clone, Debug)]
pub struct CpuQkvBias {
    /// What is added to a row, `[qkv_width]`.
    added: Vec<f32>,
    /// What that lacks of the keys' bias.
    key_offset: Option<KeyOffset>,
}

/// Activations `[rows, width]`, row-major.
#[derive(Clone, Debug, Default)]
pub struct CpuBuffer {
    width: usize,
    values: AlignedFloats,
}

impl CpuOps {
    /// Returns ops that run on `isa` and on `num_threads` threads, the calling one included.
    #[must_use]
    pub fn new(isa: Isa, num_threads: NonZeroUsize) -> Self {
        Self {
            isa,
            pool: ThreadPool::new(num_threads),
            weight_memory: WeightMemory::default(),
            quantized: RefCell::default(),
            heads_scratch: RefCell::default(),
            stored_keys: StoredKeys::Whole,
        }
    }

    /// Chooses how much of keys is stored; for all that is loaded afterwards.
    #[must_use]
    pub fn with_stored_keys(self, stored_keys: StoredKeys) -> Self {
        Self { stored_keys, ..self }
    }

    fn multiply(&self, x: &CpuBuffer, w: &PackedMatrix, out: &mut [f32]) {
        assert_eq!(x.width, w.in_features());
        let mut quantized = self.quantized.borrow_mut();
        matmul(self.isa, &self.pool, &x.values, w, &mut quantized, out);
    }
}

impl CpuBuffer {
    fn num_rows(&self) -> usize {
        self.values.len() / self.width
    }

    /// Gives the buffer a shape; its values are those of an earlier use.
    fn reshape(&mut self, num_rows: usize, width: usize) {
        self.width = width;
        self.values.resize(num_rows * width);
    }
}

impl Ops for CpuOps {
    type Buffer = CpuBuffer;
    type Matrix = PackedMatrix;
    type Vector = Vec<f32>;
    type QkvBias = CpuQkvBias;
    type Kv = KvStorage;

    fn matrix(
        &self,
        parts: &[TensorView<'_>],
        release: &ReleaseBytes<'_>,
    ) -> Result<PackedMatrix, ModelError> {
        let rows: Vec<_> = parts.iter().map(TensorView::rows).collect();
        PackedMatrix::pack_and_release(&self.pool, &self.weight_memory, &rows, release).map_err(
            |error| match error {
                PackError::Shape { .. } => ModelError::TensorShape {
                    tensor: parts.iter().map(|part| part.name).collect::<Vec<_>>().join(" + "),
                    got: parts.iter().flat_map(|part| part.shape.iter().copied()).collect(),
                    expected: vec![rows.iter().map(|r| r.out_features).sum(), rows[0].in_features],
                },
                PackError::Memory { num_bytes, source } => ModelError::Memory {
                    what: parts.iter().map(|part| part.name).collect::<Vec<_>>().join(" + "),
                    num_bytes,
                    source,
                },
            },
        )
    }

    fn quantize(
        &self,
        tensor: &TensorView<'_>,
        to: QuantizedType,
        release: &ReleaseBytes<'_>,
    ) -> Result<Vec<u8>, QuantizeError> {
        quantize(&self.pool, &tensor.rows(), to, release)
    }

    fn int4_rows(
        &self,
        columns: &Int4Columns<'_>,
        outputs: Range<usize>,
    ) -> Result<Vec<u8>, Int4Error> {
        columns.to_rows(&self.pool, outputs)
    }

    fn vector(&self, weights: Vec<f32>) -> Vec<f32> {
        weights
    }

    fn buffer(&self) -> CpuBuffer {
        CpuBuffer::default()
    }

    fn qkv_biases(
        &self,
        layers: &[[TensorView<'_>; 3]],
        geometry: &AttentionGeometry,
        rope: &RopeTable,
    ) -> Vec<CpuQkvBias> {
        let mut turns = BTreeMap::new();
        let biases = layers.iter().map(|parts| {
            let mut added: Vec<f32> = parts.iter().flat_map(TensorView::to_f32).collect();
            let key_offset = match self.stored_keys {
                StoredKeys::Whole => None,
                StoredKeys::WithoutLargeBiases => {
                    let keys = &mut added[geometry.query_width()..][..geometry.kv_width()];
                    let heads = keys.chunks_exact_mut(geometry.head_dim);
                    let heads = heads.map(|bias| take_largest_pairs(bias, rope, &mut turns));
                    Some(KeyOffset::new(heads.collect()))
                }
            };
            CpuQkvBias { added, key_offset }
        });
        biases.collect()
    }

    fn check_attention(&self, geometry: &AttentionGeometry) -> Result<(), ModelError> {
        if !shape(geometry).is_supported() {
            return Err(ModelError::Unsupported {
                what: "head size on the CPU".to_owned(),
                got: geometry.head_dim.to_string(),
                supported: "multiples of 16 up to 256".to_owned(),
            });
        }
        Ok(())
    }

    fn embed(&self, table: &PackedMatrix, tokens: &[TokenId], out: &mut CpuBuffer) {
        out.reshape(tokens.len(), table.in_features());
        for (row, token) in out.values.chunks_exact_mut(table.in_features()).zip(tokens) {
            table.row(*token as usize, row);
        }
    }

    fn rms_norm(&self, x: &CpuBuffer, weight: &Vec<f32>, epsilon: f32, out: &mut CpuBuffer) {
        assert_eq!(x.width, weight.len());
        out.reshape(x.num_rows(), x.width);
        rms_norm(self.isa, &self.pool, &x.values, weight, epsilon, &mut out.values);
    }

    fn matmul(&self, x: &CpuBuffer, w: &PackedMatrix, out: &mut CpuBuffer) {
        out.reshape(x.num_rows(), w.out_features());
        self.multiply(x, w, &mut out.values);
    }

    fn add_and_norm(
        &self,
        x: &CpuBuffer,
        sum: &mut CpuBuffer,
        norms: ResidualNorms<'_, Vec<f32>>,
        out: &mut CpuBuffer,
    ) {
        assert_eq!((x.width, norms.sum.len()), (sum.width, sum.width));
        out.reshape(x.num_rows(), x.width);
        let weights = AddAndNorm {
            summand_norm: norms.added.map(Vec::as_slice),
            sum_norm: norms.sum,
            epsilon: norms.epsilon,
        };
        add_and_norm(self.isa, &self.pool, &x.values, &mut sum.values, weights, &mut out.values);
    }

    fn scale(&self, x: &mut CpuBuffer, factor: f32) {
        for x in x.values.iter_mut() {
            *x *= factor;
        }
    }

    fn prepare_and_store_kv(
        &self,
        qkv: &mut CpuBuffer,
        geometry: &AttentionGeometry,
        weights: HeadWeights<'_, CpuQkvBias, Vec<f32>>,
        rope: &RopeTable,
        layer: usize,
        batch: &Batch,
        kv: &mut KvStorage,
    ) {
        let width = geometry.qkv_width();
        assert_eq!((qkv.width, qkv.num_rows()), (width, batch.num_tokens()));
        let heads = TokenHeads {
            num_heads: geometry.num_heads,
            num_kv_heads: geometry.num_kv_heads,
            head_dim: geometry.head_dim,
            bias: weights.bias.map(|bias| &bias.added[..]),
            norms: weights.norms.map(|norms| HeadNorms {
                query: norms.query,
                key: norms.key,
                epsilon: norms.epsilon,
            }),
        };
        let pairs = match rope.style() {
            RopeStyle::Interleaved => RotaryPairs::Neighbours,
            RopeStyle::HalfSplit => RotaryPairs::Halves,
        };
        let rotation = |row: usize| {
            let position = batch.positions[row];
            Rotation { pairs, cos: rope.cos(position), sin: rope.sin(position) }
        };
        let mut scratch = self.heads_scratch.borrow_mut();
        let (rows, slots) = (&mut qkv.values, &batch.slot_mapping);
        let (isa, pool, scratch) = (self.isa, &self.pool, &mut *scratch);
        heads.prepare_and_store(isa, pool, rows, rotation, kv, layer, slots, scratch);
    }

    fn attention(
        &self,
        qkv: &CpuBuffer,
        geometry: &AttentionGeometry,
        bias: Option<&CpuQkvBias>,
        layer: usize,
        batch: &Batch,
        kv: &KvStorage,
        out: &mut CpuBuffer,
    ) {
        let shape = shape(geometry);
        out.reshape(batch.num_tokens(), geometry.query_width());
        let (queries, width, out) = (&qkv.values, qkv.width, &mut out.values);
        let key_offset = bias.and_then(|bias| bias.key_offset.as_ref());
        attention(self.isa, &self.pool, &shape, queries, width, layer, key_offset, batch, kv, out);
    }

    fn gated_activation(&self, gate_up: &CpuBuffer, activation: Activation, out: &mut CpuBuffer) {
        let width = gate_up.width / 2;
        out.reshape(gate_up.num_rows(), width);
        let (x, out) = (&gate_up.values, &mut out.values);
        match activation {
            Activation::Silu => silu_gate(self.isa, &self.pool, x, width, out),
            Activation::GeluTanh => gelu_tanh_gate(self.isa, &self.pool, x, width, out),
        }
    }

    fn gather_rows(&self, x: &CpuBuffer, rows: &[u32], out: &mut CpuBuffer) {
        out.reshape(rows.len(), x.width);
        for (out, &row) in out.values.chunks_exact_mut(x.width).zip(rows) {
            out.copy_from_slice(&x.values[row as usize * x.width..][..x.width]);
        }
    }

    fn zeros_like(&self, x: &CpuBuffer, out: &mut CpuBuffer) {
        out.reshape(x.num_rows(), x.width);
        out.values.fill(0.0);
    }

    fn add_rows(&self, x: &CpuBuffer, to: RowTargets<'_>, out: &mut CpuBuffer) {
        let places = to.places([x.num_rows(), x.width], out.width);
        for (x, (place, factor)) in x.values.chunks_exact(x.width).zip(places) {
            out.values[place].iter_mut().zip(x).for_each(|(sum, x)| *sum += factor * x);
        }
    }

    fn soft_cap(&self, values: &mut [f32], cap: f32) {
        soft_cap(self.isa, &self.pool, cap, values);
    }

    fn matmul_to_host(&self, x: &CpuBuffer, w: &PackedMatrix, out: &mut Vec<f32>) {
        out.resize(x.num_rows() * w.out_features(), 0.0);
        self.multiply(x, w, out);
    }

    fn read(&self, x: &CpuBuffer, out: &mut Vec<f32>) {
        out.clear();
        out.extend_from_slice(&x.values);
    }

    fn compute_parts(&self, num_parts: usize, compute: &(dyn Fn(usize) + Sync)) {
        self.pool.claim(num_parts, compute);
    }

    fn block_bytes(&self, kv: &KvStorage) -> usize {
        kv.block_bytes()
    }

    fn copy_block(&self, kv: &mut KvStorage, from: BlockId, to: BlockId) {
        kv.copy_block(from, to);
    }

    fn export_block<'a>(
        &self,
        kv: &'a KvStorage,
        block: BlockId,
        scratch: &'a mut Vec<u8>,
    ) -> &'a [u8] {
        kv.export_block(block, scratch)
    }

    fn import_block(&self, kv: &mut KvStorage, block: BlockId, bytes: &[u8]) {
        kv.import_block(block, bytes);
    }

    fn discard(&self, kv: &mut KvStorage, part: KvPart, first: BlockId, num_blocks: u32) {
        kv.discard(part, first, num_blocks);
    }
}

/// Takes the longest pairs that are rotated together out of one head's bias. `turns` keeps those of
/// each pair, as heads and layers share them.
fn take_largest_pairs(
    bias: &mut [f32],
    rope: &RopeTable,
    turns: &mut BTreeMap<usize, Arc<PairTurns>>,
) -> Vec<OffsetPair> {
    let square = |i: usize| {
        let (a, b) = rope.pair(i);
        bias[a] * bias[a] + bias[b] * bias[b]
    };
    let mut pairs: Vec<_> = (0..rope.rotary_dim() / 2).map(|i| (square(i), i)).collect();
    pairs.retain(|(square, _)| *square > 0.0);
    pairs.sort_by(|a, b| b.0.total_cmp(&a.0));
    pairs.truncate(KeyOffset::MAX_PAIRS);
    let taken = pairs.into_iter().map(|(_, i)| {
        let (a, b) = rope.pair(i);
        let turns = turns.entry(i).or_insert_with(|| {
            let positions = (0..).take(rope.max_len());
            Arc::new(PairTurns::new(positions.map(|p| [rope.cos(p)[i], rope.sin(p)[i]])))
        });
        let offset = [std::mem::take(&mut bias[a]), std::mem::take(&mut bias[b])];
        OffsetPair { dimensions: [a, b], offset, turns: Arc::clone(turns) }
    });
    taken.collect()
}

/// Returns the heads as the kernel describes them.
fn shape(geometry: &AttentionGeometry) -> AttentionShape {
    AttentionShape {
        num_heads: geometry.num_heads,
        num_kv_heads: geometry.num_kv_heads,
        head_dim: geometry.head_dim,
        scale: geometry.scale,
        window: geometry.window,
        soft_cap: geometry.soft_cap,
    }
}
