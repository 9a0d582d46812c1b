//! An adapter's matrices in the form that a device wants them.

use super::lora_folder::LoraFolder;
use super::projection::Projection;
use crate::error::ModelError;
use crate::ops::Ops;
use crate::weights::{StoredWeights, TensorView};
use mini_infer_kernels::WeightType;

/// An adapter on a device.
pub(crate) struct LoraWeights<O: Ops> {
    /// What each layer's projections get, in order; layers that stay as they are have none.
    layers: Vec<Vec<LowRank<O>>>,
}

/// What an adapter adds to one projection.
pub(crate) struct LowRank<O: Ops> {
    pub(crate) projection: Projection,
    /// `[rank, in_features]`.
    pub(crate) a: O::Matrix,
    /// `[out_features, rank]`, with the scale in it.
    pub(crate) b: O::Matrix,
    /// Where the output begins in a row of the fused product.
    pub(crate) first_column: usize,
}

impl<O: Ops> LoraWeights<O> {
    /// Brings an adapter onto the device of `ops`.
    pub(crate) fn load(folder: &LoraFolder, ops: &O) -> Result<Self, ModelError> {
        let mut layers = Vec::new();
        layers.resize_with(folder.config().num_layers, Vec::new);
        for pair in folder.pairs() {
            let (out_features, in_features) = pair.projection.features(folder.config());
            let matrix = |weights: &[f32], shape: [usize; 2]| {
                let bytes: Vec<u8> =
                    weights.iter().flat_map(|weight| weight.to_le_bytes()).collect();
                let name = pair.projection.module();
                let weights = StoredWeights::Rows(&bytes);
                let view =
                    TensorView { name, weight_type: WeightType::F32, shape: &shape, weights };
                ops.matrix(&[view], &|_| {})
            };
            layers[pair.layer].push(LowRank {
                projection: pair.projection,
                a: matrix(&pair.a, [pair.rank, in_features])?,
                b: matrix(&pair.b, [out_features, pair.rank])?,
                first_column: pair.projection.first_column(folder.config()),
            });
        }
        Ok(Self { layers })
    }

    /// Returns what a layer's projections get.
    pub(crate) fn layer(&self, layer: usize) -> &[LowRank<O>] {
        &self.layers[layer]
    }
}
