//! A GGUF file: every value and tensor of it is looked at, and those of a model are found.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mini_infer_model::Checkpoint;
use mini_infer_model::gguf::GgufFile;
use mini_infer_model::weights::ModelTensors;

fuzz_target!(|bytes: &[u8]| {
    let Ok(file) = GgufFile::parse(bytes.to_vec().into()) else { return };
    for key in file.metadata().keys() {
        let _ = file.metadata().get::<Vec<&str>>(key);
        let _ = file.metadata().get::<Vec<Vec<u64>>>(key);
    }
    for name in file.tensor_names() {
        let tensor = file.tensor(name).expect("a tensor of the list");
        assert_eq!(tensor.to_f32().len(), tensor.num_weights());
    }
    if let Ok(checkpoint) = Checkpoint::from_bytes(bytes.to_vec().into()) {
        let _ = ModelTensors::find(&checkpoint);
    }
});
