//! Byte-level vocabularies, as GPT-2's, of what a test needs.

use mini_infer_text::GgufVocabulary;

/// Returns a vocabulary whose first 256 tokens are the bytes, then `control` tokens, then `words`.
pub(crate) fn vocabulary(control: &[&str], words: &[&str]) -> GgufVocabulary {
    let mut tokens: Vec<String> = (0..=255).map(|byte| character(byte).to_string()).collect();
    tokens.extend(control.iter().map(|token| (*token).to_owned()));
    tokens.extend(words.iter().map(|word| word.bytes().map(character).collect::<String>()));
    let mut token_types = vec![1; tokens.len()];
    token_types[256..][..control.len()].fill(3);
    GgufVocabulary {
        model: "gpt2".to_owned(),
        pre: Some("gpt-2".to_owned()),
        tokens,
        token_types,
        ..GgufVocabulary::default()
    }
}

/// Returns the character that byte-level vocabularies write for a byte: itself where it is
/// printable, else one from U+0100 on, in the order of the bytes.
fn character(byte: u8) -> char {
    let is_printable = |byte: u8| matches!(byte, 33..=126 | 161..=172 | 174..=255);
    if is_printable(byte) {
        return char::from(byte);
    }
    let num_before = (0..byte).filter(|&before| !is_printable(before)).count();
    char::from_u32(256 + u32::try_from(num_before).unwrap()).unwrap()
}
