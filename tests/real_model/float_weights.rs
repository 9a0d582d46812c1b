//! The fast ops on weights widened to f32.
//!
//! Products on quantised weights quantise activations too, and a last bit of difference in one can
//! flip a rounding there, which grows over the layers. Float weights are multiplied as floats, so
//! that what is left between two runs is what their stored forms of KV cost.

use mini_infer_core::{Batch, BlockId, KvPart, TokenId};
use mini_infer_kernels::{KvStorage, PackedMatrix, QuantizeError, QuantizedType, WeightType};
use mini_infer_model::ModelError;
use mini_infer_model::ops::cpu::{CpuBuffer, CpuOps, CpuQkvBias};
use mini_infer_model::ops::{
    Activation, AttentionGeometry, HeadWeights, Ops, ResidualNorms, RowTargets,
};
use mini_infer_model::rope::RopeTable;
use mini_infer_model::weights::TensorView;

/// [`CpuOps`] whose matrices are f32.
pub(crate) struct FloatWeights(pub(crate) CpuOps);

impl Ops for FloatWeights {
    type Buffer = CpuBuffer;
    type Matrix = PackedMatrix;
    type Vector = Vec<f32>;
    type QkvBias = CpuQkvBias;
    type Kv = KvStorage;

    fn matrix(&self, parts: &[TensorView<'_>]) -> Result<PackedMatrix, ModelError> {
        let widened: Vec<Vec<u8>> = parts
            .iter()
            .map(|part| part.to_f32().into_iter().flat_map(f32::to_le_bytes).collect())
            .collect();
        let parts: Vec<_> = parts
            .iter()
            .zip(&widened)
            .map(|(part, bytes)| TensorView { weight_type: WeightType::F32, bytes, ..*part })
            .collect();
        self.0.matrix(&parts)
    }

    fn vector(&self, weights: Vec<f32>) -> Vec<f32> {
        self.0.vector(weights)
    }

    fn quantize(
        &self,
        tensor: &TensorView<'_>,
        to: QuantizedType,
    ) -> Result<Vec<u8>, QuantizeError> {
        self.0.quantize(tensor, to)
    }

    fn qkv_biases(
        &self,
        layers: &[[TensorView<'_>; 3]],
        geometry: &AttentionGeometry,
        rope: &RopeTable,
    ) -> Vec<CpuQkvBias> {
        self.0.qkv_biases(layers, geometry, rope)
    }

    fn check_attention(&self, geometry: &AttentionGeometry) -> Result<(), ModelError> {
        self.0.check_attention(geometry)
    }

    fn buffer(&self) -> CpuBuffer {
        self.0.buffer()
    }

    fn embed(&self, table: &PackedMatrix, tokens: &[TokenId], out: &mut CpuBuffer) {
        self.0.embed(table, tokens, out);
    }

    fn rms_norm(&self, x: &CpuBuffer, weight: &Vec<f32>, epsilon: f32, out: &mut CpuBuffer) {
        self.0.rms_norm(x, weight, epsilon, out);
    }

    fn matmul(&self, x: &CpuBuffer, w: &PackedMatrix, out: &mut CpuBuffer) {
        self.0.matmul(x, w, out);
    }

    fn add_and_norm(
        &self,
        x: &CpuBuffer,
        sum: &mut CpuBuffer,
        norms: ResidualNorms<'_, Vec<f32>>,
        out: &mut CpuBuffer,
    ) {
        self.0.add_and_norm(x, sum, norms, out);
    }

    fn scale(&self, x: &mut CpuBuffer, factor: f32) {
        self.0.scale(x, factor);
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
        self.0.prepare_and_store_kv(qkv, geometry, heads, rope, layer, batch, kv);
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
        self.0.attention(qkv, geometry, bias, layer, batch, kv, out);
    }

    fn gated_activation(&self, gate_up: &CpuBuffer, activation: Activation, out: &mut CpuBuffer) {
        self.0.gated_activation(gate_up, activation, out);
    }

    fn zeros_like(&self, x: &CpuBuffer, out: &mut CpuBuffer) {
        self.0.zeros_like(x, out);
    }

    fn add_rows(&self, x: &CpuBuffer, to: RowTargets<'_>, out: &mut CpuBuffer) {
        self.0.add_rows(x, to, out);
    }

    fn soft_cap(&self, values: &mut [f32], cap: f32) {
        self.0.soft_cap(values, cap);
    }

    fn gather_rows(&self, x: &CpuBuffer, rows: &[u32], out: &mut CpuBuffer) {
        self.0.gather_rows(x, rows, out);
    }

    fn matmul_to_host(&self, x: &CpuBuffer, w: &PackedMatrix, out: &mut Vec<f32>) {
        self.0.matmul_to_host(x, w, out);
    }

    fn block_bytes(&self, kv: &KvStorage) -> usize {
        self.0.block_bytes(kv)
    }

    fn copy_block(&self, kv: &mut KvStorage, from: BlockId, to: BlockId) {
        self.0.copy_block(kv, from, to);
    }

    fn export_block<'a>(
        &self,
        kv: &'a KvStorage,
        block: BlockId,
        scratch: &'a mut Vec<u8>,
    ) -> &'a [u8] {
        self.0.export_block(kv, block, scratch)
    }

    fn import_block(&self, kv: &mut KvStorage, block: BlockId, bytes: &[u8]) {
        self.0.import_block(kv, block, bytes);
    }

    fn discard(&self, kv: &mut KvStorage, part: KvPart, first: BlockId, num_blocks: u32) {
        self.0.discard(kv, part, first, num_blocks);
    }
}
