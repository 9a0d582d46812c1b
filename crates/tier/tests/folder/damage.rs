//! Files whose bytes are not those that were written.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use mini_infer_tier::{FileStats, FileTier};

use crate::blocks::{block_files, config, restores, save};

const BLOCK_BYTES: usize = 64;

/// A folder with the file of block 1.
struct OneBlock {
    dir: tempfile::TempDir,
    path: PathBuf,
    content: Vec<u8>,
}

impl OneBlock {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        save(&mut FileTier::open(config(dir.path(), 4, BLOCK_BYTES)).unwrap(), 1, BLOCK_BYTES);
        let path = block_files(dir.path()).remove(0);
        let content = fs::read(&path).unwrap();
        Self { dir, path, content }
    }

    /// Opens the folder with `content` as the file; block 1 must be refused, the file be gone and
    /// the block be savable again. Returns the statistics after the refusal.
    fn refused(&self, content: &[u8]) -> FileStats {
        fs::write(&self.path, content).unwrap();
        let mut tier = FileTier::open(config(self.dir.path(), 4, BLOCK_BYTES)).unwrap();
        assert!(!restores(&mut tier, 1, BLOCK_BYTES), "a damaged file was served");
        assert!(!self.path.exists(), "a damaged file is still there");
        let stats = tier.stats();
        assert_eq!((stats.held_bytes, stats.num_held_blocks), (0, 0));
        save(&mut tier, 1, BLOCK_BYTES);
        assert!(restores(&mut tier, 1, BLOCK_BYTES));
        assert_eq!(fs::read(&self.path).unwrap(), self.content);
        stats
    }
}

#[test]
fn a_file_cut_or_continued_anywhere_is_refused() {
    let block = OneBlock::new();
    for length in 0..block.content.len() {
        let stats = block.refused(&block.content[..length]);
        // Without a whole header and one byte it is removed when the folder is listed.
        let is_refused_later = length > block.content.len() - BLOCK_BYTES;
        assert_eq!(stats.num_refused_length, u64::from(is_refused_later), "length {length}");
    }
    for num_more in [1, 64, 5000] {
        let mut longer = block.content.clone();
        longer.resize(longer.len() + num_more, 0);
        assert_eq!(block.refused(&longer).num_refused_length, 1);
    }
}

#[test]
fn a_file_with_any_one_byte_changed_is_refused() {
    let block = OneBlock::new();
    for i in 0..block.content.len() {
        for change in [0x01, 0x80, 0xFF] {
            let mut content = block.content.clone();
            content[i] ^= change;
            let stats = block.refused(&content);
            let FileStats { num_refused_length, num_refused_damaged, .. } = stats;
            let num_refused = num_refused_length + num_refused_damaged + stats.num_refused_foreign;
            assert_eq!(num_refused, 1, "byte {i} changed by {change:#x}");
        }
    }
}

#[test]
fn a_file_made_huge_is_removed_and_evicts_no_other() {
    let dir = tempfile::tempdir().unwrap();
    let mut tier = FileTier::open(config(dir.path(), 4, BLOCK_BYTES)).unwrap();
    (1..=4).for_each(|i| save(&mut tier, i, BLOCK_BYTES));
    drop(tier);
    let path = block_files(dir.path()).remove(0);
    // A hole takes no disk; what file systems allow differs.
    let file = File::options().write(true).open(&path).unwrap();
    let lengths = [i64::MAX as u64, 1 << 62, 1 << 43, 1 << 30];
    assert!(lengths.into_iter().any(|length| file.set_len(length).is_ok()));
    drop(file);
    let mut tier = FileTier::open(config(dir.path(), 4, BLOCK_BYTES)).unwrap();
    assert!(!path.exists());
    assert_eq!((1..=4).filter(|&i| restores(&mut tier, i, BLOCK_BYTES)).count(), 3);
}

/// Opens the folder as another identity would.
fn open_as(dir: &Path, change: impl Fn(&mut mini_infer_tier::TierIdentity)) -> FileTier {
    let mut config = config(dir, 4, BLOCK_BYTES);
    change(&mut config.identity);
    FileTier::open(config).unwrap()
}

#[test]
fn what_another_model_type_layout_or_build_wrote_is_not_found_and_stays() {
    let block = OneBlock::new();
    let changes: [fn(&mut mini_infer_tier::TierIdentity); 4] = [
        |identity| identity.model.push('2'),
        |identity| "int8".clone_into(&mut identity.kv_dtype),
        |identity| identity.layout[0] = 32,
        |identity| identity.build.push('2'),
    ];
    for change in changes {
        let mut tier = open_as(block.dir.path(), change);
        assert!(!restores(&mut tier, 1, BLOCK_BYTES));
        assert_eq!(tier.stats().num_held_blocks, 1);
    }
    assert!(restores(&mut open_as(block.dir.path(), |_| {}), 1, BLOCK_BYTES));
}

#[test]
fn a_foreign_file_under_our_name_is_refused_as_foreign() {
    let block = OneBlock::new();
    let other = tempfile::tempdir().unwrap();
    save(&mut open_as(other.path(), |identity| identity.build.push('2')), 1, BLOCK_BYTES);
    let foreign = fs::read(block_files(other.path()).remove(0)).unwrap();
    assert_ne!(foreign, block.content);
    assert_eq!(block.refused(&foreign).num_refused_foreign, 1);

    let mut later_version = block.content.clone();
    later_version[8] += 1;
    assert_eq!(block.refused(&later_version).num_refused_foreign, 1);
}

#[test]
fn another_blocks_file_under_our_name_is_refused() {
    let block = OneBlock::new();
    let other = tempfile::tempdir().unwrap();
    save(&mut open_as(other.path(), |_| {}), 2, BLOCK_BYTES);
    let content = fs::read(block_files(other.path()).remove(0)).unwrap();
    assert_eq!(block.refused(&content).num_refused_damaged, 1);
}

#[test]
fn files_of_other_builds_share_the_capacity_and_go_as_they_grow_old() {
    let block = OneBlock::new();
    let mut tier = open_as(block.dir.path(), |identity| identity.build.push('2'));
    (1..=3).for_each(|i| save(&mut tier, i, BLOCK_BYTES));
    assert!(block.path.exists());
    save(&mut tier, 4, BLOCK_BYTES);
    assert!(!block.path.exists(), "the oldest file stayed");
    assert_eq!(tier.stats().num_held_blocks, 4);
    assert!((1..=4).all(|i| restores(&mut tier, i, BLOCK_BYTES)));
}
