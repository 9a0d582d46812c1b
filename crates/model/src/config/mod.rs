//! What a model is: its dimensions, and the kinds of its parts.
//!
//! Everything the forward pass does differently between architectures is a field here, so that the
//! transformer stays one piece of code. Each format of checkpoint has a reader below. None of them
//! ignores anything: a key that may change the numbers and that a reader does not know is an error,
//! not a warning.

mod gguf;
mod json;

pub(crate) use json::Int4Storage;

use crate::error::ModelError;
use crate::ops::{Activation, AttentionGeometry};
use crate::rope::RopeConfig;
use mini_infer_core::Pooling;

/// Sizes beyond this are damage. Keeps every product of three sizes far from overflow.
const MAX_DIMENSION: usize = 1 << 24;

/// A family of models with one tensor layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Architecture {
    /// Llama and the models that share its graph, such as SmolLM2, Mistral and Mixtral.
    Llama,
    /// Qwen 2 and 2.5.
    Qwen2,
    /// Qwen 3, dense.
    Qwen3,
    /// Qwen 3 with routed experts.
    Qwen3Moe,
    /// Phi 3, 3.5 and 4, text only.
    Phi3,
    /// Gemma 2.
    Gemma2,
    /// Gemma 3, text only.
    Gemma3,
}

impl Architecture {
    /// Returns the name that GGUF files have for it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Llama => "llama",
            Self::Qwen2 => "qwen2",
            Self::Qwen3 => "qwen3",
            Self::Qwen3Moe => "qwen3moe",
            Self::Phi3 => "phi3",
            Self::Gemma2 => "gemma2",
            Self::Gemma3 => "gemma3",
        }
    }
}

/// Whether a bias is added to queries, keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QkvBias {
    /// None is.
    Absent,
    /// One for each of the three.
    Present,
}

/// Whether queries and keys are normalised, head by head, before they are rotated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QkNorm {
    /// They are not.
    Absent,
    /// With one weight for all query heads of a layer and one for all key heads.
    PerHead,
}

/// Where a layer's two parts normalise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormPlacement {
    /// Their input.
    Before,
    /// Their input, and their output before it is added to the residual stream.
    BeforeAndAfter,
}

/// What turns the last layer's output into logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputHead {
    /// The token embeddings.
    Tied,
    /// A matrix of its own, which must be there.
    Untied,
    /// A matrix of its own where there is one, else the token embeddings: the rule of GGUF.
    AsStored,
}

/// How the projections into a layer's parts are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Projections {
    /// Each by itself.
    Separate,
    /// Queries, keys and values as rows of one tensor, and gate and up as rows of another.
    Fused,
}

/// The feed-forward parts of a layer of which each token uses some.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Experts {
    /// How many a layer has.
    pub count: usize,
    /// How many a token uses, at most `count`: those that the router finds most probable.
    pub used: usize,
    /// What the outputs of a token's experts are multiplied by.
    pub weighting: ExpertWeighting,
}

/// What the outputs of a token's experts are multiplied by before they are added up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpertWeighting {
    /// Their probabilities among all experts.
    OfAll,
    /// Their probabilities among those that the token uses.
    OfUsed,
}

/// Layers that see only the most recent tokens, and how they lie between those that see all.
#[derive(Clone, Debug, PartialEq)]
pub struct SlidingLayers {
    /// Tokens that a query sees, itself included.
    pub window: usize,
    /// Every layer whose number, from 1, is a multiple of this sees all tokens; none does where
    /// this is larger than the number of layers.
    pub full_every: usize,
    /// Position embedding of the sliding layers.
    pub rope: RopeConfig,
}

/// A model's dimensions and kinds.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    /// The family.
    pub architecture: Architecture,
    /// Tokens in the vocabulary, and logits in a row.
    pub vocab_size: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Transformer layers.
    pub num_layers: usize,
    /// Width inside a feed-forward layer; inside each expert where there are such.
    pub intermediate_size: usize,
    /// Tokens of context that the model was made for.
    pub context_length: usize,
    /// Added to the mean square in every norm.
    pub rms_norm_epsilon: f32,
    /// Added to every stored weight of a norm: 1 for Gemma, except in GGUF, which has added it.
    pub norm_offset: f32,
    /// Factor on the token embeddings.
    pub embedding_scale: f32,
    /// Heads of every layer; without a window, see `sliding`.
    pub attention: AttentionGeometry,
    /// Position embedding of the layers that see all tokens.
    pub rope: RopeConfig,
    /// Layers that do not see all tokens, where there are such.
    pub sliding: Option<SlidingLayers>,
    /// How projections are stored.
    pub projections: Projections,
    /// Experts of every layer, where feed-forward parts are made of them.
    pub experts: Option<Experts>,
    /// Whether queries, keys and values have a bias.
    pub qkv_bias: QkvBias,
    /// Whether queries and keys are normalised.
    pub qk_norm: QkNorm,
    /// Where layers normalise.
    pub norm_placement: NormPlacement,
    /// Nonlinearity of every feed-forward layer.
    pub activation: Activation,
    /// What logits are squeezed below: `cap * tanh(logit / cap)`; `None` where they are not.
    pub logit_soft_cap: Option<f32>,
    /// What turns the last layer's output into logits.
    pub output_head: OutputHead,
    /// How the hidden states of a text become one vector, where the model was trained for that and
    /// says so.
    pub pooling: Option<Pooling>,
}

impl ModelConfig {
    /// Returns the rule of a layer that does not see all tokens, or `None` for one that does.
    #[must_use]
    pub fn sliding_of(&self, layer: usize) -> Option<&SlidingLayers> {
        self.sliding.as_ref().filter(|sliding| !(layer + 1).is_multiple_of(sliding.full_every))
    }

    /// Returns the bytes that one token's keys and values take over all layers, when each number
    /// takes `element_bytes`.
    #[must_use]
    pub fn kv_bytes_per_token(&self, element_bytes: usize) -> usize {
        2 * self.num_layers * self.attention.kv_width() * element_bytes
    }
}

/// Returns `1 / sqrt(n)`.
#[expect(clippy::cast_possible_truncation, reason = "rounding to f32 is the purpose")]
fn inverse_sqrt(n: usize) -> f32 {
    (1.0 / (n as f64).sqrt()) as f32
}

fn unsupported(what: &str, got: &str, supported: &str) -> ModelError {
    ModelError::Unsupported {
        what: what.to_owned(),
        got: got.to_owned(),
        supported: supported.to_owned(),
    }
}
