//! SentencePiece BPE with scores and byte fallback: Gemma, Llama 2 and their kin from GGUF.
//!
//! The pair whose union has the highest score is joined first, the leftmost of equals; a character
//! without a piece becomes one token per byte. The `tokenizers` crate ranks pairs where
//! SentencePiece scores pieces, so the algorithm is here, as in SentencePiece's `bpe_model`. It
//! runs on words: no piece spans a cut, so cutting changes nothing, and keeps the work for a text
//! of n characters at O(n log w) for words of length w.
//!
//! Does not normalise (Gemma and Llama 2 do not), nor split pieces of type *unused* (none known).

use crate::TokenizerError;
use crate::tokenizer::SpacePrefix;
use mini_infer_core::{FixedHashMap, FixedHashSet, TokenId};
use std::borrow::Cow;
use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// SentencePiece's stand-in for a space.
const SPACE: char = '▁';

/// A piece's id and score.
#[derive(Clone, Copy, Debug)]
struct ScoredPiece {
    id: TokenId,
    score: f32,
}

/// A SentencePiece model of type BPE.
#[derive(Debug)]
pub(crate) struct SentencePieceBpe {
    pieces: FixedHashMap<Box<str>, ScoredPiece>,
    byte_ids: Box<[Option<TokenId>; 256]>,
    unk: Option<TokenId>,
    /// Characters after which a piece goes on with a space; a word never ends behind one.
    before_space: FixedHashSet<char>,
    space_prefix: SpacePrefix,
}

/// Collects a vocabulary's pieces.
#[derive(Debug)]
pub(crate) struct SentencePieceBuilder {
    model: SentencePieceBpe,
}

impl SentencePieceBuilder {
    /// Adds a token that stands for a single byte.
    pub(crate) fn add_byte(&mut self, byte: u8, id: TokenId) {
        self.model.byte_ids[usize::from(byte)] = Some(id);
    }

    /// Adds a piece, with spaces written as such or as `▁`.
    pub(crate) fn add_piece(&mut self, text: &str, id: TokenId, score: f32) {
        let text = text.replace(' ', "▁");
        for (before, after) in text.chars().zip(text.chars().skip(1)) {
            if after == SPACE {
                self.model.before_space.insert(before);
            }
        }
        self.model.pieces.insert(text.into_boxed_str(), ScoredPiece { id, score });
    }

    /// Returns the model, if every text has an encoding.
    pub(crate) fn build(
        mut self,
        unk: Option<TokenId>,
        space_prefix: SpacePrefix,
    ) -> Result<SentencePieceBpe, TokenizerError> {
        let missing = (0..=u8::MAX).find(|byte| self.model.byte_ids[usize::from(*byte)].is_none());
        if let (None, Some(missing_byte)) = (unk, missing) {
            return Err(TokenizerError::NoFallback { missing_byte });
        }
        self.model.unk = unk;
        self.model.space_prefix = space_prefix;
        Ok(self.model)
    }
}

impl SentencePieceBpe {
    /// Starts collecting about `num_pieces` pieces.
    pub(crate) fn builder(num_pieces: usize) -> SentencePieceBuilder {
        let mut pieces = FixedHashMap::default();
        pieces.reserve(num_pieces);
        SentencePieceBuilder {
            model: Self {
                pieces,
                byte_ids: Box::new([None; 256]),
                unk: None,
                before_space: FixedHashSet::default(),
                space_prefix: SpacePrefix::Absent,
            },
        }
    }

    /// Returns whether texts begin with a space that is not their own.
    pub(crate) fn space_prefix(&self) -> SpacePrefix {
        self.space_prefix
    }

    /// Returns `text` with the space that the model puts before every text.
    pub(crate) fn prefixed<'text>(&self, text: &'text str) -> Cow<'text, str> {
        if self.space_prefix == SpacePrefix::Added && !text.is_empty() {
            Cow::Owned(format!(" {text}"))
        } else {
            Cow::Borrowed(text)
        }
    }

    /// Appends the ids of a stretch of text without added tokens.
    pub(crate) fn encode(&self, text: &str, ids: &mut Vec<TokenId>) {
        let escaped: String = text.chars().map(|c| if c == ' ' { SPACE } else { c }).collect();
        let mut merger = Merger::default();
        let mut start = 0;
        let mut previous = SPACE;
        for (index, c) in escaped.char_indices() {
            if c == SPACE && index > 0 && !self.before_space.contains(&previous) {
                merger.encode_word(self, &escaped[start..index], ids);
                start = index;
            }
            previous = c;
        }
        merger.encode_word(self, &escaped[start..], ids);
    }

    fn push_ids(&self, symbol: &str, ids: &mut Vec<TokenId>) {
        if let Some(piece) = self.pieces.get(symbol) {
            ids.push(piece.id);
            return;
        }
        let bytes: Option<Vec<TokenId>> =
            symbol.bytes().map(|byte| self.byte_ids[usize::from(byte)]).collect();
        match bytes {
            Some(bytes) => ids.extend(bytes),
            None => ids.extend(self.unk),
        }
    }
}

/// A run of characters joined so far; `len` is 0 once it was joined to its left neighbour.
#[derive(Clone, Copy, Debug)]
struct Symbol {
    start: usize,
    len: usize,
    previous: Option<usize>,
    next: Option<usize>,
}

/// Two neighbours that may be joined.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    score: f32,
    left: usize,
    right: usize,
    /// Length of the union: tells whether either neighbour changed since.
    len: usize,
}

impl Ord for Candidate {
    /// The greatest has the highest score, and of equals lies leftmost.
    fn cmp(&self, other: &Self) -> Ordering {
        self.score.total_cmp(&other.score).then(other.left.cmp(&self.left))
    }
}

impl PartialOrd for Candidate {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Candidate {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Candidate {}

/// Scratch space that is reused from word to word.
#[derive(Debug, Default)]
struct Merger {
    symbols: Vec<Symbol>,
    candidates: BinaryHeap<Candidate>,
}

impl Merger {
    fn encode_word(&mut self, model: &SentencePieceBpe, word: &str, ids: &mut Vec<TokenId>) {
        self.symbols.clear();
        self.candidates.clear();
        let num_symbols = word.chars().count();
        for (index, (start, c)) in word.char_indices().enumerate() {
            self.symbols.push(Symbol {
                start,
                len: c.len_utf8(),
                previous: index.checked_sub(1),
                next: Some(index + 1).filter(|next| *next < num_symbols),
            });
        }
        for right in 1..num_symbols {
            self.consider(model, word, Some(right - 1), Some(right));
        }
        while let Some(candidate) = self.candidates.pop() {
            self.join(model, word, candidate);
        }
        for symbol in self.symbols.iter().filter(|symbol| symbol.len > 0) {
            model.push_ids(&word[symbol.start..symbol.start + symbol.len], ids);
        }
    }

    fn join(&mut self, model: &SentencePieceBpe, word: &str, candidate: Candidate) {
        let Candidate { left, right, len, .. } = candidate;
        let (left_len, right_len) = (self.symbols[left].len, self.symbols[right].len);
        if left_len == 0 || right_len == 0 || left_len + right_len != len {
            return;
        }
        let next = self.symbols[right].next;
        self.symbols[left].len = len;
        self.symbols[left].next = next;
        self.symbols[right].len = 0;
        if let Some(next) = next {
            self.symbols[next].previous = Some(left);
        }
        self.consider(model, word, self.symbols[left].previous, Some(left));
        self.consider(model, word, Some(left), next);
    }

    fn consider(
        &mut self,
        model: &SentencePieceBpe,
        word: &str,
        left: Option<usize>,
        right: Option<usize>,
    ) {
        let (Some(left), Some(right)) = (left, right) else { return };
        let start = self.symbols[left].start;
        let len = self.symbols[left].len + self.symbols[right].len;
        if let Some(piece) = model.pieces.get(&word[start..start + len]) {
            self.candidates.push(Candidate { score: piece.score, left, right, len });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use SpacePrefix::{Absent, Added};

    fn model(space_prefix: SpacePrefix) -> SentencePieceBpe {
        let mut builder = SentencePieceBpe::builder(16);
        let pieces = [
            ("▁", -9.0),
            ("a", -9.0),
            ("b", -9.0),
            ("c", -9.0),
            ("ab", -1.0),
            ("bc", -1.0),
            ("▁a", -2.0),
            ("abc", -3.0),
            ("c▁a", -0.5),
        ];
        for ((text, score), id) in pieces.into_iter().zip(1..) {
            builder.add_piece(text, id, score);
        }
        for byte in 0..=u8::MAX {
            builder.add_byte(byte, 1000 + u32::from(byte));
        }
        builder.build(None, space_prefix).unwrap()
    }

    fn check(space_prefix: SpacePrefix, text: &str, expected: &[TokenId]) {
        let mut ids = Vec::new();
        let model = model(space_prefix);
        model.encode(&model.prefixed(text), &mut ids);
        assert_eq!(ids, expected, "{text:?}");
    }

    #[test]
    fn the_highest_score_then_the_leftmost_pair_is_joined_first() {
        check(Absent, "abc", &[8]);
        check(Absent, "bcabc", &[6, 8]);
        check(Absent, "aab", &[2, 5]);
        check(Absent, " ab", &[1, 5]);
        check(Absent, " a", &[7]);
    }

    #[test]
    fn a_piece_with_an_inner_space_is_found_across_words() {
        check(Absent, "bc a", &[6, 7]);
        check(Absent, "cc a", &[4, 9]);
    }

    #[test]
    fn an_unknown_character_becomes_its_bytes() {
        check(Absent, "aé", &[2, 1000 + 0xC3, 1000 + 0xA9]);
    }

    #[test]
    fn the_space_prefix_is_added_to_text_only() {
        check(Added, "a", &[7]);
        check(Added, "", &[]);
    }

    #[test]
    fn a_vocabulary_that_cannot_encode_some_byte_is_refused() {
        let error = SentencePieceBpe::builder(0).build(None, SpacePrefix::Absent).unwrap_err();
        assert!(matches!(error, TokenizerError::NoFallback { missing_byte: 0 }));
    }
}
