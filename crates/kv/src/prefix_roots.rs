//! Where the prefixes of each namespace begin.
//!
//! A namespace has a number while any block of it is known, so that the numbers in use never exceed
//! the blocks, however many tenants come and go. Namespaces are compared in full.

use mini_infer_core::{FixedHashMap, Namespace};

/// The numbers of the namespaces that have blocks.
#[derive(Clone, Debug, Default)]
pub(crate) struct PrefixRoots {
    numbers: FixedHashMap<Namespace, u32>,
    /// By number; unused ones keep their last.
    namespaces: Vec<Namespace>,
    unused: Vec<u32>,
}

impl PrefixRoots {
    /// Returns the number of a namespace that has blocks.
    pub(crate) fn find(&self, namespace: &Namespace) -> Option<u32> {
        self.numbers.get(namespace).copied()
    }

    /// Returns the number of a namespace, giving it an unused one when it has none.
    pub(crate) fn find_or_add(&mut self, namespace: Namespace) -> u32 {
        if let Some(number) = self.find(&namespace) {
            return number;
        }
        let number = self.unused.pop().unwrap_or_else(|| {
            self.namespaces.push(namespace);
            u32::try_from(self.namespaces.len() - 1).expect("namespaces are fewer than blocks")
        });
        self.namespaces[number as usize] = namespace;
        self.numbers.insert(namespace, number);
        number
    }

    /// Takes the number from a namespace whose last block is gone.
    pub(crate) fn remove(&mut self, number: u32) {
        self.numbers.remove(&self.namespaces[number as usize]);
        self.unused.push(number);
    }

    /// Returns how many namespaces have a number.
    pub(crate) fn len(&self) -> usize {
        self.numbers.len()
    }
}
