//! An adapter as PEFT saves it, checked against the model that it is for.

use super::adapter_config::AdapterConfig;
use super::projection::Projection;
use crate::config::ModelConfig;
use crate::error::ModelError;
use crate::rope::RopeStyle;
use crate::safetensors::{BODIES, SafetensorsFile, read_bounded};
use crate::weights::{FileBytes, TensorView};
use std::collections::BTreeMap;
use std::path::Path;

/// How the adapter is applied.
const CONFIG: &str = "adapter_config.json";
/// Its tensors.
const WEIGHTS: &str = "adapter_model.safetensors";
/// Ranks beyond this are damage: they would cost more than the projections.
const MAX_RANK: usize = 4096;

/// An opened adapter.
#[derive(Clone, Debug)]
pub struct LoraFolder {
    config: ModelConfig,
    pairs: Vec<LowRankPair>,
}

/// The two matrices of a projection, as the model's own order of rows wants them.
#[derive(Clone, Debug)]
pub(super) struct LowRankPair {
    pub(super) layer: usize,
    pub(super) projection: Projection,
    pub(super) rank: usize,
    /// `[rank, in_features]`.
    pub(super) a: Vec<f32>,
    /// `[out_features, rank]`, with the scale in it.
    pub(super) b: Vec<f32>,
}

/// Which of the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Side {
    A,
    B,
}

impl LoraFolder {
    /// Opens the folder of an adapter for a model.
    ///
    /// # Errors
    /// When a file cannot be read or is damaged, or the adapter changes what cannot be changed or
    /// has another model's shapes; the error names the file, and the key or tensor.
    pub fn open(folder: &Path, config: &ModelConfig) -> Result<Self, ModelError> {
        let path = folder.join(CONFIG);
        let text = read_bounded(&path)?;
        let adapter = AdapterConfig::parse(&text).map_err(|error| error.in_file(&path))?;
        let path = folder.join(WEIGHTS);
        let file = SafetensorsFile::parse(FileBytes::map(&path)?);
        let pairs = file.and_then(|file| read_pairs(&file, config, adapter));
        let pairs = pairs.map_err(|error| error.in_file(&path))?;
        Ok(Self { config: config.clone(), pairs })
    }

    /// Returns the model that the adapter was opened for.
    pub(super) fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Returns the matrices of the adapter.
    pub(super) fn pairs(&self) -> &[LowRankPair] {
        &self.pairs
    }
}

fn read_pairs(
    file: &SafetensorsFile,
    config: &ModelConfig,
    adapter: AdapterConfig,
) -> Result<Vec<LowRankPair>, ModelError> {
    let mut found = BTreeMap::new();
    let mut unused = Vec::new();
    for tensor in file.tensors() {
        let tensor = tensor?;
        match place(tensor.name, config).filter(|place| !found.contains_key(place)) {
            Some(place) => _ = found.insert(place, tensor),
            None => unused.push(tensor.name.to_owned()),
        }
    }
    if !unused.is_empty() {
        return Err(ModelError::UnusedTensors { names: unused });
    }
    let mut pairs = Vec::new();
    for (&(layer, projection, side), tensor) in &found {
        let other = if side == Side::A { Side::B } else { Side::A };
        let Some(partner) = found.get(&(layer, projection, other)) else {
            let (has, lacks) = if side == Side::A { ("A", "B") } else { ("B", "A") };
            let name = tensor.name.replace(&format!("lora_{has}"), &format!("lora_{lacks}"));
            return Err(ModelError::MissingTensors { names: vec![name] });
        };
        if side == Side::A {
            pairs.push(pair(layer, projection, tensor, partner, config, adapter)?);
        }
    }
    Ok(pairs)
}

/// Returns what a tensor is, as PEFT names it, or `None` when it has no place in the model.
fn place(name: &str, config: &ModelConfig) -> Option<(usize, Projection, Side)> {
    let rest = name.strip_prefix("base_model.model.")?;
    let in_layers = |body| rest.strip_prefix(body)?.strip_prefix("layers.");
    let (layer, rest) = BODIES.iter().copied().find_map(in_layers)?.split_once('.')?;
    let layer = layer.parse().ok().filter(|layer| *layer < config.num_layers)?;
    let (module, side) = match rest.strip_suffix(".lora_A.weight") {
        Some(module) => (module, Side::A),
        None => (rest.strip_suffix(".lora_B.weight")?, Side::B),
    };
    let mut projections = Projection::ALL.into_iter().filter(|projection| projection.is_in(config));
    Some((layer, projections.find(|projection| projection.module() == module)?, side))
}

fn pair(
    layer: usize,
    projection: Projection,
    a: &TensorView<'_>,
    b: &TensorView<'_>,
    config: &ModelConfig,
    adapter: AdapterConfig,
) -> Result<LowRankPair, ModelError> {
    let (out_features, in_features) = projection.features(config);
    let rank = a.shape.first().copied().unwrap_or(0).clamp(1, MAX_RANK);
    for (tensor, expected) in [(a, [rank, in_features]), (b, [out_features, rank])] {
        if tensor.shape != expected {
            return Err(ModelError::TensorShape {
                tensor: tensor.name.to_owned(),
                got: tensor.shape.to_vec(),
                expected: expected.to_vec(),
            });
        }
    }
    #[expect(clippy::cast_possible_truncation, reason = "rounding to f32 is the purpose")]
    let scale = adapter.scale(rank) as f32;
    let mut b = b.to_f32();
    b.iter_mut().for_each(|weight| *weight *= scale);
    if config.rope.style == RopeStyle::Interleaved {
        let rotated = &mut b[..projection.num_rotated_features(config) * rank];
        let heads =
            interleave_heads(rotated, rank, config.attention.head_dim, config.rope.rotary_dim);
        rotated.copy_from_slice(&heads);
    }
    Ok(LowRankPair { layer, projection, rank, a: a.to_f32(), b })
}

/// Returns rows in the order of a model whose rotated pairs are neighbours, from the order in which
/// they are halves of a head: adapters are trained on the latter.
fn interleave_heads(rows: &[f32], width: usize, head_dim: usize, rotary_dim: usize) -> Vec<f32> {
    let mut interleaved = Vec::with_capacity(rows.len());
    for head in rows.chunks_exact(head_dim * width) {
        for i in 0..head_dim {
            let from = match i {
                i if i >= rotary_dim => i,
                i if i % 2 == 0 => i / 2,
                i => rotary_dim / 2 + i / 2,
            };
            interleaved.extend_from_slice(&head[from * width..][..width]);
        }
    }
    interleaved
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Projections;
    use crate::safetensors::builder::Builder;

    /// Two query heads and one key head of two dimensions, all of them rotated.
    fn config() -> ModelConfig {
        let json = br#"{
            "model_type": "llama", "hidden_act": "silu", "hidden_size": 4, "vocab_size": 3,
            "intermediate_size": 6, "num_attention_heads": 2, "num_key_value_heads": 1,
            "num_hidden_layers": 2, "max_position_embeddings": 8, "rms_norm_eps": 1e-5,
            "rope_theta": 1e4, "tie_word_embeddings": true
        }"#;
        ModelConfig::from_json(json).unwrap()
    }

    /// Reads pairs of rank 1 for modules, each as it is called behind `base_model.model.`.
    fn read(
        modules: &[&str],
        num_rows: u8,
        config: &ModelConfig,
    ) -> Result<Vec<LowRankPair>, String> {
        let row_numbers: Vec<u8> =
            (0..num_rows).flat_map(|row| f32::from(row).to_le_bytes()).collect();
        let file = modules.iter().fold(Builder::default(), |file, module| {
            let name = |side| format!("base_model.model.{module}.lora_{side}.weight");
            let shape = [usize::from(num_rows), 1];
            file.zeros(&name("A"), "F32", &[1, 4]).tensor(&name("B"), "F32", &shape, &row_numbers)
        });
        let file = SafetensorsFile::parse(file.build().into()).unwrap();
        let adapter = AdapterConfig::parse(br#"{"peft_type": "LORA", "lora_alpha": 1}"#).unwrap();
        read_pairs(&file, config, adapter).map_err(|error| error.to_string())
    }

    #[test]
    fn halves_of_a_head_become_neighbours() {
        // Two heads of six dimensions, of which four are rotated; rows of two.
        let rows: Vec<f32> = (0..12_u8).flat_map(|row| [f32::from(row), -f32::from(row)]).collect();
        let interleaved = interleave_heads(&rows, 2, 6, 4);
        let firsts: Vec<f32> = interleaved.iter().copied().step_by(2).collect();
        assert_eq!(firsts, [0.0, 2.0, 1.0, 3.0, 4.0, 5.0, 6.0, 8.0, 7.0, 9.0, 10.0, 11.0]);
        assert!(interleaved.chunks_exact(2).all(|row| row[1] == -row[0]));
    }

    #[test]
    fn only_the_rotated_heads_of_a_module_are_reordered() {
        let unchanged = config();
        let mut config = unchanged.clone();
        config.attention.head_dim = 4;
        config.rope.rotary_dim = 4;
        config.rope.style = RopeStyle::Interleaved;
        let rows = |module: &str, num_rows, config: &ModelConfig| {
            let module = format!("model.layers.1.self_attn.{module}");
            read(&[&module], num_rows, config).unwrap().remove(0).b
        };
        assert_eq!(rows("k_proj", 4, &config), [0.0, 2.0, 1.0, 3.0]);
        assert_eq!(rows("v_proj", 4, &config), [0.0, 1.0, 2.0, 3.0]);
        config.projections = Projections::Fused;
        let fused = [0_u8, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 13, 14, 15].map(f32::from);
        assert_eq!(rows("qkv_proj", 16, &config), fused);
        assert_eq!(rows("k_proj", 2, &unchanged), [0.0, 1.0]);
    }

    #[test]
    fn modules_are_found_by_the_names_of_all_bodies() {
        for body in ["model.", "model.language_model.", "language_model.model.", ""] {
            let pairs = read(&[&format!("{body}layers.1.self_attn.q_proj")], 4, &config()).unwrap();
            assert_eq!((pairs[0].layer, pairs[0].projection), (1, Projection::Query), "{body}");
        }
        let vision = ["vision_tower.encoder.layers.1.self_attn.q_proj"];
        assert!(read(&vision, 4, &config()).unwrap_err().contains(vision[0]));
    }

    #[test]
    fn a_second_pair_for_a_module_is_refused() {
        for second in ["model.layers.+1.self_attn.q_proj", "layers.1.self_attn.q_proj"] {
            let error = read(&["model.layers.1.self_attn.q_proj", second], 4, &config());
            assert!(error.unwrap_err().contains("without a use"), "{second}");
        }
    }

    #[test]
    fn what_experts_compute_cannot_be_changed() {
        let json = br#"{
            "model_type": "mixtral", "hidden_act": "silu", "hidden_size": 4, "vocab_size": 3,
            "intermediate_size": 6, "num_attention_heads": 2, "num_key_value_heads": 1,
            "num_hidden_layers": 2, "max_position_embeddings": 8, "rms_norm_eps": 1e-5,
            "rope_theta": 1e4, "num_local_experts": 2, "num_experts_per_tok": 1
        }"#;
        let config = ModelConfig::from_json(json).unwrap();
        assert!(read(&["model.layers.0.self_attn.q_proj"], 4, &config).is_ok());
        for module in ["model.layers.0.mlp.up_proj", "model.layers.0.mlp.experts.0.up_proj"] {
            assert!(read(&[module], 6, &config).unwrap_err().contains(module), "{module}");
        }
    }
}
