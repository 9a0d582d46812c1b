//! A number for every row of tokens in every namespace, the same for equal ones only.
//!
//! The number stands for KV: what a token's KV depends on is exactly the row that ends with it.

use mini_infer_core::{BlockKey, Namespace, TokenId, mix64};
use std::collections::BTreeMap;

/// The KV of the last token of one row.
pub(crate) type Kv = u32;

/// All rows met so far.
#[derive(Default)]
pub(crate) struct Prefixes {
    /// Rows by the row before their last token (or the namespace) and that token.
    numbers: BTreeMap<(Result<Kv, Namespace>, TokenId), Kv>,
}

impl Prefixes {
    /// Returns the KV of each of `tokens`.
    pub(crate) fn kv(&mut self, namespace: Namespace, tokens: &[TokenId]) -> Vec<Kv> {
        let mut before = Err(namespace);
        let mut row = Vec::with_capacity(tokens.len());
        for &token in tokens {
            let next = Kv::try_from(self.numbers.len()).unwrap();
            let number = *self.numbers.entry((before, token)).or_insert(next);
            row.push(number);
            before = Ok(number);
        }
        row
    }
}

/// Makes the key of a block: four chains that start differently, so that no two contents met here
/// share one.
pub(crate) fn content_hash(parent: &BlockKey, tokens: &[TokenId]) -> BlockKey {
    let mut key = *parent;
    let (words, _) = key.0.as_chunks_mut::<8>();
    for (lane, word) in (0..).zip(words) {
        let start = mix64(u64::from_le_bytes(*word) ^ lane);
        let end = tokens.iter().fold(start, |state, &token| mix64(state ^ u64::from(token)));
        *word = end.to_le_bytes();
    }
    key
}
