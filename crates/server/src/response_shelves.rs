//! Where kept responses stand: by client, counted, and making room for each other.
//!
//! The counts are those of what is there; all together are bounded in number and in bytes. Beyond
//! either, the client that has the most loses the response that it has not used for the longest
//! time, so that no client can push out another's by asking for many. Where bytes are short, the
//! events of that response go first. What still runs is never lost; of a client that has nothing
//! else, events of what runs are.
//!
//! Cost: a lookup is one in a table; making room looks at all responses.

use crate::client::Client;
use crate::response_events::{EventLog, EventWriter, ToldEvent};
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
    /// What clients are told of it, where it was created as a stream in the background.
    pub(crate) events: Option<Arc<EventLog>>,
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

/// What there is too little of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shortage {
    /// Memory.
    Bytes,
    /// Places for responses.
    Places,
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
        Self { input, place, progress, events: None, num_bytes: 0, last_use: 0 }
    }

    /// Adds the log of its events.
    pub(crate) fn with_events(self, events: Option<Arc<EventLog>>) -> Self {
        Self { events, ..self }
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
        let events = self.events.as_ref().map_or(0, |log| log.num_bytes());
        self.num_bytes = size_of::<Self>() + id.len() + items(&self.input) + progress + events;
        self
    }

    fn has_ended(&self) -> bool {
        matches!(self.progress, Progress::Ended(_))
    }

    /// Returns the log, if it holds events that could make room.
    fn full_log(&self) -> Option<&Arc<EventLog>> {
        self.events.as_ref().filter(|log| !log.is_forgotten())
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

    /// Adds an event to a log, and counts it where the response is there.
    pub(crate) fn tell(
        &mut self,
        client: Client,
        id: &str,
        writer: &EventWriter,
        event: ToldEvent,
    ) {
        self.recount(client, id, writer.log(), || writer.tell(event));
    }

    /// Changes a log, and counts what the response takes with it.
    fn recount(&mut self, client: Client, id: &str, log: &EventLog, change: impl FnOnce()) {
        let before = log.num_bytes();
        change();
        let after = log.num_bytes();
        let Some(shelf) = self.by_client.get_mut(&client) else { return };
        let Some(stored) = shelf.responses.get_mut(id) else { return };
        for count in [&mut stored.num_bytes, &mut shelf.num_bytes, &mut self.num_bytes] {
            *count = *count - before + after;
        }
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

    /// Forgets a response, and its events with it; tells whether it was there.
    pub(crate) fn forget(&mut self, client: Client, id: &str) -> bool {
        let taken = self.take(client, id);
        if let Some(log) = taken.as_ref().and_then(|stored| stored.events.as_ref()) {
            log.forget();
        }
        taken.is_some()
    }

    /// Forgets responses until the others are within the limits.
    pub(crate) fn make_room(&mut self, limits: ResponseStoreLimits) {
        loop {
            let shortage = if self.num_bytes > limits.max_bytes {
                Shortage::Bytes
            } else if self.num_responses > limits.max_responses {
                Shortage::Places
            } else {
                return;
            };
            let Some((client, id)) = self.least_used(shortage) else { return };
            self.give_up(client, &id, shortage);
        }
    }

    /// Forgets a response, or of one that runs or has more than itself to give, the events.
    fn give_up(&mut self, client: Client, id: &str, shortage: Shortage) {
        let shelf = self.by_client.get(&client);
        let stored = shelf.and_then(|shelf| shelf.responses.get(id));
        let log = stored.and_then(Stored::full_log).filter(|_| shortage == Shortage::Bytes);
        match log.cloned() {
            Some(log) => self.recount(client, id, &log, || log.forget()),
            None => {
                self.forget(client, id);
            }
        }
    }

    /// Returns what the client with the most has not used for the longest time, of what can make
    /// room.
    fn least_used(&self, shortage: Shortage) -> Option<(Client, String)> {
        let candidates = self.by_client.iter().filter_map(|(client, shelf)| {
            let (last_use, id) = shelf.least_used(shortage)?;
            let weight = match shortage {
                Shortage::Bytes => shelf.num_bytes,
                Shortage::Places => shelf.responses.len(),
            };
            Some((weight, Reverse(last_use), *client, id))
        });
        let (.., client, id) =
            candidates.max_by_key(|&(weight, last_use, ..)| (weight, last_use))?;
        Some((client, id.to_owned()))
    }
}

impl Shelf {
    /// Returns what has not been used for the longest time, of what can make room, and its last
    /// use: what has ended, or else what has events.
    fn least_used(&self, shortage: Shortage) -> Option<(u64, &str)> {
        let least = |can_go: fn(&Stored) -> bool| {
            let candidates = self.responses.iter().filter(|(_, stored)| can_go(stored));
            candidates.map(|(id, stored)| (stored.last_use, id.as_str())).min()
        };
        least(Stored::has_ended).or_else(|| match shortage {
            Shortage::Bytes => least(|stored| stored.full_log().is_some()),
            Shortage::Places => None,
        })
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{IpAddr, Ipv4Addr};

    const ONE: Client = Client::Key([1; 32]);
    const OTHER: Client = Client::Address(IpAddr::V4(Ipv4Addr::LOCALHOST));

    /// Puts a response whose body has 1,000 bytes, with or without a log of ten events of 1,000
    /// bytes each.
    fn put(shelves: &mut Shelves, client: Client, id: &str, writer: Option<&EventWriter>) {
        let ended = EndedResponse { body: vec![b'x'; 1000].into(), output: Vec::new() };
        let log = writer.map(|writer| Arc::clone(writer.log()));
        let stored = Stored::new(Vec::new(), RunPlace::Background, Progress::Ended(ended));
        shelves.put(client, id, stored.with_events(log));
        let data = Arc::from("x".repeat(1000));
        for _ in 0..10 {
            if let Some(writer) = writer {
                let event = ToldEvent { name: "n", data: Arc::clone(&data) };
                shelves.tell(client, id, writer, event);
            }
        }
        shelves.check_counts();
    }

    fn make_room(shelves: &mut Shelves, max_responses: usize, max_bytes: usize) {
        shelves.make_room(ResponseStoreLimits { max_responses, max_bytes });
        shelves.check_counts();
    }

    #[test]
    fn events_count_and_make_room_before_their_response() {
        let (mut shelves, writers) = (Shelves::default(), [0, 1].map(|_| EventWriter::new()));
        put(&mut shelves, ONE, "a", Some(&writers[0]));
        put(&mut shelves, ONE, "b", Some(&writers[1]));
        assert!((22_000..26_000).contains(&shelves.num_bytes()), "{}", shelves.num_bytes());
        let forgotten = || writers.each_ref().map(|writer| writer.log().is_forgotten());
        make_room(&mut shelves, 10, 20_000);
        assert_eq!(forgotten(), [true, false]);
        assert!(shelves.has(ONE, "a") && shelves.has(ONE, "b"));
        make_room(&mut shelves, 10, 13_000);
        assert!(!shelves.has(ONE, "a") && shelves.has(ONE, "b"));
        make_room(&mut shelves, 10, 5000);
        assert!(forgotten()[1] && shelves.has(ONE, "b"));
        make_room(&mut shelves, 10, 1000);
        assert_eq!(shelves.num_bytes(), 0);
    }

    #[test]
    fn where_places_are_short_whole_responses_go() {
        let (mut shelves, writer) = (Shelves::default(), EventWriter::new());
        put(&mut shelves, ONE, "a", Some(&writer));
        put(&mut shelves, ONE, "b", None);
        make_room(&mut shelves, 1, usize::MAX);
        assert!(!shelves.has(ONE, "a") && shelves.has(ONE, "b"));
        assert!(writer.log().is_forgotten());
    }

    #[test]
    fn a_clients_events_push_out_nothing_of_others() {
        let (mut shelves, writer) = (Shelves::default(), EventWriter::new());
        put(&mut shelves, OTHER, "mine", None);
        put(&mut shelves, ONE, "a", Some(&writer));
        make_room(&mut shelves, 10, 8000);
        assert!(shelves.has(OTHER, "mine") && shelves.has(ONE, "a"));
        assert!(writer.log().is_forgotten());
    }

    #[test]
    fn what_is_told_of_a_response_that_is_gone_counts_for_nobody() {
        let (mut shelves, writer) = (Shelves::default(), EventWriter::new());
        put(&mut shelves, ONE, "a", Some(&writer));
        assert!(shelves.forget(ONE, "a") && !shelves.forget(ONE, "a"));
        shelves.tell(ONE, "a", &writer, ToldEvent { name: "n", data: "end".into() });
        assert_eq!(shelves.num_bytes(), 0);
        shelves.check_counts();
    }
}
