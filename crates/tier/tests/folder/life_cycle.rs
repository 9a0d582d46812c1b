//! Saving, restoring, evicting, and starting again.

use std::fs::{self, File};
use std::time::{Duration, SystemTime};

use mini_infer_core::BlockTier;
use mini_infer_tier::{FileTier, HostTier, TierError, TierStack, footprint};

use crate::blocks::{PATIENCE, block_files, bytes, config, key, occupied_bytes, restores, save};

const BLOCK_BYTES: usize = 10_000;

#[test]
fn saved_blocks_are_restored_from_the_queue_from_files_and_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let mut tier = FileTier::open(config(dir.path(), 10, BLOCK_BYTES)).unwrap();
    for i in 0..10 {
        assert!(!tier.holds(&key(i)) && !restores(&mut tier, i, BLOCK_BYTES));
        tier.save(&key(i), &bytes(i, BLOCK_BYTES));
        assert!(tier.holds(&key(i)) && restores(&mut tier, i, BLOCK_BYTES));
    }
    assert!(tier.flush(PATIENCE));
    assert_eq!(tier.stats().num_saved_blocks, 10);
    assert!((0..10).all(|i| restores(&mut tier, i, BLOCK_BYTES)));
    assert_eq!(tier.stats().num_restored_blocks, 20);
    assert!(tier.restore_time() > Duration::ZERO);
    drop(tier);

    let mut tier = FileTier::open(config(dir.path(), 10, BLOCK_BYTES)).unwrap();
    assert_eq!(tier.stats().num_held_blocks, 10);
    assert!((0..10).all(|i| tier.holds(&key(i)) && restores(&mut tier, i, BLOCK_BYTES)));
}

#[test]
fn blocks_that_wait_are_written_when_the_tier_is_dropped() {
    let dir = tempfile::tempdir().unwrap();
    let mut tier = FileTier::open(config(dir.path(), 100, BLOCK_BYTES)).unwrap();
    (0..100).for_each(|i| tier.save(&key(i), &bytes(i, BLOCK_BYTES)));
    drop(tier);
    assert_eq!(block_files(dir.path()).len(), 100);
}

#[test]
fn a_block_that_is_held_is_not_written_again() {
    let dir = tempfile::tempdir().unwrap();
    let mut tier = FileTier::open(config(dir.path(), 10, BLOCK_BYTES)).unwrap();
    save(&mut tier, 1, BLOCK_BYTES);
    save(&mut tier, 1, BLOCK_BYTES);
    assert_eq!(tier.stats().num_saved_blocks, 1);
}

#[test]
fn the_file_used_longest_ago_goes_first_also_across_restarts() {
    let dir = tempfile::tempdir().unwrap();
    let mut tier = FileTier::open(config(dir.path(), 3, BLOCK_BYTES)).unwrap();
    (0..3).for_each(|i| save(&mut tier, i, BLOCK_BYTES));
    assert!(restores(&mut tier, 0, BLOCK_BYTES));
    save(&mut tier, 3, BLOCK_BYTES);
    assert_eq!([0, 1, 2, 3].map(|i| tier.holds(&key(i))), [true, false, true, true]);
    assert!(restores(&mut tier, 2, BLOCK_BYTES) && restores(&mut tier, 0, BLOCK_BYTES));
    drop(tier);

    let mut tier = FileTier::open(config(dir.path(), 3, BLOCK_BYTES)).unwrap();
    save(&mut tier, 4, BLOCK_BYTES);
    assert_eq!([0, 2, 3, 4].map(|i| tier.holds(&key(i))), [true, true, false, true]);
    assert_eq!(tier.stats().num_evicted_blocks, 1);
}

#[test]
fn the_capacity_is_never_passed_on_disk() {
    let dir = tempfile::tempdir().unwrap();
    let config = config(dir.path(), 7, BLOCK_BYTES);
    let mut tier = FileTier::open(config.clone()).unwrap();
    for i in 0..200 {
        tier.save(&key(i), &bytes(i, BLOCK_BYTES / (i as usize % 3 + 1)));
        assert!(occupied_bytes(dir.path()) <= config.capacity_bytes);
        assert!(tier.stats().held_bytes <= config.capacity_bytes);
    }
    assert!(tier.flush(PATIENCE));
    assert_eq!(occupied_bytes(dir.path()), tier.stats().held_bytes);
    assert!(tier.stats().held_bytes > config.capacity_bytes / 2);
}

#[test]
fn a_smaller_capacity_than_before_is_kept_from_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let mut tier = FileTier::open(config(dir.path(), 8, BLOCK_BYTES)).unwrap();
    (0..8).for_each(|i| save(&mut tier, i, BLOCK_BYTES));
    drop(tier);
    let config = config(dir.path(), 2, BLOCK_BYTES);
    let tier = FileTier::open(config.clone()).unwrap();
    assert_eq!(tier.stats().num_held_blocks, 2);
    assert!(occupied_bytes(dir.path()) <= config.capacity_bytes);
    assert!(tier.holds(&key(7)) && tier.holds(&key(6)));
}

#[test]
fn half_written_files_and_nothing_else_are_removed_at_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let mut tier = FileTier::open(config(dir.path(), 8, BLOCK_BYTES)).unwrap();
    save(&mut tier, 1, BLOCK_BYTES);
    drop(tier);
    let whole = block_files(dir.path()).remove(0);
    let partial = whole.with_extension("kv.partial");
    fs::copy(&whole, &partial).unwrap();
    let others = [dir.path().join("notes.txt"), whole.with_file_name("notes.kv.partial")];
    others.iter().for_each(|path| fs::write(path, "mine").unwrap());

    let mut tier = FileTier::open(config(dir.path(), 8, BLOCK_BYTES)).unwrap();
    assert!(!partial.exists());
    assert!(others.iter().all(|path| path.exists()));
    assert!(restores(&mut tier, 1, BLOCK_BYTES));
    assert_eq!(tier.stats().num_held_blocks, 1);
}

#[test]
fn a_partial_file_that_is_in_the_way_is_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let mut tier = FileTier::open(config(dir.path(), 1, BLOCK_BYTES)).unwrap();
    save(&mut tier, 1, BLOCK_BYTES);
    let whole = block_files(dir.path()).remove(0);
    save(&mut tier, 2, BLOCK_BYTES);
    fs::write(whole.with_extension("kv.partial"), "left").unwrap();
    save(&mut tier, 1, BLOCK_BYTES);
    assert!(restores(&mut tier, 1, BLOCK_BYTES));
    assert_eq!(tier.stats().num_write_errors, 0);
}

#[test]
fn a_write_that_fails_leaves_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    let mut tier = FileTier::open(config(dir.path(), 1, BLOCK_BYTES)).unwrap();
    save(&mut tier, 1, BLOCK_BYTES);
    let whole = block_files(dir.path()).remove(0);
    save(&mut tier, 2, BLOCK_BYTES);
    fs::create_dir(&whole).unwrap();
    save(&mut tier, 1, BLOCK_BYTES);
    assert_eq!(tier.stats().num_write_errors, 1);
    assert_eq!((tier.stats().held_bytes, occupied_bytes(dir.path())), (0, 0));
    save(&mut tier, 3, BLOCK_BYTES);
    assert!(restores(&mut tier, 3, BLOCK_BYTES) && !restores(&mut tier, 1, BLOCK_BYTES));
}

#[test]
fn a_file_that_somebody_removed_is_missing_and_can_be_saved_again() {
    let dir = tempfile::tempdir().unwrap();
    let mut tier = FileTier::open(config(dir.path(), 8, BLOCK_BYTES)).unwrap();
    save(&mut tier, 1, BLOCK_BYTES);
    let folder = block_files(dir.path()).remove(0).parent().unwrap().to_owned();
    fs::remove_dir_all(folder).unwrap();
    assert!(!restores(&mut tier, 1, BLOCK_BYTES) && !tier.holds(&key(1)));
    assert_eq!((tier.stats().num_missing_files, tier.stats().held_bytes), (1, 0));
    save(&mut tier, 1, BLOCK_BYTES);
    assert!(restores(&mut tier, 1, BLOCK_BYTES));
}

#[test]
fn a_folder_that_cannot_be_used_is_a_clear_error() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    for place in [file.clone(), file.join("below")] {
        let error = FileTier::open(config(&place, 8, BLOCK_BYTES)).unwrap_err();
        assert!(matches!(&error, TierError::Io { path, .. } if *path == place), "{error}");
        assert!(error.to_string().contains("cannot create"), "{error}");
    }
    // A folder in the place of the lock file stands for one that cannot be written to: tests may
    // run as a user to whom no folder is read-only.
    let blocked = dir.path().join("blocked");
    fs::create_dir_all(blocked.join("mini-infer-kv.lock")).unwrap();
    let error = FileTier::open(config(&blocked, 8, BLOCK_BYTES)).unwrap_err();
    assert!(error.to_string().starts_with("cannot write "), "{error}");
}

#[test]
fn a_capacity_below_one_block_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = config(dir.path(), 1, BLOCK_BYTES);
    assert!(FileTier::open(config.clone()).is_ok());
    config.capacity_bytes -= 1;
    assert!(matches!(FileTier::open(config), Err(TierError::TooSmall { .. })));
}

#[test]
fn a_time_in_the_future_or_the_far_past_is_only_an_order() {
    let dir = tempfile::tempdir().unwrap();
    let mut tier = FileTier::open(config(dir.path(), 2, BLOCK_BYTES)).unwrap();
    save(&mut tier, 1, BLOCK_BYTES);
    let first = block_files(dir.path()).remove(0);
    save(&mut tier, 2, BLOCK_BYTES);
    drop(tier);
    let future = SystemTime::now() + Duration::from_secs(1 << 30);
    File::options().write(true).open(&first).unwrap().set_modified(future).unwrap();
    let mut tier = FileTier::open(config(dir.path(), 2, BLOCK_BYTES)).unwrap();
    save(&mut tier, 3, BLOCK_BYTES);
    assert_eq!([1, 2, 3].map(|i| restores(&mut tier, i, BLOCK_BYTES)), [true, false, true]);
}

#[test]
fn a_stack_keeps_blocks_in_memory_and_in_files_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let open = |num_host_blocks: u64| {
        let host = HostTier::new(num_host_blocks * footprint(BLOCK_BYTES), BLOCK_BYTES).unwrap();
        let files = FileTier::open(config(dir.path(), 20, BLOCK_BYTES)).unwrap();
        TierStack::new(Some(host), Some(files))
    };
    let mut stack = open(4);
    let monitor = stack.monitor();
    for i in 0..10 {
        stack.save(&key(i), &bytes(i, BLOCK_BYTES));
    }
    assert!(stack.flush(PATIENCE));
    assert!((0..10).all(|i| stack.holds(&key(i)) && restores(&mut stack, i, BLOCK_BYTES)));
    let stats = std::thread::spawn(move || monitor.stats()).join().unwrap();
    let (host, files) = (stats.host.unwrap(), stats.files.unwrap());
    assert_eq!((host.num_held_blocks, host.num_evicted_blocks), (4, 6));
    assert_eq!((files.num_held_blocks, files.num_saved_blocks), (10, 10));
    assert_eq!((host.num_restored_blocks, files.num_restored_blocks), (4, 6));
    drop(stack);

    let mut stack = open(4);
    assert!((0..10).all(|i| restores(&mut stack, i, BLOCK_BYTES)));
    assert!(!restores(&mut stack, 10, BLOCK_BYTES));
}

#[test]
fn a_stack_of_nothing_holds_nothing() {
    let mut stack = TierStack::new(None, None);
    stack.save(&key(1), &bytes(1, BLOCK_BYTES));
    assert!(!stack.holds(&key(1)) && !restores(&mut stack, 1, BLOCK_BYTES));
    assert!(stack.flush(Duration::ZERO));
    assert_eq!(stack.monitor().stats(), mini_infer_tier::TierStats::default());
}
