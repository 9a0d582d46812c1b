//! The position embedding in a `config.json`.
//!
//! transformers 5 writes one object `rope_parameters`, or one for each kind of layer in it.
//! Before, `rope_theta` and the object `rope_scaling` lay beside the other keys, in which `type`
//! was the older name of `rope_type`; Gemma 3 had `rope_local_base_freq` for its sliding layers.

use super::keys::Keys;
use super::unsupported;
use crate::error::ModelError;
use crate::rope::{
    Llama3Scaling, LongRopeDivisors, LongRopeScaling, RopeConfig, RopeScaling, RopeStyle,
    YarnBorders, YarnScaling,
};

/// Base of the frequencies that the classes of all families but Gemma 3's assume.
const DEFAULT_THETA: f32 = 10_000.0;
/// Base that Gemma 3's class assumes for the layers that see all tokens.
const GEMMA3_FULL_THETA: f32 = 1_000_000.0;

/// What an embedding depends on beside its own keys.
#[derive(Clone, Copy)]
pub(super) struct RopeSizes {
    /// Dimensions of a head.
    pub(super) head_dim: usize,
    /// Tokens of context that the model is said to be made for.
    pub(super) context_length: usize,
    /// Tokens of the first training's context, where the model says so beside its other sizes.
    pub(super) original_context_length: Option<usize>,
}

/// Reads the embedding of a model whose layers have the same.
pub(super) fn of_all_layers(keys: &Keys, sizes: RopeSizes) -> Result<RopeConfig, ModelError> {
    let theta = keys.optional_positive("rope_theta")?;
    let parameters = keys.object("rope_parameters")?;
    let old = keys.object("rope_scaling")?;
    if parameters.is_some() && old.is_some() {
        return Err(keys.wrong("rope_scaling", "present", "absent beside rope_parameters"));
    }
    let parameters = parameters.or(old);
    let share = keys.optional_positive("partial_rotary_factor")?;
    let rope = read(parameters, theta.unwrap_or(DEFAULT_THETA), sizes)?;
    match share {
        Some(share) if rope.rotary_dim == sizes.head_dim => {
            Ok(RopeConfig { rotary_dim: rotary_dim(keys, share, sizes.head_dim)?, ..rope })
        }
        _ => Ok(rope),
    }
}

/// Reads the embedding of the layers of Gemma 3 that see all tokens.
pub(super) fn of_full_layers(keys: &Keys, sizes: RopeSizes) -> Result<RopeConfig, ModelError> {
    let theta = keys.optional_positive("rope_theta")?.unwrap_or(GEMMA3_FULL_THETA);
    let parameters = of_kind(keys, "full_attention")?.or(keys.object("rope_scaling")?);
    read(parameters, theta, sizes)
}

/// Reads the embedding of the layers of Gemma 3 that see a window.
pub(super) fn of_sliding_layers(keys: &Keys, sizes: RopeSizes) -> Result<RopeConfig, ModelError> {
    let theta = keys.optional_positive("rope_local_base_freq")?.unwrap_or(DEFAULT_THETA);
    read(of_kind(keys, "sliding_attention")?, theta, sizes)
}

/// Returns the parameters of one kind of layer.
fn of_kind(keys: &Keys, kind: &str) -> Result<Option<Keys>, ModelError> {
    let Some(kinds) = keys.object("rope_parameters")? else { return Ok(None) };
    for known in ["full_attention", "sliding_attention"] {
        kinds.get(known);
    }
    kinds.check_all_read()?;
    kinds.object(kind)
}

fn read(parameters: Option<Keys>, theta: f32, sizes: RopeSizes) -> Result<RopeConfig, ModelError> {
    let unscaled = RopeConfig {
        theta,
        rotary_dim: sizes.head_dim,
        style: RopeStyle::HalfSplit,
        scaling: RopeScaling::None,
    };
    let Some(keys) = parameters else { return Ok(unscaled) };
    let theta = keys.optional_positive("rope_theta")?.unwrap_or(theta);
    let rotary_dim = match keys.optional_positive("partial_rotary_factor")? {
        None => sizes.head_dim,
        Some(share) => rotary_dim(&keys, share, sizes.head_dim)?,
    };
    let old_name = keys.text("type")?;
    let scaling = match keys.text("rope_type")?.or(old_name) {
        None | Some("default") => RopeScaling::None,
        Some("linear") => RopeScaling::Linear(keys.positive("factor")?),
        Some("llama3") => RopeScaling::Llama3(llama3(&keys)?),
        Some("yarn") => RopeScaling::Yarn(yarn(&keys, sizes)?),
        // The first name of Phi-3's.
        Some("longrope" | "su") => RopeScaling::LongRope(long_rope(&keys, sizes)?),
        Some(other) => {
            let supported = "default, linear, llama3, yarn, longrope";
            return Err(unsupported("rope_type", other, supported));
        }
    };
    if scaling == RopeScaling::None {
        // transformers writes it for all kinds of scaling, and none has a use for it.
        keys.get("original_max_position_embeddings");
    }
    keys.check_all_read()?;
    Ok(RopeConfig { theta, rotary_dim, scaling, ..unscaled })
}

/// Returns how many dimensions of a head are the `share` that turns.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the share is positive, and rounding down is what transformers does"
)]
fn rotary_dim(keys: &Keys, share: f32, head_dim: usize) -> Result<usize, ModelError> {
    let rotary_dim = (head_dim as f32 * share) as usize;
    if (2..=head_dim).contains(&rotary_dim) && rotary_dim.is_multiple_of(2) {
        return Ok(rotary_dim);
    }
    let expected = format!("a share that is an even number of the {head_dim} dimensions of a head");
    Err(keys.wrong("partial_rotary_factor", share, expected))
}

/// Returns the original context length, and how many times longer the context is.
fn growth(keys: &Keys, sizes: RopeSizes) -> Result<(usize, f32), ModelError> {
    let original = keys.optional_dimension("original_max_position_embeddings")?;
    let original = original.or(sizes.original_context_length).unwrap_or(sizes.context_length);
    let stated = keys.optional_positive("factor")?;
    Ok((original, stated.unwrap_or(sizes.context_length as f32 / original as f32)))
}

fn yarn(keys: &Keys, sizes: RopeSizes) -> Result<YarnScaling, ModelError> {
    let (original_context_length, factor) = growth(keys, sizes)?;
    let strengths = (keys.optional_positive("mscale")?, keys.optional_positive("mscale_all_dim")?);
    let usual = |strength| YarnScaling::usual_attention_factor(factor, strength);
    let attention_factor = match (keys.optional_positive("attention_factor")?, strengths) {
        (Some(stated), _) => stated,
        (None, (Some(above), Some(below))) => usual(above) / usual(below),
        (None, _) => usual(1.0),
    };
    let borders = match keys.flag("truncate")? {
        None | Some(true) => YarnBorders::WholePairs,
        Some(false) => YarnBorders::Exact,
    };
    Ok(YarnScaling {
        factor,
        original_context_length,
        beta_fast: keys.optional_positive("beta_fast")?.unwrap_or(32.0),
        beta_slow: keys.optional_positive("beta_slow")?.unwrap_or(1.0),
        borders,
        attention_factor,
    })
}

fn long_rope(keys: &Keys, sizes: RopeSizes) -> Result<LongRopeScaling, ModelError> {
    let (original_context_length, factor) = growth(keys, sizes)?;
    let usual = LongRopeScaling::usual_attention_factor(factor, original_context_length);
    Ok(LongRopeScaling {
        original_context_length,
        attention_factor: keys.optional_positive("attention_factor")?.unwrap_or(usual),
        divisors: LongRopeDivisors::Listed {
            short: keys.numbers("short_factor")?,
            long: keys.numbers("long_factor")?,
        },
    })
}

fn llama3(keys: &Keys) -> Result<Llama3Scaling, ModelError> {
    let scaling = Llama3Scaling {
        factor: keys.positive("factor")?,
        low_freq_factor: keys.positive("low_freq_factor")?,
        high_freq_factor: keys.positive("high_freq_factor")?,
        original_context_length: keys.dimension("original_max_position_embeddings", None)?,
    };
    if scaling.high_freq_factor <= scaling.low_freq_factor {
        let expected = format!("above the low_freq_factor {}", scaling.low_freq_factor);
        return Err(keys.wrong("high_freq_factor", scaling.high_freq_factor, expected));
    }
    Ok(scaling)
}
