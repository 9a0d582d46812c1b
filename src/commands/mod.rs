//! The commands, one file each.

pub(crate) mod info;
pub(crate) mod pull;
pub(crate) mod serve;
pub(crate) mod simulate;
