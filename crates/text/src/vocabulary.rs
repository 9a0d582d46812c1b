//! What each token id stands for: the bytes it adds to the output, and what kind of token it is.
//!
//! All bytes lie in one buffer, so a vocabulary of 262,144 tokens is two allocations more than its
//! kinds. Looking a token up is O(1). Finding ids for text is the text model's matter, not ours.

use mini_infer_core::TokenId;

/// What a token is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TokenKind {
    /// Stands for its bytes; ordinary text is made of these, single bytes included.
    Normal,
    /// Stands for text that the vocabulary cannot express.
    Unknown,
    /// Steers the model and is no part of any text: BOS, EOS, turn borders.
    Control,
    /// Was added beside the trained vocabulary, and stands for its own text.
    Added,
    /// A hole: no text encodes to it.
    Unused,
}

/// Bytes and kind of every token, indexed by id.
#[derive(Debug, Default)]
pub(crate) struct Vocabulary {
    bytes: Vec<u8>,
    /// Where each token's bytes end in `bytes`; they start where the token before ends.
    ends: Vec<usize>,
    kinds: Vec<TokenKind>,
}

impl Vocabulary {
    /// Appends the token with the next id.
    pub(crate) fn push(&mut self, bytes: &[u8], kind: TokenKind) {
        self.bytes.extend_from_slice(bytes);
        self.ends.push(self.bytes.len());
        self.kinds.push(kind);
    }

    /// Returns the number of ids.
    pub(crate) fn len(&self) -> usize {
        self.kinds.len()
    }

    /// Returns what the token adds to the output when control tokens are shown.
    pub(crate) fn bytes(&self, id: TokenId) -> Option<&[u8]> {
        let index = id as usize;
        let end = *self.ends.get(index)?;
        let start = if index == 0 { 0 } else { self.ends[index - 1] };
        Some(&self.bytes[start..end])
    }

    /// Returns the token's kind.
    pub(crate) fn kind(&self, id: TokenId) -> Option<TokenKind> {
        self.kinds.get(id as usize).copied()
    }
}
