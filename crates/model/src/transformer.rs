//! The forward pass: one decoder-only transformer, whatever the architecture.
//!
//! Pre-norm layers of attention and gated feed-forward, each adding to the residual stream
//! (Touvron et al., Llama, section 2.2). What differs between architectures is data in
//! [`ModelConfig`]; what differs between devices is behind [`Ops`]. Rows of the batch are
//! independent except through the KV that attention reads.

use crate::Checkpoint;
use crate::config::ModelConfig;
use crate::error::ModelError;
use crate::feed_forward::FeedForward;
use crate::lora::{AdapterBuffers, LoraFolder, LoraWeights, Projection, StepAdapters};
use crate::ops::{AttentionGeometry, HeadNorms, HeadWeights, Ops, ResidualNorms};
use crate::rope::{LongRopeDivisors, RopeScaling, RopeTable};
use crate::weights::{LoadProgress, ModelTensors, ModelWeights};
use mini_infer_core::{Adapter, Batch, RowForm};
use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

/// A model on a device, ready to run.
pub struct Transformer<O: Ops> {
    ops: O,
    config: ModelConfig,
    weights: ModelWeights<O>,
    /// Heads and rotation of the layers that see all tokens.
    full: AttentionKind,
    /// Those of the layers that see a window, where there are such.
    sliding: Option<AttentionKind>,
    buffers: Buffers<O>,
    adapter_buffers: AdapterBuffers<O>,
}

/// What attention needs to know about a layer.
struct AttentionKind {
    geometry: AttentionGeometry,
    rope: Arc<RopeTable>,
}

/// Activations of the step, kept to reuse their memory.
struct Buffers<O: Ops> {
    /// The residual stream, `[num_tokens, hidden_size]`.
    hidden: O::Buffer,
    /// Normalised rows of it.
    normed: O::Buffer,
    /// Queries, keys and values, `[num_tokens, qkv_width]`.
    qkv: O::Buffer,
    /// Attended values, `[num_tokens, query_width]`.
    attended: O::Buffer,
    feed_forward: FeedForward<O>,
    /// What a layer's part adds to the residual stream, `[num_tokens, hidden_size]`.
    delta: O::Buffer,
    /// Some rows of another buffer.
    selected: O::Buffer,
    /// Where in `normed` the rows are that the last batch kept.
    kept: Vec<u32>,
}

impl<O: Ops> Transformer<O> {
    /// Brings a checkpoint's weights onto the device of `ops`, for sequences of up to
    /// `max_model_len` tokens.
    ///
    /// # Errors
    /// When tensors are missing, left over or of a wrong shape, when the device does not support
    /// one's type, or when `max_model_len` is beyond what the model was made for.
    pub fn load(checkpoint: &Checkpoint, ops: O, max_model_len: usize) -> Result<Self, ModelError> {
        Self::load_reporting(checkpoint, ops, max_model_len, &mut |_| {})
    }

    /// As [`Self::load`], telling `report` after each matrix how many of the checkpoint's
    /// [`weight_bytes`](Checkpoint::weight_bytes) are loaded; all but those of norms and biases are
    /// in the end.
    ///
    /// # Errors
    /// As [`Self::load`].
    pub fn load_reporting(
        checkpoint: &Checkpoint,
        ops: O,
        max_model_len: usize,
        report: &mut dyn FnMut(u64),
    ) -> Result<Self, ModelError> {
        let config = checkpoint.config().clone();
        if max_model_len > config.context_length {
            let limit = config.context_length;
            return Err(ModelError::ContextLength { got: max_model_len, limit });
        }
        let tensors = ModelTensors::find(checkpoint)?;
        let divisors = rope_divisors(&config.rope.scaling, &tensors, max_model_len);
        let rope = Arc::new(RopeTable::new(&config.rope, max_model_len, divisors.as_deref())?);
        let kind = |window, rope| {
            let geometry = AttentionGeometry { window, ..config.attention };
            ops.check_attention(&geometry)?;
            Ok(AttentionKind { geometry, rope })
        };
        let full = kind(None, Arc::clone(&rope))?;
        let sliding = match &config.sliding {
            None => None,
            Some(sliding) => {
                // A window that holds the longest sequence hides nothing.
                let window = Some(sliding.window).filter(|window| *window < max_model_len);
                let rope = if sliding.rope == config.rope {
                    rope
                } else {
                    Arc::new(RopeTable::new(&sliding.rope, max_model_len, None)?)
                };
                Some(kind(window, rope)?)
            }
        };
        let progress = LoadProgress::new(report);
        let weights =
            ModelWeights::load(checkpoint, &tensors, &ops, &full.geometry, &full.rope, progress)?;
        let buffers = Buffers::new(&ops);
        let adapter_buffers = AdapterBuffers::new(&ops);
        Ok(Self { ops, config, weights, full, sliding, buffers, adapter_buffers })
    }

    /// Returns the model's dimensions and kinds.
    #[must_use]
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Returns the device's operations.
    pub(crate) fn ops(&self) -> &O {
        &self.ops
    }

    /// Brings an adapter onto the device of `ops`, which need not be this model's own but must be of
    /// the same kind, so that an adapter can be loaded while the model runs.
    ///
    /// # Errors
    /// When memory for its matrices cannot be had.
    pub fn adapter(folder: &LoraFolder, ops: &O) -> Result<Adapter, ModelError>
    where
        O::Matrix: Send + Sync,
    {
        Ok(Adapter::new(LoraWeights::<O>::load(folder, ops)?))
    }

    /// Returns the number of positions that the model was loaded for.
    #[must_use]
    pub fn max_model_len(&self) -> usize {
        self.full.rope.max_len()
    }

    /// Computes one step: stores the KV of every token and replaces `logits` with those of
    /// `batch.logits_rows`, `[num_logits_rows, vocab_size]`. What only other rows depend on than
    /// these and those that are kept is not computed.
    pub fn forward(&mut self, batch: &Batch, kv: &mut O::Kv, logits: &mut Vec<f32>) {
        let Self { ops, config, weights, full, sliding, buffers: b, adapter_buffers } = self;
        let mut adapters = StepAdapters::of(batch, ops, adapter_buffers);
        let epsilon = config.rms_norm_epsilon;
        let wanted_rows = wanted_rows(batch);
        b.kept.clear();
        if batch.num_tokens() == 0 {
            return logits.clear();
        }
        ops.embed(&weights.embedding, &batch.tokens, &mut b.hidden);
        if config.embedding_scale != 1.0 {
            ops.scale(&mut b.hidden, config.embedding_scale);
        }
        ops.rms_norm(&b.hidden, weights.first_norm(), epsilon, &mut b.normed);
        for (i, layer) in weights.layers.iter().enumerate() {
            let windowed = sliding.as_ref().filter(|_| config.sliding_of(i).is_some());
            let AttentionKind { geometry, rope } = windowed.unwrap_or(full);
            adapters.enter_layer(i);
            ops.matmul(&b.normed, &layer.qkv, &mut b.qkv);
            adapters.add(Projection::QKV, &b.normed, &mut b.qkv);
            let bias = layer.qkv_bias.as_ref();
            let norms = layer.qk_norm.as_ref();
            let norms = norms.map(|[query, key]| HeadNorms { query, key, epsilon });
            let heads = HeadWeights { bias, norms };
            ops.prepare_and_store_kv(&mut b.qkv, geometry, heads, rope, i, batch, kv);
            let is_last = i + 1 == weights.layers.len();
            if is_last && wanted_rows.is_empty() {
                return logits.clear();
            }
            ops.attention(&b.qkv, geometry, bias, i, batch, kv, &mut b.attended);
            if is_last && wanted_rows.len() < batch.num_tokens() {
                b.select(ops, &wanted_rows);
                adapters.select(&wanted_rows);
            }
            ops.matmul(&b.attended, &layer.attention_output, &mut b.delta);
            adapters.add(&[Projection::AttentionOutput], &b.attended, &mut b.delta);
            let (added, sum) = (layer.attention_post_norm.as_ref(), &layer.feed_forward_norm);
            let norms = ResidualNorms { added, sum, epsilon };
            ops.add_and_norm(&b.delta, &mut b.hidden, norms, &mut b.normed);
            let part = &layer.feed_forward;
            b.feed_forward.compute(ops, part, config, &mut adapters, &b.normed, &mut b.delta);
            let (added, sum) = (layer.feed_forward_post_norm.as_ref(), weights.norm_after(i));
            let norms = ResidualNorms { added, sum, epsilon };
            ops.add_and_norm(&b.delta, &mut b.hidden, norms, &mut b.normed);
        }
        b.kept.extend(places(&batch.kept_rows, &wanted_rows));
        if batch.logits_rows.is_empty() {
            return logits.clear();
        }
        let rows = if batch.logits_rows.len() < wanted_rows.len() {
            let rows: Vec<u32> = places(&batch.logits_rows, &wanted_rows).collect();
            ops.gather_rows(&b.normed, &rows, &mut b.selected);
            &b.selected
        } else {
            &b.normed
        };
        ops.matmul_to_host(rows, weights.output_head(), logits);
        if let Some(cap) = config.logit_soft_cap {
            ops.soft_cap(logits, cap);
        }
    }

    /// Replaces `out` with some of the rows that the last batch kept, numbered in the order of its
    /// `kept_rows`: `[num_rows, vocab_size]` or `[num_rows, hidden_size]`, as `form` says.
    ///
    /// # Panics
    /// When the last batch kept fewer rows.
    pub fn read_kept_rows(&mut self, rows: Range<usize>, form: RowForm, out: &mut Vec<f32>) {
        let Self { ops, config, weights, buffers: b, .. } = self;
        ops.gather_rows(&b.normed, &b.kept[rows], &mut b.selected);
        match form {
            RowForm::HiddenState => ops.read(&b.selected, out),
            RowForm::Logits => {
                ops.matmul_to_host(&b.selected, weights.output_head(), out);
                if let Some(cap) = config.logit_soft_cap {
                    ops.soft_cap(out, cap);
                }
            }
        }
    }
}

/// Returns the rows of a batch that anything is wanted of, ascending.
fn wanted_rows(batch: &Batch) -> Cow<'_, [u32]> {
    if batch.kept_rows.is_empty() {
        return Cow::Borrowed(&batch.logits_rows);
    }
    let mut rows = [&batch.logits_rows[..], &batch.kept_rows].concat();
    rows.sort_unstable();
    rows.dedup();
    Cow::Owned(rows)
}

/// Returns where each of `rows` is in `wanted`, which is ascending and holds them all.
fn places(rows: &[u32], wanted: &[u32]) -> impl Iterator<Item = u32> {
    rows.iter().map(|row| {
        let place = wanted.binary_search(row).expect("what is kept or gives logits is wanted");
        u32::try_from(place).expect("rows are 32 bits wide")
    })
}

/// Returns what divides the frequencies of the layers that see all tokens, and of those with the
/// same rotation, where the checkpoint lists divisors.
fn rope_divisors(
    scaling: &RopeScaling,
    tensors: &ModelTensors<'_>,
    max_model_len: usize,
) -> Option<Vec<f32>> {
    let Some(long_rope) = scaling.long_rope() else {
        return tensors.rope_factors.map(|tensor| tensor.to_f32());
    };
    match &long_rope.divisors {
        LongRopeDivisors::Listed { short, long } => {
            Some(long_rope.choose(short, long, max_model_len).clone())
        }
        LongRopeDivisors::InTensors => tensors
            .long_rope_divisors
            .map(|[short, long]| long_rope.choose(short, long, max_model_len).to_f32()),
    }
}

impl<O: Ops> Buffers<O> {
    fn new(ops: &O) -> Self {
        Self {
            hidden: ops.buffer(),
            normed: ops.buffer(),
            qkv: ops.buffer(),
            attended: ops.buffer(),
            feed_forward: FeedForward::new(ops),
            delta: ops.buffer(),
            selected: ops.buffer(),
            kept: Vec::new(),
        }
    }

    /// Keeps only the given rows of what the rest of the last layer reads.
    fn select(&mut self, ops: &O, rows: &[u32]) {
        for buffer in [&mut self.attended, &mut self.hidden] {
            ops.gather_rows(buffer, rows, &mut self.selected);
            std::mem::swap(buffer, &mut self.selected);
        }
    }
}
