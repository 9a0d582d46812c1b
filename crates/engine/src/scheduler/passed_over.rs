//! The waiting sequences that one step has looked at and does not admit.
//!
//! Of each client a first part of its queue. A client of which too many stand back is passed over
//! as a whole, and the others go on, up to a bound for all: looking at a sequence costs a look into
//! the prefix cache.

use crate::sequence::Rank;
use mini_infer_core::ClientId;
use std::ops::Bound;

/// Sequences of one client that stand back before the client is passed over.
const MAX_STANDING_BACK: u32 = 16;

/// Sequences of all clients that stand back before nobody else is looked at.
const MAX_STANDING_BACK_IN_ALL: u32 = 4 * MAX_STANDING_BACK;

/// How far one client's queue is passed over.
#[derive(Clone, Copy, Debug)]
struct Passed {
    up_to: Rank,
    num_standing_back: u32,
}

/// What one step passes over; a few clients, or none at all.
#[derive(Debug, Default)]
pub(super) struct PassedOver {
    clients: Vec<Passed>,
    num_standing_back: u32,
}

impl PassedOver {
    /// Passes over a client's queue up to `rank`.
    pub(super) fn pass(&mut self, rank: Rank) {
        self.entry(rank).up_to = rank;
    }

    /// Passes over a request that waits for a running sequence to compute its prefix: what is
    /// behind in the same request waits for the same.
    pub(super) fn stand_back(&mut self, rank: Rank) {
        let entry = self.entry(rank);
        entry.up_to = rank.last_of_request();
        entry.num_standing_back += 1;
        self.num_standing_back += 1;
    }

    /// Tells whether so many stand back that nobody else is looked at.
    pub(super) fn is_full(&self) -> bool {
        self.num_standing_back > MAX_STANDING_BACK_IN_ALL
    }

    /// Returns the part of a client's queue that is not passed over.
    pub(super) fn not_passed(&self, client: ClientId) -> (Bound<Rank>, Bound<Rank>) {
        let Some(entry) = self.clients.iter().find(|entry| entry.up_to.client == client) else {
            return (Bound::Unbounded, Bound::Unbounded);
        };
        let after = Bound::Excluded(entry.up_to);
        if entry.num_standing_back > MAX_STANDING_BACK {
            // Nothing: an empty range whose ends are not both excluded is a valid one.
            return (after, Bound::Included(entry.up_to));
        }
        (after, Bound::Unbounded)
    }

    fn entry(&mut self, rank: Rank) -> &mut Passed {
        let found = self.clients.iter().position(|entry| entry.up_to.client == rank.client);
        let index = found.unwrap_or_else(|| {
            self.clients.push(Passed { up_to: rank, num_standing_back: 0 });
            self.clients.len() - 1
        });
        &mut self.clients[index]
    }
}
