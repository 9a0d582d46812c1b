//! What the blocks hold: the prefix tree, and the names of full blocks where a tier keeps evicted
//! ones.
//!
//! Invariant: exactly the full blocks in the tree have a key. Hashing keys costs more than the rest
//! of the bookkeeping, so that there are none without a tier, and the key of content that is there
//! already is never computed again.

use crate::kv_config::KvConfig;
use crate::prefix_tree::{Insertion, Parent, PrefixTree};
use crate::reclaimed::Reclaimed;
use mini_infer_core::{BlockId, BlockKey, ContentHash, KvPart, KvTransfer, TokenId};

/// The content of all blocks that lookups can find.
#[derive(Debug)]
pub(crate) struct BlockContents {
    pub(crate) tree: PrefixTree,
    keys: Option<ContentKeys>,
}

/// The keys of the full blocks in the tree.
#[derive(Debug)]
struct ContentKeys {
    hash: ContentHash,
    keys: Vec<Option<BlockKey>>,
}

impl BlockContents {
    /// Creates an empty tree over `num_blocks` blocks.
    pub(crate) fn new(num_blocks: u32, config: &KvConfig) -> Self {
        let keys = config
            .content_hash
            .map(|hash| ContentKeys { hash, keys: vec![None; num_blocks as usize] });
        Self { tree: PrefixTree::new(num_blocks, config.block_size, config.block_hashing), keys }
    }

    /// Inserts a full block of `num_tokens` tokens behind one whose key is `parent_key`. Returns
    /// what became of it, and the key of the content.
    pub(crate) fn insert_full(
        &mut self,
        block: BlockId,
        parent: Parent,
        parent_key: &BlockKey,
        num_tokens: u32,
    ) -> (Insertion, BlockKey) {
        let insertion = self.tree.insert(block, parent, num_tokens);
        let Some(ContentKeys { hash, keys }) = &mut self.keys else {
            return (insertion, *parent_key);
        };
        let known = match insertion {
            Insertion::Known(known) => keys[known.index()],
            Insertion::Added | Insertion::Replaced(_) => None,
        };
        let key = known.unwrap_or_else(|| {
            let key = hash(parent_key, self.tree.tokens(block, num_tokens));
            keys[block.index()] = Some(key);
            key
        });
        (insertion, key)
    }

    /// Returns the key of a block in the tree.
    pub(crate) fn key_of(&self, block: BlockId) -> Option<BlockKey> {
        self.keys.as_ref()?.keys[block.index()]
    }

    /// Returns the key of a full block that would continue one with key `parent_key`.
    pub(crate) fn key_after(&self, parent_key: &BlockKey, tokens: &[TokenId]) -> Option<BlockKey> {
        let hash = self.keys.as_ref()?.hash;
        Some(hash(parent_key, tokens))
    }

    /// Takes an evicted block out and returns its key.
    fn remove(&mut self, block: BlockId) -> Option<BlockKey> {
        self.tree.remove(block);
        self.keys.as_mut()?.keys[block.index()].take()
    }
}

/// Accounts for what the pool took back: evicted content can no longer be found, whole blocks are
/// offered to the tier before they lose a part, and memory goes back to the system.
pub(crate) fn account_reclaimed(
    reclaimed: Reclaimed,
    contents: &mut Option<BlockContents>,
    num_evicted_blocks: &mut u64,
    transfers: &mut Vec<KvTransfer>,
) {
    match reclaimed {
        Reclaimed::Block { block, is_whole } => {
            *num_evicted_blocks += 1;
            let key = contents.as_mut().and_then(|contents| contents.remove(block));
            if let (true, Some(key)) = (is_whole, key) {
                transfers.push(KvTransfer::Save { block, key });
            }
        }
        Reclaimed::WindowPart(block) => {
            if let Some(key) = contents.as_ref().and_then(|contents| contents.key_of(block)) {
                transfers.push(KvTransfer::Save { block, key });
            }
            transfers.push(KvTransfer::Discard { block, part: KvPart::SlidingWindow });
        }
        Reclaimed::Memory(block, part) => transfers.push(KvTransfer::Discard { block, part }),
    }
}
