//! The prompts of a trace, as tokens.
//!
//! They are made when a request is submitted: those with shared content from the ids of their
//! parts, all others as the same token in a namespace of their own, so that they never match by
//! chance and cost nothing to make. Output tokens are always [`OUTPUT_TOKEN`], which no prompt
//! contains.

use mini_infer_core::{Namespace, TokenId, mix64};
use mini_infer_trace::{TOKENS_PER_ID, TraceRequest};

/// Number of logits in a simulated row; more would only cost time.
pub(crate) const VOCAB_SIZE: usize = 16;

/// What every output consists of.
pub(crate) const OUTPUT_TOKEN: TokenId = 15;

/// Bits of a prompt token: 0 to 7.
const TOKEN_BITS: u32 = 3;

/// Prompt tokens in one hashed word.
const TOKENS_PER_WORD: u32 = u64::BITS / TOKEN_BITS;

/// Returns the namespace and the tokens of the prompt of the request with this number.
pub(crate) fn prompt(request: &TraceRequest, number: u64) -> (Namespace, Vec<TokenId>) {
    let num_tokens = request.num_prompt_tokens as usize;
    if request.content_ids.is_empty() {
        let mut namespace = [0; 32];
        namespace[..8].copy_from_slice(&(number + 1).to_le_bytes());
        return (Namespace(namespace), vec![0; num_tokens]);
    }
    let mut tokens = Vec::with_capacity(num_tokens);
    for &id in &request.content_ids {
        let end = (tokens.len() + TOKENS_PER_ID as usize).min(num_tokens);
        for word in 0..TOKENS_PER_ID.div_ceil(TOKENS_PER_WORD) {
            let word = content_word(id, word);
            let num_left = u32::try_from(end - tokens.len()).unwrap_or(u32::MAX);
            tokens.extend((0..TOKENS_PER_WORD.min(num_left)).map(|i| token_in(word, i)));
        }
    }
    (Namespace::default(), tokens)
}

/// Returns the packed tokens `TOKENS_PER_WORD * word..` of the content `id`, first token highest,
/// so that words are ordered as their tokens are.
pub(crate) fn content_word(id: u64, word: u32) -> u64 {
    mix64(mix64(id) ^ u64::from(word)) >> (u64::BITS - TOKENS_PER_WORD * TOKEN_BITS)
}

/// Returns how many tokens two contents have in common at their start, as far as their first
/// words tell.
pub(crate) fn num_common_tokens(first_word: u64, other_word: u64) -> u32 {
    let num_unused_bits = u64::BITS - TOKENS_PER_WORD * TOKEN_BITS;
    ((first_word ^ other_word).leading_zeros() - num_unused_bits) / TOKEN_BITS
}

fn token_in(word: u64, index: u32) -> TokenId {
    let bits = word >> ((TOKENS_PER_WORD - 1 - index) * TOKEN_BITS);
    // At most 7.
    TokenId::from((bits & ((1 << TOKEN_BITS) - 1)) as u8)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn request(content_ids: &[u64], num_prompt_tokens: u32) -> TraceRequest {
        TraceRequest {
            arrival: Duration::ZERO,
            num_prompt_tokens,
            num_output_tokens: 1,
            content_ids: content_ids.into(),
        }
    }

    #[test]
    fn equal_ids_at_equal_positions_give_equal_prefixes_and_others_do_not() {
        let (namespace, first) = prompt(&request(&[7, 8], 1000), 0);
        let (other_namespace, second) = prompt(&request(&[7, 9], 600), 1);
        assert_eq!((first.len(), second.len()), (1000, 600));
        assert_eq!(namespace, other_namespace);
        assert_eq!(first[..512], second[..512]);
        let num_equal = (512..600).take_while(|&i| first[i] == second[i]).count();
        let expected = num_common_tokens(content_word(8, 0), content_word(9, 0));
        assert_eq!(num_equal, expected as usize);
        assert!(first.iter().all(|&token| token < OUTPUT_TOKEN));
    }

    #[test]
    fn requests_without_shared_content_have_namespaces_of_their_own() {
        let (first, _) = prompt(&request(&[], 3), 0);
        let (second, tokens) = prompt(&request(&[], 3), 1);
        assert_ne!(first, second);
        assert_ne!(first, Namespace::default());
        assert_eq!(tokens.len(), 3);
    }

    #[test]
    fn words_are_ordered_as_their_tokens_are() {
        let words = [content_word(1, 0), content_word(2, 0)];
        let tokens = words.map(|word| (0..21).map(|i| token_in(word, i)).collect::<Vec<_>>());
        assert_eq!(words[0] < words[1], tokens[0] < tokens[1]);
        assert_eq!(num_common_tokens(words[0], words[0]), TOKENS_PER_WORD);
    }
}
