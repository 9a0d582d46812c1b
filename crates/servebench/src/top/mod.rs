//! top/mod
