//! Byte-level BPE: any bytes as words over GPT-2's alphabet of 256 printable characters.
//!
//! The `tokenizers` crate cuts and merges; this module holds its parts, so that special tokens are
//! found by [`TokenMatcher`](crate::token_matcher::TokenMatcher) alone and never inside a text. Also
//! serves SentencePiece-like models that come as `tokenizer.json`, whose parts the crate reads.

use crate::{EncodeError, TokenizerError};
use mini_infer_core::TokenId;
use tokenizers::models::bpe::BPE;
use tokenizers::tokenizer::pre_tokenizer::PreTokenizedString;
use tokenizers::{
    Model, NormalizedString, Normalizer, NormalizerWrapper, OffsetReferential, OffsetType,
    PreTokenizer, PreTokenizerWrapper,
};

/// Where a stretch of text lies, which decides over a leading space in some tokenizers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TextPlace {
    /// At the beginning of the prompt.
    Start,
    /// After a token that was matched as a whole.
    Later,
}

/// The crate's parts between a text and its ids.
#[derive(Debug)]
pub(crate) struct BpeParts {
    pub(crate) normalizer: Option<NormalizerWrapper>,
    pub(crate) pre_tokenizer: Option<PreTokenizerWrapper>,
    /// Replaces `pre_tokenizer` after the start, when they differ.
    pub(crate) later_pre_tokenizer: Option<PreTokenizerWrapper>,
    pub(crate) bpe: BPE,
}

impl BpeParts {
    /// Appends the ids of `text`.
    pub(crate) fn encode(
        &self,
        text: &str,
        place: TextPlace,
        ids: &mut Vec<TokenId>,
    ) -> Result<(), EncodeError> {
        self.for_each_word(text, place, |word| {
            ids.extend(self.bpe.tokenize(word)?.iter().map(|token| token.id));
            Ok(())
        })
    }

    /// Returns the words that `text` is cut into, as the BPE sees them.
    pub(crate) fn words(&self, text: &str, place: TextPlace) -> Result<Vec<String>, EncodeError> {
        let mut words = Vec::new();
        self.for_each_word(text, place, |word| {
            words.push(word.to_owned());
            Ok(())
        })?;
        Ok(words)
    }

    fn for_each_word(
        &self,
        text: &str,
        place: TextPlace,
        mut visit: impl FnMut(&str) -> Result<(), Failure>,
    ) -> Result<(), EncodeError> {
        let failed = |source| EncodeError { source };
        let mut normalized = NormalizedString::from(text);
        if let Some(normalizer) = &self.normalizer {
            normalizer.normalize(&mut normalized).map_err(failed)?;
        }
        let mut words = PreTokenizedString::from(normalized);
        let pre_tokenizer = match place {
            TextPlace::Start => self.pre_tokenizer.as_ref(),
            TextPlace::Later => self.later_pre_tokenizer.as_ref().or(self.pre_tokenizer.as_ref()),
        };
        if let Some(pre_tokenizer) = pre_tokenizer {
            pre_tokenizer.pre_tokenize(&mut words).map_err(failed)?;
        }
        let splits = words.get_splits(OffsetReferential::Normalized, OffsetType::None);
        splits.into_iter().try_for_each(|(word, _, _)| visit(word)).map_err(failed)
    }
}

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Checks that each merge's tokens exist, which the crate takes for granted.
pub(crate) fn check_merge(
    index: usize,
    merge: &(String, String),
    exists: impl Fn(&str) -> bool,
) -> Result<(), TokenizerError> {
    let (left, right) = merge;
    for token in [left, right, &format!("{left}{right}")] {
        if !exists(token) {
            return Err(TokenizerError::MergeUnknownToken { index, token: token.clone() });
        }
    }
    Ok(())
}

/// Returns the bytes that a token over GPT-2's alphabet stands for.
///
/// A token with any other character stands for its own text, as in the reference.
pub(crate) fn bytes_of(token: &str) -> Vec<u8> {
    let bytes: Option<Vec<u8>> = token.chars().map(byte_of).collect();
    bytes.unwrap_or_else(|| token.as_bytes().to_vec())
}

/// Returns the byte that a character of GPT-2's alphabet stands for.
///
/// Printable Latin-1 characters stand for themselves; the other 68 bytes, in order, are written as
/// U+0100 and up.
fn byte_of(c: char) -> Option<u8> {
    let code = u32::from(c);
    match code {
        0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF => u8::try_from(code).ok(),
        0x100..=0x120 => u8::try_from(code - 0x100).ok(),
        0x121..=0x142 => u8::try_from(code - 0x121 + 0x7F).ok(),
        0x143 => Some(0xAD),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokenizers::pre_tokenizers::byte_level::ByteLevel;

    #[test]
    fn the_alphabet_stands_for_every_byte_once() {
        let mut bytes: Vec<u8> =
            ByteLevel::alphabet().into_iter().map(|c| byte_of(c).unwrap()).collect();
        bytes.sort_unstable();
        assert_eq!(bytes, (0..=255).collect::<Vec<u8>>());
        assert_eq!(byte_of('Ġ'), Some(b' '));
        assert_eq!(byte_of('Ċ'), Some(b'\n'));
        assert_eq!(byte_of('\u{144}'), None);
        assert_eq!(byte_of(' '), None);
    }

    #[test]
    fn a_token_outside_the_alphabet_stands_for_its_text() {
        assert_eq!(bytes_of("Ġa"), b" a");
        assert_eq!(bytes_of("a b"), b"a b");
    }
}
