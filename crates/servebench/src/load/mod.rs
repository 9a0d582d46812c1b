//! load/mod
