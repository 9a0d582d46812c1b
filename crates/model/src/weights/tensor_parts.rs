//! Tensors that a checkpoint stores as rows of a larger one.
//!
//! Owns which stored tensor is cut where, so that all others ask for each part by a name of its own
//! and never know: queries, keys and values of [`Projections::Fused`], gate and up likewise, and the
//! matrices of experts, which ggml stacks. Parts are views of the stored bytes; nothing is copied.
//! A part may have the name of the tensor that it is cut from.

use super::TensorView;
use crate::config::{ModelConfig, Projections};
use crate::error::ModelError;
use std::collections::{BTreeMap, BTreeSet};

/// The parts of a checkpoint's tensors by name.
#[derive(Clone, Debug, Default)]
pub(crate) struct TensorParts {
    parts: BTreeMap<String, TensorPart>,
    /// Tensors that are cut.
    sources: BTreeSet<String>,
}

/// Some rows of a stored tensor.
#[derive(Clone, Debug)]
struct TensorPart {
    source: String,
    first_row: usize,
    /// `[num_rows, in_features]`
    shape: [usize; 2],
}

impl TensorParts {
    /// Cuts those of the stored `tensors` that `config` says hold several. `stored_name` tells what
    /// a tensor is called in its file, for messages.
    ///
    /// # Errors
    /// When such a tensor has another shape than its parts have together.
    pub(crate) fn cut<'a>(
        config: &ModelConfig,
        tensors: impl Iterator<Item = TensorView<'a>>,
        stored_name: &dyn Fn(&str) -> String,
    ) -> Result<Self, ModelError> {
        let mut parts = Self::default();
        for tensor in tensors {
            let place = tensor.name.strip_prefix("blk.").and_then(|name| name.split_once('.'));
            if let Some((layer, name)) = place {
                parts.cut_one(config, &tensor, [layer, name], stored_name)?;
            }
        }
        Ok(parts)
    }

    fn cut_one(
        &mut self,
        config: &ModelConfig,
        tensor: &TensorView<'_>,
        [layer, name]: [&str; 2],
        stored_name: &dyn Fn(&str) -> String,
    ) -> Result<(), ModelError> {
        let check_shape = |expected: &[usize]| {
            if tensor.shape == expected {
                return Ok(());
            }
            Err(ModelError::TensorShape {
                tensor: stored_name(tensor.name),
                got: tensor.shape.to_vec(),
                expected: expected.to_vec(),
            })
        };
        let (query, kv) = (config.attention.query_width(), config.attention.kv_width());
        let (hidden, inner) = (config.hidden_size, config.intermediate_size);
        let parts: &[(&str, usize)] = match (config.projections, name) {
            (Projections::Fused, "attn_qkv.weight") => {
                &[("attn_q", query), ("attn_k", kv), ("attn_v", kv)]
            }
            (Projections::Fused, "ffn_up.weight") => &[("ffn_gate", inner), ("ffn_up", inner)],
            _ => &[],
        };
        if !parts.is_empty() {
            let num_rows = parts.iter().map(|(_, num_rows)| num_rows).sum();
            check_shape(&[num_rows, hidden])?;
            let mut first_row = 0;
            for (part, num_rows) in parts {
                let name = format!("blk.{layer}.{part}.weight");
                self.insert(name, tensor, first_row, [*num_rows, hidden]);
                first_row += num_rows;
            }
        }
        let stacked = name.strip_suffix("_exps.weight");
        if let (Some(experts), Some(part)) = (config.experts, stacked) {
            let shape = if part == "ffn_down" { [hidden, inner] } else { [inner, hidden] };
            check_shape(&[experts.count, shape[0], shape[1]])?;
            for expert in 0..experts.count {
                let name = format!("blk.{layer}.{part}.{expert}.weight");
                self.insert(name, tensor, expert * shape[0], shape);
            }
        }
        Ok(())
    }

    fn insert(
        &mut self,
        name: String,
        tensor: &TensorView<'_>,
        first_row: usize,
        shape: [usize; 2],
    ) {
        self.sources.insert(tensor.name.to_owned());
        self.parts.insert(name, TensorPart { source: tensor.name.to_owned(), first_row, shape });
    }

    /// Returns the tensor of a name, where `stored` finds those of the file.
    pub(crate) fn find<'a>(
        &'a self,
        name: &str,
        stored: impl FnOnce(&str) -> Option<TensorView<'a>>,
    ) -> Option<TensorView<'a>> {
        let Some((name, part)) = self.parts.get_key_value(name) else {
            return stored(name).filter(|_| !self.sources.contains(name));
        };
        Some(stored(&part.source)?.part(name, part.first_row, &part.shape))
    }

    /// Returns the names of all tensors in alphabetical order, those of parts instead of what they
    /// are cut from; `stored` are those of the file.
    pub(crate) fn names<'a>(
        &'a self,
        stored: impl Iterator<Item = &'a str>,
    ) -> impl Iterator<Item = &'a str> {
        let whole = stored.filter(|name| !self.sources.contains(*name));
        let mut names: Vec<_> = whole.chain(self.parts.keys().map(String::as_str)).collect();
        names.sort_unstable();
        names.into_iter()
    }
}

#[cfg(test)]
mod tests {
    use crate::Checkpoint;
    use crate::gguf::builder::Builder;

    /// Two query heads and one key head of 2 dimensions, hidden size 4, 6 dimensions inside.
    fn sample(architecture: &str) -> Builder {
        let sizes = [
            ("vocab_size", 3),
            ("context_length", 8),
            ("embedding_length", 4),
            ("block_count", 1),
            ("feed_forward_length", 6),
            ("attention.head_count", 2),
            ("attention.head_count_kv", 1),
        ];
        let epsilon = format!("{architecture}.attention.layer_norm_rms_epsilon");
        let builder =
            Builder::default().text("general.architecture", architecture).f32(&epsilon, 1e-5);
        sizes.iter().fold(builder, |builder, (key, size)| {
            builder.u32(&format!("{architecture}.{key}"), *size)
        })
    }

    #[test]
    fn fused_projections_are_found_as_rows_of_their_tensors() {
        let file = sample("phi3")
            .tensor("blk.0.attn_qkv.weight", &[4, 8], 0, 0)
            .tensor("blk.0.ffn_up.weight", &[4, 12], 0, 128)
            .tensor("blk.0.ffn_down.weight", &[6, 4], 0, 320)
            .data(416);
        let checkpoint = Checkpoint::from_bytes(file.build().into()).unwrap();
        let names: Vec<_> = checkpoint.tensor_names().collect();
        let parts = ["attn_k", "attn_q", "attn_v", "ffn_down", "ffn_gate", "ffn_up"];
        assert_eq!(names, parts.map(|part| format!("blk.0.{part}.weight")));
        assert!(checkpoint.tensor("blk.0.attn_qkv.weight").is_none());
        let tensor = |name: &str| checkpoint.tensor(&format!("blk.0.{name}.weight")).unwrap();
        let start = tensor("attn_q").stored_bytes().as_ptr().addr();
        for (part, rows, first_byte) in [
            ("attn_q", 4, 0),
            ("attn_k", 2, 64),
            ("attn_v", 2, 96),
            ("ffn_gate", 6, 128),
            ("ffn_up", 6, 224),
        ] {
            let found = tensor(part);
            let bytes = found.stored_bytes();
            assert_eq!((found.shape, bytes.len()), (&[rows, 4][..], rows * 16), "{part}");
            assert_eq!(bytes.as_ptr().addr() - start, first_byte, "{part}");
        }
        assert_eq!(checkpoint.weight_bytes(), 416);
    }

    #[test]
    fn stacked_experts_are_found_one_by_one() {
        let file = sample("llama")
            .u32("llama.expert_count", 2)
            .u32("llama.expert_used_count", 1)
            .tensor("blk.0.ffn_down_exps.weight", &[6, 4, 2], 0, 0)
            .tensor("blk.0.ffn_up_exps.weight", &[4, 6, 2], 0, 192)
            .data(384);
        let checkpoint = Checkpoint::from_bytes(file.build().into()).unwrap();
        let names: Vec<_> = checkpoint.tensor_names().collect();
        let parts = ["ffn_down.0", "ffn_down.1", "ffn_up.0", "ffn_up.1"];
        assert_eq!(names, parts.map(|part| format!("blk.0.{part}.weight")));
        let second = checkpoint.tensor("blk.0.ffn_down.1.weight").unwrap();
        assert_eq!((second.shape, second.num_stored_bytes()), (&[4, 6][..], 96));
        assert_eq!(checkpoint.tensor("blk.0.ffn_up.1.weight").unwrap().shape, [6, 4]);
    }

    #[test]
    fn tensors_of_another_shape_than_their_parts_are_refused() {
        let experts = sample("llama").u32("llama.expert_count", 2);
        let experts = experts.u32("llama.expert_used_count", 1);
        for (builder, name, dimensions, expected) in [
            (sample("phi3"), "attn_qkv", &[4, 7][..], "[7, 4], expected [8, 4]"),
            (sample("phi3"), "ffn_up", &[4, 6, 2], "[2, 6, 4], expected [12, 4]"),
            (experts, "ffn_gate_exps", &[4, 6, 3], "[3, 6, 4], expected [2, 6, 4]"),
        ] {
            let name = format!("blk.0.{name}.weight");
            let file = builder.tensor(&name, dimensions, 0, 0).data(288);
            let error = Checkpoint::from_bytes(file.build().into()).unwrap_err().to_string();
            assert_eq!(error, format!("tensor `{name}` has shape {expected}"));
        }
    }
}
