//! roofline
