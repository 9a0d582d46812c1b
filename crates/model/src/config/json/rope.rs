//! The position embedding in a `config.json`.
//!
//! transformers 5 writes one object `rope_parameters`, or one for each kind of layer in it.
//! Before, `rope_theta` and the object `rope_scaling` lay beside the other keys, in which `type`
//! was the older name of `rope_type`; Gemma 3 had `rope_local_base_freq` for its sliding layers.

use super::keys::Keys;
use super::unsupported;
use crate::error::ModelError;
use crate::rope::{Llama3Scaling, RopeConfig, RopeScaling, RopeStyle};

/// Base of the frequencies that the classes of all families but Gemma 3's assume.
const DEFAULT_THETA: f32 = 10_000.0;
/// Base that Gemma 3's class assumes for the layers that see all tokens.
const GEMMA3_FULL_THETA: f32 = 1_000_000.0;

/// Reads the embedding of a model whose layers have the same.
pub(super) fn of_all_layers(keys: &Keys, head_dim: usize) -> Result<RopeConfig, ModelError> {
    let theta = keys.optional_positive("rope_theta")?;
    let parameters = keys.object("rope_parameters")?;
    let old = keys.object("rope_scaling")?;
    if parameters.is_some() && old.is_some() {
        return Err(keys.wrong("rope_scaling", "present", "absent beside rope_parameters"));
    }
    let parameters = parameters.or(old);
    read(parameters, theta.unwrap_or(DEFAULT_THETA), head_dim)
}

/// Reads the embedding of the layers of Gemma 3 that see all tokens.
pub(super) fn of_full_layers(keys: &Keys, head_dim: usize) -> Result<RopeConfig, ModelError> {
    let theta = keys.optional_positive("rope_theta")?.unwrap_or(GEMMA3_FULL_THETA);
    let parameters = of_kind(keys, "full_attention")?.or(keys.object("rope_scaling")?);
    read(parameters, theta, head_dim)
}

/// Reads the embedding of the layers of Gemma 3 that see a window.
pub(super) fn of_sliding_layers(keys: &Keys, head_dim: usize) -> Result<RopeConfig, ModelError> {
    let theta = keys.optional_positive("rope_local_base_freq")?.unwrap_or(DEFAULT_THETA);
    read(of_kind(keys, "sliding_attention")?, theta, head_dim)
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

fn read(parameters: Option<Keys>, theta: f32, head_dim: usize) -> Result<RopeConfig, ModelError> {
    let unscaled = RopeConfig {
        theta,
        rotary_dim: head_dim,
        style: RopeStyle::HalfSplit,
        scaling: RopeScaling::None,
    };
    let Some(keys) = parameters else { return Ok(unscaled) };
    let theta = keys.optional_positive("rope_theta")?.unwrap_or(theta);
    let old_name = keys.text("type")?;
    let scaling = match keys.text("rope_type")?.or(old_name) {
        None | Some("default") => RopeScaling::None,
        Some("linear") => RopeScaling::Linear(keys.positive("factor")?),
        Some("llama3") => RopeScaling::Llama3(llama3(&keys)?),
        Some(other) => return Err(unsupported("rope_type", other, "default, linear, llama3")),
    };
    keys.check_all_read()?;
    Ok(RopeConfig { theta, scaling, ..unscaled })
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
