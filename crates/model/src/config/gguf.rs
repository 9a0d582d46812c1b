//! The configuration in a GGUF file's metadata, whose keys begin with the architecture's name.
//!
//! A key of the architecture that this reader does not know may change the numbers, so it is an
//! error.

use super::{
    Architecture, ExpertWeighting, Experts, MAX_DIMENSION, ModelConfig, NormPlacement, OutputHead,
    Projections, QkNorm, QkvBias, SlidingLayers, inverse_sqrt, unsupported,
};
use crate::error::ModelError;
use crate::gguf::{FromMetadata, GgufMetadata, MetadataArray};
use crate::ops::{Activation, AttentionGeometry};
use crate::rope::{
    LongRopeDivisors, LongRopeScaling, RopeConfig, RopeScaling, RopeStyle, YarnBorders, YarnScaling,
};
use mini_infer_core::Pooling;

/// A reader of one architecture's keys.
type Reader = fn(&mut Keys<'_>) -> Result<ModelConfig, ModelError>;

/// The architectures that can be read, by their GGUF names.
const ARCHITECTURES: &[(&str, Reader)] = &[
    ("llama", llama),
    ("qwen2", qwen2),
    ("qwen3", qwen3),
    ("qwen3moe", qwen3_moe),
    ("phi3", phi3),
    ("gemma2", gemma2),
    ("gemma3", gemma3),
];

/// Keys that only describe how the model was made, or that other keys make redundant.
const INFORMATIVE_KEYS: &[&str] =
    &["rope.scaling.finetuned", "rope.scaling.original_context_length"];

/// Layers of the 27-billion-parameter Gemma 2, and of Gemma 3's. Only these sizes have an attention
/// scale that is not that of their heads, which files do not say.
const GEMMA2_27B_LAYERS: usize = 46;
const GEMMA3_27B_LAYERS: usize = 62;

impl ModelConfig {
    /// Reads and checks the configuration in a GGUF file.
    ///
    /// # Errors
    /// When the architecture or a feature of it is not supported, a key is missing, or the values
    /// make no model; the error names the key.
    pub fn from_gguf(metadata: &GgufMetadata) -> Result<Self, ModelError> {
        let name = metadata.require::<&str>("general.architecture")?;
        let found = ARCHITECTURES.iter().find(|(known, _)| *known == name);
        let Some((_, reader)) = found else {
            let known: Vec<_> = ARCHITECTURES.iter().map(|(known, _)| *known).collect();
            return Err(unsupported("architecture", name, &known.join(", ")));
        };
        let mut keys = Keys::new(metadata, name);
        let config = reader(&mut keys)?;
        keys.check_all_read()?;
        Ok(config)
    }
}

/// Reads what all architectures have: the layers of Llama without its converter's order of rows.
fn decoder(
    keys: &mut Keys<'_>,
    architecture: Architecture,
    default_theta: f32,
) -> Result<ModelConfig, ModelError> {
    let hidden_size = keys.dimension("embedding_length")?;
    let attention = attention(keys, hidden_size)?;
    let scaling = scaling(keys)?;
    Ok(ModelConfig {
        architecture,
        vocab_size: vocab_size(keys)?,
        hidden_size,
        num_layers: keys.dimension("block_count")?,
        intermediate_size: keys.dimension("feed_forward_length")?,
        context_length: scaling.reach(keys.dimension("context_length")?),
        rms_norm_epsilon: keys.positive("attention.layer_norm_rms_epsilon")?,
        norm_offset: 0.0,
        embedding_scale: 1.0,
        attention,
        rope: RopeConfig {
            theta: keys.optional_positive("rope.freq_base")?.unwrap_or(default_theta),
            rotary_dim: rotary_dim(keys, attention.head_dim)?,
            style: RopeStyle::HalfSplit,
            scaling,
        },
        sliding: None,
        projections: Projections::Separate,
        experts: None,
        qkv_bias: QkvBias::Absent,
        qk_norm: QkNorm::Absent,
        norm_placement: NormPlacement::Before,
        activation: Activation::Silu,
        logit_soft_cap: None,
        output_head: OutputHead::AsStored,
        pooling: pooling(keys)?,
    })
}

/// Reads how states are pooled, in ggml's numbers.
fn pooling(keys: &mut Keys<'_>) -> Result<Option<Pooling>, ModelError> {
    match keys.get::<u32>("pooling_type")? {
        None | Some(0) => Ok(None),
        Some(1) => Ok(Some(Pooling::Mean)),
        Some(3) => Ok(Some(Pooling::Last)),
        Some(other) => {
            let supported = "0 (none), 1 (mean) or 3 (last)";
            Err(unsupported("pooling_type", &other.to_string(), supported))
        }
    }
}

/// Llama and what its converter makes of Mistral and Mixtral: perhaps with a window on all layers,
/// perhaps with experts. The converter permutes the rows of Q and K so that neighbours are paired.
fn llama(keys: &mut Keys<'_>) -> Result<ModelConfig, ModelError> {
    let decoder = decoder(keys, Architecture::Llama, 10_000.0)?;
    let rope = RopeConfig { style: RopeStyle::Interleaved, ..decoder.rope.clone() };
    let decoder = ModelConfig { rope, experts: experts(keys)?, ..decoder };
    windowed(keys, decoder)
}

/// Qwen 2 and 2.5 (Qwen2 technical report, section 2.2.1): biases on queries, keys and values.
fn qwen2(keys: &mut Keys<'_>) -> Result<ModelConfig, ModelError> {
    let decoder = decoder(keys, Architecture::Qwen2, 10_000.0)?;
    Ok(ModelConfig { qkv_bias: QkvBias::Present, ..decoder })
}

/// Qwen 3 (technical report, section 2): norms over queries and keys, and heads whose size the file
/// states.
fn qwen3(keys: &mut Keys<'_>) -> Result<ModelConfig, ModelError> {
    let decoder = decoder(keys, Architecture::Qwen3, 10_000.0)?;
    Ok(ModelConfig { qk_norm: QkNorm::PerHead, ..decoder })
}

/// Qwen 3 with experts, whose width has a key of its own.
fn qwen3_moe(keys: &mut Keys<'_>) -> Result<ModelConfig, ModelError> {
    let experts = experts(keys)?;
    let experts = experts.ok_or_else(|| keys.missing("expert_count"))?;
    Ok(ModelConfig {
        architecture: Architecture::Qwen3Moe,
        intermediate_size: keys.dimension("expert_feed_forward_length")?,
        experts: Some(experts),
        ..qwen3(keys)?
    })
}

/// Phi 3 (technical report, section 2): Llama's layers, with projections that share tensors, perhaps
/// a window on all layers, and LongRoPE in the sizes with a long context.
fn phi3(keys: &mut Keys<'_>) -> Result<ModelConfig, ModelError> {
    let decoder = decoder(keys, Architecture::Phi3, 10_000.0)?;
    windowed(keys, ModelConfig { projections: Projections::Fused, ..decoder })
}

/// Gemma 2 (technical report, section 2). GGUF stores its norm weights with the 1 already added, and
/// leaves out what all sizes share: every second layer has a window.
fn gemma2(keys: &mut Keys<'_>) -> Result<ModelConfig, ModelError> {
    let decoder = gemma(keys, Architecture::Gemma2, 10_000.0, GEMMA2_27B_LAYERS)?;
    let soft_cap = keys.optional_positive("attn_logit_softcapping")?.unwrap_or(50.0);
    let sliding = SlidingLayers {
        window: keys.optional_dimension("attention.sliding_window")?.unwrap_or(4096),
        full_every: 2,
        rope: decoder.rope.clone(),
    };
    Ok(ModelConfig {
        attention: AttentionGeometry { soft_cap: Some(soft_cap), ..decoder.attention },
        sliding: Some(sliding),
        logit_soft_cap: Some(keys.optional_positive("final_logit_softcapping")?.unwrap_or(30.0)),
        ..decoder
    })
}

/// Gemma 3 (technical report, section 2). GGUF leaves out what all sizes share: five sliding layers
/// for each full one, whose frequencies have the base 10,000 and no scaling.
fn gemma3(keys: &mut Keys<'_>) -> Result<ModelConfig, ModelError> {
    let decoder = gemma(keys, Architecture::Gemma3, 1_000_000.0, GEMMA3_27B_LAYERS)?;
    let sliding = SlidingLayers {
        window: keys.dimension("attention.sliding_window")?,
        full_every: keys.optional_dimension("attention.sliding_window_pattern")?.unwrap_or(6),
        rope: RopeConfig {
            theta: keys.optional_positive("rope.freq_base_swa")?.unwrap_or(10000.0),
            scaling: RopeScaling::None,
            ..decoder.rope.clone()
        },
    };
    Ok(ModelConfig { sliding: Some(sliding), qk_norm: QkNorm::PerHead, ..decoder })
}

/// Reads what Gemma 2 and 3 share.
fn gemma(
    keys: &mut Keys<'_>,
    architecture: Architecture,
    default_theta: f32,
    num_layers_of_27b: usize,
) -> Result<ModelConfig, ModelError> {
    let decoder = decoder(keys, architecture, default_theta)?;
    let mut attention = decoder.attention;
    if decoder.num_layers == num_layers_of_27b {
        attention.scale = inverse_sqrt(decoder.hidden_size / attention.num_heads);
    }
    Ok(ModelConfig {
        embedding_scale: 1.0 / inverse_sqrt(decoder.hidden_size),
        attention,
        norm_placement: NormPlacement::BeforeAndAfter,
        activation: Activation::GeluTanh,
        ..decoder
    })
}

/// Gives all layers a window if the file has one.
fn windowed(keys: &mut Keys<'_>, decoder: ModelConfig) -> Result<ModelConfig, ModelError> {
    let window = keys.optional_dimension("attention.sliding_window")?;
    let sliding = window.map(|window| {
        let full_every = decoder.num_layers + 1;
        SlidingLayers { window, full_every, rope: decoder.rope.clone() }
    });
    Ok(ModelConfig { sliding, ..decoder })
}

/// Reads how many experts there are and how a token's are weighed, if there are any.
fn experts(keys: &mut Keys<'_>) -> Result<Option<Experts>, ModelError> {
    let count = keys.get::<usize>("expert_count")?.unwrap_or(0);
    if count == 0 {
        keys.get::<u32>("expert_used_count")?;
        return Ok(None);
    }
    if count > MAX_DIMENSION {
        return Err(keys.wrong("expert_count", count, format!("up to {MAX_DIMENSION}")));
    }
    let used = keys.dimension("expert_used_count")?;
    if used > count {
        let expected = format!("at most the {count} experts");
        return Err(keys.wrong("expert_used_count", used, expected));
    }
    // ggml's numbers for how a router's logits become probabilities.
    match keys.get::<u32>("expert_gating_func")? {
        None | Some(1) => {}
        Some(other) => {
            return Err(unsupported("expert_gating_func", &other.to_string(), "1 (softmax)"));
        }
    }
    let weighting = match keys.get::<bool>("expert_weights_norm")? {
        None | Some(true) => ExpertWeighting::OfUsed,
        Some(false) => ExpertWeighting::OfAll,
    };
    Ok(Some(Experts { count, used, weighting }))
}

fn attention(keys: &mut Keys<'_>, hidden_size: usize) -> Result<AttentionGeometry, ModelError> {
    let num_heads = keys.dimension("attention.head_count")?;
    let num_kv_heads = keys.optional_dimension("attention.head_count_kv")?.unwrap_or(num_heads);
    if !num_heads.is_multiple_of(num_kv_heads) {
        let expected = format!("a divisor of the {num_heads} query heads");
        return Err(keys.wrong("attention.head_count_kv", num_kv_heads, expected));
    }
    let head_dim = match keys.optional_dimension("attention.key_length")? {
        Some(head_dim) => head_dim,
        None if hidden_size.is_multiple_of(num_heads) => hidden_size / num_heads,
        None => {
            let expected = format!("a divisor of the hidden size {hidden_size}");
            return Err(keys.wrong("attention.head_count", num_heads, expected));
        }
    };
    if num_heads * head_dim > MAX_DIMENSION {
        let expected =
            format!("at most {MAX_DIMENSION} when multiplied by the head size {head_dim}");
        return Err(keys.wrong("attention.head_count", num_heads, expected));
    }
    let value_dim = keys.optional_dimension("attention.value_length")?.unwrap_or(head_dim);
    if value_dim != head_dim {
        let expected = format!("equal to the key length {head_dim}");
        return Err(keys.wrong("attention.value_length", value_dim, expected));
    }
    let scale = inverse_sqrt(head_dim);
    Ok(AttentionGeometry { num_heads, num_kv_heads, head_dim, scale, window: None, soft_cap: None })
}

fn rotary_dim(keys: &mut Keys<'_>, head_dim: usize) -> Result<usize, ModelError> {
    const KEY: &str = "rope.dimension_count";
    let rotary_dim = keys.optional_dimension(KEY)?.unwrap_or(head_dim);
    if rotary_dim.is_multiple_of(2) && rotary_dim <= head_dim {
        return Ok(rotary_dim);
    }
    Err(keys.wrong(KEY, rotary_dim, format!("even and at most the head size {head_dim}")))
}

/// Returns how frequencies are scaled. Old files have only `rope.scale_linear`. Llama 3's scaling is
/// in the tensor `rope_freqs.weight`, and no key tells of it.
fn scaling(keys: &mut Keys<'_>) -> Result<RopeScaling, ModelError> {
    let old = keys.optional_positive("rope.scale_linear")?;
    let factor = keys.optional_positive("rope.scaling.factor")?;
    let attention_factor = keys.optional_positive("rope.scaling.attn_factor")?;
    match keys.get::<&str>("rope.scaling.type")? {
        Some("yarn") => yarn(keys, attention_factor),
        // The converter writes the type for none, and the factor with the tensors of divisors only.
        Some("longrope") => long_rope(keys, attention_factor.unwrap_or(1.0)),
        None if attention_factor.is_some() => long_rope(keys, attention_factor.unwrap_or(1.0)),
        None | Some("linear") => Ok(factor.or(old).map_or(RopeScaling::None, RopeScaling::Linear)),
        Some("none") => Ok(RopeScaling::None),
        Some(other) => Err(unsupported(
            "RoPE scaling",
            other,
            "none, linear, yarn, longrope, factors in rope_freqs.weight",
        )),
    }
}

/// Reads YaRN as ggml computes it: the stated attention factor comes on top of the usual one.
fn yarn(keys: &mut Keys<'_>, attention_factor: Option<f32>) -> Result<RopeScaling, ModelError> {
    let factor = keys.positive("rope.scaling.factor")?;
    let usual = YarnScaling::usual_attention_factor(factor, 1.0);
    Ok(RopeScaling::Yarn(YarnScaling {
        factor,
        original_context_length: keys.dimension("rope.scaling.original_context_length")?,
        beta_fast: keys.optional_positive("rope.scaling.yarn_beta_fast")?.unwrap_or(32.0),
        beta_slow: keys.optional_positive("rope.scaling.yarn_beta_slow")?.unwrap_or(1.0),
        borders: YarnBorders::WholePairs,
        attention_factor: attention_factor.unwrap_or(1.0) * usual,
    }))
}

fn long_rope(keys: &mut Keys<'_>, attention_factor: f32) -> Result<RopeScaling, ModelError> {
    Ok(RopeScaling::LongRope(LongRopeScaling {
        original_context_length: keys.dimension("rope.scaling.original_context_length")?,
        attention_factor,
        divisors: LongRopeDivisors::InTensors,
    }))
}

/// Returns the size of the vocabulary, from the model's own key or from its token list; when both
/// are there they must agree.
fn vocab_size(keys: &mut Keys<'_>) -> Result<usize, ModelError> {
    const TOKENS: &str = "tokenizer.ggml.tokens";
    let tokens = keys.metadata.get::<MetadataArray<'_>>(TOKENS)?;
    let listed = tokens.map(|tokens| tokens.len());
    match (keys.optional_dimension("vocab_size")?, listed) {
        (Some(stated), Some(listed)) if stated != listed => {
            Err(keys.wrong("vocab_size", stated, format!("the {listed} tokens of {TOKENS}")))
        }
        (Some(size), _) => Ok(size),
        (None, Some(size)) if (1..=MAX_DIMENSION).contains(&size) => Ok(size),
        (None, Some(size)) => Err(ModelError::MetadataValue {
            key: TOKENS.to_owned(),
            got: format!("{size} tokens"),
            expected: "at least one".to_owned(),
        }),
        (None, None) => Err(keys.missing("vocab_size")),
    }
}

/// The keys of one architecture, and which of them have been read.
struct Keys<'a> {
    metadata: &'a GgufMetadata,
    architecture: &'a str,
    read: Vec<String>,
}

impl<'a> Keys<'a> {
    fn new(metadata: &'a GgufMetadata, architecture: &'a str) -> Self {
        Self { metadata, architecture, read: Vec::new() }
    }

    fn full(&self, key: &str) -> String {
        format!("{}.{key}", self.architecture)
    }

    fn get<T: FromMetadata<'a>>(&mut self, key: &str) -> Result<Option<T>, ModelError> {
        let full = self.full(key);
        let value = self.metadata.get(&full);
        self.read.push(full);
        value
    }

    fn optional_dimension(&mut self, key: &str) -> Result<Option<usize>, ModelError> {
        match self.get::<usize>(key)? {
            Some(size) if !(1..=MAX_DIMENSION).contains(&size) => {
                Err(self.wrong(key, size, format!("from 1 to {MAX_DIMENSION}")))
            }
            size => Ok(size),
        }
    }

    fn dimension(&mut self, key: &str) -> Result<usize, ModelError> {
        let size = self.optional_dimension(key)?;
        size.ok_or_else(|| self.missing(key))
    }

    fn optional_positive(&mut self, key: &str) -> Result<Option<f32>, ModelError> {
        match self.get::<f32>(key)? {
            Some(x) if !x.is_finite() || x <= 0.0 => {
                Err(self.wrong(key, x, "a positive finite number".to_owned()))
            }
            x => Ok(x),
        }
    }

    fn positive(&mut self, key: &str) -> Result<f32, ModelError> {
        let x = self.optional_positive(key)?;
        x.ok_or_else(|| self.missing(key))
    }

    fn missing(&self, key: &str) -> ModelError {
        ModelError::MissingMetadata { key: self.full(key) }
    }

    fn wrong(&self, key: &str, got: impl ToString, expected: String) -> ModelError {
        ModelError::MetadataValue { key: self.full(key), got: got.to_string(), expected }
    }

    /// Refuses keys of the architecture that nobody has read: they may change the numbers.
    fn check_all_read(&self) -> Result<(), ModelError> {
        let prefix = self.full("");
        let unread = self.metadata.keys().find(|key| {
            key.strip_prefix(&prefix).is_some_and(|short| !INFORMATIVE_KEYS.contains(&short))
                && !self.read.iter().any(|read| read == key)
        });
        match unread {
            None => Ok(()),
            Some(key) => Err(unsupported(
                &format!("the feature behind the metadata key of {}", self.architecture),
                key,
                &self.read.join(", "),
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gguf::GgufFile;
    use crate::gguf::builder::{Builder, array};

    fn sample() -> Builder {
        Builder::default()
            .text("general.architecture", "llama")
            .u32("llama.vocab_size", 100)
            .u32("llama.context_length", 2048)
            .u32("llama.embedding_length", 64)
            .u32("llama.block_count", 3)
            .u32("llama.feed_forward_length", 128)
            .u32("llama.attention.head_count", 4)
            .u32("llama.attention.head_count_kv", 2)
            .f32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    }

    fn read(builder: &Builder) -> Result<ModelConfig, ModelError> {
        let file = GgufFile::parse(builder.build().into()).expect("a valid file");
        ModelConfig::from_gguf(file.metadata())
    }

    #[test]
    fn absent_keys_take_the_values_of_the_format() {
        let config = read(&sample()).unwrap();
        assert_eq!(config.attention.head_dim, 16);
        assert_eq!(config.attention.scale, 0.25);
        assert_eq!((config.rope.theta, config.rope.rotary_dim), (10000.0, 16));
        assert_eq!(config.rope.scaling, RopeScaling::None);
        let mha = read(&sample().without("llama.attention.head_count_kv")).unwrap();
        assert_eq!(mha.attention.num_kv_heads, 4);
        let tokens = array(0, 7, &[0; 7]);
        let listed = sample().without("llama.vocab_size").pair("tokenizer.ggml.tokens", 9, &tokens);
        assert_eq!(read(&listed).unwrap().vocab_size, 7);
    }

    #[test]
    fn pooling_is_what_the_file_says() {
        let of = |kind| read(&sample().u32("llama.pooling_type", kind));
        assert_eq!(read(&sample()).unwrap().pooling, None);
        assert_eq!(of(0).unwrap().pooling, None);
        assert_eq!(of(1).unwrap().pooling, Some(Pooling::Mean));
        assert_eq!(of(3).unwrap().pooling, Some(Pooling::Last));
        assert!(of(2).unwrap_err().to_string().contains("pooling_type"));
    }

    #[test]
    fn kv_bytes_count_keys_and_values_of_all_layers() {
        assert_eq!(read(&sample()).unwrap().kv_bytes_per_token(2), 2 * 3 * 2 * 16 * 2);
    }

    #[test]
    fn both_spellings_of_linear_scaling_are_read() {
        let new = sample().text("llama.rope.scaling.type", "linear");
        let new = new.f32("llama.rope.scaling.factor", 4.0);
        assert_eq!(read(&new).unwrap().rope.scaling, RopeScaling::Linear(4.0));
        let old = sample().f32("llama.rope.scale_linear", 2.0);
        assert_eq!(read(&old).unwrap().rope.scaling, RopeScaling::Linear(2.0));
    }

    #[test]
    fn yarn_and_longrope_are_read() {
        let original = sample().u32("llama.rope.scaling.original_context_length", 1024);
        let yarn = original.f32("llama.rope.scaling.factor", 4.0);
        let yarn = read(&yarn.text("llama.rope.scaling.type", "yarn")).unwrap();
        assert_eq!(yarn.context_length, 4096);
        let RopeScaling::Yarn(scaling) = yarn.rope.scaling else { panic!("not YaRN") };
        assert_eq!((scaling.factor, scaling.original_context_length), (4.0, 1024));
        assert!((scaling.attention_factor - (1.0 + 0.1 * 4.0_f32.ln())).abs() < 1e-6);
        let original = sample().u32("llama.rope.scaling.original_context_length", 1024);
        let long_rope = read(&original.f32("llama.rope.scaling.attn_factor", 1.25)).unwrap();
        let RopeScaling::LongRope(scaling) = long_rope.rope.scaling else { panic!("not LongRoPE") };
        assert_eq!((scaling.attention_factor, scaling.original_context_length), (1.25, 1024));
    }

    #[test]
    fn every_sixth_layer_of_gemma3_sees_all_tokens() {
        let gemma = Builder::default()
            .text("general.architecture", "gemma3")
            .u32("gemma3.vocab_size", 100)
            .u32("gemma3.context_length", 2048)
            .u32("gemma3.embedding_length", 64)
            .u32("gemma3.block_count", 12)
            .u32("gemma3.feed_forward_length", 128)
            .u32("gemma3.attention.head_count", 4)
            .u32("gemma3.attention.key_length", 32)
            .u32("gemma3.attention.value_length", 32)
            .u32("gemma3.attention.sliding_window", 512)
            .text("gemma3.rope.scaling.type", "linear")
            .f32("gemma3.rope.scaling.factor", 8.0)
            .f32("gemma3.attention.layer_norm_rms_epsilon", 1e-6);
        let config = read(&gemma).unwrap();
        let full: Vec<_> = (0..12).filter(|i| config.sliding_of(*i).is_none()).collect();
        assert_eq!(full, [5, 11]);
        let sliding = config.sliding_of(0).unwrap();
        assert_eq!((sliding.window, sliding.rope.theta), (512, 10000.0));
        // Scaling is for the layers that see far.
        assert_eq!(config.rope.scaling, RopeScaling::Linear(8.0));
        assert_eq!(sliding.rope.scaling, RopeScaling::None);
        assert_eq!((config.rope.theta, config.embedding_scale), (1_000_000.0, 8.0));
        let largest = read(&gemma.without("gemma3.block_count").u32("gemma3.block_count", 62));
        assert_eq!(largest.unwrap().attention.scale, 0.25);
    }

    #[test]
    fn values_that_make_no_model_are_refused_by_key() {
        let check = |key: &str, change: &dyn Fn(Builder) -> Builder| {
            let error = read(&change(sample().without(key))).expect_err(key).to_string();
            assert!(error.contains(key), "`{error}` does not name {key}");
        };
        for key in ["general.architecture", "llama.block_count", "llama.context_length"] {
            check(key, &|builder| builder);
        }
        check("llama.vocab_size", &|builder| builder);
        check("llama.block_count", &|builder| builder.u32("llama.block_count", 0));
        check("llama.block_count", &|builder| builder.u32("llama.block_count", u32::MAX));
        check("llama.attention.head_count", &|b| b.u32("llama.attention.head_count", 5));
        check("llama.attention.head_count_kv", &|b| b.u32("llama.attention.head_count_kv", 3));
        check("llama.attention.value_length", &|b| b.u32("llama.attention.value_length", 8));
        check("llama.rope.dimension_count", &|b| b.u32("llama.rope.dimension_count", 15));
        check("llama.rope.dimension_count", &|b| b.u32("llama.rope.dimension_count", 18));
        check("llama.rope.freq_base", &|b| b.f32("llama.rope.freq_base", f32::NAN));
        let epsilon = "llama.attention.layer_norm_rms_epsilon";
        check(epsilon, &|builder| builder.f32(epsilon, 0.0));
        check(epsilon, &|builder| builder.f32(epsilon, f32::INFINITY));
        check("llama.rope.scaling.factor", &|b| b.text("llama.rope.scaling.type", "yarn"));
        check("llama.rope.scaling.original_context_length", &|b| {
            b.text("llama.rope.scaling.type", "longrope")
        });
        check("llama.vocab_size", &|builder| {
            let tokens = array(0, 7, &[0; 7]);
            builder.u32("llama.vocab_size", 8).pair("tokenizer.ggml.tokens", 9, &tokens)
        });
    }

    #[test]
    fn features_that_are_not_implemented_are_refused_not_ignored() {
        let check = |builder: Builder, expected: &str| {
            let error = read(&builder).expect_err(expected).to_string();
            assert!(error.contains(expected), "`{error}` does not say `{expected}`");
        };
        let other = sample().without("general.architecture");
        check(other.text("general.architecture", "mamba"), "architecture `mamba`");
        check(sample().text("llama.rope.scaling.type", "dynamic"), "RoPE scaling `dynamic`");
        check(sample().f32("llama.attention.clamp_kqv", 8.0), "llama.attention.clamp_kqv");
        assert!(read(&sample().u32("llama.rope.scaling.original_context_length", 9)).is_ok());
    }
}
