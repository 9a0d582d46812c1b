//! A folder of Hugging Face: `config.json`, a zero byte, and `model.safetensors`.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mini_infer_model::Checkpoint;
use mini_infer_model::weights::ModelTensors;
use std::fs;

fuzz_target!(|bytes: &[u8]| {
    let mut parts = bytes.splitn(2, |byte| *byte == 0);
    let (Some(config), Some(weights)) = (parts.next(), parts.next()) else { return };
    let folder = std::env::temp_dir().join(format!("mini-infer-fuzz-{}", std::process::id()));
    fs::create_dir_all(&folder).expect("a writable folder");
    fs::write(folder.join("config.json"), config).expect("a writable folder");
    fs::write(folder.join("model.safetensors"), weights).expect("a writable folder");
    if let Ok(checkpoint) = Checkpoint::open(&folder) {
        let _ = ModelTensors::find(&checkpoint);
    }
});
