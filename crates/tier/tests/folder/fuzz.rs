//! Random damage to files, names and folders.
//!
//! `MINI_INFER_TIER_SEED=7 cargo test -p mini-infer-tier --test folder fuzz` replays one seed.

use std::fs;
use std::path::{Path, PathBuf};

use mini_infer_core::{BlockTier, mix64};
use mini_infer_tier::FileTier;

use crate::blocks::{
    PATIENCE, block_files, bytes, config, files_below, key, occupied_bytes, restores,
};

const NUM_SEEDS: u64 = if cfg!(debug_assertions) { 40 } else { 200 };
/// Rounds of damage, restart and use for each seed.
const NUM_ROUNDS: usize = 6;
/// Changes to the folder in each round.
const MAX_CHANGES: u64 = 8;
const BLOCK_BYTES: usize = 200;
const CAPACITY_BLOCKS: u64 = 6;
/// Blocks that are saved and asked for.
const NUM_KEYS: u32 = 10;

/// A stream of random numbers.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(1);
        mix64(self.0) % bound
    }

    fn index(&mut self, len: usize) -> usize {
        usize::try_from(self.below(len as u64)).unwrap()
    }

    fn block(&mut self) -> u32 {
        u32::try_from(self.below(NUM_KEYS.into())).unwrap()
    }
}

/// Prints how to replay the seed that fails.
struct SeedOnFailure(u64);

impl Drop for SeedOnFailure {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("replay with MINI_INFER_TIER_SEED={}", self.0);
        }
    }
}

#[test]
fn whatever_happens_to_a_folder_only_right_bytes_are_served() {
    let one = std::env::var("MINI_INFER_TIER_SEED").ok().map(|seed| seed.parse().unwrap());
    for seed in one.map_or(0..NUM_SEEDS, |seed: u64| seed..seed + 1) {
        let _guard = SeedOnFailure(seed);
        let mut random = Random(mix64(seed));
        let dir = tempfile::tempdir().unwrap();
        for _ in 0..NUM_ROUNDS {
            for _ in 0..random.below(MAX_CHANGES) {
                change_folder(dir.path(), &mut random);
            }
            use_tier(dir.path(), &mut random);
        }
    }
}

/// Starts a tier in the folder, saves and restores, and changes files under its feet.
fn use_tier(dir: &Path, random: &mut Random) {
    let mut config = config(dir, CAPACITY_BLOCKS, BLOCK_BYTES);
    if random.below(4) == 0 {
        config.identity.build.push('2');
    }
    let capacity_bytes = config.capacity_bytes;
    let mut tier = FileTier::open(config).unwrap();
    assert!(tier.stats().held_bytes <= capacity_bytes);
    for _ in 0..random.below(30) {
        let i = random.block();
        match random.below(8) {
            0..3 => tier.save(&key(i), &bytes(i, BLOCK_BYTES)),
            3..7 => {
                restores(&mut tier, i, BLOCK_BYTES);
            }
            _ => {
                assert!(tier.flush(PATIENCE));
                change_folder(dir, random);
            }
        }
    }
    // What is saved last is there, whatever the folder looks like, unless its very place is taken
    // by something that cannot be replaced. Blocks still waiting would count as used later.
    assert!(tier.flush(PATIENCE));
    let i = random.block();
    restores(&mut tier, i, BLOCK_BYTES);
    tier.save(&key(i), &bytes(i, BLOCK_BYTES));
    assert!(tier.flush(PATIENCE));
    let is_there = restores(&mut tier, i, BLOCK_BYTES);
    let stats = tier.stats();
    assert!(is_there || stats.num_write_errors > 0, "block {i} is lost: {stats:?}");
    assert!(tier.stats().held_bytes <= capacity_bytes);
}

/// Does something to the folder that its owner would not do.
fn change_folder(dir: &Path, random: &mut Random) {
    let mut files = files_below(dir);
    files.retain(|path| !path.ends_with("mini-infer-kv.lock"));
    if files.is_empty() {
        return;
    }
    let path = files[random.index(files.len())].clone();
    let Ok(mut content) = fs::read(&path) else { return };
    match random.below(12) {
        0..4 if !content.is_empty() => {
            for _ in 0..=random.below(3) {
                let i = random.index(content.len());
                content[i] = u8::try_from(random.below(256)).unwrap();
            }
            fs::write(&path, content).unwrap();
        }
        4 => {
            content.truncate(random.index(content.len() + 1));
            fs::write(&path, content).unwrap();
        }
        5 => {
            content.extend((0..random.below(300)).map(|i| i.to_le_bytes()[0]));
            fs::write(&path, content).unwrap();
        }
        6 => fs::remove_file(&path).unwrap(),
        7 => {
            fs::copy(&path, &files[random.index(files.len())]).unwrap();
        }
        8 => {
            fs::rename(&path, other_name(&path, random)).unwrap();
        }
        9 => {
            fs::write(other_name(&path, random), content).unwrap();
        }
        10 => {
            fs::remove_file(&path).unwrap();
            fs::create_dir(&path).unwrap();
        }
        _ => replace_by_link(&path, &files[random.index(files.len())]),
    }
}

/// Returns a name beside that of `path`: another block's, a half-written one's, or nonsense.
fn other_name(path: &Path, random: &mut Random) -> PathBuf {
    let name = path.file_name().unwrap().to_str().unwrap();
    let mut name: Vec<char> = name.chars().collect();
    for _ in 0..=random.below(2) {
        let i = random.index(name.len());
        match random.below(4) {
            0 => name[i] = char::from_digit(u32::try_from(random.below(16)).unwrap(), 16).unwrap(),
            1 => name[i] = 'é',
            2 => name.extend(".partial".chars()),
            _ => name.truncate(i.max(1)),
        }
    }
    let name: String = name.into_iter().take(120).collect();
    let other = path.with_file_name(format!("{name}~"));
    let exact = other.with_file_name(name);
    // Never a folder's name: renaming onto one fails, which is not what is tested.
    if exact.is_dir() || random.below(4) == 0 { other } else { exact }
}

/// Replaces the file by a link to another.
#[cfg(unix)]
fn replace_by_link(path: &Path, target: &Path) {
    fs::remove_file(path).unwrap();
    std::os::unix::fs::symlink(target, path).unwrap();
}

/// Replaces the file by a copy of another.
#[cfg(not(unix))]
fn replace_by_link(path: &Path, target: &Path) {
    fs::copy(target, path).unwrap();
}

#[test]
fn random_bytes_under_a_blocks_name_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let mut tier = FileTier::open(config(dir.path(), CAPACITY_BLOCKS, BLOCK_BYTES)).unwrap();
    let mut random = Random(1);
    let num_cases = if cfg!(debug_assertions) { 2_000 } else { 20_000 };
    for case in 0..num_cases {
        tier.save(&key(1), &bytes(1, BLOCK_BYTES));
        assert!(tier.flush(PATIENCE));
        let path = block_files(dir.path()).remove(0);
        let mut content = fs::read(&path).unwrap();
        let first = random.index(content.len());
        let end = first + 1 + random.index(content.len() - first);
        let before = content.clone();
        content[first..end].iter_mut().for_each(|byte| *byte = random.below(256).to_le_bytes()[0]);
        fs::write(&path, &content).unwrap();
        let is_served = restores(&mut tier, 1, BLOCK_BYTES);
        assert_eq!(is_served, content == before, "case {case}");
    }
    assert!(occupied_bytes(dir.path()) <= tier.stats().capacity_bytes);
}
