//! Who may read and write the folder, where systems say so in mode bits.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;

use mini_infer_tier::{FileTier, TierError};

use crate::blocks::{config, files_below, save};

const BLOCK_BYTES: usize = 1000;

#[test]
fn a_read_only_folder_is_a_clear_error() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("read-only");
    fs::create_dir(&folder).unwrap();
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o500)).unwrap();
    let may_write_anyway = File::create(folder.join("probe")).is_ok();
    match FileTier::open(config(&folder, 8, BLOCK_BYTES)) {
        Ok(_) => assert!(may_write_anyway),
        Err(TierError::Io { action: "write", source, .. }) => {
            assert_eq!(source.kind(), ErrorKind::PermissionDenied);
        }
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn nobody_but_the_user_may_read_the_files() {
    let parent = tempfile::tempdir().unwrap();
    let dir = parent.path().join("new/folder");
    let mut tier = FileTier::open(config(&dir, 8, BLOCK_BYTES)).unwrap();
    save(&mut tier, 1, BLOCK_BYTES);
    for path in files_below(&dir) {
        for path in [path.as_path(), path.parent().unwrap()] {
            let mode = fs::metadata(path).unwrap().permissions().mode();
            assert_eq!(mode & 0o077, 0, "{} has mode {mode:o}", path.display());
        }
    }
}
