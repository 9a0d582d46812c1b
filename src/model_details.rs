//! What the server tells of a model's file.

use crate::assemble::OpenedModel;
use mini_infer_kernels::QuantizedType;
use mini_infer_server::ModelDetails;
use std::collections::BTreeMap;
use std::fs;

/// Collects what is known without reading a weight.
pub(crate) fn of(model: &OpenedModel) -> ModelDetails {
    let checkpoint = &model.checkpoint;
    let tensors = checkpoint.tensor_names().filter_map(|name| checkpoint.tensor(name));
    let mut num_parameters = 0;
    let mut num_by_type = BTreeMap::new();
    for tensor in tensors {
        let quantized = checkpoint.quantization_of(&tensor).map(QuantizedType::weight_type);
        let weight_type = quantized.unwrap_or(tensor.weight_type);
        num_parameters += tensor.num_weights() as u64;
        *num_by_type.entry(weight_type.to_string()).or_insert(0) += tensor.num_weights();
    }
    let most = num_by_type.into_iter().max_by_key(|(_, num_weights)| *num_weights);
    let format = if checkpoint.gguf_metadata().is_some() { "gguf" } else { "safetensors" };
    ModelDetails {
        format: format.to_owned(),
        architecture: checkpoint.config().architecture.name().to_owned(),
        num_parameters,
        weight_type: most.map(|(name, _)| name).unwrap_or_default(),
        size_bytes: checkpoint.weight_bytes(),
        // Only shown, so a file system that does not know is no reason to fail.
        modified_at: fs::metadata(&model.path).and_then(|file| file.modified()).ok(),
    }
}
