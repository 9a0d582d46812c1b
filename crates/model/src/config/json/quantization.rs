//! `quantization_config`: how weights of a checkpoint are stored that are no plain tensors.

use super::{Keys, unsupported};
use crate::error::ModelError;
use mini_infer_kernels::Int4Order;
use serde_json::Value;

/// The object in `config.json`.
const KEY: &str = "quantization_config";
/// Keys that say how the weights were found, or which kernels another program is to use. Which
/// modules are stored in which way is seen from their tensors.
const INFORMATIVE_KEYS: &[&str] = &[
    "awq_method",
    "backend",
    "batch_size",
    "block_name_to_quantize",
    "cache_block_outputs",
    "damp_auto_increment",
    "damp_percent",
    "dataset",
    "desc_act",
    "disable_exllama",
    "do_fuse",
    "exllama_config",
    "fuse_max_seq_len",
    "lm_head",
    "max_input_length",
    "meta",
    "model_file_base_name",
    "model_name_or_path",
    "model_seqlen",
    "modules_in_block_to_quantize",
    "modules_to_fuse",
    "modules_to_not_convert",
    "module_name_preceding_first_block",
    "pack_dtype",
    "pad_token_id",
    "quantizer",
    "static_groups",
    "sym",
    "tokenizer",
    "true_sequential",
    "use_cuda_fp16",
    "use_exllama",
    "zero_point",
];

/// Four-bit weights with scales and zero points.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Int4Storage {
    /// Which codes share a word.
    pub(crate) order: Int4Order,
    /// Input features that share a scale; `None` for all of a row.
    pub(crate) group_size: Option<usize>,
}

impl Int4Storage {
    /// Reads a `config.json`; `None` when all its weights are plain tensors.
    ///
    /// # Errors
    /// When weights are stored in a way that is not supported; the error names the key.
    pub(crate) fn from_json(bytes: &[u8]) -> Result<Option<Self>, ModelError> {
        Self::from_keys(&Keys::parse(bytes)?)
    }

    pub(super) fn from_keys(keys: &Keys) -> Result<Option<Self>, ModelError> {
        let Some(keys) = keys.object(KEY)? else { return Ok(None) };
        let method = keys.text("quant_method")?.unwrap_or("without a name");
        let order = match method {
            "gptq" => gptq_order(&keys)?,
            "awq" => awq_order(&keys)?,
            other => {
                let supported = "gptq and awq, both of 4 bits; none, for BF16, F16 or F32";
                return Err(unsupported(KEY, other, supported));
            }
        };
        let bits = keys.get("bits").and_then(Value::as_u64);
        if bits != Some(4) {
            let got = bits.map_or_else(|| "absent".to_owned(), |bits| bits.to_string());
            return Err(unsupported(&format!("{KEY}.bits"), &got, "4"));
        }
        let group_size = match keys.get("group_size").map(Value::as_i64) {
            Some(Some(-1)) => None,
            Some(Some(size)) if size > 0 => usize::try_from(size).ok(),
            other => {
                let got = format!("{other:?}");
                return Err(unsupported(&format!("{KEY}.group_size"), &got, "-1 or a size"));
            }
        };
        for key in INFORMATIVE_KEYS {
            let _of_no_number = keys.get(key);
        }
        keys.check_all_read()?;
        Ok(Some(Self { order, group_size }))
    }
}

fn gptq_order(keys: &Keys) -> Result<Int4Order, ModelError> {
    expect_off(keys, "is_marlin_format")?;
    expect_off(keys, "dynamic")?;
    match keys.text("checkpoint_format")?.unwrap_or("gptq") {
        "gptq" => Ok(Int4Order::Gptq),
        "gptq_v2" => Ok(Int4Order::GptqV2),
        other => Err(unsupported(&format!("{KEY}.checkpoint_format"), other, "gptq, gptq_v2")),
    }
}

fn awq_order(keys: &Keys) -> Result<Int4Order, ModelError> {
    let version = keys.text("version")?.unwrap_or("gemm");
    if version.eq_ignore_ascii_case("gemm") {
        return Ok(Int4Order::Awq);
    }
    Err(unsupported(&format!("{KEY}.version"), version, "gemm"))
}

/// Refuses a feature that is on.
fn expect_off(keys: &Keys, key: &str) -> Result<(), ModelError> {
    match keys.get(key) {
        None | Some(Value::Bool(false)) => Ok(()),
        Some(Value::Object(of)) if of.is_empty() => Ok(()),
        Some(other) => Err(unsupported(&format!("{KEY}.{key}"), &other.to_string(), "none")),
    }
}
