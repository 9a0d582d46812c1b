//! A tokenizer as the grammar parser wants it: each token's bytes in one trie.
//!
//! Tokens of text stand for the bytes that they add to the output. Control tokens, and all that end
//! an answer, are no text: they get a name behind [`TokTrie::SPECIAL_TOKEN_MARKER`], a byte that is in
//! no UTF-8, so only a grammar that names one can have it. Tokens that stand for no text at all are
//! never allowed. Forced text is not cut into tokens here; the model chooses among those that spell it.

use mini_infer_core::TokenId;
use mini_infer_text::Tokenizer;
use toktrie::{TokRxInfo, TokTrie, TokenizerEnv};

/// Longest token in bytes, the trie's limit.
const MAX_TOKEN_BYTES: usize = 1000;

/// A vocabulary for the parser.
pub(crate) struct TokenVocabulary {
    trie: TokTrie,
}

impl TokenVocabulary {
    /// Takes the bytes of all tokens; `stop_token_ids` end an answer. Costs about a microsecond for
    /// each token. Without a token that ends an answer, outputs end where nothing can follow.
    pub(crate) fn new(tokenizer: &Tokenizer, stop_token_ids: &[TokenId]) -> Self {
        let num_tokens = u32::try_from(tokenizer.vocab_size()).unwrap_or(u32::MAX);
        let words: Vec<Vec<u8>> =
            (0..num_tokens).map(|id| word(tokenizer, id, stop_token_ids.contains(&id))).collect();
        let known = stop_token_ids.iter().copied().filter(|&id| id < num_tokens);
        let end_ids: Vec<TokenId> = known.collect();
        let eos = end_ids.first().copied().unwrap_or(toktrie::INVALID_TOKEN);
        let trie = TokTrie::from(&TokRxInfo::new(num_tokens, eos), &words);
        let trie = if end_ids.is_empty() { trie } else { trie.with_eos_tokens(&end_ids) };
        Self { trie }
    }
}

/// Returns what the trie knows a token by; nothing where it is never allowed.
fn word(tokenizer: &Tokenizer, id: TokenId, ends: bool) -> Vec<u8> {
    let bytes = tokenizer.token_bytes(id).unwrap_or_default();
    let marker = TokTrie::SPECIAL_TOKEN_MARKER;
    if bytes.len() > MAX_TOKEN_BYTES || bytes.contains(&marker) {
        return Vec::new();
    }
    if ends || tokenizer.is_control(id) {
        return [&[marker], bytes].concat();
    }
    if tokenizer.is_text(id) { bytes.to_vec() } else { Vec::new() }
}

impl TokenizerEnv for TokenVocabulary {
    fn tok_trie(&self) -> &TokTrie {
        &self.trie
    }

    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<TokenId> {
        self.trie.greedy_tokenize(bytes)
    }

    fn tokenize_is_canonical(&self) -> bool {
        false
    }
}
