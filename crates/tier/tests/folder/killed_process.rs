//! A process that is killed while it writes.
//!
//! The test starts its own program again with only [`writes_until_it_is_killed`], which does
//! nothing unless a variable names a folder.

use std::env;
use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use mini_infer_core::BlockTier;
use mini_infer_tier::FileTier;

use crate::blocks::{PATIENCE, bytes, config, files_below, key, occupied_bytes, restores};

const FOLDER_VARIABLE: &str = "MINI_INFER_TIER_KILL_FOLDER";
const FIRST_BLOCK_VARIABLE: &str = "MINI_INFER_TIER_KILL_FIRST_BLOCK";
/// Large enough that a kill often falls into the writing of a block.
const BLOCK_BYTES: usize = 4 << 20;
const NUM_BLOCKS: u64 = 12;
const NUM_KILLS: u32 = 24;
/// Blocks after which the child makes sure that they are written, and waits to be told to go on:
/// so it is never more than this ahead of what its killer knows.
const GROUP: u32 = 3;
/// Opens the lines in which the child says that a block is being written.
const WRITING: &str = "writing ";
/// Opens the lines in which the child says that all blocks up to one are written.
const WRITTEN: &str = "written up to ";

#[test]
fn writes_until_it_is_killed() {
    let Ok(dir) = env::var(FOLDER_VARIABLE) else { return };
    let first: u32 = env::var(FIRST_BLOCK_VARIABLE).unwrap().parse().unwrap();
    let mut tier = FileTier::open(config(Path::new(&dir), NUM_BLOCKS, BLOCK_BYTES)).unwrap();
    for group in (first..).step_by(GROUP as usize) {
        let blocks = (group..group + GROUP).map(|i| (i, bytes(i, BLOCK_BYTES)));
        for (i, bytes) in blocks.collect::<Vec<_>>() {
            tier.save(&key(i), &bytes);
            println!("\n{WRITING}{i}");
        }
        assert!(tier.flush(PATIENCE));
        println!("{WRITTEN}{}", group + GROUP - 1);
        io::stdin().read_line(&mut String::new()).unwrap();
    }
}

fn start(dir: &Path, first_block: u32) -> Child {
    Command::new(env::current_exe().unwrap())
        .args(["--exact", "killed_process::writes_until_it_is_killed", "--nocapture"])
        .env(FOLDER_VARIABLE, dir)
        .env(FIRST_BLOCK_VARIABLE, first_block.to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Kills the child when it says that it is writing the block `last`; returns up to which block it
/// said before that all are written.
fn kill_while_writing(mut child: Child, last: u32) -> u32 {
    let lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    let mut go_on = child.stdin.take().unwrap();
    let mut written = None;
    for line in lines {
        if let Some(i) = line.strip_prefix(WRITTEN) {
            written = Some(i.parse().unwrap());
            writeln!(go_on).unwrap();
        }
        if line.strip_prefix(WRITING).is_some_and(|i| i.parse() == Ok(last)) {
            break;
        }
    }
    child.kill().unwrap();
    child.wait().unwrap();
    written.unwrap()
}

/// Returns the number of half-written files.
fn num_partial_files(dir: &Path) -> usize {
    let files = files_below(dir).into_iter();
    files.filter(|path| path.extension().is_some_and(|extension| extension == "partial")).count()
}

#[test]
fn a_kill_while_writing_loses_no_written_block_and_leaves_no_wrong_one() {
    let dir = tempfile::tempdir().unwrap();
    let mut num_kills_with_partial = 0;
    for kill in 0..NUM_KILLS {
        let first = kill * 100;
        let written = kill_while_writing(start(dir.path(), first), first + GROUP + kill % 6);
        num_kills_with_partial += num_partial_files(dir.path()).min(1);
        let config = config(dir.path(), NUM_BLOCKS, BLOCK_BYTES);
        assert!(occupied_bytes(dir.path()) <= config.capacity_bytes);
        let mut tier = FileTier::open(config).unwrap();
        assert_eq!(num_partial_files(dir.path()), 0);
        // All of this child's blocks fit, so none that it knew to be written can be missing.
        assert!((first..=written).all(|i| restores(&mut tier, i, BLOCK_BYTES)), "up to {written}");
        // Any other may be there or not; if it is, it is right.
        for i in (0..=kill).flat_map(|kill| kill * 100..kill * 100 + 3 * GROUP) {
            restores(&mut tier, i, BLOCK_BYTES);
        }
        let stats = tier.stats();
        assert_eq!((stats.num_refused_length, stats.num_refused_damaged), (0, 0));
    }
    println!("{num_kills_with_partial} of {NUM_KILLS} kills left a partial file");
}
