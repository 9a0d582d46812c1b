//! The waiting sequences, a queue for each client, and what each client has been given.
//!
//! While somebody waits, the tokens that a client's sequences compute are counted, each once, and
//! whoever has been given least comes next. This is the virtual token counter of Sheng and others,
//! "Fairness in Serving Large Language Models" (OSDI 2024, section 4), with prompt and output
//! tokens of the same weight and without those that the prefix cache gave. A client that begins to
//! wait counts as if it had been given what the neediest of those that wait has: nobody saves up a
//! share by staying away. Counts end with the need for them, when nobody waits.
//!
//! Why nobody starves: counts of those that are served rise, and the count of a client that only
//! waits does not, so it becomes the least in the end. Between two clients that both wait all the
//! time, counts differ by no more than what runs at once can still be given.
//!
//! Invariants: a client is known exactly while it has requests. Costs: the next sequence O(clients
//! that wait), all else O(log waiting).

use super::passed_over::PassedOver;
use crate::sequence::{Place, Rank, Sequence};
use mini_infer_core::{ClientId, FixedHashMap};
use std::collections::BTreeMap;

/// Clients without requests whose counts are kept, so that nobody gets rid of one by leaving.
const MAX_DEPARTED: usize = 1024;

/// What one client has in the engine.
#[derive(Debug, Default)]
struct ClientShare {
    /// Requests that have not ended.
    num_requests: u32,
    /// Tokens that it has been given since somebody began to wait.
    num_served_tokens: u64,
    /// The same when the step began: what the order of running sequences goes by.
    num_served_before: u64,
    waiting: BTreeMap<Rank, Sequence>,
}

/// The waiting sequences of all clients.
#[derive(Debug, Default)]
pub(super) struct FairQueue {
    clients: FixedHashMap<ClientId, ClientShare>,
    /// What clients that have no requests had been given.
    departed: FixedHashMap<ClientId, u64>,
    num_waiting: usize,
}

impl FairQueue {
    /// Notes that a client submits a request, before its sequences are added.
    pub(super) fn enter(&mut self, client: ClientId) {
        if self.num_waiting == 0 {
            self.forget();
        }
        let floor = self.least_served().unwrap_or(0);
        let departed = self.departed.remove(&client);
        let share = self.clients.entry(client).or_default();
        if share.waiting.is_empty() {
            let known = share.num_served_tokens.max(departed.unwrap_or(0));
            share.num_served_tokens = known.max(floor);
        }
        if share.num_requests == 0 {
            share.num_served_before = share.num_served_tokens;
        }
        share.num_requests += 1;
    }

    /// Notes that a request of a client has ended; its sequences are gone.
    pub(super) fn leave(&mut self, client: ClientId) {
        let share = self.clients.get_mut(&client).expect("it has a request");
        share.num_requests -= 1;
        if share.num_requests > 0 {
            return;
        }
        debug_assert!(share.waiting.is_empty(), "a sequence outlived its request");
        let num_served_tokens = share.num_served_tokens;
        self.clients.remove(&client);
        if self.least_served().is_some_and(|least| num_served_tokens > least) {
            self.keep_departed(client, num_served_tokens);
        }
    }

    fn keep_departed(&mut self, client: ClientId, num_served_tokens: u64) {
        if self.departed.len() == MAX_DEPARTED {
            let least = self.departed.iter().map(|(&client, &served)| (served, client)).min();
            self.departed.remove(&least.expect("it is full").1);
        }
        self.departed.insert(client, num_served_tokens);
    }

    /// Fixes the order of running sequences for a step.
    pub(super) fn begin_step(&mut self) {
        if self.num_waiting == 0 {
            self.forget();
        }
        for share in self.clients.values_mut() {
            share.num_served_before = share.num_served_tokens;
        }
    }

    /// Drops all counts.
    fn forget(&mut self) {
        self.departed.clear();
        for share in self.clients.values_mut() {
            share.num_served_tokens = 0;
        }
    }

    /// Returns the least that a client that waits has been given.
    fn least_served(&self) -> Option<u64> {
        let waiting = self.clients.values().filter(|share| !share.waiting.is_empty());
        waiting.map(|share| share.num_served_tokens).min()
    }

    /// Counts tokens as given to a client.
    pub(super) fn charge(&mut self, client: ClientId, num_tokens: u32) {
        self.share_mut(client).num_served_tokens += u64::from(num_tokens);
    }

    /// Returns what a client had been given when the step began.
    pub(super) fn num_served_before(&self, client: ClientId) -> u64 {
        self.clients[&client].num_served_before
    }

    /// Adds a sequence, for the first time or again.
    pub(super) fn push(&mut self, sequence: Sequence) {
        self.share_mut(sequence.rank.client).waiting.insert(sequence.rank, sequence);
        self.num_waiting += 1;
    }

    /// Returns a waiting sequence.
    pub(super) fn get(&self, rank: Rank) -> Option<&Sequence> {
        self.clients.get(&rank.client)?.waiting.get(&rank)
    }

    /// Takes a sequence out.
    pub(super) fn remove(&mut self, rank: Rank) -> Option<Sequence> {
        let sequence = self.clients.get_mut(&rank.client)?.waiting.remove(&rank)?;
        self.num_waiting -= 1;
        Some(sequence)
    }

    /// Returns the sequence that comes next, without those that are passed over: the first of the
    /// client that has been given least.
    pub(super) fn next(&self, passed: &PassedOver) -> Option<&Sequence> {
        let firsts = self.clients.iter().filter_map(|(&client, share)| {
            let (&rank, _) = share.waiting.range(passed.not_passed(client)).next()?;
            Some(Place { num_served_tokens: share.num_served_tokens, rank })
        });
        let Place { rank, .. } = firsts.min()?;
        self.get(rank)
    }

    /// Returns the first waiting sequence, of the request that `rank` belongs to, that is wanted.
    pub(super) fn find_in_request(
        &self,
        rank: Rank,
        is_wanted: impl Fn(&Sequence) -> bool,
    ) -> Option<Rank> {
        let of_client = &self.clients.get(&rank.client)?.waiting;
        let mut of_request = of_client.range(rank.first_of_request()..=rank.last_of_request());
        of_request.find(|(_, sequence)| is_wanted(sequence)).map(|(&rank, _)| rank)
    }

    /// Tells whether a sequence of a client waits.
    pub(super) fn has_waiting(&self, client: ClientId) -> bool {
        self.clients.get(&client).is_some_and(|share| !share.waiting.is_empty())
    }

    /// Returns how many sequences wait.
    pub(super) fn len(&self) -> usize {
        self.num_waiting
    }

    /// Returns all sequences, client by client, who has been given least first.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Sequence> {
        let mut clients: Vec<_> = self.clients.iter().collect();
        clients.sort_unstable_by_key(|(client, share)| (share.num_served_tokens, **client));
        clients.into_iter().flat_map(|(_, share)| share.waiting.values())
    }

    fn share_mut(&mut self, client: ClientId) -> &mut ClientShare {
        self.clients.get_mut(&client).expect("a client with sequences has requests")
    }

    /// Checks the invariants in the module header.
    ///
    /// # Panics
    /// When one does not hold: a bug of this crate.
    pub(super) fn check_invariants(&self) {
        let mut num_waiting = 0;
        for (&client, share) in &self.clients {
            assert!(share.num_requests > 0, "a client without requests is known");
            num_waiting += share.waiting.len();
            for (rank, sequence) in &share.waiting {
                assert_eq!((*rank, rank.client), (sequence.rank, client));
                assert!(sequence.table.blocks().is_empty(), "{} waits with blocks", sequence.id);
            }
        }
        assert_eq!(num_waiting, self.num_waiting);
        assert!(self.departed.keys().all(|client| !self.clients.contains_key(client)));
    }
}
