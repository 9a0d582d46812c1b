//! client/mod
