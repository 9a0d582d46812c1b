//! The configuration in Hugging Face's `config.json`.
//!
//! `model_type` names the family, and with it the code that gives the other keys their meaning: for
//! each there is a function below, after the family's configuration class in transformers 4 and 5,
//! whose spellings of RoPE parameters are both read.
//!
//! Which keys matter cannot be told from the file, and a server that guesses answers wrongly and
//! says nothing. So each key must be one of these: one that is read, and refused by name with a
//! value that is not implemented; one that is known to change no number (`keys.rs` lists them); or
//! one whose value says that something is not used (`null`, `false`, an empty list or object).
//! Anything else is an error that names the key. What a family's class assumes of absent keys is
//! assumed here.

mod keys;
mod quantization;
mod rope;
#[cfg(test)]
mod tests;

use super::{
    Architecture, ExpertWeighting, Experts, MAX_DIMENSION, ModelConfig, NormPlacement, OutputHead,
    Projections, QkNorm, QkvBias, SlidingLayers, inverse_sqrt, unsupported,
};
use crate::error::ModelError;
use crate::ops::{Activation, AttentionGeometry};
use crate::rope::RopeConfig;
use keys::Keys;
pub(crate) use quantization::Int4Storage;
use rope::RopeSizes;

/// A reader of one family's keys.
type Reader = fn(&Keys) -> Result<ModelConfig, ModelError>;

/// The families that can be read: `model_type`, the class in `architectures`, and who reads it.
const FAMILIES: &[(&str, &str, Reader)] = &[
    ("llama", "LlamaForCausalLM", llama),
    ("mistral", "MistralForCausalLM", mistral),
    ("qwen2", "Qwen2ForCausalLM", qwen2),
    ("qwen3", "Qwen3ForCausalLM", qwen3),
    ("qwen3_moe", "Qwen3MoeForCausalLM", qwen3_moe),
    ("mixtral", "MixtralForCausalLM", mixtral),
    ("phi3", "Phi3ForCausalLM", phi3),
    ("gemma2", "Gemma2ForCausalLM", gemma2),
    ("gemma3_text", "Gemma3ForCausalLM", gemma3),
    ("gemma3", "Gemma3ForConditionalGeneration", gemma3_with_images),
];

/// Keys beside `text_config` that only images need.
const IMAGE_KEYS: &[&str] = &[
    "vision_config",
    "boi_token_index",
    "eoi_token_index",
    "image_token_index",
    "image_token_id",
    "mm_tokens_per_image",
];

/// What a family's class assumes of keys that a file leaves out.
struct Defaults {
    /// `num_attention_heads`; `None` where it must be there.
    num_heads: Option<usize>,
    /// `num_key_value_heads`; `None` for as many as queries have.
    num_kv_heads: Option<usize>,
    /// `head_dim`; `None` for the hidden size divided by the heads.
    head_dim: Option<usize>,
    /// `vocab_size`; `None` where it must be there.
    vocab_size: Option<usize>,
    /// `max_position_embeddings`.
    context_length: usize,
    /// `hidden_act`.
    activation: Activation,
    /// `tie_word_embeddings`.
    output_head: OutputHead,
}

impl Defaults {
    /// Those of the families whose files state all sizes.
    const fn with_context_length(context_length: usize) -> Self {
        Self {
            num_heads: None,
            num_kv_heads: None,
            head_dim: None,
            vocab_size: None,
            context_length,
            activation: Activation::Silu,
            output_head: OutputHead::Untied,
        }
    }
}

impl ModelConfig {
    /// Reads and checks the bytes of a `config.json`.
    ///
    /// # Errors
    /// When the family or a feature of it is not supported, a key is missing or unknown, or the
    /// values make no model; the error names the key.
    pub fn from_json(bytes: &[u8]) -> Result<Self, ModelError> {
        let keys = Keys::parse(bytes)?;
        let name = keys.text("model_type")?;
        let name = name.ok_or_else(|| keys.missing("model_type"))?;
        let found = FAMILIES.iter().find(|(known, _, _)| *known == name);
        let Some((_, class, reader)) = found else {
            let known: Vec<_> = FAMILIES.iter().map(|(known, _, _)| *known).collect();
            return Err(unsupported("model_type", name, &known.join(", ")));
        };
        let classes = keys.texts("architectures")?.unwrap_or_default();
        if !classes.is_empty() && !classes.iter().any(|found| found.eq_ignore_ascii_case(class)) {
            return Err(unsupported("model class", &classes.join(", "), class));
        }
        Int4Storage::from_keys(&keys)?;
        let config = reader(&keys)?;
        keys.check_all_read()?;
        Ok(config)
    }
}

/// Llama 2 and 3, and the models that share their layers, such as SmolLM2.
fn llama(keys: &Keys) -> Result<ModelConfig, ModelError> {
    keys.expect_unused("mlp_bias")?;
    keys.expect_unused("rope_interleaved")?;
    decoder(keys, &Defaults::with_context_length(2048), rope::of_all_layers)
}

/// Mistral 7B and Nemo: Llama's layers, in the first versions with a window on all of them.
fn mistral(keys: &Keys) -> Result<ModelConfig, ModelError> {
    let config = decoder(keys, &Defaults::with_context_length(131_072), rope::of_all_layers)?;
    windowed(keys, config)
}

/// Mixtral: Mistral with experts.
fn mixtral(keys: &Keys) -> Result<ModelConfig, ModelError> {
    let config = mistral(keys)?;
    let experts = experts(keys, "num_local_experts", ExpertWeighting::OfUsed)?;
    Ok(ModelConfig { experts: Some(experts), ..config })
}

/// Phi 3, 3.5 and 4: Llama's layers with projections that share tensors.
fn phi3(keys: &Keys) -> Result<ModelConfig, ModelError> {
    // Names the classes that transformers now has itself.
    keys.get("auto_map");
    keys.expect_unused("mlp_bias")?;
    keys.expect_unused("lm_head_bias")?;
    keys.expect_count("full_attn_mod", 1)?;
    keys.expect_count("interpolate_factor", 1)?;
    let config = decoder(keys, &Defaults::with_context_length(4096), rope::of_all_layers)?;
    let projections = Projections::Fused;
    windowed(keys, ModelConfig { architecture: Architecture::Phi3, projections, ..config })
}

/// Gives all layers a window if the file has one.
fn windowed(keys: &Keys, config: ModelConfig) -> Result<ModelConfig, ModelError> {
    let window = keys.optional_dimension("sliding_window")?;
    let sliding = window.map(|window| {
        let full_every = config.num_layers + 1;
        SlidingLayers { window, full_every, rope: config.rope.clone() }
    });
    Ok(ModelConfig { sliding, ..config })
}

fn experts(
    keys: &Keys,
    count_key: &str,
    weighting: ExpertWeighting,
) -> Result<Experts, ModelError> {
    let count = keys.dimension(count_key, None)?;
    let used = keys.dimension("num_experts_per_tok", None)?;
    if used > count {
        let expected = format!("at most the {count} experts");
        return Err(keys.wrong("num_experts_per_tok", used, expected));
    }
    Ok(Experts { count, used, weighting })
}

/// Qwen 2 and 2.5: Llama's layers with biases on queries, keys and values.
fn qwen2(keys: &Keys) -> Result<ModelConfig, ModelError> {
    let config = qwen(keys, &Defaults::with_context_length(32_768))?;
    Ok(ModelConfig { architecture: Architecture::Qwen2, qkv_bias: QkvBias::Present, ..config })
}

/// Qwen 3: norms over queries and keys.
fn qwen3(keys: &Keys) -> Result<ModelConfig, ModelError> {
    let defaults = Defaults { head_dim: Some(128), ..Defaults::with_context_length(32_768) };
    let config = qwen(keys, &defaults)?;
    Ok(ModelConfig { architecture: Architecture::Qwen3, qk_norm: QkNorm::PerHead, ..config })
}

/// Qwen 3 with experts in every layer.
fn qwen3_moe(keys: &Keys) -> Result<ModelConfig, ModelError> {
    keys.expect_count("decoder_sparse_step", 1)?;
    let config = qwen(keys, &Defaults::with_context_length(32_768))?;
    let weighting = match keys.flag("norm_topk_prob")? {
        Some(true) => ExpertWeighting::OfUsed,
        None | Some(false) => ExpertWeighting::OfAll,
    };
    // transformers 5 writes the second name.
    let count_key = match keys.get("num_experts") {
        Some(_) => "num_experts",
        None => "num_local_experts",
    };
    Ok(ModelConfig {
        architecture: Architecture::Qwen3Moe,
        intermediate_size: keys.dimension("moe_intermediate_size", None)?,
        experts: Some(experts(keys, count_key, weighting)?),
        qk_norm: QkNorm::PerHead,
        ..config
    })
}

/// Reads what all of Qwen's families share. Where a window is used, the first `max_window_layers`
/// layers still see all tokens.
fn qwen(keys: &Keys, defaults: &Defaults) -> Result<ModelConfig, ModelError> {
    let config = decoder(keys, defaults, rope::of_all_layers)?;
    let is_used = keys.flag("use_sliding_window")?.unwrap_or(false);
    let window = keys.optional_dimension("sliding_window")?.filter(|_| is_used);
    let num_full = keys.optional_count("max_window_layers")?.unwrap_or(28);
    let slides = |layer| window.is_some() && layer >= num_full;
    let layers = Layers { num_layers: config.num_layers, window, rope: config.rope.clone() };
    Ok(ModelConfig { sliding: layers.sliding(keys, slides)?, ..config })
}

/// Gemma 2. The files of some sizes leave out keys.
fn gemma2(keys: &Keys) -> Result<ModelConfig, ModelError> {
    let defaults = Defaults {
        num_heads: Some(8),
        num_kv_heads: Some(4),
        head_dim: Some(256),
        vocab_size: Some(256_000),
        activation: Activation::GeluTanh,
        output_head: OutputHead::Tied,
        ..Defaults::with_context_length(8192)
    };
    let config = gemma(keys, &defaults, rope::of_all_layers)?;
    let soft_cap = keys.positive_unless_null("attn_logit_softcapping", 50.0)?;
    let layers = Layers {
        num_layers: config.num_layers,
        window: Some(keys.optional_dimension("sliding_window")?.unwrap_or(4096)),
        rope: config.rope.clone(),
    };
    Ok(ModelConfig {
        architecture: Architecture::Gemma2,
        attention: AttentionGeometry { soft_cap, ..config.attention },
        sliding: layers.sliding(keys, |layer| layer.is_multiple_of(2))?,
        logit_soft_cap: keys.positive_unless_null("final_logit_softcapping", 30.0)?,
        ..config
    })
}

/// Gemma 3 without images. The files of the larger sizes leave out most keys.
fn gemma3(keys: &Keys) -> Result<ModelConfig, ModelError> {
    let defaults = Defaults {
        num_heads: Some(8),
        num_kv_heads: Some(4),
        head_dim: Some(256),
        vocab_size: Some(262_208),
        activation: Activation::GeluTanh,
        output_head: OutputHead::Tied,
        ..Defaults::with_context_length(131_072)
    };
    keys.expect_unused("attn_logit_softcapping")?;
    keys.expect_unused("final_logit_softcapping")?;
    let config = gemma(keys, &defaults, rope::of_full_layers)?;
    let pattern = keys.optional_dimension("sliding_window_pattern")?;
    let full_every = pattern.or(keys.optional_dimension("_sliding_window_pattern")?).unwrap_or(6);
    let layers = Layers {
        num_layers: config.num_layers,
        window: Some(keys.optional_dimension("sliding_window")?.unwrap_or(4096)),
        rope: rope::of_sliding_layers(keys, rope_sizes(keys, &config.attention, &defaults)?)?,
    };
    let sliding = layers.sliding(keys, |layer| !(layer + 1).is_multiple_of(full_every))?;
    let architecture = Architecture::Gemma3;
    Ok(ModelConfig { architecture, sliding, qk_norm: QkNorm::PerHead, ..config })
}

/// Reads what Gemma 2 and 3 share.
fn gemma(
    keys: &Keys,
    defaults: &Defaults,
    rope: fn(&Keys, RopeSizes) -> Result<RopeConfig, ModelError>,
) -> Result<ModelConfig, ModelError> {
    keys.expect_unused("use_bidirectional_attention")?;
    let config = decoder(keys, defaults, rope)?;
    let scalar = keys.optional_positive("query_pre_attn_scalar")?.unwrap_or(256.0);
    Ok(ModelConfig {
        embedding_scale: 1.0 / inverse_sqrt(config.hidden_size),
        attention: AttentionGeometry { scale: 1.0 / scalar.sqrt(), ..config.attention },
        norm_placement: NormPlacement::BeforeAndAfter,
        norm_offset: 1.0,
        ..config
    })
}

/// Gemma 3 with images, of which the part that reads and writes text is used.
fn gemma3_with_images(keys: &Keys) -> Result<ModelConfig, ModelError> {
    for key in IMAGE_KEYS {
        keys.get(key);
    }
    let text = keys.object("text_config")?.ok_or_else(|| keys.missing("text_config"))?;
    text.get("model_type");
    let output_head = output_head(keys, OutputHead::Tied)?;
    let config = gemma3(&text)?;
    text.check_all_read()?;
    Ok(ModelConfig { output_head, ..config })
}

/// Reads what Llama and all that came after it have in common.
fn decoder(
    keys: &Keys,
    defaults: &Defaults,
    rope: fn(&Keys, RopeSizes) -> Result<RopeConfig, ModelError>,
) -> Result<ModelConfig, ModelError> {
    keys.expect_unused("attention_bias")?;
    let hidden_size = keys.dimension("hidden_size", None)?;
    let attention = attention(keys, hidden_size, defaults)?;
    let sizes = rope_sizes(keys, &attention, defaults)?;
    let rope = rope(keys, sizes)?;
    Ok(ModelConfig {
        architecture: Architecture::Llama,
        vocab_size: keys.dimension("vocab_size", defaults.vocab_size)?,
        hidden_size,
        num_layers: keys.dimension("num_hidden_layers", None)?,
        intermediate_size: keys.dimension("intermediate_size", None)?,
        context_length: rope.scaling.reach(sizes.context_length),
        rms_norm_epsilon: keys.optional_positive("rms_norm_eps")?.unwrap_or(1e-6),
        norm_offset: 0.0,
        embedding_scale: 1.0,
        attention,
        rope,
        sliding: None,
        projections: Projections::Separate,
        experts: None,
        qkv_bias: QkvBias::Absent,
        qk_norm: QkNorm::Absent,
        norm_placement: NormPlacement::Before,
        activation: activation(keys, defaults.activation)?,
        logit_soft_cap: None,
        output_head: output_head(keys, defaults.output_head)?,
        pooling: None,
    })
}

fn rope_sizes(
    keys: &Keys,
    attention: &AttentionGeometry,
    defaults: &Defaults,
) -> Result<RopeSizes, ModelError> {
    let context_length =
        keys.dimension("max_position_embeddings", Some(defaults.context_length))?;
    Ok(RopeSizes {
        head_dim: attention.head_dim,
        context_length,
        original_context_length: keys.optional_dimension("original_max_position_embeddings")?,
    })
}

fn attention(
    keys: &Keys,
    hidden_size: usize,
    defaults: &Defaults,
) -> Result<AttentionGeometry, ModelError> {
    let num_heads = keys.dimension("num_attention_heads", defaults.num_heads)?;
    let num_kv_heads =
        keys.dimension("num_key_value_heads", defaults.num_kv_heads.or(Some(num_heads)))?;
    if !num_heads.is_multiple_of(num_kv_heads) {
        let expected = format!("a divisor of the {num_heads} query heads");
        return Err(keys.wrong("num_key_value_heads", num_kv_heads, expected));
    }
    let head_dim = match keys.optional_dimension("head_dim")?.or(defaults.head_dim) {
        Some(head_dim) => head_dim,
        None if hidden_size.is_multiple_of(num_heads) => hidden_size / num_heads,
        None => {
            let expected = format!("a divisor of the hidden size {hidden_size}");
            return Err(keys.wrong("num_attention_heads", num_heads, expected));
        }
    };
    if num_heads * head_dim > MAX_DIMENSION || !head_dim.is_multiple_of(2) {
        let expected = format!("even and, times {num_heads} heads, at most {MAX_DIMENSION}");
        return Err(keys.wrong("head_dim", head_dim, expected));
    }
    let scale = inverse_sqrt(head_dim);
    Ok(AttentionGeometry { num_heads, num_kv_heads, head_dim, scale, window: None, soft_cap: None })
}

/// Returns the nonlinearity, which Gemma calls `hidden_activation`.
fn activation(keys: &Keys, default: Activation) -> Result<Activation, ModelError> {
    let other = keys.text("hidden_act")?;
    match keys.text("hidden_activation")?.or(other) {
        None => Ok(default),
        Some("silu" | "swish") => Ok(Activation::Silu),
        Some("gelu_pytorch_tanh") => Ok(Activation::GeluTanh),
        Some(name) => Err(unsupported("hidden_act", name, "silu, gelu_pytorch_tanh")),
    }
}

fn output_head(keys: &Keys, default: OutputHead) -> Result<OutputHead, ModelError> {
    Ok(match keys.flag("tie_word_embeddings")? {
        None => default,
        Some(true) => OutputHead::Tied,
        Some(false) => OutputHead::Untied,
    })
}

/// What decides which layers see a window of tokens only.
struct Layers {
    num_layers: usize,
    /// Tokens that such layers see; `None` where there are none.
    window: Option<usize>,
    /// Position embedding of such layers.
    rope: RopeConfig,
}

impl Layers {
    /// Returns the layers with a window: those that `layer_types` names, or where there is no such
    /// list, those of which `slides` is true.
    fn sliding(
        self,
        keys: &Keys,
        slides: impl Fn(usize) -> bool,
    ) -> Result<Option<SlidingLayers>, ModelError> {
        const KEY: &str = "layer_types";
        let Self { num_layers, window, rope } = self;
        let slides: Vec<bool> = match keys.texts(KEY)? {
            None => (0..num_layers).map(slides).collect(),
            Some(types) if types.len() != num_layers => {
                let expected = format!("one for each of the {num_layers} layers");
                return Err(keys.wrong(KEY, format!("{} types", types.len()), expected));
            }
            Some(types) => types.into_iter().map(slides_by_name).collect::<Result<_, _>>()?,
        };
        if !slides.contains(&true) {
            return Ok(None);
        }
        let window = window.ok_or_else(|| keys.missing("sliding_window"))?;
        let first_full = slides.iter().position(|slides| !slides);
        let full_every = first_full.unwrap_or(num_layers) + 1;
        let fits =
            |(layer, slides): (usize, &bool)| *slides != (layer + 1).is_multiple_of(full_every);
        if !slides.iter().enumerate().all(fits) {
            let full = slides.iter().enumerate().filter(|(_, slides)| !**slides);
            let full: Vec<_> = full.take(8).map(|(layer, _)| layer.to_string()).collect();
            let got = format!("layers {} and so on see all tokens", full.join(", "));
            return Err(unsupported(KEY, &got, "every n-th layer sees all tokens, or none does"));
        }
        Ok(Some(SlidingLayers { window, full_every, rope }))
    }
}

fn slides_by_name(name: &str) -> Result<bool, ModelError> {
    match name {
        "full_attention" => Ok(false),
        "sliding_attention" => Ok(true),
        other => Err(unsupported("layer type", other, "full_attention, sliding_attention")),
    }
}
