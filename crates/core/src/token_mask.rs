//! Which tokens of a vocabulary may come next.
//!
//! One bit for each token id. Ids beyond the mask's length are not allowed, so a mask may be shorter
//! than a row of logits. Reading all allowed ids costs the words of the mask and the ids.

use crate::TokenId;

/// Bits of one word.
const WORD_BITS: usize = u32::BITS as usize;

/// A set of allowed tokens.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TokenMask {
    /// Bit `i` of word `w` stands for token `32 * w + i`.
    words: Vec<u32>,
}

impl TokenMask {
    /// Takes a mask of which bit `i` of word `w` stands for token `32 * w + i`.
    #[must_use]
    pub fn from_words(words: Vec<u32>) -> Self {
        Self { words }
    }

    /// Tells whether a token is allowed.
    #[must_use]
    pub fn allows(&self, token: TokenId) -> bool {
        let index = token as usize;
        let word = self.words.get(index / WORD_BITS).copied().unwrap_or(0);
        word >> (index % WORD_BITS) & 1 == 1
    }

    /// Returns the words, as [`TokenMask::from_words`] takes them.
    #[must_use]
    pub fn words(&self) -> &[u32] {
        &self.words
    }

    /// Returns the allowed tokens, ascending.
    pub fn iter(&self) -> impl Iterator<Item = TokenId> {
        (0..).zip(&self.words).flat_map(|(index, &word)| {
            let mut left = word;
            std::iter::from_fn(move || {
                let bit = left.trailing_zeros();
                // Clears the lowest bit; there is none left once the word is 0.
                left &= left.checked_sub(1)?;
                Some(index * u32::BITS + bit)
            })
        })
    }
}

impl FromIterator<TokenId> for TokenMask {
    fn from_iter<I: IntoIterator<Item = TokenId>>(tokens: I) -> Self {
        let mut words = Vec::new();
        for token in tokens {
            let index = token as usize / WORD_BITS;
            if words.len() <= index {
                words.resize(index + 1, 0);
            }
            words[index] |= 1 << (token % u32::BITS);
        }
        Self { words }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mask_holds_what_was_put_in_and_nothing_else() {
        let tokens = [0, 1, 31, 32, 33, 63, 95, 200];
        let mask: TokenMask = tokens.into_iter().collect();
        assert_eq!(mask.iter().collect::<Vec<_>>(), tokens);
        for token in 0..400 {
            assert_eq!(mask.allows(token), tokens.contains(&token), "{token}");
        }
        assert_eq!(TokenMask::from_words(vec![0, u32::MAX]).iter().count(), 32);
        assert_eq!(TokenMask::default().iter().next(), None);
    }
}
