//! Files of strangers, made to take time, memory or stack: each is refused, or ends.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

mod templates;
mod tokenizers;

use mini_infer_text::Tokenizer;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// Far more than any of these takes, on a machine busy with other work too.
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs `work` on a thread with a small stack, as a server's workers have, and checks that it ends.
pub(crate) fn check_ends<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    let started = Instant::now();
    let result = std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(2 << 20);
        thread.spawn_scoped(scope, work).unwrap().join().unwrap()
    });
    assert!(started.elapsed() < PATIENCE, "{:?}", started.elapsed());
    result
}

pub(crate) fn tiny_tokenizer() -> Value {
    json!({"model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []},
        "added_tokens": [{"id": 2, "content": "<s>", "special": true}],
        "decoder": {"type": "ByteLevel"}})
}

pub(crate) fn load(file: &Value) -> Result<Tokenizer, String> {
    let bytes = serde_json::to_vec(file).unwrap();
    Tokenizer::from_tokenizer_json(&bytes, None).map_err(|error| error.to_string())
}
