//! Which tensor of a checkpoint plays which part.
//!
//! Names are the canonical ones, those of ggml's converter; errors use the file's own. Every tensor
//! of a checkpoint is accounted for: what is missing is an error, and so is what is left over,
//! because a model computed without some of its weights gives wrong text, not a message.

use super::TensorView;
use crate::Checkpoint;
use crate::config::{ModelConfig, NormPlacement, OutputHead, QkNorm, QkvBias};
use crate::error::ModelError;
use crate::rope::{LongRopeDivisors, LongRopeScaling};
use std::collections::BTreeSet;

/// The output head, for models that have their own.
const OUTPUT_HEAD: &str = "output.weight";

/// The tensors of a model, borrowed from its checkpoint, with their shapes checked.
#[derive(Clone, Debug)]
pub struct ModelTensors<'a> {
    /// Token embeddings, `[vocab_size, hidden_size]`.
    pub embedding: TensorView<'a>,
    /// The layers in order.
    pub layers: Vec<LayerTensors<'a>>,
    /// Weight of the last norm, `[hidden_size]`.
    pub output_norm: TensorView<'a>,
    /// Output head, `[vocab_size, hidden_size]`; `None` when it is tied to the embeddings.
    pub output_head: Option<TensorView<'a>>,
    /// Divisors of the RoPE frequencies, `[rotary_dim / 2]`, where the model has them.
    pub rope_factors: Option<TensorView<'a>>,
    /// LongRoPE's divisors for short and for long contexts, `[rotary_dim / 2]`, where the model has
    /// them as tensors.
    pub long_rope_divisors: Option<[TensorView<'a>; 2]>,
}

/// The tensors of one layer.
#[derive(Clone, Debug)]
pub struct LayerTensors<'a> {
    /// Weight of the norm before attention, `[hidden_size]`.
    pub attention_norm: TensorView<'a>,
    /// Query, key and value projections, `[query_width or kv_width, hidden_size]`.
    pub qkv: [TensorView<'a>; 3],
    /// What is added to queries, keys and values, `[query_width or kv_width]`, where the model has
    /// it.
    pub qkv_bias: Option<[TensorView<'a>; 3]>,
    /// Weights of the norms of query heads and key heads, `[head_dim]`, where the model has them.
    pub qk_norm: Option<[TensorView<'a>; 2]>,
    /// Projection of the attended values, `[hidden_size, query_width]`.
    pub attention_output: TensorView<'a>,
    /// Weight of the norm after attention, `[hidden_size]`, where the model has it.
    pub attention_post_norm: Option<TensorView<'a>>,
    /// Weight of the norm before the feed-forward part, `[hidden_size]`.
    pub feed_forward_norm: TensorView<'a>,
    /// The feed-forward part.
    pub feed_forward: FeedForwardTensors<'a>,
    /// Weight of the norm after the feed-forward part, `[hidden_size]`, where the model has it.
    pub feed_forward_post_norm: Option<TensorView<'a>>,
}

/// The tensors of a layer's feed-forward part.
#[derive(Clone, Debug)]
#[expect(clippy::large_enum_variant, reason = "there are few: one for each layer")]
pub enum FeedForwardTensors<'a> {
    /// For all tokens.
    Dense(GatedTensors<'a>),
    /// Of experts.
    Routed {
        /// What gives each token a logit for every expert, `[count, hidden_size]`.
        router: TensorView<'a>,
        /// The experts in order.
        experts: Vec<GatedTensors<'a>>,
    },
}

/// The tensors of a gated product.
#[derive(Clone, Debug)]
pub struct GatedTensors<'a> {
    /// Gate and up projections, `[intermediate_size, hidden_size]`.
    pub gate_up: [TensorView<'a>; 2],
    /// Down projection, `[hidden_size, intermediate_size]`.
    pub down: TensorView<'a>,
}

impl<'a> ModelTensors<'a> {
    /// Finds the tensors that the checkpoint's configuration asks for.
    ///
    /// # Errors
    /// When a tensor is missing, has another shape, or has no part to play.
    pub fn find(checkpoint: &'a Checkpoint) -> Result<Self, ModelError> {
        let mut inventory = Inventory::new(checkpoint);
        let found = find_all(&mut inventory, checkpoint.config());
        inventory.finish(found)
    }
}

fn find_all<'a>(inventory: &mut Inventory<'a>, config: &ModelConfig) -> Option<ModelTensors<'a>> {
    let hidden = config.hidden_size;
    let table = [config.vocab_size, hidden];
    let embedding = inventory.take("token_embd.weight", &table);
    let output_norm = inventory.take("output_norm.weight", &[hidden]);
    let output_head = match config.output_head {
        OutputHead::Tied => Some(None),
        OutputHead::Untied => inventory.take(OUTPUT_HEAD, &table).map(Some),
        OutputHead::AsStored => Some(inventory.take_optional(OUTPUT_HEAD, &table)),
    };
    let num_pairs = config.rope.rotary_dim / 2;
    let rope_factors = inventory.take_optional("rope_freqs.weight", &[num_pairs]);
    let in_tensors = |scaling: &LongRopeScaling| scaling.divisors == LongRopeDivisors::InTensors;
    let long_rope_divisors =
        config.rope.scaling.long_rope().filter(|it| in_tensors(it)).map(|_| {
            ["rope_factors_short.weight", "rope_factors_long.weight"]
                .map(|name| inventory.take(name, &[num_pairs]))
        });
    // Ends at the first incomplete layer, so that a false number of layers costs nothing.
    let layers = (0..config.num_layers).map(|layer| find_layer(inventory, config, layer));
    let layers = layers.collect::<Option<_>>();
    Some(ModelTensors {
        embedding: embedding?,
        layers: layers?,
        output_norm: output_norm?,
        output_head: output_head?,
        rope_factors,
        long_rope_divisors: match long_rope_divisors {
            None => None,
            Some([short, long]) => Some([short?, long?]),
        },
    })
}

fn find_layer<'a>(
    inventory: &mut Inventory<'a>,
    config: &ModelConfig,
    layer: usize,
) -> Option<LayerTensors<'a>> {
    // All are looked up before the first `?`, so that the error lists all that are missing.
    let feed_forward = find_feed_forward(inventory, config, layer);
    let hidden = config.hidden_size;
    let (query, kv) = (config.attention.query_width(), config.attention.kv_width());
    let mut take_as = |part: &str, kind: &str, shape: &[usize]| {
        inventory.take(&format!("blk.{layer}.{part}.{kind}"), shape)
    };
    let qkv_bias = match config.qkv_bias {
        QkvBias::Absent => None,
        QkvBias::Present => Some(
            [("attn_q", query), ("attn_k", kv), ("attn_v", kv)]
                .map(|(part, width)| take_as(part, "bias", &[width])),
        ),
    };
    let mut take = |part: &str, shape: &[usize]| take_as(part, "weight", shape);
    let attention_norm = take("attn_norm", &[hidden]);
    let q = take("attn_q", &[query, hidden]);
    let k = take("attn_k", &[kv, hidden]);
    let v = take("attn_v", &[kv, hidden]);
    let attention_output = take("attn_output", &[hidden, query]);
    let feed_forward_norm = take("ffn_norm", &[hidden]);
    let head = [config.attention.head_dim];
    let qk_norm = match config.qk_norm {
        QkNorm::Absent => None,
        QkNorm::PerHead => Some((take("attn_q_norm", &head), take("attn_k_norm", &head))),
    };
    let post_norms = match config.norm_placement {
        NormPlacement::Before => None,
        NormPlacement::BeforeAndAfter => {
            Some((take("post_attention_norm", &[hidden]), take("post_ffw_norm", &[hidden])))
        }
    };
    let (attention_post_norm, feed_forward_post_norm) = match post_norms {
        None => (None, None),
        Some((attention, feed_forward)) => (Some(attention?), Some(feed_forward?)),
    };
    Some(LayerTensors {
        attention_norm: attention_norm?,
        qkv: [q?, k?, v?],
        qkv_bias: match qkv_bias {
            None => None,
            Some([q, k, v]) => Some([q?, k?, v?]),
        },
        qk_norm: match qk_norm {
            None => None,
            Some((q, k)) => Some([q?, k?]),
        },
        attention_output: attention_output?,
        attention_post_norm,
        feed_forward_norm: feed_forward_norm?,
        feed_forward: feed_forward?,
        feed_forward_post_norm,
    })
}

fn find_feed_forward<'a>(
    inventory: &mut Inventory<'a>,
    config: &ModelConfig,
    layer: usize,
) -> Option<FeedForwardTensors<'a>> {
    let Some(experts) = config.experts else {
        return find_gated(inventory, config, layer, "").map(FeedForwardTensors::Dense);
    };
    let shape = [experts.count, config.hidden_size];
    let router = inventory.take(&format!("blk.{layer}.ffn_gate_inp.weight"), &shape);
    let numbers = (0..experts.count).map(|expert| format!(".{expert}"));
    let experts = numbers.map(|number| find_gated(inventory, config, layer, &number));
    let experts = experts.collect::<Option<_>>();
    Some(FeedForwardTensors::Routed { router: router?, experts: experts? })
}

/// Finds the tensors of a gated product; `number` follows the names of those of an expert.
fn find_gated<'a>(
    inventory: &mut Inventory<'a>,
    config: &ModelConfig,
    layer: usize,
    number: &str,
) -> Option<GatedTensors<'a>> {
    let (hidden, inner) = (config.hidden_size, config.intermediate_size);
    let mut take = |part: &str, shape: [usize; 2]| {
        inventory.take(&format!("blk.{layer}.{part}{number}.weight"), &shape)
    };
    let gate = take("ffn_gate", [inner, hidden]);
    let up = take("ffn_up", [inner, hidden]);
    let down = take("ffn_down", [hidden, inner]);
    Some(GatedTensors { gate_up: [gate?, up?], down: down? })
}

/// The tensors of a checkpoint, ticked off as they are taken.
struct Inventory<'a> {
    checkpoint: &'a Checkpoint,
    taken: BTreeSet<&'a str>,
    missing: Vec<String>,
    wrong_shape: Option<ModelError>,
}

impl<'a> Inventory<'a> {
    fn new(checkpoint: &'a Checkpoint) -> Self {
        Self { checkpoint, taken: BTreeSet::new(), missing: Vec::new(), wrong_shape: None }
    }

    fn take(&mut self, name: &str, shape: &[usize]) -> Option<TensorView<'a>> {
        let tensor = self.take_optional(name, shape);
        if tensor.is_none() {
            self.missing.push(self.checkpoint.stored_name(name));
        }
        tensor
    }

    fn take_optional(&mut self, name: &str, shape: &[usize]) -> Option<TensorView<'a>> {
        let tensor = self.checkpoint.tensor(name)?;
        self.taken.insert(tensor.name);
        if tensor.shape != shape {
            self.wrong_shape.get_or_insert_with(|| ModelError::TensorShape {
                tensor: self.checkpoint.stored_name(name),
                got: tensor.shape.to_vec(),
                expected: shape.to_vec(),
            });
        }
        Some(tensor)
    }

    /// Returns `found`, or what is wrong with the tensors.
    fn finish<T>(self, found: Option<T>) -> Result<T, ModelError> {
        if let Some(error) = self.wrong_shape {
            return Err(error);
        }
        let found = found.ok_or(ModelError::MissingTensors { names: self.missing })?;
        let left = self.checkpoint.tensor_names().filter(|name| !self.taken.contains(name));
        let names: Vec<_> = left.map(|name| self.checkpoint.stored_name(name)).collect();
        if names.is_empty() { Ok(found) } else { Err(ModelError::UnusedTensors { names }) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gguf::builder::Builder;

    /// A model of one layer whose tensors, all of one float, lie where `names` says.
    fn find(names: &[&str]) -> String {
        let mut builder = Builder::default()
            .text("general.architecture", "llama")
            .f32("llama.attention.layer_norm_rms_epsilon", 1e-5)
            .u32("llama.attention.head_count", 1);
        for key in ["vocab_size", "context_length", "feed_forward_length", "block_count"] {
            builder = builder.u32(&format!("llama.{key}"), 1);
        }
        builder = builder.u32("llama.embedding_length", 2).data(32 * names.len());
        for (i, name) in (0..).zip(names) {
            let dimensions: &[u64] = match *name {
                name if name.contains("norm") => &[2],
                name if name.contains("down") => &[1, 2],
                name if ["attn_q", "attn_k", "attn_v", "attn_o"]
                    .iter()
                    .any(|p| name.contains(p)) =>
                {
                    &[2, 2]
                }
                "rope_freqs.weight" => &[1],
                _ => &[2, 1],
            };
            builder = builder.tensor(name, dimensions, 0, 32 * i);
        }
        let checkpoint = Checkpoint::from_bytes(builder.build().into()).expect("a valid file");
        ModelTensors::find(&checkpoint).err().map(|error| error.to_string()).unwrap_or_default()
    }

    const NEEDED: [&str; 11] = [
        "token_embd.weight",
        "output_norm.weight",
        "blk.0.attn_norm.weight",
        "blk.0.attn_q.weight",
        "blk.0.attn_k.weight",
        "blk.0.attn_v.weight",
        "blk.0.attn_output.weight",
        "blk.0.ffn_norm.weight",
        "blk.0.ffn_gate.weight",
        "blk.0.ffn_up.weight",
        "blk.0.ffn_down.weight",
    ];

    #[test]
    fn every_needed_tensor_is_missed_by_name() {
        assert_eq!(find(&NEEDED), "");
        for i in 0..NEEDED.len() {
            let mut names = NEEDED.to_vec();
            let removed = names.remove(i);
            assert_eq!(find(&names), format!("missing tensors (1): {removed}"));
        }
    }

    #[test]
    fn optional_tensors_are_used_and_others_refused() {
        let with = |name| [&NEEDED[..], &[name]].concat();
        assert_eq!(find(&with("output.weight")), "");
        assert_eq!(find(&with("rope_freqs.weight")), "");
        let error = find(&with("blk.0.attn_q.bias"));
        assert_eq!(error, "tensors without a use in this architecture (1): blk.0.attn_q.bias");
        assert!(find(&with("blk.1.attn_q.weight")).contains("blk.1.attn_q.weight"));
    }

    #[test]
    fn a_tensor_of_another_shape_is_named() {
        let checkpoint = Builder::default()
            .text("general.architecture", "llama")
            .f32("llama.attention.layer_norm_rms_epsilon", 1e-5)
            .u32("llama.attention.head_count", 1)
            .u32("llama.vocab_size", 1)
            .u32("llama.context_length", 1)
            .u32("llama.feed_forward_length", 1)
            // A false number of layers ends the search at the first one that is not there.
            .u32("llama.block_count", 1 << 24)
            .u32("llama.embedding_length", 2)
            .tensor("token_embd.weight", &[2, 3], 0, 0)
            .data(24);
        let checkpoint = Checkpoint::from_bytes(checkpoint.build().into()).unwrap();
        assert_eq!(
            ModelTensors::find(&checkpoint).unwrap_err().to_string(),
            "tensor `token_embd.weight` has shape [3, 2], expected [1, 2]"
        );
    }
}
