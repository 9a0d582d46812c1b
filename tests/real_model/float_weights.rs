//! The fast ops on weights that are made floats.
//!
//! Products on quantised weights quantise activations too, and a last bit of difference in one can
//! flip a rounding there, which grows over the layers. Float weights are multiplied as floats, so
//! that what is left between two runs is what their stored forms of KV cost.

use mini_infer_core::{Batch, BlockId, KvPart, TokenId};
use mini_infer_kernels::{
    Int4Columns, Int4Error, KvStorage, PackedMatrix, QuantizeError, QuantizedType, ReleaseBytes,
    WeightType,
};
use mini_infer_model::ModelError;
use mini_infer_model::ops::cpu::{CpuBuffer, CpuOps, CpuQkvBias};
use mini_infer_model::ops::{
    Activation, AttentionGeometry, HeadWeights, Ops, ResidualNorms, RowTargets,
};
use mini_infer_model::rope::RopeTable;
use mini_infer_model::weights::{StoredWeights, TensorView};
use std::ops::Range;

/// [`CpuOps`] whose matrices are floats.
pub(crate) struct FloatWeights {
    /// What computes.
    pub(crate) inner: CpuOps,
    /// What weights become: f32 or bf16.
    pub(crate) weight_type: WeightType,
}

/// Returns the bytes of a finite weight as f32 or bf16, rounded to the nearest.
pub(crate) fn stored_bytes(weight: f32, weight_type: WeightType) -> impl Iterator<Item = u8> {
    let num_bytes = weight_type.group_bytes();
    let bits = weight.to_bits();
    // To even where two are as near.
    let carry = if num_bytes == 2 { 0x7fff + ((bits >> 16) & 1) } else { 0 };
    (bits + carry).to_le_bytes().into_iter().skip(4 - num_bytes)
}

impl Ops for FloatWeights {
    type Buffer = CpuBuffer;
    type Matrix = PackedMatrix;
    type Vector = Vec<f32>;
    type QkvBias = CpuQkvBias;
    type Kv = KvStorage;

    fn matrix(
        &self,
        parts: &[TensorView<'_>],
        _: &ReleaseBytes<'_>,
    ) -> Result<PackedMatrix, ModelError> {
        let bytes = |weight| stored_bytes(weight, self.weight_type);
        let widened = parts.iter().map(|part| part.to_f32().into_iter().flat_map(bytes).collect());
        let widened: Vec<Vec<u8>> = widened.collect();
        let parts: Vec<_> = parts
            .iter()
            .zip(&widened)
            .map(|(part, bytes)| TensorView {
                weight_type: self.weight_type,
                weights: StoredWeights::Rows(bytes),
                ..*part
            })
            .collect();
        self.inner.matrix(&parts, &|_| {})
    }

    fn vector(&self, weights: Vec<f32>) -> Vec<f32> {
        self.inner.vector(weights)
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

    fn qkv_biases(
        &self,
        layers: &[[TensorView<'_>; 3]],
        geometry: &AttentionGeometry,
        rope: &RopeTable,
    ) -> Vec<CpuQkvBias> {
        self.inner.qkv_biases(layers, geometry, rope)
    }

    fn check_attention(&self, geometry: &AttentionGeometry) -> Result<(), ModelError> {
        self.inner.check_attention(geometry)
    }

    fn buffer(&self) -> CpuBuffer {
        self.inner.buffer()
    }

    fn embed(&self, table: &PackedMatrix, tokens: &[TokenId], out: &mut CpuBuffer) {
        self.inner.embed(table, tokens, out);
    }

    fn rms_norm(&self, x: &CpuBuffer, weight: &Vec<f32>, epsilon: f32, out: &mut CpuBuffer) {
        self.inner.rms_norm(x, weight, epsilon, out);
    }

    fn matmul(&self, x: &CpuBuffer, w: &PackedMatrix, out: &mut CpuBuffer) {
        self.inner.matmul(x, w, out);
    }

    fn add_and_norm(
        &self,
        x: &CpuBuffer,
        sum: &mut CpuBuffer,
        norms: ResidualNorms<'_, Vec<f32>>,
        out: &mut CpuBuffer,
    ) {
        self.inner.add_and_norm(x, sum, norms, out);
    }

    fn scale(&self, x: &mut CpuBuffer, factor: f32) {
        self.inner.scale(x, factor);
    }

    fn prepare_and_store_kv(
        &self,
        qkv: &mut CpuBuffer,
        geometry: &AttentionGeometry,
        heads: HeadWeights<'_, CpuQkvBias, Vec<f32>>,
        rope: &RopeTable,
        layer: usize,
        batch: &Batch,
        kv: &mut KvStorage,
    ) {
        self.inner.prepare_and_store_kv(qkv, geometry, heads, rope, layer, batch, kv);
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
        self.inner.attention(qkv, geometry, bias, layer, batch, kv, out);
    }

    fn gated_activation(&self, gate_up: &CpuBuffer, activation: Activation, out: &mut CpuBuffer) {
        self.inner.gated_activation(gate_up, activation, out);
    }

    fn zeros_like(&self, x: &CpuBuffer, out: &mut CpuBuffer) {
        self.inner.zeros_like(x, out);
    }

    fn add_rows(&self, x: &CpuBuffer, to: RowTargets<'_>, out: &mut CpuBuffer) {
        self.inner.add_rows(x, to, out);
    }

    fn soft_cap(&self, values: &mut [f32], cap: f32) {
        self.inner.soft_cap(values, cap);
    }

    fn gather_rows(&self, x: &CpuBuffer, rows: &[u32], out: &mut CpuBuffer) {
        self.inner.gather_rows(x, rows, out);
    }

    fn matmul_to_host(&self, x: &CpuBuffer, w: &PackedMatrix, out: &mut Vec<f32>) {
        self.inner.matmul_to_host(x, w, out);
    }

    fn block_bytes(&self, kv: &KvStorage) -> usize {
        self.inner.block_bytes(kv)
    }

    fn copy_block(&self, kv: &mut KvStorage, from: BlockId, to: BlockId) {
        self.inner.copy_block(kv, from, to);
    }

    fn export_block<'a>(
        &self,
        kv: &'a KvStorage,
        block: BlockId,
        scratch: &'a mut Vec<u8>,
    ) -> &'a [u8] {
        self.inner.export_block(kv, block, scratch)
    }

    fn import_block(&self, kv: &mut KvStorage, block: BlockId, bytes: &[u8]) {
        self.inner.import_block(kv, block, bytes);
    }

    fn discard(&self, kv: &mut KvStorage, part: KvPart, first: BlockId, num_blocks: u32) {
        self.inner.discard(kv, part, first, num_blocks);
    }
}
