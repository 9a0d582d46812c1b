//! Which canonical name a tensor of Hugging Face's has.
//!
//! Canonical names are ggml's (`blk.0.attn_q.weight`), which the rest of the crate knows tensors by.
//! Families name the same parts alike, but for the norms: where there is a norm after attention and
//! one before the feed-forward part, `post_attention_layernorm` is the former, else the latter.

use crate::config::{Architecture, ModelConfig, NormPlacement, Projections};

/// What precedes the names of a model's body. The last three are those of models with images, of
/// transformers 5 and before, and of a body that was saved without its head.
pub(crate) const BODIES: &[&str] =
    &["model.", "model.language_model.", "language_model.model.", ""];
/// Names of the output head.
const HEADS: &[&str] = &["lm_head.weight", "language_model.lm_head.weight"];
/// Tensors of the body that belong to no layer, and their canonical names.
const SINGLE: &[(&str, &str)] =
    &[("embed_tokens.weight", "token_embd.weight"), ("norm.weight", "output_norm.weight")];
/// Canonical name of the output head.
pub(super) const OUTPUT_HEAD: &str = "output.weight";
/// Canonical name of the token embeddings.
pub(super) const EMBEDDING: &str = "token_embd.weight";

/// Parts of a layer that are named alike everywhere.
const PARTS: &[(&str, &str)] = &[
    ("input_layernorm", "attn_norm"),
    ("self_attn.o_proj", "attn_output"),
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"),
    ("mlp.down_proj", "ffn_down"),
];
/// Projections that have tensors of their own.
const SEPARATE: &[(&str, &str)] = &[
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
];
/// Those that share some. ggml calls gate and up together what it calls up alone elsewhere.
const FUSED: &[(&str, &str)] =
    &[("self_attn.qkv_proj", "attn_qkv"), ("mlp.gate_up_proj", "ffn_up")];
/// Routers, in the words of Qwen and of Mixtral.
const ROUTERS: &[(&str, &str)] =
    &[("mlp.gate", "ffn_gate_inp"), ("block_sparse_moe.gate", "ffn_gate_inp")];
/// What precedes the number of an expert, and the parts of one after it, in Qwen's words.
const EXPERTS: (&str, &[(&str, &str)]) = (
    "mlp.experts.",
    &[("gate_proj", "ffn_gate"), ("up_proj", "ffn_up"), ("down_proj", "ffn_down")],
);
/// The same in Mixtral's.
const MIXTRAL_EXPERTS: (&str, &[(&str, &str)]) =
    ("block_sparse_moe.experts.", &[("w1", "ffn_gate"), ("w3", "ffn_up"), ("w2", "ffn_down")]);
/// Norms of layers that normalise inputs only.
const NORMS_BEFORE: &[(&str, &str)] = &[("post_attention_layernorm", "ffn_norm")];
/// Norms of layers that normalise outputs too.
const NORMS_BEFORE_AND_AFTER: &[(&str, &str)] = &[
    ("post_attention_layernorm", "post_attention_norm"),
    ("pre_feedforward_layernorm", "ffn_norm"),
    ("post_feedforward_layernorm", "post_ffw_norm"),
];

/// What the names of tensors begin with that only images need, in models whose text part is used.
const IMAGE_PARTS: &[&str] = &[
    "vision_tower.",
    "multi_modal_projector.",
    "model.vision_tower.",
    "model.multi_modal_projector.",
];
/// End of the names of tensors that old files have although the configuration says the same.
const ROTATION: &str = ".self_attn.rotary_emb.inv_freq";

/// Tells whether a tensor is known to play no part in computing text.
pub(super) fn is_ignored(stored: &str, config: &ModelConfig) -> bool {
    let is_image_part = || IMAGE_PARTS.iter().any(|part| stored.starts_with(part));
    stored.ends_with(ROTATION) || (config.architecture == Architecture::Gemma3 && is_image_part())
}

/// Returns the canonical name of a tensor, or `None` for one that no family has.
pub(super) fn canonical(stored: &str, config: &ModelConfig) -> Option<String> {
    if HEADS.contains(&stored) {
        return Some(OUTPUT_HEAD.to_owned());
    }
    BODIES.iter().find_map(|body| {
        let name = stored.strip_prefix(body)?;
        if let Some((_, canonical)) = SINGLE.iter().find(|(single, _)| *single == name) {
            return Some((*canonical).to_owned());
        }
        let (layer, part) = name.strip_prefix("layers.")?.split_once('.')?;
        let layer: u32 = layer.parse().ok()?;
        let (part, kind) = part.rsplit_once('.')?;
        let part = canonical_part(part, config)?;
        matches!(kind, "weight" | "bias").then(|| format!("blk.{layer}.{part}.{kind}"))
    })
}

/// Returns the canonical name of a part of a layer; an expert's has its number behind it.
fn canonical_part(part: &str, config: &ModelConfig) -> Option<String> {
    if let Some((_, canonical)) = parts(config).find(|(known, _)| *known == part) {
        return Some((*canonical).to_owned());
    }
    [EXPERTS, MIXTRAL_EXPERTS].into_iter().find_map(|(prefix, parts)| {
        let (number, part) = part.strip_prefix(prefix)?.split_once('.')?;
        let number: u32 = number.parse().ok()?;
        let (_, canonical) = parts.iter().find(|(known, _)| *known == part)?;
        Some(format!("{canonical}.{number}")).filter(|_| config.experts.is_some())
    })
}

/// Returns what a tensor of a canonical name is called in files, for messages.
pub(super) fn stored(canonical: &str, config: &ModelConfig) -> Option<String> {
    if canonical == OUTPUT_HEAD {
        return Some(HEADS[0].to_owned());
    }
    let body = BODIES[0];
    if let Some((single, _)) = SINGLE.iter().find(|(_, known)| *known == canonical) {
        return Some(format!("{body}{single}"));
    }
    let (layer, part) = canonical.strip_prefix("blk.")?.split_once('.')?;
    let (part, kind) = part.rsplit_once('.')?;
    let part = stored_part(part, config)?;
    Some(format!("{body}layers.{layer}.{part}.{kind}"))
}

/// Returns what a part of a layer is called in files.
fn stored_part(part: &str, config: &ModelConfig) -> Option<String> {
    let is_mixtral = config.architecture == Architecture::Llama;
    if let Some((part, number)) = part.split_once('.') {
        let (prefix, parts) = if is_mixtral { MIXTRAL_EXPERTS } else { EXPERTS };
        let (part, _) = parts.iter().find(|(_, known)| *known == part)?;
        return Some(format!("{prefix}{number}.{part}"));
    }
    // Of routers' names the last is Mixtral's.
    let mut found = parts(config).filter(|(_, known)| *known == part);
    let (part, _) = if is_mixtral { found.last()? } else { found.next()? };
    Some((*part).to_owned())
}

/// Returns the names of the parts of a layer, stored and canonical.
fn parts(config: &ModelConfig) -> impl Iterator<Item = &'static (&'static str, &'static str)> {
    let norms = match config.norm_placement {
        NormPlacement::Before => NORMS_BEFORE,
        NormPlacement::BeforeAndAfter => NORMS_BEFORE_AND_AFTER,
    };
    let projections = match config.projections {
        Projections::Separate => SEPARATE,
        Projections::Fused => FUSED,
    };
    let routers = if config.experts.is_some() { ROUTERS } else { &[] };
    PARTS.iter().chain(projections).chain(routers).chain(norms)
}
