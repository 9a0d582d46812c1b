//! Panels with AVX-512 VNNI.

mod products;
mod quantize;
mod tiles;

pub(super) use products::kernel;
pub(super) use quantize::quantize_quad;
pub(super) use tiles::decode;

/// Rows from which on panels are faster than tiles.
pub(super) const LEAST_ROWS: usize = 25;
/// Tiles of a panel: with four rows, twelve chains of products hide an instruction's latency.
pub(super) const NUM_TILES: usize = 3;
