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
    /// Of the step that goes through all layers at once.
    whole: ResidualStream<O>,
    /// Of the step that goes through them a few at a time.
    advancing: ResidualStream<O>,
    last: LastStep,
    buffers: Buffers<O>,
    adapter_buffers: AdapterBuffers<O>,
}

/// What attention needs to know about a layer.
struct AttentionKind {
    geometry: AttentionGeometry,
    rope: Arc<RopeTable>,
}

/// What one layer hands to the next.
struct ResidualStream<O: Ops> {
    /// The sum of what the layers gave, `[num_tokens, hidden_size]`.
    hidden: O::Buffer,
    /// Normalised rows of it.
    normed: O::Buffer,
    /// Of `normed`, those that the batch keeps, once it has passed the last layer.
    kept: Vec<u32>,
}

/// The step whose last layer was computed last.
#[derive(Clone, Copy, Debug)]
enum LastStep {
    Whole,
    Advancing,
}

/// Activations inside a layer, kept to reuse their memory.
struct Buffers<O: Ops> {
    /// Queries, keys and values, `[num_tokens, qkv_width]`.
    qkv: O::Buffer,
    /// Attended values, `[num_tokens, query_width]`.
    attended: O::Buffer,
    feed_forward: FeedForward<O>,
    /// What a layer's part adds to the residual stream, `[num_tokens, hidden_size]`.
    delta: O::Buffer,
    /// Some rows of another buffer.
    selected: O::Buffer,
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
        let [whole, advancing] = [ResidualStream::new(&ops), ResidualStream::new(&ops)];
        let buffers = Buffers::new(&ops);
        let adapter_buffers = AdapterBuffers::new(&ops);
        let last = LastStep::Whole;
        Ok(Self {
            ops,
            config,
            weights,
            full,
            sliding,
            whole,
            advancing,
            last,
            buffers,
            adapter_buffers,
        })
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
        self.last = LastStep::Whole;
        let (mut model, stream, _) = self.parts();
        let num_layers = model.weights.layers.len();
        model.compute(stream, batch, 0..num_layers, kv, logits);
    }

    /// Computes some layers of a step that goes on in the next call: stores the KV of every token
    /// in these layers. With the last layer, replaces `logits` as [`Self::forward`] does. In between
    /// there may be any calls of `forward`, but no other step that begins here.
    pub fn advance(
        &mut self,
        batch: &Batch,
        layers: Range<usize>,
        kv: &mut O::Kv,
        logits: &mut Vec<f32>,
    ) {
        self.last = LastStep::Advancing;
        let (mut model, _, stream) = self.parts();
        model.compute(stream, batch, layers, kv, logits);
    }

    /// Returns what all steps share, and the streams of the two steps that can be on their way.
    fn parts(&mut self) -> (Layers<'_, O>, &mut ResidualStream<O>, &mut ResidualStream<O>) {
        let Self { ops, config, weights, full, sliding, buffers, adapter_buffers, .. } = self;
        let sliding = sliding.as_ref();
        let layers = Layers { ops, config, weights, full, sliding, buffers, adapter_buffers };
        (layers, &mut self.whole, &mut self.advancing)
    }
}

/// A model's layers with what they compute in.
struct Layers<'a, O: Ops> {
    ops: &'a O,
    config: &'a ModelConfig,
    weights: &'a ModelWeights<O>,
    full: &'a AttentionKind,
    sliding: Option<&'a AttentionKind>,
    buffers: &'a mut Buffers<O>,
    adapter_buffers: &'a mut AdapterBuffers<O>,
}

impl<O: Ops> Layers<'_, O> {
    /// Computes some layers of a step, the embedding before the first and the logits behind the
    /// last included.
    fn compute(
        &mut self,
        stream: &mut ResidualStream<O>,
        batch: &Batch,
        layers: Range<usize>,
        kv: &mut O::Kv,
        logits: &mut Vec<f32>,
    ) {
        let Self { ops, config, weights, full, sliding, buffers: b, adapter_buffers } = self;
        let mut adapters = StepAdapters::of(batch, *ops, adapter_buffers);
        let epsilon = config.rms_norm_epsilon;
        let wanted_rows = wanted_rows(batch);
        if batch.num_tokens() == 0 {
            return logits.clear();
        }
        if layers.start == 0 {
            stream.begin(*ops, config, weights, batch);
        }
        let ResidualStream { hidden, normed, kept } = &mut *stream;
        let num_layers = weights.layers.len();
        for i in layers.clone() {
            let layer = &weights.layers[i];
            let windowed = sliding.filter(|_| config.sliding_of(i).is_some());
            let AttentionKind { geometry, rope } = windowed.unwrap_or(full);
            adapters.enter_layer(i);
            ops.matmul(normed, &layer.qkv, &mut b.qkv);
            adapters.add(Projection::QKV, normed, &mut b.qkv);
            let bias = layer.qkv_bias.as_ref();
            let norms = layer.qk_norm.as_ref();
            let norms = norms.map(|[query, key]| HeadNorms { query, key, epsilon });
            let heads = HeadWeights { bias, norms };
            ops.prepare_and_store_kv(&mut b.qkv, geometry, heads, rope, i, batch, kv);
            let is_last = i + 1 == num_layers;
            if is_last && wanted_rows.is_empty() {
                break;
            }
            ops.attention(&b.qkv, geometry, bias, i, batch, kv, &mut b.attended);
            if is_last && wanted_rows.len() < batch.num_tokens() {
                for rows in [&mut b.attended, &mut *hidden] {
                    ops.gather_rows(rows, &wanted_rows, &mut b.selected);
                    std::mem::swap(rows, &mut b.selected);
                }
                adapters.select(&wanted_rows);
            }
            ops.matmul(&b.attended, &layer.attention_output, &mut b.delta);
            adapters.add(&[Projection::AttentionOutput], &b.attended, &mut b.delta);
            let (added, sum) = (layer.attention_post_norm.as_ref(), &layer.feed_forward_norm);
            ops.add_and_norm(&b.delta, hidden, ResidualNorms { added, sum, epsilon }, normed);
            let part = &layer.feed_forward;
            b.feed_forward.compute(*ops, part, config, &mut adapters, normed, &mut b.delta);
            let (added, sum) = (layer.feed_forward_post_norm.as_ref(), weights.norm_after(i));
            ops.add_and_norm(&b.delta, hidden, ResidualNorms { added, sum, epsilon }, normed);
        }
        if layers.end == num_layers {
            kept.extend(places(&batch.kept_rows, &wanted_rows));
            self.logits(stream, batch, &wanted_rows, logits);
        }
    }

    /// Replaces `logits` with those that the batch wants, of a stream that has the wanted rows only.
    fn logits(
        &mut self,
        stream: &ResidualStream<O>,
        batch: &Batch,
        wanted_rows: &[u32],
        logits: &mut Vec<f32>,
    ) {
        let Self { ops, config, weights, buffers: b, .. } = self;
        if batch.logits_rows.is_empty() {
            return logits.clear();
        }
        let rows = if batch.logits_rows.len() < wanted_rows.len() {
            let rows: Vec<u32> = places(&batch.logits_rows, wanted_rows).collect();
            ops.gather_rows(&stream.normed, &rows, &mut b.selected);
            &b.selected
        } else {
            &stream.normed
        };
        ops.matmul_to_host(rows, weights.output_head(), logits);
        if let Some(cap) = config.logit_soft_cap {
            ops.soft_cap(logits, cap);
        }
    }
}

impl<O: Ops> Transformer<O> {
    /// Replaces `out` with some of the rows that the last batch kept, numbered in the order of its
    /// `kept_rows`: `[num_rows, vocab_size]` or `[num_rows, hidden_size]`, as `form` says.
    ///
    /// # Panics
    /// When the last batch kept fewer rows.
    pub fn read_kept_rows(&mut self, rows: Range<usize>, form: RowForm, out: &mut Vec<f32>) {
        let Self { ops, config, weights, whole, advancing, last, buffers: b, .. } = self;
        let stream = match last {
            LastStep::Whole => whole,
            LastStep::Advancing => advancing,
        };
        ops.gather_rows(&stream.normed, &stream.kept[rows], &mut b.selected);
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

impl<O: Ops> ResidualStream<O> {
    fn new(ops: &O) -> Self {
        Self { hidden: ops.buffer(), normed: ops.buffer(), kept: Vec::new() }
    }

    /// Brings the tokens of a step to the first layer.
    fn begin(&mut self, ops: &O, config: &ModelConfig, weights: &ModelWeights<O>, batch: &Batch) {
        self.kept.clear();
        ops.embed(&weights.embedding, &batch.tokens, &mut self.hidden);
        if config.embedding_scale != 1.0 {
            ops.scale(&mut self.hidden, config.embedding_scale);
        }
        let epsilon = config.rms_norm_epsilon;
        ops.rms_norm(&self.hidden, weights.first_norm(), epsilon, &mut self.normed);
    }
}

impl<O: Ops> Buffers<O> {
    fn new(ops: &O) -> Self {
        Self {
            qkv: ops.buffer(),
            attended: ops.buffer(),
            feed_forward: FeedForward::new(ops),
            delta: ops.buffer(),
            selected: ops.buffer(),
        }
    }
}
