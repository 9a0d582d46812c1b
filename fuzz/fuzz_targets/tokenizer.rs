//! A `tokenizer.json`, a zero byte, and the text that it is to encode.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mini_infer_text::Tokenizer;

fuzz_target!(|bytes: &[u8]| {
    let mut parts = bytes.splitn(2, |byte| *byte == 0);
    let json = parts.next().unwrap_or_default();
    let text = String::from_utf8_lossy(parts.next().unwrap_or_default());
    let Ok(tokenizer) = Tokenizer::from_tokenizer_json(json, None) else { return };
    if let Ok(ids) = tokenizer.encode_text(&text) {
        let _ = tokenizer.detokenize(&ids);
    }
});
