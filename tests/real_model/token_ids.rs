//! Token ids on a text made to trip tokenizers, against ids that the reference tokenizers gave
//! (`crates/text/testdata/make_fixtures.py`).

use crate::model::{checkpoint, tokenizer};
use serde_json::Value;

#[test]
fn token_ids_equal_the_reference_tokenizers_on_a_torture_text() {
    let fixture = include_str!("../../crates/text/testdata/smollm2_torture.json");
    let fixture: Value = serde_json::from_str(fixture).unwrap();
    let texts = fixture["texts"].as_array().unwrap();
    let ids = fixture["ids"].as_array().unwrap();
    assert!(texts.len() >= 20 && texts.len() == ids.len());
    let tokenizer = tokenizer(checkpoint());
    for (text, ids) in texts.iter().zip(ids) {
        let text = text.as_str().unwrap();
        let expected: Vec<u64> = ids.as_array().unwrap().iter().flat_map(Value::as_u64).collect();
        let got: Vec<u64> =
            tokenizer.encode_text(text).unwrap().into_iter().map(u64::from).collect();
        assert_eq!(got, expected, "{text:?}");
    }
}
