//! A map that knows which entry was used longest ago.
//!
//! The entries lie in one vector and are linked by indices in the order of their last use; a
//! removed entry's place is taken by the vector's last, so the vector has no gaps. All operations
//! are O(1).

use mini_infer_core::FixedHashMap;
use std::hash::Hash;

/// Stands for no entry.
const NONE: usize = usize::MAX;

/// A map in the order of use.
#[derive(Debug)]
pub(crate) struct LruMap<K, V> {
    places: FixedHashMap<K, usize>,
    entries: Vec<Entry<K, V>>,
    oldest: usize,
    newest: usize,
}

/// One entry and its neighbours in the order of use.
#[derive(Debug)]
struct Entry<K, V> {
    key: K,
    value: V,
    older: usize,
    newer: usize,
}

impl<K: Copy + Eq + Hash, V> LruMap<K, V> {
    /// Creates an empty map.
    pub(crate) fn new() -> Self {
        Self { places: FixedHashMap::default(), entries: Vec::new(), oldest: NONE, newest: NONE }
    }

    /// Returns the number of entries.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Tells whether there is an entry for `key`.
    pub(crate) fn contains(&self, key: &K) -> bool {
        self.places.contains_key(key)
    }

    /// Makes the entry of `key` the newest and returns it.
    pub(crate) fn touch(&mut self, key: &K) -> Option<&V> {
        let place = *self.places.get(key)?;
        if place != self.newest {
            self.unlink(place);
            self.link_newest(place);
        }
        Some(&self.entries[place].value)
    }

    /// Adds the newest entry, in place of the one that `key` had.
    pub(crate) fn insert(&mut self, key: K, value: V) {
        self.remove(&key);
        let place = self.entries.len();
        self.entries.push(Entry { key, value, older: NONE, newer: NONE });
        self.places.insert(key, place);
        self.link_newest(place);
    }

    /// Removes the entry of `key`.
    pub(crate) fn remove(&mut self, key: &K) -> Option<V> {
        let place = self.places.remove(key)?;
        self.unlink(place);
        let entry = self.entries.swap_remove(place);
        if place < self.entries.len() {
            self.moved_to(place);
        }
        Some(entry.value)
    }

    /// Removes the entry that was used longest ago.
    pub(crate) fn pop_oldest(&mut self) -> Option<(K, V)> {
        let key = self.entries.get(self.oldest)?.key;
        self.remove(&key).map(|value| (key, value))
    }

    /// Takes the entry at `place` out of the order.
    fn unlink(&mut self, place: usize) {
        let Entry { older, newer, .. } = self.entries[place];
        self.set_newer(older, newer);
        self.set_older(newer, older);
    }

    /// Puts the entry at `place` at the end of the order.
    fn link_newest(&mut self, place: usize) {
        let before = self.newest;
        self.entries[place].older = before;
        self.set_newer(before, place);
        self.set_older(NONE, place);
        self.entries[place].newer = NONE;
    }

    /// Corrects all that points to the entry that was moved to `place`.
    fn moved_to(&mut self, place: usize) {
        let Entry { key, older, newer, .. } = self.entries[place];
        self.places.insert(key, place);
        self.set_newer(older, place);
        self.set_older(newer, place);
    }

    /// Sets what follows the entry at `place`, or the start of the order.
    fn set_newer(&mut self, place: usize, newer: usize) {
        match self.entries.get_mut(place) {
            Some(entry) => entry.newer = newer,
            None => self.oldest = newer,
        }
    }

    /// Sets what precedes the entry at `place`, or the end of the order.
    fn set_older(&mut self, place: usize, older: usize) {
        match self.entries.get_mut(place) {
            Some(entry) => entry.older = older,
            None => self.newest = older,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mini_infer_core::mix64;

    #[test]
    fn a_map_in_the_order_of_use_does_what_a_plain_list_does() {
        let mut map = LruMap::new();
        let mut list: Vec<(u64, u64)> = Vec::new();
        for step in 0..20_000 {
            let random = mix64(step);
            let key = random / 4 % 24;
            let found = list.iter().position(|&(k, _)| k == key);
            match random % 4 {
                0 => {
                    found.map(|at| list.remove(at));
                    list.push((key, step));
                    map.insert(key, step);
                }
                1 => {
                    let expected = found.map(|at| list.remove(at).1);
                    assert_eq!(map.remove(&key), expected);
                }
                2 => {
                    let expected = found.map(|at| list.remove(at));
                    list.extend(expected);
                    assert_eq!(map.touch(&key).copied(), expected.map(|(_, value)| value));
                }
                _ => {
                    let expected = (!list.is_empty()).then(|| list.remove(0));
                    assert_eq!(map.pop_oldest(), expected);
                }
            }
            assert_eq!(map.len(), list.len());
            assert_eq!(map.contains(&key), list.iter().any(|&(k, _)| k == key));
        }
    }
}
