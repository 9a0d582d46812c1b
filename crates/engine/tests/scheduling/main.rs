//! What the engine promises about order, fairness, sharing and failure, one scenario each.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod beams;
mod clients;
mod constraints;
mod fixture;
mod order;
mod reports;
mod sharing;
mod tiers;
