//! Blocks whose bytes follow from their number, and tiers to keep them in.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use mini_infer_core::{BlockKey, BlockTier, Namespace, mix64};
use mini_infer_tier::{FileTier, FileTierConfig, TierIdentity, content_key, footprint};

/// Far more than any write takes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(600);

/// Returns the key of block `i`.
pub(crate) fn key(i: u32) -> BlockKey {
    content_key(&BlockKey::root(Namespace::default()), &[i])
}

/// Words after which a block's bytes repeat: a prime number, so that no shift of them by what
/// systems read and write at once goes unnoticed.
const PERIOD_WORDS: u64 = 127;

/// Returns the bytes of block `i`.
pub(crate) fn bytes(i: u32, block_bytes: usize) -> Vec<u8> {
    let words = (0..PERIOD_WORDS).map(|word| mix64(u64::from(i) << 32 | word));
    let period: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
    let mut bytes = period.repeat(block_bytes.div_ceil(period.len()));
    bytes.truncate(block_bytes);
    bytes
}

/// Describes a tier in `dir` for `num_blocks` blocks.
pub(crate) fn config(dir: &Path, num_blocks: u64, block_bytes: usize) -> FileTierConfig {
    FileTierConfig {
        dir: dir.to_owned(),
        capacity_bytes: num_blocks * footprint(block_bytes),
        block_bytes,
        identity: TierIdentity {
            model: "tests".to_owned(),
            kv_dtype: "f16".to_owned(),
            layout: vec![16, block_bytes as u64],
            build: "1".to_owned(),
        },
    }
}

/// Saves block `i` and waits until it is written.
pub(crate) fn save(tier: &mut FileTier, i: u32, block_bytes: usize) {
    tier.save(&key(i), &bytes(i, block_bytes));
    assert!(tier.flush(PATIENCE), "block {i} is never written");
}

/// Restores block `i`; its bytes must be right.
pub(crate) fn restores(tier: &mut dyn BlockTier, i: u32, block_bytes: usize) -> bool {
    let mut restored = vec![0xA5; block_bytes];
    let is_there = tier.restore(&key(i), &mut restored);
    assert!(!is_there || restored == bytes(i, block_bytes), "block {i} has wrong bytes");
    is_there
}

/// Returns all regular files below `dir`, in order.
pub(crate) fn files_below(dir: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut folders = vec![dir.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let entry = entry.unwrap();
            let kind = entry.file_type().unwrap();
            if kind.is_dir() {
                folders.push(entry.path());
            } else if kind.is_file() {
                files.push(entry.path());
            }
        }
    }
    files.sort();
    files
}

/// Returns the files of blocks below `dir`, in order.
pub(crate) fn block_files(dir: &Path) -> Vec<PathBuf> {
    let mut files = files_below(dir);
    files.retain(|path| path.extension().is_some_and(|extension| extension == "kv"));
    files
}

/// Returns what the files of blocks below `dir` take of the capacity, partial ones included.
pub(crate) fn occupied_bytes(dir: &Path) -> u64 {
    let files = files_below(dir).into_iter();
    let lengths = files.filter(|path| !path.ends_with("mini-infer-kv.lock")).map(|path| {
        // A file that is removed while it is looked at takes nothing.
        fs::metadata(path).map_or(0, |metadata| metadata.len().next_multiple_of(4096))
    });
    lengths.sum()
}
