//! Wakes futures at exact moments.
//!
//! The runtime's timers are exact to 1 ms, which is as long as a token of a fast server takes. A
//! thread of its own that sleeps until the next moment wakes within a tenth of that on an idle
//! machine. It ends with the last [`Alarm`] that uses it.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Instant;
use tokio::sync::oneshot;

/// Wakes futures at exact moments.
#[derive(Clone, Debug)]
pub(super) struct Alarm {
    waits: Sender<Wait>,
}

#[derive(Debug)]
struct Wait {
    when: Instant,
    wake: oneshot::Sender<()>,
}

impl PartialEq for Wait {
    fn eq(&self, other: &Self) -> bool {
        self.when == other.when
    }
}

impl Eq for Wait {}

impl PartialOrd for Wait {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Wait {
    fn cmp(&self, other: &Self) -> Ordering {
        self.when.cmp(&other.when)
    }
}

impl Alarm {
    /// Starts the thread.
    pub(super) fn start() -> io::Result<Self> {
        let (waits, receiver) = channel();
        thread::Builder::new().name("alarm".to_owned()).spawn(move || ring(&receiver))?;
        Ok(Self { waits })
    }

    /// Waits until a moment; returns at once when it has passed.
    pub(super) async fn wait_until(&self, when: Instant) {
        if when <= Instant::now() {
            return;
        }
        let (wake, woken) = oneshot::channel();
        self.waits.send(Wait { when, wake }).expect("the thread runs as long as a sender lives");
        let _ = woken.await;
    }
}

fn ring(receiver: &Receiver<Wait>) {
    let mut waits = BinaryHeap::new();
    loop {
        let now = Instant::now();
        while waits.peek().is_some_and(|Reverse(wait): &Reverse<Wait>| wait.when <= now) {
            if let Some(Reverse(wait)) = waits.pop() {
                // Nobody waits any more when the level was stopped.
                let _ = wait.wake.send(());
            }
        }
        let received = match waits.peek() {
            Some(Reverse(next)) => {
                receiver.recv_timeout(next.when.saturating_duration_since(Instant::now()))
            }
            None => receiver.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        match received {
            Ok(wait) => waits.push(Reverse(wait)),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[tokio::test]
    async fn waits_end_in_order_and_not_early() {
        let alarm = Alarm::start().unwrap();
        let start = Instant::now();
        let wait = async |after_ms: u64| {
            let when = start + Duration::from_millis(after_ms);
            alarm.wait_until(when).await;
            let now = Instant::now();
            assert!(now >= when, "woken {:?} early", when - now);
            now
        };
        let (late, soon, past) = tokio::join!(wait(30), wait(10), wait(0));
        assert!(past <= soon && soon < late);
    }
}
