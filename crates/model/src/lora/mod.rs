//! LoRA adapters: low-rank changes of a model's projections, for some requests (Hu et al., LoRA,
//! section 4.1).
//!
//! An adapter adds `B (A x)` times a scale to what a projection gives for `x`. The base model's
//! weights stay as they are, so sequences of several adapters and of none run in one batch: the
//! base product is one for all of them, and each adapter's products are computed for its own rows
//! only. A row's result depends on its own adapter alone. Modules that are several projections in
//! one (Phi-3's) need nothing else: those are one product here in every model.
//!
//! Adapters are read as PEFT stores them: `adapter_config.json` and `adapter_model.safetensors`.

mod adapter_config;
mod lora_folder;
mod lora_weights;
mod projection;
mod step_adapters;

pub use lora_folder::LoraFolder;
pub(crate) use lora_weights::LoraWeights;
pub(crate) use projection::Projection;
pub(crate) use step_adapters::{AdapterBuffers, StepAdapters};
