//! How much longer a normalizer may make a text.
//!
//! A `tokenizer.json` can replace each space by a megabyte, and the next step each byte of that by
//! another; a client's text would then fill the memory. So the steps' factors are multiplied, and
//! more than [`MAX_GROWTH`] is refused. Unicode's normal forms are left out of account: they lengthen
//! a text by a small constant, and only once.

use crate::TokenizerError;
use serde_json::Value;
use tokenizers::NormalizerWrapper;

/// Most bytes that one byte of a text may become. Llama 2's steps need 12: a `▁` in front of a text
/// of one letter, and `▁` for each space.
const MAX_GROWTH: usize = 64;

/// Refuses a normalizer whose steps may lengthen a text without bound.
pub(crate) fn check(normalizer: Option<&NormalizerWrapper>) -> Result<(), TokenizerError> {
    let Some(normalizer) = normalizer else { return Ok(()) };
    let steps = serde_json::to_value(normalizer)
        .map_err(|source| TokenizerError::Build { source: source.into() })?;
    match growth(&steps) {
        Some(growth) if growth <= MAX_GROWTH => Ok(()),
        Some(_) | None => {
            let got = format!("steps that make a text more than {MAX_GROWTH} times as long");
            Err(TokenizerError::UnsupportedSetting { setting: "normalizer", got })
        }
    }
}

/// Returns how many bytes one byte of a text may become, or `None` if that cannot be told.
fn growth(step: &Value) -> Option<usize> {
    let num_bytes = |text: &Value| text.as_str().map(str::len);
    match step["type"].as_str()? {
        "Sequence" => {
            let steps = step["normalizers"].as_array()?;
            steps.iter().try_fold(1_usize, |product, step| product.checked_mul(growth(step)?))
        }
        "Replace" => {
            let content = num_bytes(&step["content"])?;
            match num_bytes(&step["pattern"]["String"]) {
                Some(pattern) if pattern > 0 => Some(content.div_ceil(pattern).max(1)),
                // A pattern may match nothing, between any two characters.
                Some(_) | None => content.checked_add(1),
            }
        }
        "Prepend" => num_bytes(&step["prepend"])?.checked_add(1),
        // A table of replacements of any length.
        "Precompiled" => None,
        _ => Some(1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_step(json: &str, expected: Option<usize>) {
        assert_eq!(growth(&serde_json::from_str(json).unwrap()), expected, "{json}");
    }

    #[test]
    fn factors_of_steps_are_multiplied() {
        let to_mark = r#"{"type":"Replace","pattern":{"String":" "},"content":"▁"}"#;
        let prepend = r#"{"type":"Prepend","prepend":"▁"}"#;
        check_step(to_mark, Some(3));
        check_step(prepend, Some(4));
        let both = format!(r#"{{"type":"Sequence","normalizers":[{prepend},{to_mark}]}}"#);
        check_step(&both, Some(12));
        check_step(r#"{"type":"Replace","pattern":{"Regex":"a*"},"content":"bb"}"#, Some(3));
        check_step(r#"{"type":"Replace","pattern":{"String":""},"content":"bb"}"#, Some(3));
        check_step(r#"{"type":"Replace","pattern":{"String":"ab"},"content":""}"#, Some(1));
        check_step(r#"{"type":"NFC"}"#, Some(1));
        check_step(r#"{"type":"Precompiled","precompiled_charsmap":""}"#, None);
    }
}
