//! Who of the clients is who, and how many requests of one run or wait at once, so that one client
//! cannot fill the queue for all.

use crate::client::Client;
use mini_infer_core::ClientId;
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Numbers clients, and counts the requests of each that has any.
#[derive(Debug)]
pub(crate) struct ClientLimits {
    limit: Option<u32>,
    /// Keyed at random, so that nobody can choose an address with another's number.
    numbers: RandomState,
    counts: Mutex<HashMap<Client, u32>>,
}

/// A request's place among those of its client, until this is dropped.
#[derive(Debug)]
pub(crate) struct ClientPlace {
    limits: Arc<ClientLimits>,
    client: Client,
}

impl ClientLimits {
    /// Creates the counts of a server whose clients may have `limit` requests each.
    pub(crate) fn new(limit: Option<u32>) -> Self {
        Self { limit, numbers: RandomState::new(), counts: Mutex::default() }
    }

    /// Returns the number by which the engine knows a client.
    pub(crate) fn number(&self, client: Client) -> ClientId {
        ClientId(self.numbers.hash_one(client))
    }

    /// Takes a place for a request of `client`.
    ///
    /// # Errors
    /// Returns the limit when the client has that many requests.
    pub(crate) fn enter(self: &Arc<Self>, client: Client) -> Result<Option<ClientPlace>, u32> {
        let Some(limit) = self.limit else {
            return Ok(None);
        };
        let mut counts = self.lock();
        let count = counts.entry(client).or_insert(0);
        if *count >= limit {
            return Err(limit);
        }
        *count += 1;
        Ok(Some(ClientPlace { limits: Arc::clone(self), client }))
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Client, u32>> {
        // No code panics while it holds the lock.
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for ClientPlace {
    fn drop(&mut self) {
        let mut counts = self.limits.lock();
        if let Some(count) = counts.get_mut(&self.client) {
            *count -= 1;
            if *count == 0 {
                // What is kept follows who is there, not who ever was.
                counts.remove(&self.client);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    #[test]
    fn each_client_has_its_places_and_gets_them_back() {
        let limits = Arc::new(ClientLimits::new(Some(2)));
        let (one, other) = (Client::Key([1; 32]), Client::Address(Ipv4Addr::LOCALHOST.into()));
        let first = limits.enter(one).unwrap();
        let _second = limits.enter(one).unwrap();
        assert_eq!(limits.enter(one).unwrap_err(), 2);
        drop(limits.enter(other).unwrap());
        drop(first);
        let third = limits.enter(one).unwrap();
        assert_eq!(limits.enter(one).unwrap_err(), 2);
        drop((_second, third));
        assert!(limits.lock().is_empty());
    }

    #[test]
    fn each_client_has_its_number() {
        let limits = ClientLimits::new(None);
        let (one, other) = (Client::Key([1; 32]), Client::Key([2; 32]));
        assert_eq!(limits.number(one), limits.number(one));
        assert_ne!(limits.number(one), limits.number(other));
    }

    #[test]
    fn without_a_limit_nothing_is_counted() {
        let limits = Arc::new(ClientLimits::new(None));
        assert!(limits.enter(Client::Key([1; 32])).unwrap().is_none());
        assert!(limits.lock().is_empty());
    }
}
