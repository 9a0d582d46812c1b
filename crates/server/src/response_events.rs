//! The events of a response in the background: told once, read by any number of clients.
//!
//! A log holds all events until it is told to forget them, since nobody asks for them any more or
//! others need the room. From then on it holds the last event only, which holds the whole response:
//! who has not read the others is given that one. A reader takes one event at a time out of the
//! log, so that a slow one holds nothing else and keeps nobody waiting.
//!
//! No lock is held while somebody waits.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::watch;

/// What the counts of a shared text take beside it.
const COUNTS_BYTES: usize = 2 * size_of::<usize>();

/// An event as clients are told of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ToldEvent {
    /// Its name.
    pub(crate) name: &'static str,
    /// Its JSON.
    pub(crate) data: Arc<str>,
}

impl ToldEvent {
    /// Returns the memory that it takes.
    fn num_bytes(&self) -> usize {
        size_of::<Self>() + COUNTS_BYTES + self.data.len()
    }
}

/// The events of one response.
#[derive(Debug)]
pub(crate) struct EventLog {
    told: Mutex<Told>,
    /// Changes with each event, and ends with the writer.
    news: watch::Receiver<()>,
}

#[derive(Debug, Default)]
struct Told {
    events: Vec<ToldEvent>,
    num_bytes: usize,
    /// Events so far, which is the number of the next one.
    num_told: u64,
    is_forgotten: bool,
}

/// What adds to a log; when it is dropped, all has been told.
#[derive(Debug)]
pub(crate) struct EventWriter {
    log: Arc<EventLog>,
    news: watch::Sender<()>,
}

/// A place in a log.
#[derive(Debug)]
pub(crate) struct EventReader {
    log: Arc<EventLog>,
    news: watch::Receiver<()>,
    /// The number of the next event.
    next: u64,
}

impl EventWriter {
    /// Begins a log.
    pub(crate) fn new() -> Self {
        let (news, receiver) = watch::channel(());
        let log = EventLog { told: Mutex::default(), news: receiver };
        Self { log: Arc::new(log), news }
    }

    /// Returns the log.
    pub(crate) fn log(&self) -> &Arc<EventLog> {
        &self.log
    }

    /// Adds an event, whose number must be the next one.
    pub(crate) fn tell(&self, event: ToldEvent) {
        let mut told = self.log.lock();
        told.num_told += 1;
        if told.is_forgotten {
            told.clear();
        }
        told.num_bytes += event.num_bytes();
        told.events.push(event);
        drop(told);
        self.news.send_replace(());
    }
}

impl EventLog {
    /// Returns the memory that the events take.
    pub(crate) fn num_bytes(&self) -> usize {
        self.lock().num_bytes
    }

    /// Tells whether events before the last are gone.
    pub(crate) fn is_forgotten(&self) -> bool {
        self.lock().is_forgotten
    }

    /// Forgets all events but the last.
    pub(crate) fn forget(&self) {
        let mut told = self.lock();
        told.is_forgotten = true;
        if let Some(last) = told.events.pop() {
            told.clear();
            told.num_bytes = last.num_bytes();
            told.events.push(last);
        }
    }

    /// Begins to read behind the event with this number, or at the first one.
    ///
    /// # Errors
    /// Returns the number of the last event where the place to begin is behind it.
    pub(crate) fn read(self: Arc<Self>, after: Option<u64>) -> Result<EventReader, u64> {
        let num_told = self.lock().num_told;
        let next = match after {
            None => 0,
            Some(after) if after < num_told => after + 1,
            Some(_) => return Err(num_told.saturating_sub(1)),
        };
        Ok(EventReader { news: self.news.clone(), log: self, next })
    }

    /// Returns the event with this number, if it was told and can still be had.
    fn event(&self, number: u64) -> Option<ToldEvent> {
        let told = self.lock();
        let index = usize::try_from(number).ok().filter(|_| !told.is_forgotten)?;
        told.events.get(index).cloned()
    }

    /// Returns the last event, unless its number is below `number`.
    fn last_from(&self, number: u64) -> Option<ToldEvent> {
        let told = self.lock();
        told.events.last().filter(|_| number < told.num_told).cloned()
    }

    fn lock(&self) -> MutexGuard<'_, Told> {
        // No code panics while it holds the lock.
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Told {
    /// Drops the events, with the memory that they took.
    fn clear(&mut self) {
        self.events = Vec::new();
        self.num_bytes = 0;
    }
}

impl EventReader {
    /// Waits for the next event; `None` when all has been told.
    pub(crate) async fn next(&mut self) -> Option<ToldEvent> {
        loop {
            // Seen before the look into the log: what is told after the look is news.
            self.news.mark_unchanged();
            if let Some(event) = self.log.event(self.next) {
                self.next += 1;
                return Some(event);
            }
            if self.news.changed().await.is_err() {
                let last = self.log.last_from(self.next);
                self.next = u64::MAX;
                return last;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(number: u64) -> ToldEvent {
        ToldEvent { name: "n", data: number.to_string().into() }
    }

    fn tell(writer: &EventWriter, numbers: std::ops::Range<u64>) {
        numbers.for_each(|number| writer.tell(event(number)));
    }

    fn block_on<T>(work: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(work)
    }

    /// Returns what a reader gets until the end.
    async fn rest(mut reader: EventReader) -> Vec<ToldEvent> {
        let mut events = Vec::new();
        while let Some(event) = reader.next().await {
            events.push(event);
        }
        assert_eq!(reader.next().await, None);
        events
    }

    fn reader(writer: &EventWriter, after: Option<u64>) -> EventReader {
        Arc::clone(writer.log()).read(after).unwrap()
    }

    #[test]
    fn all_readers_get_all_events_from_where_they_begin() {
        let writer = EventWriter::new();
        tell(&writer, 0..3);
        let readers = [None, Some(0), Some(2)].map(|after| reader(&writer, after));
        let told = block_on(async {
            let [a, b, c] = readers.map(rest);
            let write = async move {
                tell(&writer, 3..5);
                tokio::task::yield_now().await;
                tell(&writer, 5..6);
            };
            tokio::join!(a, b, c, write)
        });
        let all: Vec<_> = (0..6).map(event).collect();
        assert_eq!((told.0, told.1, told.2), (all.clone(), all[1..].to_vec(), all[3..].to_vec()));
    }

    #[test]
    fn nobody_begins_behind_the_last_event() {
        let writer = EventWriter::new();
        tell(&writer, 0..3);
        let log = Arc::clone(writer.log());
        assert_eq!(Arc::clone(&log).read(Some(3)).unwrap_err(), 2);
        assert_eq!(Arc::clone(&log).read(Some(u64::MAX)).unwrap_err(), 2);
        let at_the_end = reader(&writer, Some(2));
        drop(writer);
        assert_eq!(block_on(rest(at_the_end)), []);
        assert_eq!(block_on(rest(log.read(Some(1)).unwrap())), [event(2)]);
    }

    #[test]
    fn who_has_not_read_what_is_forgotten_gets_the_last_event() {
        let writer = EventWriter::new();
        tell(&writer, 0..3);
        let [mut early, at_the_end] = [None, Some(2)].map(|after| reader(&writer, after));
        assert_eq!(block_on(early.next()), Some(event(0)));
        writer.log().forget();
        assert!(writer.log().is_forgotten());
        assert_eq!(writer.log().num_bytes(), event(2).num_bytes());
        tell(&writer, 3..6);
        assert_eq!(writer.log().num_bytes(), event(5).num_bytes());
        let log = Arc::clone(writer.log());
        drop(writer);
        for reader in [early, at_the_end] {
            assert_eq!(block_on(rest(reader)), [event(5)]);
        }
        // Forgotten after its end, too.
        log.forget();
        assert_eq!(block_on(rest(Arc::clone(&log).read(None).unwrap())), [event(5)]);
        assert_eq!(block_on(rest(log.read(Some(5)).unwrap())), []);
    }
}
