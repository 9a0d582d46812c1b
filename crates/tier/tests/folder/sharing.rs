//! Two servers and one folder.

use mini_infer_tier::{FileTier, TierError};

use crate::blocks::{config, restores, save};

const BLOCK_BYTES: usize = 1000;

#[test]
fn a_folder_has_one_owner_at_a_time() {
    let dir = tempfile::tempdir().unwrap();
    let mut first = FileTier::open(config(dir.path(), 4, BLOCK_BYTES)).unwrap();
    save(&mut first, 1, BLOCK_BYTES);
    let mut other_model = config(dir.path(), 4, BLOCK_BYTES);
    other_model.identity.model.push('2');
    for config in [config(dir.path(), 4, BLOCK_BYTES), other_model] {
        let error = FileTier::open(config).unwrap_err();
        assert!(matches!(&error, TierError::InUse { dir: named } if named == dir.path()));
        assert!(error.to_string().contains("a folder of its own"), "{error}");
    }
    assert!(restores(&mut first, 1, BLOCK_BYTES));
    drop(first);
    let mut second = FileTier::open(config(dir.path(), 4, BLOCK_BYTES)).unwrap();
    assert!(restores(&mut second, 1, BLOCK_BYTES));
}

#[test]
fn a_refused_second_owner_removes_nothing_of_the_first() {
    let dir = tempfile::tempdir().unwrap();
    let mut first = FileTier::open(config(dir.path(), 4, BLOCK_BYTES)).unwrap();
    (1..=4).for_each(|i| save(&mut first, i, BLOCK_BYTES));
    assert!(FileTier::open(config(dir.path(), 1, BLOCK_BYTES)).is_err());
    assert!((1..=4).all(|i| restores(&mut first, i, BLOCK_BYTES)));
}
