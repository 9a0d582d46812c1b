//! The weights of a model in the form that a device wants them.

use super::model_tensors::{FeedForwardTensors, GatedTensors, LayerTensors, ModelTensors};
use super::tensor_view::{StoredWeights, TensorView};
use crate::Checkpoint;
use crate::error::ModelError;
use crate::feed_forward::{FeedForwardWeights, GatedWeights};
use crate::ops::{AttentionGeometry, Ops};
use crate::rope::RopeTable;
use mini_infer_kernels::WeightType;
use std::cell::RefCell;

/// All weights of a model on a device.
pub(crate) struct ModelWeights<O: Ops> {
    pub(crate) embedding: O::Matrix,
    pub(crate) layers: Vec<LayerWeights<O>>,
    pub(crate) output_norm: O::Vector,
    /// `None` when the head is tied to the embeddings.
    pub(crate) untied_head: Option<O::Matrix>,
}

/// The weights of one layer on a device.
pub(crate) struct LayerWeights<O: Ops> {
    pub(crate) attention_norm: O::Vector,
    /// Query, key and value projections as one matrix, `[qkv_width, hidden_size]`.
    pub(crate) qkv: O::Matrix,
    /// What is added to queries, keys and values.
    pub(crate) qkv_bias: Option<O::QkvBias>,
    /// Weights of the norms of query heads and key heads.
    pub(crate) qk_norm: Option<[O::Vector; 2]>,
    pub(crate) attention_output: O::Matrix,
    pub(crate) attention_post_norm: Option<O::Vector>,
    pub(crate) feed_forward_norm: O::Vector,
    pub(crate) feed_forward: FeedForwardWeights<O>,
    pub(crate) feed_forward_post_norm: Option<O::Vector>,
}

/// Brings tensors of a checkpoint onto a device.
///
/// A tensor's bytes are given back while it is brought there, so that a model takes its memory once.
/// What changes its form on the way, because it is quantised or stored in columns, takes memory twice
/// for one matrix at a time; the largest tensors come first, while little else is held.
struct Loader<'a, O> {
    checkpoint: &'a Checkpoint,
    ops: &'a O,
    progress: RefCell<LoadProgress<'a>>,
}

/// Who is told how many of the stored bytes have been loaded, and how many that are.
pub(crate) struct LoadProgress<'a> {
    loaded_bytes: u64,
    report: &'a mut dyn FnMut(u64),
}

impl<'a> LoadProgress<'a> {
    /// Lets `report` be called with the stored bytes that are loaded so far.
    pub(crate) fn new(report: &'a mut dyn FnMut(u64)) -> Self {
        Self { loaded_bytes: 0, report }
    }

    fn add(&mut self, num_bytes: usize) {
        self.loaded_bytes += num_bytes as u64;
        (self.report)(self.loaded_bytes);
    }
}

impl<O: Ops> Loader<'_, O> {
    fn matrix(&self, parts: &[TensorView<'_>]) -> Result<O::Matrix, ModelError> {
        let made = parts.iter().map(|part| self.in_other_form(part));
        let made = made.collect::<Result<Vec<_>, _>>()?;
        let views = parts.iter().zip(&made).map(|(part, made)| match made {
            None => *part,
            Some((weight_type, bytes)) => TensorView {
                weight_type: *weight_type,
                weights: StoredWeights::Rows(bytes),
                ..*part
            },
        });
        let checkpoint = self.checkpoint;
        let release = |bytes: &[u8]| checkpoint.release(bytes);
        let matrix = self.ops.matrix(&views.collect::<Vec<_>>(), &release)?;
        // Where stretches met, a page or two came back.
        parts.iter().for_each(|part| release(part.stored_bytes()));
        let num_bytes = parts.iter().map(TensorView::num_stored_bytes).sum();
        self.progress.borrow_mut().add(num_bytes);
        Ok(matrix)
    }

    /// Quantises a tensor if the checkpoint wants that, and makes rows of columns; gives the stored
    /// memory back before what is made is packed.
    fn in_other_form(
        &self,
        tensor: &TensorView<'_>,
    ) -> Result<Option<(WeightType, Vec<u8>)>, ModelError> {
        let checkpoint = self.checkpoint;
        if let StoredWeights::Columns { columns, first_row } = &tensor.weights {
            let outputs = *first_row..first_row + tensor.out_features();
            let rows = self.ops.int4_rows(columns, outputs).map_err(|source| {
                let tensor = checkpoint.stored_name(tensor.name);
                ModelError::Int4 { tensor, source }
            })?;
            for field in [columns.codes, columns.scales, columns.zero_points] {
                checkpoint.release(field);
            }
            return Ok(Some((WeightType::Int4, rows)));
        }
        let Some(to) = checkpoint.quantization_of(tensor) else { return Ok(None) };
        let release = |bytes: &[u8]| checkpoint.release(bytes);
        let rows = self.ops.quantize(tensor, to, &release).map_err(|source| {
            let tensor = checkpoint.stored_name(tensor.name);
            ModelError::Quantize { tensor, source }
        })?;
        release(tensor.stored_bytes());
        Ok(Some((to.weight_type(), rows)))
    }

    /// Brings the weights of a norm onto the device.
    fn norm(&self, tensor: &TensorView<'_>) -> O::Vector {
        let offset = self.checkpoint.config().norm_offset;
        let mut weights = tensor.to_f32();
        weights.iter_mut().for_each(|weight| *weight += offset);
        self.ops.vector(weights)
    }

    fn gated(&self, tensors: &GatedTensors<'_>) -> Result<GatedWeights<O>, ModelError> {
        let (gate_up, down) = (self.matrix(&tensors.gate_up)?, self.matrix(&[tensors.down])?);
        Ok(GatedWeights { gate_up, down })
    }

    fn feed_forward(
        &self,
        tensors: &FeedForwardTensors<'_>,
    ) -> Result<FeedForwardWeights<O>, ModelError> {
        Ok(match tensors {
            FeedForwardTensors::Dense(tensors) => FeedForwardWeights::Dense(self.gated(tensors)?),
            FeedForwardTensors::Routed { router, experts } => FeedForwardWeights::Routed {
                router: self.matrix(&[*router])?,
                experts: experts
                    .iter()
                    .map(|expert| self.gated(expert))
                    .collect::<Result<_, _>>()?,
            },
        })
    }

    fn layer(&self, tensors: &LayerTensors<'_>) -> Result<LayerWeights<O>, ModelError> {
        Ok(LayerWeights {
            attention_norm: self.norm(&tensors.attention_norm),
            qkv: self.matrix(&tensors.qkv)?,
            qkv_bias: None,
            qk_norm: tensors.qk_norm.map(|parts| parts.map(|part| self.norm(&part))),
            attention_output: self.matrix(&[tensors.attention_output])?,
            attention_post_norm: tensors.attention_post_norm.map(|tensor| self.norm(&tensor)),
            feed_forward_norm: self.norm(&tensors.feed_forward_norm),
            feed_forward: self.feed_forward(&tensors.feed_forward)?,
            feed_forward_post_norm: tensors.feed_forward_post_norm.map(|tensor| self.norm(&tensor)),
        })
    }
}

impl<O: Ops> ModelWeights<O> {
    /// Brings the `tensors` of a checkpoint onto a device. Biases are prepared for heads of
    /// `geometry` that `rope` rotates.
    pub(crate) fn load<'a>(
        checkpoint: &'a Checkpoint,
        tensors: &ModelTensors<'_>,
        ops: &'a O,
        geometry: &AttentionGeometry,
        rope: &RopeTable,
        progress: LoadProgress<'a>,
    ) -> Result<Self, ModelError> {
        let loader = Loader { checkpoint, ops, progress: progress.into() };
        let embedding = loader.matrix(&[tensors.embedding])?;
        let untied_head = tensors.output_head.map(|head| loader.matrix(&[head])).transpose()?;
        let layers = tensors.layers.iter().map(|layer| loader.layer(layer));
        let mut layers = layers.collect::<Result<Vec<_>, _>>()?;
        let biases: Vec<_> = tensors.layers.iter().filter_map(|layer| layer.qkv_bias).collect();
        let biases = ops.qkv_biases(&biases, geometry, rope);
        for (layer, bias) in layers.iter_mut().zip(biases) {
            layer.qkv_bias = Some(bias);
        }
        let output_norm = loader.norm(&tensors.output_norm);
        Ok(Self { embedding, layers, output_norm, untied_head })
    }

    /// Returns the weight of the norm over the embeddings.
    pub(crate) fn first_norm(&self) -> &O::Vector {
        self.layers.first().map_or(&self.output_norm, |layer| &layer.attention_norm)
    }

    /// Returns the weight of the norm over what layer `i` leaves: the next layer's, or the last.
    pub(crate) fn norm_after(&self, i: usize) -> &O::Vector {
        self.layers.get(i + 1).map_or(&self.output_norm, |layer| &layer.attention_norm)
    }

    /// Returns the output head, `[vocab_size, hidden_size]`.
    pub(crate) fn output_head(&self) -> &O::Matrix {
        self.untied_head.as_ref().unwrap_or(&self.embedding)
    }
}
