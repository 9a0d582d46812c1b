//! Where kept responses stand: by client, counted, and making room for each other.
//!
//! The counts are those of what is there; all together are bounded in number and in bytes. Beyond
//! either, the client that has the most loses the response that it has not used for the longest
//! time, so that no client can push out another's by asking for many. What still runs is never
//! lost.
//!
//! Cost: a lookup is one in a table; making room looks at all responses.

use crate::client::Client;
use crate::response_store::{EndedResponse, ResponseStoreLimits, RunningResponse};
use crate::wire::responses::item::Item;
use crate::wire::responses::refusal::StoredRefusal;
use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;

/// The responses of all clients.
#[derive(Debug, Default)]
pub(crate) struct Shelves {
    by_client: HashMap<Client, Shelf>,
    num_responses: usize,
    num_bytes: usize,
    /// Counts uses, so that later ones have higher numbers.
    num_uses: u64,
}

/// The responses of one client.
#[derive(Debug, Default)]
struct Shelf {
    responses: HashMap<String, Stored>,
    num_bytes: usize,
}

/// A response that is kept.
#[derive(Debug)]
pub(crate) struct Stored {
    /// What the model was given but for the instructions.
    pub(crate) input: Vec<Arc<Item>>,
    /// Where it runs, or ran.
    pub(crate) place: RunPlace,
    /// How far it has come.
    pub(crate) progress: Progress,
    num_bytes: usize,
    last_use: u64,
}

/// Where a response runs, or ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RunPlace {
    /// Before the eyes of its client, who ends it by leaving.
    Foreground,
    /// On its own.
    Background,
}

/// How far a response has come.
#[derive(Debug)]
pub(crate) enum Progress {
    /// More may come.
    Running(Box<RunningResponse>),
    /// Nothing is added to it.
    Ended(EndedResponse),
}

impl Stored {
    /// Makes what is to be measured and used.
    pub(crate) fn new(input: Vec<Arc<Item>>, place: RunPlace, progress: Progress) -> Self {
        Self { input, place, progress, num_bytes: 0, last_use: 0 }
    }

    /// Ends the response.
    pub(crate) fn ended(self, ended: EndedResponse) -> Self {
        Self { progress: Progress::Ended(ended), ..self }
    }

    /// Counts the memory that a response with this id takes.
    fn measured(mut self, id: &str) -> Self {
        let items = |items: &[Arc<Item>]| items.iter().map(|item| item.num_bytes()).sum::<usize>();
        let progress = match &self.progress {
            Progress::Running(_) => 0,
            Progress::Ended(ended) => ended.body.len() + items(&ended.output),
        };
        self.num_bytes = size_of::<Self>() + id.len() + items(&self.input) + progress;
        self
    }
}

impl Shelves {
    fn next_use(&mut self) -> u64 {
        self.num_uses += 1;
        self.num_uses
    }

    /// Returns a response, which thereby is used.
    pub(crate) fn used(&mut self, client: Client, id: &str) -> Result<&mut Stored, StoredRefusal> {
        let now = self.next_use();
        let shelf = self.by_client.get_mut(&client);
        let stored = shelf.and_then(|shelf| shelf.responses.get_mut(id));
        let stored = stored.ok_or_else(|| StoredRefusal::NotFound { id: id.to_owned() })?;
        stored.last_use = now;
        Ok(stored)
    }

    /// Adds a response, which thereby is used.
    pub(crate) fn put(&mut self, client: Client, id: &str, stored: Stored) {
        let last_use = self.next_use();
        let stored = Stored { last_use, ..stored }.measured(id);
        let shelf = self.by_client.entry(client).or_default();
        self.num_responses += 1;
        self.num_bytes += stored.num_bytes;
        shelf.num_bytes += stored.num_bytes;
        shelf.responses.insert(id.to_owned(), stored);
    }

    /// Takes a response out, if it is there.
    pub(crate) fn take(&mut self, client: Client, id: &str) -> Option<Stored> {
        let shelf = self.by_client.get_mut(&client)?;
        let stored = shelf.responses.remove(id)?;
        shelf.num_bytes -= stored.num_bytes;
        self.num_responses -= 1;
        self.num_bytes -= stored.num_bytes;
        if shelf.responses.is_empty() {
            // What is kept follows who has responses, not who ever had.
            self.by_client.remove(&client);
        }
        Some(stored)
    }

    /// Forgets responses until the others are within the limits.
    pub(crate) fn make_room(&mut self, limits: ResponseStoreLimits) {
        loop {
            let weight: fn(&Shelf) -> usize = if self.num_bytes > limits.max_bytes {
                |shelf| shelf.num_bytes
            } else if self.num_responses > limits.max_responses {
                |shelf| shelf.responses.len()
            } else {
                return;
            };
            let Some((client, id)) = self.least_used(weight) else { return };
            self.take(client, &id);
        }
    }

    /// Returns what the client with the most has not used for the longest time, of what has ended.
    fn least_used(&self, weight: fn(&Shelf) -> usize) -> Option<(Client, String)> {
        let candidates = self.by_client.iter().filter_map(|(client, shelf)| {
            let (last_use, id) = shelf.least_used()?;
            Some((weight(shelf), Reverse(last_use), *client, id))
        });
        let (.., client, id) =
            candidates.max_by_key(|&(weight, last_use, ..)| (weight, last_use))?;
        Some((client, id.to_owned()))
    }
}

impl Shelf {
    /// Returns what has not been used for the longest time, of what has ended, and its last use.
    fn least_used(&self) -> Option<(u64, &str)> {
        let has_ended = |stored: &Stored| matches!(stored.progress, Progress::Ended(_));
        let ended = self.responses.iter().filter(|(_, stored)| has_ended(stored));
        ended.map(|(id, stored)| (stored.last_use, id.as_str())).min()
    }
}

#[cfg(test)]
impl Shelves {
    /// Returns the bytes of all responses.
    pub(crate) fn num_bytes(&self) -> usize {
        self.num_bytes
    }

    /// Tells whether a response is there, which changes nothing.
    pub(crate) fn has(&self, client: Client, id: &str) -> bool {
        self.by_client.get(&client).is_some_and(|shelf| shelf.responses.contains_key(id))
    }

    /// Checks that the counts are those of what is there.
    pub(crate) fn check_counts(&self) {
        let all = || self.by_client.values().flat_map(|shelf| shelf.responses.values());
        assert_eq!(self.num_responses, all().count());
        assert_eq!(self.num_bytes, all().map(|stored| stored.num_bytes).sum::<usize>());
        assert!(self.by_client.values().all(|shelf| !shelf.responses.is_empty()));
    }
}
