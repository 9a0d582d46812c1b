//! The file tier on real folders: restarts, kills, damage, and strangers' files.
//!
//! The property behind all of it: whatever happened to the folder, a restore gives exactly the
//! bytes that were saved under the key by the same identity, or it says no.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

mod blocks;
mod damage;
mod fuzz;
mod killed_process;
mod life_cycle;
#[cfg(unix)]
mod permissions;
mod sharing;
