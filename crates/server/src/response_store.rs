//! Responses that are kept after they were told, so that clients can ask for them again and go on
//! from them.
//!
//! Each belongs to a client and is seen by nobody else. All together are bounded in number and in
//! bytes: [`Shelves`] says who makes room. What still runs is never lost; it is bounded as requests
//! are. Each response holds its whole conversation, so that it can be deleted without harm to those
//! that go on from it. Nothing survives the process.

use crate::client::Client;
use crate::request_record::RequestRecord;
use crate::response_events::{EventLog, EventWriter, ToldEvent};
use crate::response_shelves::{Progress, RunPlace, Shelves, Stored};
use crate::wire::responses::item::Item;
use crate::wire::responses::refusal::StoredRefusal;
use crate::wire::responses::response::{ResponseObject, ResponseStatus};
use axum::body::Bytes;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{SetOnce, oneshot};

/// How much is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResponseStoreLimits {
    /// Responses at most.
    pub max_responses: usize,
    /// Bytes of all of them at most, each with its whole conversation; 0 keeps none.
    pub max_bytes: usize,
}

impl Default for ResponseStoreLimits {
    fn default() -> Self {
        Self { max_responses: 4096, max_bytes: 64 << 20 }
    }
}

/// The responses of all clients.
#[derive(Debug)]
pub(crate) struct ResponseStore {
    limits: ResponseStoreLimits,
    shelves: Mutex<Shelves>,
}

/// A response in the background.
#[derive(Debug)]
pub(crate) struct RunningResponse {
    /// As it was when it was accepted.
    pub(crate) response: ResponseObject,
    /// How far its request has come.
    pub(crate) record: Arc<RequestRecord>,
    /// Ends it when dropped.
    pub(crate) cancel: Option<oneshot::Sender<()>>,
    /// What it was in the end.
    pub(crate) end: Arc<SetOnce<Bytes>>,
}

impl RunningResponse {
    /// Returns the response as it is: what it says so far is told at its end.
    fn now(&self) -> ResponseObject {
        let mut response = self.response.clone();
        response.status = match self.record.progress().admitted_at {
            None => ResponseStatus::Queued,
            Some(_) => ResponseStatus::InProgress,
        };
        response
    }
}

/// A response that nothing is added to.
#[derive(Clone, Debug)]
pub(crate) struct EndedResponse {
    /// Its JSON.
    pub(crate) body: Bytes,
    /// What the model said.
    pub(crate) output: Vec<Arc<Item>>,
}

/// A response that was looked up.
#[derive(Debug)]
pub(crate) enum FoundResponse {
    /// It runs in the background.
    Running(Box<ResponseObject>),
    /// The JSON of one that has ended.
    Ended(Bytes),
}

impl ResponseStore {
    /// Creates a store without responses.
    pub(crate) fn new(limits: ResponseStoreLimits) -> Self {
        Self { limits, shelves: Mutex::default() }
    }

    /// Tells whether anything can be kept.
    pub(crate) fn is_off(&self) -> bool {
        self.limits.max_bytes == 0 || self.limits.max_responses == 0
    }

    /// Keeps a response that has ended.
    pub(crate) fn keep(
        &self,
        client: Client,
        id: &str,
        input: Vec<Arc<Item>>,
        ended: EndedResponse,
    ) {
        self.add(client, id, Stored::new(input, RunPlace::Foreground, Progress::Ended(ended)));
    }

    /// Keeps a response that runs in the background, and its events where they are told.
    pub(crate) fn keep_running(
        &self,
        client: Client,
        id: &str,
        input: Vec<Arc<Item>>,
        running: RunningResponse,
        events: Option<Arc<EventLog>>,
    ) {
        let progress = Progress::Running(Box::new(running));
        let stored = Stored::new(input, RunPlace::Background, progress);
        self.add(client, id, stored.with_events(events));
    }

    /// Tells an event of a response in the background; once it is deleted, the last one is what
    /// those who still read get.
    pub(crate) fn tell(&self, client: Client, id: &str, writer: &EventWriter, event: ToldEvent) {
        let mut shelves = self.lock();
        shelves.tell(client, id, writer, event);
        shelves.make_room(self.limits);
    }

    /// Returns the events of a response.
    ///
    /// # Errors
    /// Refuses ids that the client has no response of, and responses whose events are not there.
    pub(crate) fn events(&self, client: Client, id: &str) -> Result<Arc<EventLog>, StoredRefusal> {
        let mut shelves = self.lock();
        let Some(log) = &shelves.used(client, id)?.events else {
            return Err(StoredRefusal::NotStreamed { id: id.to_owned() });
        };
        if log.is_forgotten() {
            return Err(StoredRefusal::EventsNotFound { id: id.to_owned() });
        }
        Ok(Arc::clone(log))
    }

    /// Takes the end of a response that ran in the background, unless it was deleted.
    pub(crate) fn end(&self, client: Client, id: &str, ended: EndedResponse) {
        let mut shelves = self.lock();
        if let Some(stored) = shelves.take(client, id) {
            shelves.put(client, id, stored.ended(ended));
            shelves.make_room(self.limits);
        }
    }

    /// Returns a response.
    ///
    /// # Errors
    /// Refuses ids that the client has no response of.
    pub(crate) fn get(&self, client: Client, id: &str) -> Result<FoundResponse, StoredRefusal> {
        match &self.lock().used(client, id)?.progress {
            Progress::Running(running) => Ok(FoundResponse::Running(Box::new(running.now()))),
            Progress::Ended(ended) => Ok(FoundResponse::Ended(ended.body.clone())),
        }
    }

    /// Returns what a response was given.
    ///
    /// # Errors
    /// Refuses ids that the client has no response of.
    pub(crate) fn input(&self, client: Client, id: &str) -> Result<Vec<Arc<Item>>, StoredRefusal> {
        Ok(self.lock().used(client, id)?.input.clone())
    }

    /// Returns the conversation that ends with a response.
    ///
    /// # Errors
    /// Refuses ids that the client has no response of, and responses that still run.
    pub(crate) fn conversation(
        &self,
        client: Client,
        id: &str,
    ) -> Result<Vec<Arc<Item>>, StoredRefusal> {
        let mut shelves = self.lock();
        let Ok(stored) = shelves.used(client, id) else {
            return Err(StoredRefusal::PreviousNotFound { id: id.to_owned() });
        };
        match &stored.progress {
            Progress::Running(_) => Err(StoredRefusal::PreviousStillRuns { id: id.to_owned() }),
            Progress::Ended(ended) => {
                Ok(stored.input.iter().chain(&ended.output).cloned().collect())
            }
        }
    }

    /// Forgets a response; one that runs is ended.
    ///
    /// # Errors
    /// Refuses ids that the client has no response of.
    pub(crate) fn delete(&self, client: Client, id: &str) -> Result<(), StoredRefusal> {
        if self.lock().forget(client, id) {
            return Ok(());
        }
        Err(StoredRefusal::NotFound { id: id.to_owned() })
    }

    /// Ends a response that runs in the background, and returns where its end will be; of one that
    /// has ended, it is there.
    ///
    /// # Errors
    /// Refuses ids that the client has no response of, and responses that do not run by themselves.
    pub(crate) fn cancel(
        &self,
        client: Client,
        id: &str,
    ) -> Result<Arc<SetOnce<Bytes>>, StoredRefusal> {
        let mut shelves = self.lock();
        let stored = shelves.used(client, id)?;
        if stored.place == RunPlace::Foreground {
            return Err(StoredRefusal::NotInBackground { id: id.to_owned() });
        }
        match &mut stored.progress {
            Progress::Running(running) => {
                drop(running.cancel.take());
                Ok(Arc::clone(&running.end))
            }
            Progress::Ended(ended) => Ok(Arc::new(SetOnce::new_with(Some(ended.body.clone())))),
        }
    }

    fn add(&self, client: Client, id: &str, stored: Stored) {
        let mut shelves = self.lock();
        shelves.put(client, id, stored);
        shelves.make_room(self.limits);
    }

    fn lock(&self) -> MutexGuard<'_, Shelves> {
        // No code panics while it holds the lock.
        self.shelves.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::responses::item::ItemIds;
    use crate::wire::responses::item_reading::read_input;
    use serde_json::json;
    use std::net::Ipv4Addr;

    const ONE: Client = Client::Key([1; 32]);
    const OTHER: Client = Client::Address(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST));

    fn store(max_responses: usize, max_bytes: usize) -> ResponseStore {
        ResponseStore::new(ResponseStoreLimits { max_responses, max_bytes })
    }

    fn items(text: &str) -> Vec<Arc<Item>> {
        read_input(Some(json!(text)), &mut ItemIds::new("x")).unwrap()
    }

    /// Keeps a response whose JSON has so many bytes.
    fn keep(store: &ResponseStore, client: Client, id: &str, num_bytes: usize) {
        let ended = EndedResponse { body: vec![b'x'; num_bytes].into(), output: items("answer") };
        store.keep(client, id, items("question"), ended);
    }

    fn has(store: &ResponseStore, client: Client, id: &str) -> bool {
        let has = store.lock().has(client, id);
        // Looked up as clients do where that changes nothing.
        assert!(has || store.get(client, id).is_err());
        has
    }

    #[test]
    fn a_response_is_seen_by_its_client_only() {
        let store = store(10, 1 << 20);
        keep(&store, ONE, "a", 10);
        let not_found = StoredRefusal::NotFound { id: "a".to_owned() };
        assert_eq!(store.get(OTHER, "a").unwrap_err(), not_found);
        assert_eq!(store.input(OTHER, "a").unwrap_err(), not_found);
        assert_eq!(store.delete(OTHER, "a").unwrap_err(), not_found);
        assert_eq!(store.cancel(OTHER, "a").unwrap_err(), not_found);
        let not_found = StoredRefusal::PreviousNotFound { id: "a".to_owned() };
        assert_eq!(store.conversation(OTHER, "a").unwrap_err(), not_found);
        assert_eq!(store.conversation(ONE, "a").unwrap().len(), 2);
        store.delete(ONE, "a").unwrap();
        assert!(store.delete(ONE, "a").is_err() && store.get(ONE, "a").is_err());
        store.lock().check_counts();
    }

    #[test]
    fn the_response_used_least_makes_room() {
        let store = store(2, 1 << 20);
        keep(&store, ONE, "a", 10);
        keep(&store, ONE, "b", 10);
        assert!(store.get(ONE, "a").is_ok());
        keep(&store, ONE, "c", 10);
        assert!(has(&store, ONE, "a") && !has(&store, ONE, "b") && has(&store, ONE, "c"));
        // What goes on from a response uses it, too.
        store.conversation(ONE, "a").unwrap();
        keep(&store, ONE, "d", 10);
        assert!(has(&store, ONE, "a") && !has(&store, ONE, "c"));
        store.lock().check_counts();
    }

    #[test]
    fn bytes_are_bounded_and_what_is_too_large_is_not_kept() {
        let store = store(100, 10_000);
        for i in 0..20 {
            keep(&store, ONE, &i.to_string(), 2000);
            assert!(store.lock().num_bytes() <= 10_000);
        }
        assert!(has(&store, ONE, "19") && has(&store, ONE, "18") && !has(&store, ONE, "15"));
        keep(&store, ONE, "large", 10_001);
        assert!(!has(&store, ONE, "large"));
        store.lock().check_counts();
    }

    #[test]
    fn a_client_with_many_pushes_out_its_own() {
        let store = store(100, 20_000);
        keep(&store, OTHER, "mine", 4000);
        for i in 0..50 {
            keep(&store, ONE, &i.to_string(), 1000);
        }
        assert!(has(&store, OTHER, "mine") && has(&store, ONE, "49"));
        store.lock().check_counts();
    }
}
