//! Grammars that were compiled lately, by their source.

use crate::compiled_grammar::CompiledGrammar;
use std::collections::VecDeque;
use std::sync::Arc;

/// Most grammars that are kept. Programs use a few schemas again and again.
const MAX_GRAMMARS: usize = 32;
/// Most bytes of their sources: a compiled grammar is some ten times as large as its source.
const MAX_KEY_BYTES: usize = 2 << 20;

/// The grammars used last; looking one up compares keys, at most [`MAX_GRAMMARS`].
pub(crate) struct GrammarCache<G = CompiledGrammar> {
    /// Used last comes last.
    entries: VecDeque<(String, Arc<G>)>,
}

impl<G> Default for GrammarCache<G> {
    fn default() -> Self {
        Self { entries: VecDeque::new() }
    }
}

impl<G> GrammarCache<G> {
    /// Returns the grammar with this key.
    pub(crate) fn get(&mut self, key: &str) -> Option<Arc<G>> {
        let index = self.entries.iter().position(|(known, _)| known == key)?;
        let entry = self.entries.remove(index)?;
        let grammar = Arc::clone(&entry.1);
        self.entries.push_back(entry);
        Some(grammar)
    }

    /// Keeps a grammar, and drops those that were not used for longest to make room.
    pub(crate) fn insert(&mut self, key: String, grammar: Arc<G>) {
        self.entries.retain(|(known, _)| *known != key);
        self.entries.push_back((key, grammar));
        while self.entries.len() > MAX_GRAMMARS || self.key_bytes() > MAX_KEY_BYTES {
            self.entries.pop_front();
        }
    }

    /// Returns the bytes of all keys.
    fn key_bytes(&self) -> usize {
        self.entries.iter().map(|(key, _)| key.len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn insert(cache: &mut GrammarCache<u32>, key: &str) {
        cache.insert(key.to_owned(), Arc::new(0));
    }

    #[test]
    fn what_was_not_used_for_longest_is_dropped() {
        let mut cache = GrammarCache::default();
        for i in 0..MAX_GRAMMARS {
            insert(&mut cache, &i.to_string());
        }
        assert!(cache.get("0").is_some());
        insert(&mut cache, "more");
        assert!(cache.get("0").is_some() && cache.get("more").is_some());
        assert!(cache.get("1").is_none());
        assert_eq!(cache.entries.len(), MAX_GRAMMARS);
        insert(&mut cache, "0");
        assert_eq!(cache.entries.len(), MAX_GRAMMARS);
    }

    #[test]
    fn large_sources_make_room_for_themselves() {
        let mut cache = GrammarCache::default();
        for i in 0..4 {
            insert(&mut cache, &format!("{i}{}", "x".repeat(MAX_KEY_BYTES / 2 - 10)));
            assert!(cache.key_bytes() <= MAX_KEY_BYTES);
        }
        assert_eq!(cache.entries.len(), 2);
    }
}
